"""A network of processes on this machine, from one recipe: for trying it out, and for tests."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mapl.errors import MaplError
from mapl.peer.authority import create_network, invite
from mapl.peer.enrolment import Enrolment
from mapl.peer.invitations import Invitation
from mapl.peer.joining import join
from mapl.peer.settings import to_toml
from mapl.recipe import Recipe
from mapl.runs.files import write_aside
from mapl.trees import Tree, merge

HOST = "127.0.0.1"
PEER = "PEER.toml"
LOG = "peer.log"
PORTS = range(10_000, 32_000)
"""Below those that the system gives to connections: while a peer is away, none of them takes its port."""


def name_of(number: int) -> str:
    """What the client of this number is called."""
    return f"peer-{number}"


def make_network(
    folder: Path, recipe: Recipe, over: Tree | None = None, hosts: Sequence[str] | None = None
) -> list[Path]:
    """Identities and a PEER.toml for every client of a recipe, each in a folder of its own. Returns those files.

    `over` is laid over each PEER.toml. `hosts` has an address for each peer, if that is not this machine's loopback.
    """
    folder.mkdir(parents=True, exist_ok=True)
    where = [HOST] * recipe.clients if hosts is None else hosts
    # The first one also by the loopback, where the others join.
    first = create_network("local", name_of(0), sorted({HOST, where[0]}), recipe, folder / name_of(0) / "identity")
    identities = [first]
    with Enrolment(first.folder, HOST, 0) as service:
        for number in range(1, recipe.clients):
            path = folder / f"{name_of(number)}.invitation"
            invite(first, name_of(number), f"{HOST}:{service.port}", path, number)
            identities.append(join(Invitation.load(path), [where[number]], folder / name_of(number) / "identity"))
            path.unlink()
    certificates = [identity.own.certificate for identity in identities]
    for identity in identities:
        for pem in certificates:
            identity.admit(pem)
    ports = free_ports(recipe.clients) if hosts is None else [7447] * recipe.clients
    addresses = [f"{host}:{port}" for host, port in zip(where, ports, strict=True)]
    files = []
    for number, address in enumerate(addresses):
        tree: Tree = {
            "identity": "identity",
            "folder": "state",
            # Dialled one way: of two peers that dial each other at once, both may lose.
            "net": {"listen": address, "connect": addresses[:number], "discover": "addresses"},
        }
        path = folder / name_of(number) / PEER
        write_aside(path, to_toml(merge(tree, over or {})).encode())
        files.append(path)
    return files


def free_ports(count: int) -> list[int]:
    """UDP ports that are free now, all different."""
    ports = list(PORTS)
    random.SystemRandom().shuffle(ports)
    found: list[int] = []
    for port in ports:
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.bind((HOST, port))
            found.append(port)
        if len(found) == count:
            return found
    raise MaplError(f"there are no {count} free ports on {HOST}")


class LocalNetwork:
    """The processes of a local network. Each holds one peer; any can be killed and started again."""

    def __init__(self, files: Sequence[Path], first: Callable[[int], object] | None = None) -> None:
        self.files = list(files)
        self.first = first
        """What each process calls with its number before anything else."""
        # Forked from a process that has imported everything and has no threads: starting a peer takes no seconds.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["mapl.peer.process", "sklearn.datasets", "zenoh"])
        self._processes: dict[int, Any] = {}

    def start(self, number: int) -> None:
        """Start a peer, or start it again."""
        process = self._context.Process(
            target=_work, args=(self.files[number], self.first, number), name=name_of(number)
        )
        process.start()
        self._processes[number] = process

    def start_all(self) -> None:
        for number in range(len(self.files)):
            self.start(number)

    def kill(self, number: int) -> None:
        """End a peer with SIGKILL."""
        self._processes[number].kill()
        self._processes[number].join()

    def stop(self, number: int) -> None:
        """Ask a peer to finish its round and save."""
        self._processes[number].terminate()

    def running(self, number: int) -> bool:
        return number in self._processes and self._processes[number].is_alive()

    def status(self, number: int) -> int | None:
        """The exit status of a peer that has ended."""
        code: int | None = self._processes[number].exitcode
        return code

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all peers have ended. Whether they have."""
        until = None if seconds is None else time.monotonic() + seconds
        for process in list(self._processes.values()):
            process.join(None if until is None else max(0.0, until - time.monotonic()))
        return not any(process.is_alive() for process in self._processes.values())

    def __enter__(self) -> LocalNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            if process.is_alive():
                process.kill()
        for process in self._processes.values():
            process.join()


def _work(path: Path, first: Callable[[int], object] | None, number: int) -> None:
    """The life of one peer's process."""
    if first is not None:
        first(number)
    from mapl.errors import MaplError
    from mapl.peer.process import run_peer
    from mapl.peer.settings import read_settings
    from mapl.terminal.interrupt import Interrupt
    from mapl.terminal.messages import show_warning

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    interrupt = Interrupt()
    signal.signal(signal.SIGTERM, lambda number, frame: setattr(interrupt, "number", number))
    log = os.open(path.parent / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):  # also for what libraries print
        os.dup2(log, stream)
    warnings.showwarning = show_warning
    try:
        # The recipe is that of whoever made this network, on this machine.
        run_peer(read_settings(path), stop=interrupt, say=lambda text: print(text, flush=True), trust=True)
    except MaplError as error:
        print(f"error: {error}", flush=True)
        sys.exit(error.status)
