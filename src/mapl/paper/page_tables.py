"""The tables of a reproduction: the paper's own with our numbers in them, and what they leave out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mapl.analysis.clusters import adjusted_rand, share_inside
from mapl.analysis.compare import Estimate
from mapl.paper import Cell, table
from mapl.paper.complexity import Cost
from mapl.paper.labels import notes, setting
from mapl.paper.statistics import CellResult, less, paired
from mapl.paper.store import Row
from mapl.report.document import Entry, Grid


@dataclass(frozen=True)
class Layout:
    """How the paper lays a table out: what its rows are, and what its columns are."""

    rows: tuple[str, ...]
    column: str
    together: tuple[str, ...]
    """Cells that agree on these and stand in one column compete: the best of them is bold."""


LAYOUTS = {
    "res_hetero": Layout(("scenario", "method"), "dataset", ("scenario",)),
    "res_homo": Layout(("scenario", "method"), "dataset", ("scenario",)),
    "ab1": Layout(("l_graph", "l_cont", "l_uni"), "scenario", ()),
    "ab2": Layout(("similarity", "confidence", "l1"), "scenario", ()),
    "comm_budget": Layout(("fixed_budget", "cgl"), "scenario", ("fixed_budget",)),
    "var1": Layout(("scenario", "method"), "clients", ("scenario",)),
    "cgle": Layout(("scenario",), "cgl_steps", ("scenario",)),
}

WORDS = {
    "dataset": "data set",
    "l_graph": "graph learned",
    "cgl": "graph learned",
    "l_cont": "l_cont",
    "l_uni": "l_uni",
    "similarity": "S",
    "confidence": "γ",
    "l1": "norm",
    "fixed_budget": "budget of 65,000 messages",
    "cgl_steps": "steps of CGL",
}
"""What a reader would call an axis."""

UNFOLDED = 40
"""Rows of a table of runs that a reader does not have to ask for."""

PAPER_COMMUNICATIONS = {True: 101_000, False: 152_000}
"""Messages of a run by whether its graph is learned, as the paper's table of budgets prints them."""


def value(cell: Cell, axis: str) -> str:
    """Where a cell is along an axis, in words."""
    if axis == "method":
        return cell.method
    found = cell.setting[axis]
    if axis == "l1":
        return "ℓ1" if found else "ℓ2"
    return ("yes" if found else "no") if isinstance(found, bool) else str(found)


def place(cell: Cell) -> str:
    """A cell in words: MAPL on CIFAR10, scenario 1, and what else its table says of it."""
    known = ("scenario", "dataset", "clients")
    axes = [axis for axis in (*LAYOUTS[cell.table].rows, LAYOUTS[cell.table].column) if axis not in (*known, "method")]
    notes = [f"{WORDS.get(axis, axis)}: {value(cell, axis)}" for axis in axes]
    if cell.setting.get("clients") != 20:
        notes.insert(0, f"{cell.setting.get('clients')} clients")
    if cell.models == "homogeneous":
        notes.insert(0, "homogeneous")
    return ", ".join([f"{cell.method} on {cell.setting['dataset']}", f"scenario {cell.setting['scenario']}", *notes])


def contest(cell: Cell) -> tuple[str, ...]:
    """What cells share that the paper compares with each other."""
    layout = LAYOUTS[cell.table]
    return (cell.table, value(cell, layout.column), *(value(cell, axis) for axis in layout.together))


def best_of(group: Sequence[CellResult]) -> CellResult:
    """The one with the highest accuracy on the seeds that all of them have: more seeds of one are no contest."""
    shared = set.intersection(*(set(result.seeds) for result in group))
    return max(group, key=lambda result: result.mean_over(shared))


def winners(results: Iterable[CellResult]) -> tuple[set[str], set[str]]:
    """The names of the best cells of each contest, by our numbers and by the published ones of the same cells."""
    contests: dict[tuple[str, ...], list[CellResult]] = {}
    for result in results:
        contests.setdefault(contest(result.cell), []).append(result)
    ours, theirs = set(), set()
    for group in contests.values():
        if len(group) > 1:
            ours.add(best_of(group).cell.name)
            theirs.add(max(group, key=lambda r: r.cell.accuracy).cell.name)
    return ours, theirs


