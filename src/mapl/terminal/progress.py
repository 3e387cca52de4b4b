"""How far a command is, on standard error: a live bar on a terminal, a plain line now and then in a log file.

Standard output is for results. Nothing is written to it here.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from mapl.names import printable
from mapl.pace import Pace, duration


class Show(Protocol):
    """Shows that `done` of `total` is done, in the words of `text`, with `left` seconds to go."""

    def __call__(self, done: int, total: int, text: str, left: float | None) -> None:
        """`total` is 0, and `left` None, as long as they are unknown."""
        ...


@contextmanager
def progress(every: float | None = None) -> Iterator[Show]:
    """A bar, or plain lines: one for each tenth of the work, or one in `every` seconds."""
    if not sys.stderr.isatty():
        yield PlainLines(sys.stderr, every)
        return
    text, left = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[left]}")
    # What is printed meanwhile stands above the bar. If results go into a pipe or a file, they stay there.
    above = sys.stdout.isatty()
    console = Console(stderr=True)
    with Bar(text, BarColumn(), TimeElapsedColumn(), left, console=console, redirect_stdout=above) as bar:
        task = bar.add_task("starting", total=None, left="")

        def show(done: int, total: int, text: str, left: float | None) -> None:
            bar.update(task, description=printable(text), completed=done, total=total or None, left=_left(left))

        yield show


@contextmanager
def counting(name: str) -> Iterator[Callable[[int, int], None]]:
    """Progress that is only told how much is done, and how much there is."""
    with progress() as show:
        pace = Pace()

        def count(done: int, total: int) -> None:
            show(done, total, f"{name}: {100 * done // total} %" if total else name, pace(done, total))

        yield count


class PlainLines:
    """One line for each tenth of the work; or one in `every` seconds, from when the time left is known."""

    def __init__(self, stream: TextIO, every: float | None = None):
        self.stream = stream
        self.every = every
        self.tenth = 0
        self.last = -math.inf

    def __call__(self, done: int, total: int, text: str, left: float | None) -> None:
        if self._due(done, total, left):
            print(f"{printable(text)}  {_left(left)}".rstrip(), file=self.stream, flush=True)

    def _due(self, done: int, total: int, left: float | None) -> bool:
        if self.every is None:
            before, self.tenth = self.tenth, 10 * done // total if total else 0
            return self.tenth > before
        now = time.monotonic()
        if left is None or now - self.last < self.every:
            return False
        self.last = now
        return True


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f"{duration(seconds)} left"
