"""What a run shows while it goes: a live bar on a terminal, plain lines when piped, JSON lines for programs."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mapl.recipe import Recipe
from mapl.runs.history import Round
from mapl.runs.run import Observer


@contextmanager
def progress(rounds: int, as_json: bool) -> Iterator[Observer]:
    """An observer that tells a person, or a program, how a run goes."""
    if as_json:
        yield _json_line
    elif sys.stdout.isatty():
        with _bar() as bar:
            task = bar.add_task("training", total=rounds, accuracy="–")

            def advance(recipe: Recipe, line: Round, seconds: dict[str, float]) -> None:
                bar.update(task, completed=line.round + 1)
                if line.accuracy:
                    bar.update(task, accuracy=_percent(line.accuracy))

            yield advance
    else:
        yield _PlainLines(rounds)


def _bar() -> Progress:
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds  accuracy [bold]{task.fields[accuracy]}[/]"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(),
    )


class _PlainLines:
    """About ten lines a run, each with the accuracy at the last test so far and the time left."""

    def __init__(self, rounds: int):
        self.rounds = rounds
        self.played = 0
        self.accuracy = "–"
        self.start = time.monotonic()

    def __call__(self, recipe: Recipe, line: Round, seconds: dict[str, float]) -> None:
        done = line.round + 1
        self.played += 1  # not `done`: a resumed run starts in the middle
        if line.accuracy:
            self.accuracy = _percent(line.accuracy)
        if done % max(1, self.rounds // 10) and done != self.rounds:
            return
        left = (time.monotonic() - self.start) / self.played * (self.rounds - done)
        print(f"round {done}/{self.rounds}  accuracy {self.accuracy}  {left:.0f} s left", flush=True)


def _json_line(recipe: Recipe, line: Round, seconds: dict[str, float]) -> None:
    event: dict[str, Any] = {
        "event": "round",
        "round": line.round,
        "accuracy": fmean(line.accuracy) if line.accuracy else None,
        "losses": {term: fmean(values) for term, values in line.losses.items()},
        "messages": line.messages,
        "bytes": line.bytes,
        "seconds": sum(seconds.values()),
    }
    print(json.dumps(event), flush=True)


def _percent(accuracy: list[float]) -> str:
    return f"{100 * fmean(accuracy):.1f} %"


class Interrupt:
    """Ctrl-C asks the run to finish its round and save; a second Ctrl-C ends it at once."""

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
