"""The tables of the paper's page: the paper's own with our numbers in them, and those behind them."""

from __future__ import annotations

from collections.abc import Sequence

from mapl.analysis.clusters import adjusted_rand, edges, share_inside
from mapl.names import DASH
from mapl.paper.complexity import Cost
from mapl.paper.contests import LAYOUTS, Pair, published_winners, winners
from mapl.paper.labels import axis_name, axis_value, cell_name, notes, run_name
from mapl.paper.statistics import CellResult
from mapl.paper.store import StoredRun
from mapl.paper.tables import Cell, table
from mapl.report.document import Entry, Table
from mapl.report.text import percent, points

UNFOLDED = 40
"""A table of more runs is folded."""
PUBLISHED_ONLY = ("published", "difference", "published inside?")
"""Columns that make sense for the paper's own protocol alone."""
PAPER_MESSAGES = {True: 101_000, False: 152_000}
"""Messages of a run by whether its graph is learned, from the paper's table of budgets."""


def paper_table(name: str, results: Sequence[CellResult]) -> Table:
    """A table as in the paper, with our number above the published one; a dash where nothing was run."""
    layout, cells = LAYOUTS[name], table(name)
    by_name = {result.cell.name: result for result in results}
    best, published_best = winners(results), published_winners(cells)
    columns = list(dict.fromkeys(axis_value(cell, layout.column) for cell in cells))
    by_row: dict[tuple[str, ...], dict[str, Cell]] = {}
    for cell in sorted(cells, key=lambda c: axis_value(c, layout.rows[0])):
        place = tuple(axis_value(cell, axis) for axis in layout.rows)
        by_row.setdefault(place, {})[axis_value(cell, layout.column)] = cell
    rows: list[list[str | Entry]] = []
    for place, by_column in by_row.items():
        row = [by_column.get(column) for column in columns]
        rows.append([*place, *(_entry(c, by_name.get(c.name), best, published_best) if c else "" for c in row)])
    titles = [axis_name(axis) for axis in layout.rows] + [_column_title(layout.column, c) for c in columns]
    return Table(titles, rows, words=len(layout.rows))


def _column_title(axis: str, value: str) -> str:
    return {"dataset": value, "clients": f"{value} clients"}.get(axis, f"{axis_name(axis)} {value}")


def _entry(cell: Cell, result: CellResult | None, best: set[str], published_best: set[str]) -> Entry:
    published = f"paper {100 * cell.accuracy:.2f}"
    if result is None:
        return Entry((DASH, published), frozenset({1} if cell.name in published_best else ()))
    inside = {True: "inside", False: "outside", None: "one seed"}[result.published_inside]
    lines = [result.accuracy.text(), published, f"{100 * result.difference:+.1f}, {inside}"]
    if result.gain is not None:
        lines.append(f"gain {points(result.gain, '+')}")
    if result.gain_all is not None:
        lines.append(f"gain, all images {points(result.gain_all, '+')}")
    bold = {line for line, names in ((0, best), (1, published_best)) if cell.name in names}
    return Entry(tuple(lines), frozenset(bold))


def details_table(results: Sequence[CellResult], folded: bool = True) -> Table:
    """One row per filled cell, with all its numbers."""
    titles = (
        "cell|seeds|published|ours|std over clients|all test images|difference|published inside?|"
        "without letters|collaboration gain|gain on all test images|gain over"
    )
    rows = [
        [
            result.cell.name,
            str(len(result.runs)),
            f"{100 * result.cell.accuracy:.2f} ± {100 * result.cell.std:.2f}",
            result.accuracy.text(),
            f"{100 * result.spread:.2f}",
            points(result.all_images),
            f"{100 * result.difference:+.2f}",
            {True: "yes", False: "no", None: f"{DASH} (one seed)"}[result.published_inside],
            points(result.control),
            points(result.gain, "+"),
            points(result.gain_all, "+"),
            DASH if result.gain is None else result.gain_over,
        ]
        for result in results
    ]
    return Table(titles.split("|"), rows, folded=f"All numbers of these cells ({len(rows)})" if folded else "")


def scaled_table(results: Sequence[CellResult]) -> Table:
    """The same for another scale, without anything published beside it."""
    full = details_table(results)
    kept = [i for i, title in enumerate(full.titles) if title not in PUBLISHED_ONLY]
    return Table([full.titles[i] for i in kept], [[row[i] for i in kept] for row in full.rows])


def pairs_table(pairs: Sequence[Pair]) -> Table:
    rows = [
        [
            cell_name(pair.mapl.cell),
            pair.other.cell.method,
            pair.verdict,
            str(pair.seeds),
            f"{100 * (pair.mapl.published - pair.other.published):+.2f}",
            points(pair.better, "+"),
            points(pair.better_all, "+"),
        ]
        for pair in pairs
    ]
    titles = "method|minus|verdict|seeds|published difference|our difference|on all test images"
    return Table(titles.split("|"), rows, words=3)


def graph_table(runs: Sequence[StoredRun]) -> Table:
    """How well each run that learned a graph found the true clusters, and what it sent."""
    titles = (
        "run|seed|M|inside clusters|at first|adjusted Rand index|edges at the end|messages|of the full mesh|the paper's"
    )
    folded = f"All {len(runs)} runs" if len(runs) > UNFOLDED else ""
    return Table(titles.split("|"), [_graph_row(run) for run in runs], folded=folded)


def _graph_row(run: StoredRun) -> list[str]:
    size, matrix = len(run.clusters), run.matrix()
    mesh = size * (size - 1)
    rand = adjusted_rand(matrix, run.clusters)
    return [
        run_name(run),
        str(run.seed),
        str(size),
        percent(share_inside(matrix, run.clusters)),
        percent(first_inside(run)),
        DASH if rand is None else f"{rand:.2f}",
        f"{edges(matrix):,} of {mesh:,}",
        f"{run.messages:,}",
        percent(run.messages / (mesh * run.rounds)),
        f"{PAPER_MESSAGES[True]:,}" if counted_by_the_paper(run) else DASH,
    ]


def counted_by_the_paper(run: StoredRun) -> bool:
    """Whether the paper prints the messages of such a run: full MAPL on CIFAR-10, all 400 rounds."""
    return run.rounds == 400 and run.parsed_recipe.data.name == "cifar10" and not list(notes(run))


def first_inside(run: StoredRun) -> float | None:
    """The share of weight inside clusters in the first tested round that mixed."""
    return next((share for share in run.inside_curve if share is not None), None)


def complexity_table(costs: Sequence[Cost]) -> Table:
    """The paper's formulas, and what the ledger counted."""
    titles = (
        "method|the paper's formula, per round|messages|numbers by the formula|numbers sent in the warm-up|"
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
    return Table(titles.split("|"), rows, words=2)
