"""Ctrl-C."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn

STOPPED = 130
"""The exit status after Ctrl-C."""


class Interrupt:
    """Ctrl-C asks the run to finish its round and save. A second Ctrl-C raises KeyboardInterrupt.

    The object itself is the `stop` that runs ask: whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        return self.asked

    def __enter__(self) -> Interrupt:
        self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print("\nfinishing this round, then saving (Ctrl-C again to stop at once)", file=sys.stderr, flush=True)


def leave(message: str) -> NoReturn:
    """End the command after Ctrl-C, with these last words and no traceback."""
    # Another Ctrl-C could only interrupt Python's own shutdown, which prints a traceback.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print(message, file=sys.stderr, flush=True)
    sys.exit(STOPPED)
