"""Differences between arms, paired by seed, and corrected for how many of them are looked at.

Two arms with the same seed have the same shards and first weights, so the difference of a pair has much less chance in
it than either accuracy. Among many differences some look large by chance alone. Holm's method (1979) corrects for that:
of m p-values the k-th smallest is multiplied by m − k + 1, and none gets smaller than one before it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, stdev
from typing import Any

from mapl.analysis.compare import Arm, Estimate, at_tests, compare, group
from mapl.measures import LOWER_IS_BETTER, TITLES, Metric
from mapl.recipe import has_letters, is_silent
from mapl.runs.record import Record

LEVEL = 0.05
FEW, ENOUGH = 3, 5
"""With `FEW` seeds an interval is worth little. To say that one confirms something takes `ENOUGH`."""


@dataclass(frozen=True)
class Difference:
    """How much better one arm is than another, over the seeds that both have."""

    first: str
    second: str
    """The labels of the arms."""
    seeds: list[int]
    difference: Estimate
    """First minus second. Its interval has the level that Holm's method gives it: 0 is outside of it exactly if `holm`
    is below 0.05. None with one seed."""
    p: float | None
    """Two-sided p-value of the paired t-test; None with one seed."""
    holm: float | None = None
    """The p-value corrected for the number of differences."""
    metric: Metric = "accuracy"

    @property
    def verdict(self) -> str:
        return verdict(self.difference, len(self.seeds), self.metric)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def verdict(difference: Estimate, seeds: int, metric: Metric = "accuracy") -> str:
    """What a difference shows, in words."""
    if difference.interval is None:
        return "from one seed: no claim"
    if abs(difference.mean) <= difference.interval:
        return "no difference that these seeds can show"
    kind = "a gain" if (difference.mean > 0) != (metric in LOWER_IS_BETTER) else "a loss"
    if seeds < ENOUGH:
        return f"{kind}, though {seeds} seeds are too few to confirm it"
    return f"{kind} that the interval confirms"


def differences(records: Sequence[Record], metric: Metric = "accuracy") -> list[Difference]:
    """All pairs of arms that compete, have a seed in common, and the same data and clients; in one metric.

    Those are the arms with letters, and those whose method never writes any. What letters add to one method is its
    collaboration gain. If that leaves no pair, arms without letters compete as well.
    """
    arms = [runs for runs in group(records).values() if runs[0].tested]
    labels = [arm.label for arm in compare(records)]
    entries = [(label, runs) for label, runs in zip(labels, arms, strict=True) if runs[0].whole]
    entries = [entry for entry in entries if not entry[1][0].recipe.partition.pooled] or entries
    competing = [entry for entry in entries if has_letters(entry[1][0].recipe) or is_silent(entry[1][0].recipe)]
    return _corrected(list(_pairs(competing, metric)) or list(_pairs(entries, metric)))


def _pairs(entries: Sequence[tuple[str, list[Record]]], metric: Metric) -> Iterator[Difference]:
    for (first, ours), (second, theirs) in itertools.combinations(entries, 2):
        by_seed = _by_seed(ours, theirs, metric)
        if by_seed:
            values = list(by_seed.values())
            yield Difference(first, second, list(by_seed), Estimate.of(values), _p(values), metric=metric)


def _by_seed(ours: Sequence[Record], theirs: Sequence[Record], metric: Metric) -> dict[int, float]:
    """Ours minus theirs, for the seeds that both have. If one was stopped early, both count as they were then."""
    found = {}
    others = {run.recipe.seed: run for run in theirs}
    for run in ours:
        other = others.get(run.recipe.seed)
        if other is None or not _same_clients(run, other):
            continue
        mine, its = at_tests(run, metric), at_tests(other, metric)
        if shared := mine.keys() & its.keys():
            found[run.recipe.seed] = mine[max(shared)] - its[max(shared)]
    return dict(sorted(found.items()))


def _same_clients(one: Record, other: Record) -> bool:
    """Whether each client has the same images in both."""
    a, b = one.recipe, other.recipe
    return (one.data, a.clients, a.partition) == (other.data, b.clients, b.partition)


def _p(values: Sequence[float]) -> float | None:
    """The two-sided p-value of Student's t-test of a mean of 0."""
    if len(values) < 2:
        return None
    from scipy.stats import t as student  # slow to import

    error = stdev(values) / math.sqrt(len(values))
    if error == 0:
        return 0.0 if fmean(values) else 1.0
    return float(2 * student.sf(abs(fmean(values)) / error, len(values) - 1))


def _corrected(found: Sequence[Difference]) -> list[Difference]:
    """With Holm's p-values, and intervals of the level at which Holm's method judges each."""
    ranked = sorted((d.p, place) for place, d in enumerate(found) if d.p is not None)
    number, before, failed = len(ranked), 0.0, False
    result = list(found)
    times = 1
    for rank, (p, place) in enumerate(ranked):
        if not failed:  # what comes after the first that is not significant is judged like that one
            times = number - rank
        before = max(before, min(1.0, (number - rank) * p))
        failed = failed or times * p >= LEVEL
        d = found[place]
        result[place] = replace(d, difference=_widened(d, times), holm=before)
    return result


def _widened(difference: Difference, times: int) -> Estimate:
    """The estimate with the interval of 1 − 0.05 / times in place of that of 95 %."""
    from scipy.stats import t as student

    free, estimate = len(difference.seeds) - 1, difference.difference
    assert estimate.interval is not None  # it has a p-value
    wider = float(student.ppf(1 - LEVEL / (2 * times), free) / student.ppf(1 - LEVEL / 2, free))
    return Estimate(estimate.mean, estimate.interval * wider)


def explained(found: Sequence[Difference]) -> str:
    """How the differences were corrected, in a sentence; empty if there are none with an interval."""
    number = sum(d.p is not None for d in found)
    if not number:
        return ""
    how = (
        "± is a 95 % interval; there is one comparison, so nothing to correct"
        if number == 1
        else f"p-values and intervals are corrected for {number} comparisons by Holm's method"
    )
    of = "" if found[0].metric == "accuracy" else f"in {TITLES[found[0].metric]} and "
    return f"differences are {of}paired by seed (two-sided paired t-test); {how}"


def worth(arms: Sequence[Arm]) -> str:
    """How little the intervals are worth if there are few seeds; empty if there are enough."""
    seeds = min((len(arm.seeds) for arm in arms), default=ENOUGH)
    if seeds > FEW:
        return ""
    if seeds == 1:
        return f"an arm with one seed has no interval, so nothing tells its numbers from chance: take {ENOUGH} seeds"
    from scipy.stats import t as student

    factor, usual = (float(student.ppf(0.975, n - 1)) for n in (seeds, ENOUGH))
    return (
        f"an interval over {seeds} seeds is worth little: their spread is hardly known, so it is {factor:.1f} standard "
        f"errors to either side ({usual:.1f} with {ENOUGH} seeds). Take {ENOUGH} seeds before you trust a difference"
    )
