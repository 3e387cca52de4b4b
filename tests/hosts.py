"""Hosts on one machine: network namespaces with addresses of their own, joined by a bridge that can be cut in two.

It needs root and `ip` (iproute2). `missing()` says what is not there.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

CLONE_NEWNET = 0x40000000


def missing() -> str:
    """Why there can be no hosts here; empty if there can."""
    if shutil.which("ip") is None:
        return "ip (iproute2) is not installed"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"mapl-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode == 0:
        tried = subprocess.run(["ip", "link", "add", name[:15], "type", "bridge"], capture_output=True, text=True)
        ip("link", "del", name[:15], check=False)
        ip("netns", "del", name, check=False)
    return "" if tried.returncode == 0 else f"network namespaces are not permitted ({tried.stderr.strip()})"


def ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True)


class Hosts:
    """So many hosts on one network. `addresses` has an address for each."""

    def __init__(self, count: int) -> None:
        self.names = [f"mapl-{os.getpid()}-{n}" for n in range(count)]
        self.bridges = [f"mp{os.getpid() % 100000}b{n}" for n in range(2)]
        self.links = [f"mp{os.getpid() % 100000}v{n}" for n in range(count)]
        self.addresses = [f"10.77.0.{n + 1}" for n in range(count)]

    def __enter__(self) -> Hosts:
        try:
            for bridge in self.bridges:
                ip("link", "add", bridge, "type", "bridge")
                ip("link", "set", bridge, "up")
            for name, link, address in zip(self.names, self.links, self.addresses, strict=True):
                ip("netns", "add", name)
                ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
                ip("link", "set", link, "master", self.bridges[0], "up")
                for words in (("link", "set", "lo", "up"), ("addr", "add", f"{address}/24", "dev", "eth0"),
                              ("link", "set", "eth0", "up")):  # fmt: skip
                    ip("-n", name, *words)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            ip("netns", "del", name, check=False)
        for link in (*self.links, *self.bridges):
            ip("link", "del", link, check=False)

    def split(self, apart: Collection[int]) -> None:
        """Cut the network in two: these hosts reach each other and nobody else."""
        for number in apart:
            ip("link", "set", self.links[number], "master", self.bridges[1])

    def heal(self) -> None:
        """Join the two again."""
        for link in self.links:
            ip("link", "set", link, "master", self.bridges[0])


def enter(name: str) -> None:
    """Move this process, which has no threads yet, to a host."""
    with Path("/var/run/netns", name).open("rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {name}")
