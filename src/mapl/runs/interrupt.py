"""Ctrl-C in a script, or the stop button of a notebook: a run finishes its round and saves before it ends.

The command line handles signals itself (`mapl.terminal.interrupt`), and so may a program. Then nothing here happens.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(KeyboardInterrupt):
    """A run was interrupted, and has been saved. The message says how to go on."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: where in the library it was has no meaning for anybody."""
        return [f"KeyboardInterrupt: {self}"]


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Inside, the first Ctrl-C is only noted, and a second raises KeyboardInterrupt. Yields whether one has come."""
    came: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)
        print("finishing this round, then saving (interrupt again to stop at once)", file=sys.stderr, flush=True)

    in_charge = threading.current_thread() is threading.main_thread()
    if not in_charge or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: False
        return
    signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
