"""Connecting to Ray: a running cluster, or a new one on this machine."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from mapl.engine.settings import RaySettings
from mapl.errors import MaplError

LOCAL = "local"
ALONE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""In spite of its name, Ray heeds it on Linux, too."""


def import_ray() -> Any:
    """Ray, which is an extra."""
    if find_spec("ray") is None:
        raise MaplError(
            "engine.where: got 'ray', but Ray is not installed: pip install 'mapl[ray]'",
            shell="--engine ray: Ray is not installed: pip install 'mapl[ray]'",
        )
    # It would report to its makers that it is used.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    return import_module("ray")


class Connection:
    """A connection to a cluster. If this process has one already, that is used, and stays open."""

    def __init__(self, settings: RaySettings) -> None:
        self.ray = import_ray()
        self.address = settings.address or os.environ.get("RAY_ADDRESS") or LOCAL
        self._mine = not self.ray.is_initialized()
        if self._mine:
            self._open()

    def close(self) -> None:
        if self._mine and self.ray.is_initialized():
            with _own_signals():
                self.ray.shutdown()

    def _open(self) -> None:
        if self.address not in (LOCAL, "auto"):
            _check_answers(self.address)
        new = {"include_dashboard": False} if self.address == LOCAL else {}
        try:
            with _own_signals(), _for_this_machine(self.address == LOCAL):
                self.ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR, **new)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise MaplError(
                f"engine.ray.address: no Ray cluster answers at {self.address!r} ({reason[:200]})"
            ) from error
        _without_logs()


def _check_answers(address: str) -> None:
    """Refuse an address at which nobody listens. Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise MaplError(
            f"engine.ray.address: got {address!r}, but it takes HOST:PORT of the cluster's head, on a machine of the "
            "cluster; submit the command there as a job"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise MaplError(f"engine.ray.address: no Ray cluster answers at {address!r} ({error})") from error


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself. A run has its own way to stop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _for_this_machine(alone: bool) -> Iterator[None]:
    """Let a new cluster be reachable from this machine only. Ray would listen to the whole network.

    Whoever reaches its ports can run code. Ray does this by itself on macOS and Windows, by this switch.
    """
    constants: Any = import_module("ray._private.ray_constants")
    before = os.environ.get(ALONE), constants.ENABLE_RAY_CLUSTER
    if alone:
        os.environ[ALONE], constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        if alone:
            constants.ENABLE_RAY_CLUSTER = before[1]
            del os.environ[ALONE]
            os.environ |= {ALONE: before[0]} if before[0] is not None else {}


def _without_logs() -> None:
    """Do not print what Ray logs about each process that died, dozens of lines. What matters is said here.

    It prints to the standard output, where programs read ours, and has no setting against it.
    """
    worker: Any = import_module("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *_, **__: None