def laid_out(name: str, results: Sequence[CellResult]) -> Grid:
    """A table as the paper has it, with our number above the published one; a dash where nothing was run."""
    layout, cells = LAYOUTS[name], table(name)
    by_name = {result.cell.name: result for result in results}
    ours, _ = winners(results)
    best = _published_best(cells)
    columns = list(dict.fromkeys(value(cell, layout.column) for cell in cells))
    rows: dict[tuple[str, ...], dict[str, Cell]] = {}
    for cell in sorted(cells, key=lambda c: value(c, layout.rows[0])):
        rows.setdefault(tuple(value(cell, a) for a in layout.rows), {})[value(cell, layout.column)] = cell
    lines: list[list[str | Entry]] = []
    for key, by_column in rows.items():
        shown = [by_column.get(column) for column in columns]
        entries = [_entry(c, by_name.get(c.name), ours, best) if c else Entry(("",)) for c in shown]
        lines.append([*key, *entries])
    titles = [WORDS.get(axis, axis) for axis in layout.rows] + [_title(layout.column, c) for c in columns]
    return Grid(titles, lines, left=len(layout.rows))


def _title(axis: str, column: str) -> str:
    return {"dataset": column, "clients": f"{column} clients"}.get(axis, f"{WORDS.get(axis, axis)} {column}")


def _published_best(cells: Sequence[Cell]) -> set[str]:
    contests: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        contests.setdefault(contest(cell), []).append(cell)
    return {max(group, key=lambda cell: cell.accuracy).name for group in contests.values() if len(group) > 1}


def _entry(cell: Cell, result: CellResult | None, ours: set[str], best: set[str]) -> Entry:
    paper = f"paper {100 * cell.accuracy:.2f}"
    if result is None:
        return Entry(("–", paper), frozenset({1} if cell.name in best else ()))
    lines = [result.accuracy.text(), paper, _verdict(result)]
    if result.gain is not None:
        lines.append(f"gain {result.gain.text(sign='+')}")
    if result.gain_all is not None:
        lines.append(f"gain, all images {result.gain_all.text(sign='+')}")
    bold = {place for place, names in ((0, ours), (1, best)) if cell.name in names}
    return Entry(tuple(lines), frozenset(bold))


def _verdict(result: CellResult) -> str:
    inside = {True: "inside", False: "outside", None: "one seed"}[result.published_inside]
    return f"{100 * result.difference:+.1f}, {inside}"


def details(results: Sequence[CellResult], folded: bool = True) -> Grid:
    """A row a filled cell, with everything that is known of it."""
    titles = (
        "cell|seeds|published|ours|std over clients|all test images|difference|published inside?|"
        "without letters|collaboration gain|gain with all test images|gain over"
    )
    rows = [
        [
            result.cell.name,
            str(len(result.rows)),
            f"{100 * result.cell.accuracy:.2f} ± {100 * result.cell.std:.2f}",
            result.accuracy.text(),
            f"{100 * result.spread:.2f}",
            "–" if result.all_images is None else result.all_images.text(),
            f"{100 * result.difference:+.2f}",
            {True: "yes", False: "no", None: "– (one seed)"}[result.published_inside],
            "–" if result.control is None else result.control.text(),
            "–" if result.gain is None else result.gain.text(sign="+"),
            "–" if result.gain_all is None else result.gain_all.text(sign="+"),
            "–" if result.gain is None else result.gain_over,
        ]
        for result in results
    ]
    return Grid(titles.split("|"), rows, folded=f"All numbers of these cells ({len(rows)})" if folded else "")


def apart(results: Sequence[CellResult]) -> Grid:
    """The same without anything published, for numbers that must not be taken for the paper's."""
    full, drop = details(results), ("published", "difference", "published inside?")
    keep = [i for i, title in enumerate(full.titles) if title not in drop]
    return Grid([full.titles[i] for i in keep], [[row[i] for i in keep] for row in full.rows])


@dataclass(frozen=True)
class Pair:
    """MAPL and another method on the same shards and seeds."""

    mine: CellResult
    other: CellResult
    better: Estimate
    """By how much MAPL is better, with the paper's test images."""
    better_all: Estimate | None
    """The same with all test images."""

    @property
    def seeds(self) -> int:
        return len(set(self.mine.seeds) & set(self.other.seeds))

    @property
    def verdict(self) -> str:
        """By all test images where there are such tests: the same models, and less chance."""
        found = self.better_all or self.better
        if found.interval is None:
            return "one seed: no interval"
        over = " (over clients, one seed)" if self.seeds == 1 else ""
        if abs(found.mean) <= found.interval:
            return f"no difference shown{over}"
        return f"{'better' if found.mean > 0 else 'worse'}{over}"


