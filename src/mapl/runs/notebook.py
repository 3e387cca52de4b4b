"""What a run shows in a notebook while it trains: a bar, its accuracy, and the time that is left.

It is one output that is written again and again, by the notebook's own means. So it needs no widgets, and a notebook
that was saved, or is looked at without a kernel, shows how the run ended.
"""

from __future__ import annotations

import sys
import time
from statistics import fmean
from typing import TYPE_CHECKING, Any

from mapl.pace import Pace, duration

if TYPE_CHECKING:
    from mapl.recipe import Recipe
    from mapl.runs.chain import Round

EVERY = 0.2
"""Seconds between two pictures."""


def in_notebook(rounds: int, done: int) -> list[Bar]:
    """The observer that shows a run of so many rounds, of which some are done; none outside of notebooks."""
    if "IPython" not in sys.modules:
        return []
    from IPython import get_ipython

    shell = get_ipython()
    # The shell in a terminal has no kernel. What it prints would stay there, line by line.
    return [] if getattr(shell, "kernel", None) is None or done >= rounds else [Bar(rounds, done)]


class Bar:
    """An observer of a run."""

    def __init__(self, rounds: int, done: int):
        from IPython.display import display

        self.rounds, self.accuracy, self.pace = rounds, "", Pace()
        self.pace(done, rounds)
        self.start = self.last = time.monotonic()
        show: Any = display  # has no types
        self.handle = show(Shown(done, rounds, "starting"), display_id=True)

    def __call__(self, recipe: Recipe, line: Round, seconds: dict[str, float]) -> None:
        if line.accuracy:
            self.accuracy = f"accuracy {100 * fmean(line.accuracy):.1f} %"
        done, now = line.round + 1, time.monotonic()
        if now - self.last < EVERY and done < self.rounds:
            return
        self.last = now
        left = self.pace(done, self.rounds)
        when = f"{duration(left)} left" if left else f"{duration(now - self.start)}"
        self.handle.update(Shown(done, self.rounds, ", ".join(filter(None, [self.accuracy, when]))))


class Shown:
    """How far a run is, as a notebook shows it."""

    def __init__(self, done: int, rounds: int, text: str):
        self.done, self.rounds, self.text = done, rounds, text

    def __repr__(self) -> str:
        return f"round {self.done} of {self.rounds}, {self.text}"

    def _repr_html_(self) -> str:
        return f'<progress value="{self.done}" max="{self.rounds}"></progress> {self!r}'
