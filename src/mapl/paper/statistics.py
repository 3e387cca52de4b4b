"""The numbers of a table: published and ours side by side, with the collaboration gain.

Ours are means over clients at the last test, never the best one. Intervals are Student's 95 % intervals over seeds.
With a single seed, the difference of two runs on the same shards has an interval over clients.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, pstdev
from typing import Literal

from mapl.analysis.compare import Estimate
from mapl.analysis.control import control_of
from mapl.errors import MaplError
from mapl.paper.protocol import FORMS, OURS, Protocol
from mapl.paper.store import Store, StoredRun, key_of
from mapl.paper.tables import TABLES, Cell, cells, table
from mapl.recipe import Recipe, has_letters

Over = Literal["seeds", "clients"]
Tested = Literal["accuracy", "all_images"]
"""On which test images: those of the paper's protocol, or all of each client's classes."""


@dataclass(frozen=True)
class CellResult:
    """A cell of the paper and our runs of it."""

    cell: Cell
    runs: list[StoredRun]
    """One per seed, in the order of seeds; at least one."""
    controls: list[StoredRun]
    """The same runs without letters, for those seeds that have one."""
    accuracy: Estimate
    """By the paper's protocol: mean over clients, over seeds."""
    spread: float
    """Population standard deviation over clients, mean over seeds, as the paper prints."""
    all_images: Estimate | None
    """The same models on all test images of each client's classes."""
    gain: Estimate | None
    """Accuracy minus that of the control; None without a control, and for a cell that is one."""
    gain_over: Over
    """What the gain's interval is over."""
    gain_all: Estimate | None
    """The gain on all test images: the same models, and much less chance in the choice of images."""

    @property
    def published(self) -> float:
        return self.cell.accuracy

    @property
    def difference(self) -> float:
        """Ours minus published."""
        return self.accuracy.mean - self.published

    @property
    def published_inside(self) -> bool | None:
        """Whether the published value lies in the interval of our mean; None with a single seed."""
        return None if self.accuracy.interval is None else abs(self.difference) <= self.accuracy.interval

    @property
    def further(self) -> float | None:
        """Half-width of the 95 % interval of one more run: t s √(1 + 1/n). That of the mean is t s / √n.

        The published value is one run, so this is the interval to compare it with.
        """
        return None if self.accuracy.interval is None else self.accuracy.interval * sqrt(len(self.runs) + 1)

    @property
    def like_a_further_run(self) -> bool | None:
        """Whether the published value lies in the interval of one more run."""
        return None if self.further is None else abs(self.difference) <= self.further

    @property
    def control(self) -> Estimate | None:
        """Accuracy of the controls. If a message budget ended the runs early, the controls have trained for longer."""
        return Estimate.of([fmean(run.accuracy) for run in self.controls]) if self.controls else None

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]

    def mean_over(self, seeds: Collection[int]) -> float:
        """Accuracy over those of its seeds; over all of its seeds if it has none of them."""
        some = [fmean(run.accuracy) for run in self.runs if run.seed in seeds]
        return fmean(some) if some else self.accuracy.mean


def results(name: str, store: Store, scale: str = "", form: str = OURS) -> list[CellResult]:
    """The cells of a table that have been run, in the paper's order. `scale` is as in `StoredRun.scale`."""
    protocol = Protocol.of_label(scale, form)
    seeds = sorted({row.seed for row in store.runs.values()})
    by_cell = (_result(cell, protocol, store, seeds) for cell in table(name) if protocol.covers(cell))
    return [result for result in by_cell if result is not None]


def filled(store: Store) -> dict[str, int]:
    """How many cells of each table have been run by the paper's protocol, in any form of MAPL."""
    seeds = sorted({row.seed for row in store.runs.values()})
    protocols = [Protocol(form=form) for form in FORMS]
    done = [c for c in cells() if any(_runs(p.of_cell(c, 0), store, seeds) for p in protocols)]
    return {name: sum(cell.table == name for cell in done) for name in TABLES}


