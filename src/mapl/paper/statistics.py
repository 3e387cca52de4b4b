"""The numbers of a table: published and ours side by side, with what the letters bought.

Ours are means over clients at the last test, never the best one. An interval is Student's 95 % one: over seeds, or with
a single seed over clients, where the difference of two runs of the same shards is taken client by client.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, pstdev
from typing import Literal

from mapl.analysis.compare import Estimate
from mapl.analysis.control import control_of, is_control
from mapl.errors import MaplError
from mapl.paper import TABLES, Cell, cells, table
from mapl.paper.scale import FORMS, OURS, Protocol
from mapl.paper.store import Row, Store, key_of
from mapl.recipe import Recipe

Over = Literal["seeds", "clients"]
Tested = Literal["accuracy", "all_images"]
"""With which test images: those of the paper's protocol, or all of each client's classes."""


@dataclass(frozen=True)
class CellResult:
    """A cell of the paper and what we found there."""

    cell: Cell
    published: float
    published_std: float
    rows: list[Row]
    """One a seed, in the order of seeds; never none."""
    controls: list[Row]
    """The twins without letters of those seeds that have one."""
    accuracy: Estimate
    """By the paper's protocol: mean over clients, over seeds."""
    spread: float
    """Population standard deviation over clients, mean over seeds, as the paper prints."""
    all_images: Estimate | None
    """The same models with all test images of each client's classes."""
    gain: Estimate | None
    """Accuracy less that of the twin without letters; None where there is no twin, or where the cell is one."""
    gain_over: Over
    """What the gain's interval is over."""
    gain_all: Estimate | None
    """The gain with all test images: the same models, and much less chance in which images they were tested with."""

    @property
    def difference(self) -> float:
        """Ours less the published."""
        return self.accuracy.mean - self.published

    @property
    def published_inside(self) -> bool | None:
        """Whether the published value lies in the interval of our mean; None with a single seed, which has none."""
        return None if self.accuracy.interval is None else abs(self.difference) <= self.accuracy.interval

    @property
    def further(self) -> float | None:
        """Half-width of the 95 % interval of one more run: t s √(1 + 1/n), where that of the mean is t s / √n.

        The published value is one run, so that this is what it should be compared with.
        """
        return None if self.accuracy.interval is None else self.accuracy.interval * sqrt(len(self.rows) + 1)

    @property
    def like_a_further_run(self) -> bool | None:
        """Whether the published value lies where one more run of ours would."""
        return None if self.further is None else abs(self.difference) <= self.further

    @property
    def control(self) -> Estimate | None:
        """The twins' accuracy; with a message budget they may have trained for longer."""
        return Estimate.of([fmean(row.accuracy) for row in self.controls]) if self.controls else None

    @property
    def seeds(self) -> list[int]:
        return [row.seed for row in self.rows]

    def mean_over(self, seeds: Collection[int]) -> float:
        """Accuracy over some of its seeds; over all of them where it has none of those."""
        some = [fmean(row.accuracy) for row in self.rows if row.seed in seeds]
        return fmean(some) if some else self.accuracy.mean


def results(name: str, store: Store, scale: str = "", form: str = OURS) -> list[CellResult]:
    """The cells of a table that have been run, in the paper's order. `scale` is what the rows' `scale` says."""
    protocol = Protocol.of_label(scale, form)
    seeds = sorted({row.seed for row in store.rows.values()})
    made = (_result(cell, protocol, store, seeds) for cell in table(name) if protocol.covers(cell))
    return [result for result in made if result is not None]


def filled(store: Store) -> dict[str, int]:
    """How many cells of each table have been run by the paper's own protocol, whatever MAPL's form."""
    seeds = sorted({row.seed for row in store.rows.values()})
    protocols = [Protocol(form=form) for form in FORMS]
    found = [c for c in cells() if any(_rows(p.of_cell(c, 0), store, seeds) for p in protocols)]
    return {name: sum(cell.table == name for cell in found) for name in TABLES}


