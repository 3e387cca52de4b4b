"""What a run shows while it trains: progress for a person, or JSON lines for a program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean
from typing import TYPE_CHECKING, Any

from mapl.names import DASH
from mapl.pace import Pace
from mapl.terminal.progress import Show, progress

if TYPE_CHECKING:
    from mapl.recipe import Recipe
    from mapl.runs.chain import Round
    from mapl.runs.run import Observer


@contextmanager
def observing(rounds: int, as_json: bool) -> Iterator[Observer]:
    """An observer that shows how a run goes."""
    if as_json:
        yield _json_line
        return
    with progress() as show:
        yield RoundProgress(rounds, show)


class RoundProgress:
    """Shows each round, with the accuracy at the latest test."""

    def __init__(self, rounds: int, show: Show):
        self.rounds = rounds
        self.show = show
        self.accuracy = DASH
        self.pace = Pace()

    def __call__(self, recipe: Recipe, line: Round, seconds: dict[str, float]) -> None:
        done = line.round + 1
        if line.accuracy:
            self.accuracy = f"{100 * fmean(line.accuracy):.1f} %"
        text = f"round {done}/{self.rounds}  accuracy {self.accuracy}"
        self.show(done, self.rounds, text, self.pace(done, self.rounds))


def _json_line(recipe: Recipe, line: Round, seconds: dict[str, float]) -> None:
    from mapl.measures import METRICS  # imports numpy, and most commands never need it

    event: dict[str, Any] = {
        "event": "round",
        "round": line.round,
        "accuracy": fmean(line.accuracy) if line.accuracy else None,
        **{name: value for name in METRICS[1:] if (value := line.value(name)) is not None},
        "losses": line.mean_losses,
        "messages": line.messages,
        "bytes": line.bytes,
        "seconds": sum(seconds.values()),
        **({"refused": line.refused} if line.refused else {}),
    }
    print(json.dumps(event), flush=True)