def _result(cell: Cell, protocol: Protocol, store: Store, seeds: Sequence[int]) -> CellResult | None:
    recipe = protocol.of_cell(cell, 0)
    runs = _runs(recipe, store, seeds)
    if not runs:
        return None
    controls = _runs(control_of(recipe), store, [run.seed for run in runs]) if has_letters(recipe) else []
    gain, over = difference(runs, controls, "accuracy")
    all_images = [fmean(run.all_images) for run in runs if run.all_images]
    return CellResult(
        cell=cell,
        runs=runs,
        controls=controls,
        accuracy=Estimate.of([fmean(run.accuracy) for run in runs]),
        spread=fmean(pstdev(run.accuracy) for run in runs),
        all_images=Estimate.of(all_images) if len(all_images) == len(runs) else None,
        gain=gain,
        gain_over=over,
        gain_all=difference(runs, controls, "all_images")[0],
    )


def _runs(recipe: Recipe, store: Store, seeds: Sequence[int]) -> list[StoredRun]:
    """The stored runs of a recipe, by seed, whichever table they were run for."""
    by_seed = (store.get(key_of(recipe.model_copy(update={"seed": seed}))) for seed in seeds)
    return [run for run in by_seed if run is not None]


def difference(runs: Sequence[StoredRun], others: Sequence[StoredRun], tested: Tested) -> tuple[Estimate | None, Over]:
    """How much better some runs are than others on the same shards, over the seeds that both have; None without any.

    Runs on different data are never paired.
    """
    by_seed = {run.seed: run for run in others}
    pairs = [(run, by_seed[run.seed]) for run in runs if run.seed in by_seed and same_data(run, by_seed[run.seed])]
    if tested == "all_images" and not all(one.all_images and other.all_images for one, other in pairs):
        return None, "seeds"
    return _paired(pairs, tested) if pairs else (None, "seeds")


def same_data(one: StoredRun, other: StoredRun) -> bool:
    """Whether two runs had the same data, as far as the store knows."""
    return one.data == other.data or not (one.data and other.data)


def paired(a: CellResult, b: CellResult) -> Estimate:
    """How much better `a` is than `b`, over the seeds that both have."""
    better, _ = difference(a.runs, b.runs, "accuracy")
    if better is None:
        raise MaplError(f"{a.cell.name} and {b.cell.name} have no seed in common")
    return better


def _paired(pairs: Sequence[tuple[StoredRun, StoredRun]], tested: Tested) -> tuple[Estimate, Over]:
    """Over seeds; with a single seed over clients, which have the same shard in both runs."""
    if len(pairs) > 1:
        return Estimate.of([_mean(run, tested) - at_age(other, _age(run), tested) for run, other in pairs]), "seeds"
    run, other = pairs[0]
    mine, theirs = _by_client(run, tested), _by_client(other, tested)
    if _age(run) == _age(other) and len(mine) == len(theirs):
        return Estimate.of([x - y for x, y in zip(mine, theirs, strict=True)]), "clients"
    return Estimate(fmean(mine) - at_age(other, _age(run), tested), None), "seeds"


def _by_client(run: StoredRun, tested: Tested) -> list[float]:
    return run.accuracy if tested == "accuracy" else run.all_images or []


def _mean(run: StoredRun, tested: Tested) -> float:
    return fmean(_by_client(run, tested))


def _age(run: StoredRun) -> float:
    """The round of the last test."""
    return run.curve["round"][-1]


def at_age(run: StoredRun, age: float, tested: Tested = "accuracy") -> float:
    """Mean accuracy of a run at the round at which another ended, perhaps early by its message budget.

    Interpolated linearly between two tests; constant after the last.
    """
    tests = list(zip(run.curve["round"], run.curve[tested], strict=True))
    if age >= tests[-1][0]:
        return _mean(run, tested)
    before = max((test for test in tests if test[0] <= age), default=tests[0])
    after = min(test for test in tests if test[0] >= age)
    if after[0] == before[0]:
        return before[1]
    return before[1] + (after[1] - before[1]) * (age - before[0]) / (after[0] - before[0])
