"""Ctrl-C and SIGTERM: a run saves and stops, and no command ends with a traceback.

Nothing slow is imported here: the command line needs it before anything else.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what `kill`, batch systems and service managers send before they kill."""


class Interrupt:
    """Ctrl-C or SIGTERM asks the run to finish its round and save. A second Ctrl-C raises KeyboardInterrupt.

    The object itself is the `stop` that runs ask: whether a signal has come.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        """The first signal that came."""

    @property
    def status(self) -> int:
        """The exit status of a command that was stopped, as a shell has it: 130 after Ctrl-C, 143 after SIGTERM."""
        return exit_status(self.number or signal.SIGINT)

    def __call__(self) -> bool:
        return self.number is not None

    def __enter__(self) -> Interrupt:
        self._previous = [signal.signal(number, self._handle) for number in SIGNALS]
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in zip(SIGNALS, self._previous, strict=True):
            signal.signal(number, previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
            _say("\nfinishing this round, then saving (Ctrl-C again to stop at once)")
        elif number == signal.SIGINT:
            if _importing(frame):
                _exit_at_once(number)
            raise KeyboardInterrupt
        # A second SIGTERM changes nothing: `timeout` sends two, and who loses patience sends SIGKILL.


def quit_on_signals() -> None:
    """From now on, Ctrl-C or SIGTERM ends a command that has nothing to save."""
    for number in SIGNALS:
        signal.signal(number, _quit)


def default_signals() -> None:
    """From now on, signals end the process at once. Python's own shutdown would answer Ctrl-C with a traceback."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def stopped(saved: str, command: str = "") -> str:
    """The last words of a command that was stopped: what was saved, and what continues it.

    Args:
        saved: what follows "stopped", as in "after round 3 of 8, saved in runs/mine".
        command: the command that continues; if empty, it is the same command.
    """
    return f"stopped {saved}; {f'continue with: {command}' if command else 'rerun the command to continue'}"


def leave(message: str, status: int) -> NoReturn:
    """End a command that was stopped, with these last words."""
    print(message, file=sys.stderr, flush=True)
    sys.exit(status)


def exit_status(number: int) -> int:
    """The conventional exit status of a command that a signal ended."""
    return 128 + number


def _quit(number: int, frame: FrameType | None) -> None:
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)  # another one would interrupt the clean-up
    if _importing(frame):
        _exit_at_once(number)
    sys.exit(exit_status(number))


def _importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported. Some, such as numpy and torch, turn any exception into one of their own."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return True
        frame = frame.f_back
    return False


def _exit_at_once(number: int) -> NoReturn:
    try:
        sys.stdout.flush()
    finally:
        os._exit(exit_status(number))


def _say(message: str) -> None:
    with suppress(RuntimeError, OSError):  # the signal came while something else was being printed, or nobody listens
        print(message, file=sys.stderr, flush=True)