def _result(cell: Cell, protocol: Protocol, store: Store, seeds: Sequence[int]) -> CellResult | None:
    recipe = protocol.of_cell(cell, 0)
    rows = _rows(recipe, store, seeds)
    if not rows:
        return None
    own = [row.seed for row in rows]
    controls = [] if is_control(recipe) else _rows(control_of(recipe), store, own)
    gain, over = less(rows, controls, "accuracy")
    every = [fmean(row.all_images) for row in rows if row.all_images]
    return CellResult(
        cell=cell,
        published=cell.accuracy,
        published_std=cell.std,
        rows=rows,
        controls=controls,
        accuracy=Estimate.of([fmean(row.accuracy) for row in rows]),
        spread=fmean(pstdev(row.accuracy) for row in rows),
        all_images=Estimate.of(every) if len(every) == len(rows) else None,
        gain=gain,
        gain_over=over,
        gain_all=less(rows, controls, "all_images")[0],
    )


def _rows(recipe: Recipe, store: Store, seeds: Sequence[int]) -> list[Row]:
    """The rows of a recipe, by seed: found by what was run, whichever table it was run for."""
    found = (store.get(key_of(recipe.model_copy(update={"seed": seed}))) for seed in seeds)
    return [row for row in found if row is not None]


def less(rows: Sequence[Row], others: Sequence[Row], tested: Tested) -> tuple[Estimate | None, Over]:
    """How much better some runs are than others of the same shards, on the seeds that both have; None without any."""
    by_seed = {row.seed: row for row in others}
    pairs = [(row, by_seed[row.seed]) for row in rows if row.seed in by_seed]
    if tested == "all_images" and not all(one.all_images and other.all_images for one, other in pairs):
        return None, "seeds"
    return _paired(pairs, tested) if pairs else (None, "seeds")


def paired(a: CellResult, b: CellResult) -> Estimate:
    """How much better `a` is than `b` on the shards and seeds that both have been run on."""
    found, _ = less(a.rows, b.rows, "accuracy")
    if found is None:
        raise MaplError(f"{a.cell.name} and {b.cell.name} have no seed in common")
    return found


def _paired(pairs: Sequence[tuple[Row, Row]], tested: Tested) -> tuple[Estimate, Over]:
    """Over seeds; with a single one over clients, who have the same shard in both runs."""
    if len(pairs) > 1:
        return Estimate.of([_mean(row, tested) - at_age(other, _age(row), tested) for row, other in pairs]), "seeds"
    row, other = pairs[0]
    mine, theirs = _by_client(row, tested), _by_client(other, tested)
    if _age(row) == _age(other) and len(mine) == len(theirs):
        return Estimate.of([x - y for x, y in zip(mine, theirs, strict=True)]), "clients"
    return Estimate(fmean(mine) - at_age(other, _age(row), tested), None), "seeds"


def _by_client(row: Row, tested: Tested) -> list[float]:
    return row.accuracy if tested == "accuracy" else row.all_images or []


def _mean(row: Row, tested: Tested) -> float:
    return fmean(_by_client(row, tested))


def _age(row: Row) -> float:
    """The round of the last test."""
    return row.curve["round"][-1]


def at_age(row: Row, age: float, tested: Tested = "accuracy") -> float:
    """Mean accuracy of a run when it was as old as another, which a message budget may have ended early.

    Between two tests of the run it is on the line that joins them; after the last it stays.
    """
    tests = list(zip(row.curve["round"], row.curve[tested], strict=True))
    if age >= tests[-1][0]:
        return _mean(row, tested)
    before = max((test for test in tests if test[0] <= age), default=tests[0])
    after = min(test for test in tests if test[0] >= age)
    if after[0] == before[0]:
        return before[1]
    return before[1] + (after[1] - before[1]) * (age - before[0]) / (after[0] - before[0])
