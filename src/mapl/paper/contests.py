"""Which cells the paper compares with each other, which of them is best, and MAPL against each other method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mapl.analysis.compare import Estimate
from mapl.paper.labels import axis_value
from mapl.paper.statistics import CellResult, difference, paired
from mapl.paper.tables import Cell

METHOD_TABLES = ("res_hetero", "res_homo", "var1")
"""Tables that compare methods; the others take MAPL apart."""


@dataclass(frozen=True)
class Layout:
    """How the paper lays out a table: which axes are its rows, and which its columns."""

    rows: tuple[str, ...]
    column: str
    together: tuple[str, ...]
    """Cells of one column that agree on these axes compete: the best of them is bold."""


LAYOUTS = {
    "res_hetero": Layout(("scenario", "method"), "dataset", ("scenario",)),
    "res_homo": Layout(("scenario", "method"), "dataset", ("scenario",)),
    "ab1": Layout(("l_graph", "l_cont", "l_uni"), "scenario", ()),
    "ab2": Layout(("similarity", "confidence", "l1"), "scenario", ()),
    "comm_budget": Layout(("fixed_budget", "cgl"), "scenario", ("fixed_budget",)),
    "var1": Layout(("scenario", "method"), "clients", ("scenario",)),
    "cgle": Layout(("scenario",), "cgl_steps", ("scenario",)),
}


def is_mapl(result: CellResult) -> bool:
    """MAPL or MAPL+, which count as one: the paper's own method."""
    return result.cell.method in ("MAPL", "MAPL+")


def contest(cell: Cell) -> tuple[str, ...]:
    """Equal for cells that the paper compares with each other."""
    layout = LAYOUTS[cell.table]
    return (cell.table, axis_value(cell, layout.column), *(axis_value(cell, axis) for axis in layout.together))


def best_of(group: Sequence[CellResult]) -> CellResult:
    """The highest accuracy over the seeds that all of them have, so that extra seeds are no advantage."""
    shared = set.intersection(*(set(result.seeds) for result in group))
    return max(group, key=lambda result: result.mean_over(shared))


def winners(results: Iterable[CellResult]) -> set[str]:
    """The names of the best cells of each contest, by our numbers."""
    return {best_of(group).cell.name for group in _by_contest(results).values() if len(group) > 1}


def published_winners(cells: Iterable[Cell]) -> set[str]:
    """The same by the published numbers."""
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(contest(cell), []).append(cell)
    return {max(group, key=lambda cell: cell.accuracy).name for group in groups.values() if len(group) > 1}


def mapl_contests(results: Iterable[CellResult]) -> list[list[CellResult]]:
    """Contests of methods that MAPL and another method were run in; the same runs once."""
    groups = _by_contest(result for result in results if result.cell.table in METHOD_TABLES)
    both = [group for group in groups.values() if len({is_mapl(r) for r in group}) == 2]
    return list({frozenset(r.runs[0].key for r in group): group for group in reversed(both)}.values())[::-1]


def _by_contest(results: Iterable[CellResult]) -> dict[tuple[str, ...], list[CellResult]]:
    groups: dict[tuple[str, ...], list[CellResult]] = {}
    for result in results:
        groups.setdefault(contest(result.cell), []).append(result)
    return groups


def main_results(results: Iterable[CellResult]) -> list[CellResult]:
    """Full MAPL, each run once, the paper's main setting first."""
    by_run: dict[str, CellResult] = {}
    for result in results:
        if is_mapl(result) and result.cell.table in METHOD_TABLES:
            by_run.setdefault(result.runs[0].key, result)
    return sorted(by_run.values(), key=lambda r: (r.cell.table != "res_hetero", r.cell.setting["dataset"] != "CIFAR10"))


@dataclass(frozen=True)
class Pair:
    """MAPL and another method on the same shards and seeds."""

    mapl: CellResult
    other: CellResult
    better: Estimate
    """By how much MAPL is better, on the paper's test images."""
    better_all: Estimate | None
    """The same on all test images."""

    @property
    def seeds(self) -> int:
        return len(set(self.mapl.seeds) & set(self.other.seeds))

    @property
    def verdict(self) -> str:
        """On all test images if there are such tests: the same models, and less chance."""
        better = self.better_all or self.better
        if better.interval is None:
            return "one seed: no interval"
        over = " (over clients, one seed)" if self.seeds == 1 else ""
        if abs(better.mean) <= better.interval:
            return f"no difference shown{over}"
        return f"{'better' if better.mean > 0 else 'worse'}{over}"


def pairs(results: Sequence[CellResult]) -> list[Pair]:
    """MAPL and MAPL+ with each other method of their contests. Runs that are in several tables count once."""
    by_runs: dict[tuple[str, str], Pair] = {}
    for mapl in results:
        if not is_mapl(mapl) or mapl.cell.table not in METHOD_TABLES:
            continue
        for other in (r for r in results if not is_mapl(r) and contest(r.cell) == contest(mapl.cell)):
            if set(mapl.seeds) & set(other.seeds):
                better_all, _ = difference(mapl.runs, other.runs, "all_images")
                key = mapl.runs[0].key, other.runs[0].key
                by_runs.setdefault(key, Pair(mapl, other, paired(mapl, other), better_all))
    return list(by_runs.values())
