"""The arms of a report, and their curves. An arm is all the seeds of one recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mapl.analysis.compare import Arm, compare, group
from mapl.errors import MaplError
from mapl.runs.record import Record

Numbers = NDArray[np.float64]

# Okabe and Ito's colours, safe for colour-blind readers, without the yellow, which is too faint on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")
Dash = Literal["-", "--", ":", "-."]
DASHES: tuple[Dash, ...] = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Line:
    """An arm: one line in each picture and one row in the table."""

    label: str
    runs: list[Record]
    arm: Arm | None
    """Its numbers; None if none of its runs has been tested."""
    place: int
    """Its place among the arms, from 0: decides its colour."""

    @property
    def first(self) -> Record:
        """The run that was given first: its settings are those of the arm."""
        return self.runs[0]

    @cached_property
    def typical(self) -> Record:
        """The run that stands for the arm where only one can be shown: the one in the middle by its accuracy."""
        tested = sorted((run for run in self.runs if run.tested), key=lambda run: run.mean)
        return tested[(len(tested) - 1) // 2] if tested else self.first

    @property
    def colour(self) -> str:
        return PALETTE[self.place % len(PALETTE)]

    @property
    def dash(self) -> Dash:
        return DASHES[self.place // len(PALETTE) % len(DASHES)]

    @property
    def length(self) -> int:
        """Rounds that all of its runs have played."""
        return min(len(run.rounds) for run in self.runs)


@dataclass(frozen=True)
class Curve:
    """Something by round: its mean, and the 10 % and 90 % quantiles over clients and seeds."""

    rounds: Numbers
    """Counted from 1."""
    mean: Numbers
    low: Numbers
    high: Numbers


def lines(records: Sequence[Record]) -> list[Line]:
    """The arms of some runs, in the order first given."""
    groups = group(records)
    if not groups:
        raise MaplError("there is nothing to report: give at least one run")
    by_label = {arm.label: arm for arm in compare(records)}
    return [Line(label, runs, by_label.get(label), place) for place, (label, runs) in enumerate(groups.items())]


def most_interesting(lines: Sequence[Line]) -> Line:
    """The arm to show first: the most accurate of those whose clients listen to each other, or else of all.

    A ceiling comes last: its clients have each other's data.
    """

    def interest(line: Line) -> tuple[bool, bool, float]:
        arm = line.arm
        if arm is None:
            return False, False, 0.0
        return not arm.is_ceiling, arm.messages > 0 and line.typical.graph.exists, arm.accuracy.mean

    return max(lines, key=interest)


def accuracy_curve(line: Line) -> Curve | None:
    """Accuracy in % at the rounds where every seed was tested; None if there is no such round."""
    by_round = [{r.round: r.accuracy for r in run.tested} for run in line.runs if run.tested]
    if not by_round:
        return None
    shared = sorted(set.intersection(*(set(tests) for tests in by_round)))
    if not shared:
        return None
    return _curve(shared, [[100 * a for tests in by_round for a in tests[t] or ()] for t in shared])


def loss_terms(line: Line) -> list[str]:
    """The terms of the loss, in the method's order."""
    return list(dict.fromkeys(term for played in line.first.rounds for term in played.losses))


def loss_curve(line: Line, term: str) -> Curve:
    """One term of the loss by round."""
    by_round = {
        t: [v for run in line.runs for v in run.rounds[t].losses.get(term, ()) if v is not None]
        for t in range(line.length)
    }
    trained = {t: values for t, values in by_round.items() if values}
    return _curve(list(trained), list(trained.values()))


def message_curve(line: Line) -> Curve:
    """Messages per round, over seeds."""
    rounds = range(line.length)
    return _curve(rounds, [[float(run.rounds[t].messages) for run in line.runs] for t in rounds])


def mebibytes_curve(line: Line) -> Curve:
    """MiB sent up to each round, over seeds."""
    rounds = range(line.length)
    each = [[run.rounds[t].bytes / 2**20 for run in line.runs] for t in rounds]
    return _curve(rounds, np.cumsum(np.array(each), axis=0).tolist())


def _curve(rounds: Sequence[int], values: Sequence[Sequence[float]]) -> Curve:
    return Curve(
        rounds=np.array([t + 1 for t in rounds], dtype=np.float64),
        mean=np.array([np.mean(v) for v in values]),
        low=np.array([np.quantile(v, 0.1) for v in values]),
        high=np.array([np.quantile(v, 0.9) for v in values]),
    )