def pairs(results: Sequence[CellResult]) -> list[Pair]:
    """MAPL and MAPL+ with each other method of their contests; runs that stand in several tables once."""
    found: dict[tuple[str, str], Pair] = {}
    for mine in results:
        if mine.cell.method not in ("MAPL", "MAPL+") or mine.cell.table not in ("res_hetero", "res_homo", "var1"):
            continue
        others = [r for r in results if r.cell.method not in ("MAPL", "MAPL+")]
        for rival in (r for r in others if contest(r.cell) == contest(mine.cell)):
            if set(mine.seeds) & set(rival.seeds):
                both = mine.rows[0].key, rival.rows[0].key
                every, _ = less(mine.rows, rival.rows, "all_images")
                found.setdefault(both, Pair(mine, rival, paired(mine, rival), every))
    return list(found.values())


def pairs_table(found: Sequence[Pair]) -> Grid:
    rows = [
        [
            place(pair.mine.cell),
            pair.other.cell.method,
            str(pair.seeds),
            f"{100 * (pair.mine.published - pair.other.published):+.2f}",
            pair.better.text(sign="+"),
            "–" if pair.better_all is None else pair.better_all.text(sign="+"),
            pair.verdict,
        ]
        for pair in found
    ]
    titles = "method|less this one|seeds|published difference|our difference|with all test images|what it says"
    return Grid(titles.split("|"), rows, left=2)


def graph_table(rows: Sequence[Row]) -> Grid:
    """How well each run that learned a graph found the true clusters, and what it sent."""
    titles = (
        "run|seed|M|inside clusters|at first|adjusted Rand index|edges at the end|messages|of the full mesh|the paper's"
    )
    folded = f"All {len(rows)} runs" if len(rows) > UNFOLDED else ""
    return Grid(titles.split("|"), [_graph_row(row) for row in rows], folded=folded)


def _graph_row(row: Row) -> list[str | Entry]:
    size, matrix = len(row.clusters), row.matrix()
    mesh = size * (size - 1)
    edges = int((matrix.clone().fill_diagonal_(0) > 0).sum())
    return [
        setting(row),
        str(row.seed),
        str(size),
        _percent(share_inside(matrix, row.clusters)),
        _percent(first_inside(row)),
        f"{rand:.2f}" if (rand := adjusted_rand(matrix, row.clusters)) == rand else "–",
        f"{edges:,} of {mesh:,}",
        f"{row.messages:,}",
        f"{100 * row.messages / (mesh * row.rounds):.0f} %",
        f"{PAPER_COMMUNICATIONS[True]:,}" if counted_by_the_paper(row) else "–",
    ]


def counted_by_the_paper(row: Row) -> bool:
    """Whether it is a run whose messages the paper prints: full MAPL on CIFAR-10, all of its 400 rounds."""
    return row.rounds == 400 and row.made.data.name == "cifar10" and not list(notes(row))


def first_inside(row: Row) -> float:
    """The share of weight inside clusters in the first tested round that mixed."""
    return next((share for share in row.curve.get("inside", ()) if share >= 0), float("nan"))


def _percent(share: float) -> str:
    return "–" if share != share else f"{100 * share:.0f} %"


def complexity_table(costs: Sequence[Cost]) -> Grid:
    """The paper's formulas, and what the ledger counted."""
    titles = (
        "method|the paper's formula, a round|messages|numbers by the formula|numbers sent in the warm-up|"
        "numbers sent after it|bytes after it|formula right?|GiB of a run by the formula"
    )
    rows = [
        [
            cost.method,
            cost.formula,
            f"{cost.later.messages:,}",
            f"{cost.predicted:,}",
            f"{cost.warmup.numbers:,}",
            f"{cost.later.numbers:,}",
            f"{cost.later.bytes:,}",
            "yes" if cost.exact else f"no ({cost.later.numbers - cost.predicted:+,})",
            f"{cost.run_bytes() / 2**30:,.2f}",
        ]
        for cost in costs
    ]
    return Grid(titles.split("|"), rows, left=2)
