"""How fast clients that join late (`network.joiners`) catch up with those that were there from the start."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from mapl.errors import MaplError
from mapl.runs.record import Record

WITHIN = 0.02
"""A joiner has caught up once its accuracy is at most this far below the mean of the others."""


@dataclass(frozen=True)
class CatchUp:
    """One client that joined late."""

    client: int
    joined: int
    """The first round that it could take part in, counted from 0."""
    rounds: int | None
    """How many rounds later, its first one included, a test found that it had caught up; None: no test did."""


def catch_up(record: Record, within: float = WITHIN) -> list[CatchUp]:
    """Of each joiner of a run: when its accuracy was first at most `within` below the mean of the others in that test.

    The others are the clients that were there from the start. Empty before the joiners have joined.
    """
    if not 0 <= within <= 1:
        raise MaplError(f"within: got {within}; give a share of 1, such as 0.02 for two points")
    late = record.recipe.network.joiners
    first = record.recipe.clients - late.clients
    before = [place for place, client in enumerate(record.held) if client < first]
    if not late.clients or not before or len(record.rounds) <= late.round:
        return []
    tests = [(line.round - late.round + 1, line.accuracy) for line in record.tested if line.round >= late.round]
    found = []
    for place, client in enumerate(record.held):
        if client >= first:
            reached = (
                after
                for after, a in tests
                if a is not None and a[place] >= fmean(a[i] for i in before) - within - 1e-12
            )
            found.append(CatchUp(client, late.round, next(reached, None)))
    return found


def middle(rounds: Sequence[int | None]) -> float | None:
    """The median over joiners; None if there are none, or if it is one of those that have not caught up."""
    found = median([math.inf if value is None else value for value in rounds]) if rounds else math.inf
    return None if found == math.inf else float(found)


def in_words(rounds: Sequence[int | None]) -> str:
    """The median over joiners, and how many caught up: 3 rounds (4 of 4). Empty if nobody joined."""
    if not rounds:
        return ""
    after = middle(rounds)
    text = "not yet" if after is None else "1 round" if after == 1 else f"{after:g} rounds"
    return f"{text} ({sum(value is not None for value in rounds)} of {len(rounds)})"
