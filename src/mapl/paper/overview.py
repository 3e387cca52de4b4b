"""The page's first paragraph, for a reader who has one minute, and the picture of all cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.figure import Figure

from mapl.paper.contests import LAYOUTS, is_mapl, pairs
from mapl.paper.cost import Rates
from mapl.paper.further import PROTOCOLS, Contest
from mapl.paper.labels import axis_name, axis_value
from mapl.paper.protocol import Protocol
from mapl.paper.queue import Queue, fitting
from mapl.paper.statistics import CellResult
from mapl.paper.store import Store, StoredRun
from mapl.paper.tables import TABLES, Cell, cells, table
from mapl.report.drawing import INK, figure, plain
from mapl.report.text import count, listing, points

SUBSET = (
    "Of SVHN we had the first 4,400 training and 400 test images of each class. The paper's shards take their images "
    "from the first 4,100, and its tests from the first 300. So training and the paper's tests are those of the whole "
    "data set; only “all test images” means 400 per class."
)


# The paragraph


def in_a_minute(results: Sequence[CellResult], couriers: Sequence[Contest]) -> str:
    """Which claims hold, which do not, and what collaboration is worth on each data set."""
    apart = sum(cell.setting["dataset"] == "CINIC10" for cell in cells())
    text = [
        f"{len(results)} of {len(cells()) - apart} cells are filled; CINIC-10's {apart} are not counted, because its "
        "images cannot be had here."
    ]
    judged = [pair for pair in pairs(results) if pair.better.interval is not None]
    if judged:
        better, worse = (sum(pair.verdict.startswith(word) for pair in judged) for word in ("better", "worse"))
        text.append(
            f"That MAPL beats other methods holds in {better} of {count(len(judged), 'comparison')} on the same "
            f"shards, fails in {worse}, and is open in {len(judged) - better - worse}."
        )
    if by_data := _gains(results):
        text.append(
            "That its letters are the reason does not show: they gain "
            f"{listing(f'{gain:+.1f} points on {name}' for name, gain in by_data.items())}."
            if max(by_data.values()) < WORTH
            else f"Its letters gain {listing(f'{gain:+.1f} points on {name}' for name, gain in by_data.items())}."
        )
    if couriers:
        text.append(f"Couriers, which are ours, gain {listing(map(_courier, couriers))}.")
    else:
        text.append("Couriers have not been run in these settings yet.")
    return " ".join(text)


WORTH = 1.0
"""Points below which letters are said not to show."""


def _gains(results: Sequence[CellResult]) -> dict[str, float]:
    """What MAPL's letters gain in the main table, in points on all test images, mean over scenarios, by data set."""
    gains: dict[str, list[float]] = {}
    for result in results:
        if result.cell.table == "res_hetero" and is_mapl(result) and result.gain_all is not None:
            gains.setdefault(str(result.cell.setting["dataset"]), []).append(100 * result.gain_all.mean)
    return {name: fmean(values) for name, values in gains.items()}


def _courier(contest: Contest) -> str:
    models, data, scenario = contest.where
    where = f"{data}, {scenario}, {models}, {PROTOCOLS[contest.protocol]} protocol"
    return f"{points(contest.gain, '+')} points ({where})"


# What an hour would fill


def further_hour(store: Store, runs: Sequence[StoredRun]) -> str:
    """How many cells a further hour on the machine of most runs would fill, by measured times."""
    machines = [(run.device, run.precision) for run in runs]
    if not machines:
        return ""
    device, exact = max(sorted(set(machines)), key=machines.count)
    rates = Rates()
    for run in runs:
        if (run.device, run.precision) == (device, exact):
            rates.learn(run.parsed_recipe, run.seconds / run.rounds, run.setup_seconds)
    queue = Queue(Protocol(), anywhere=True)
    left = queue.left(store)
    chosen = fitting(left, store, rates, 3600)
    new = len({work.cell for work in chosen if not work.control and work.table in TABLES and not work.scale})
    hours = sum(rates.estimate(work.recipe) for work in left) / 3600
    return (
        f"By the times measured, a further hour on an {device} ({exact}) would do {count(len(chosen), 'run')} for "
        f"{count(new, 'cell')}; all {len(left)} runs that are left would take {hours:.0f} hours."
    )


# The picture


Value = Callable[[CellResult], float | None]

QUANTITIES: dict[str, tuple[Value, str]] = {
    "ours − published": (lambda r: 100 * r.difference, "RdBu"),
    "width of our 95 % interval": (lambda r: r.accuracy.interval and 100 * r.accuracy.interval, "viridis_r"),
    "collaboration gain": (lambda r: None if r.gain_all is None else 100 * r.gain_all.mean, "PuOr"),
}
"""What the squares show, in points, and in which colours. Those around 0 are white at 0."""


def squares(results: Sequence[CellResult]) -> Figure:
    """Every cell of the paper as a square, three times; an empty one was not run, or has no such number."""
    drawn, by_name = figure(3.7, "compressed"), {result.cell.name: result for result in results}
    panels = drawn.subplots(len(QUANTITIES), 1, squeeze=False)[:, 0]
    for panel, (title, (value, colours)) in zip(panels, QUANTITIES.items(), strict=True):
        grid, seen, starts = _grid(by_name, value)
        around_zero = colours != "viridis_r"
        most = max(1.0, float(np.nanmax(np.abs(grid)))) if np.isfinite(grid).any() else 1.0
        scale = TwoSlopeNorm(0, -most, most) if around_zero else Normalize(0, most)
        panel.pcolormesh(
            np.where(seen, 0.0, math.nan), cmap="Greys", vmin=-1, vmax=4, edgecolors="white", linewidth=0.7
        )
        mesh = panel.pcolormesh(grid, cmap=colours, norm=scale, edgecolors="white", linewidth=0.7)
        panel.set_title(plain(f"{title} (points)"), fontsize=9, loc="left", color=INK)
        panel.set_xticks([start for start, _ in starts], [name for _, name in starts], fontsize=8, ha="left")
        panel.set_yticks([])
        panel.tick_params(length=0, colors=INK)
        panel.invert_yaxis()
        panel.set_aspect("equal")
        for side in panel.spines.values():
            side.set_visible(False)
        drawn.colorbar(mesh, ax=panel, shrink=0.8, pad=0.01).ax.tick_params(labelsize=8, colors=INK)
    return drawn


def _grid(by_name: dict[str, CellResult], value: Value) -> tuple[np.ndarray, np.ndarray, list[tuple[float, str]]]:
    """The values of all cells (NaN where there is none), where cells are, and where each table begins.

    Tables stand side by side: a column of squares is a row of the paper's table.
    """
    places: list[tuple[int, int, Cell]] = []
    starts, x, height = [], 0, 0
    for name in TABLES:
        layout, members = LAYOUTS[name], table(name)
        columns = list(dict.fromkeys(axis_value(cell, layout.column) for cell in members))
        rows = sorted(
            dict.fromkeys(tuple(axis_value(cell, axis) for axis in layout.rows) for cell in members),
            key=lambda row: row[0],
        )
        for cell in members:
            row = rows.index(tuple(axis_value(cell, axis) for axis in layout.rows))
            places.append((x + row, columns.index(axis_value(cell, layout.column)), cell))
        starts.append((float(x), name if len(rows) > 7 else name.replace("_", "\n")))
        x, height = x + len(rows) + 1, max(height, len(columns))
    grid, seen = np.full((height, x), math.nan), np.zeros((height, x), dtype=bool)
    for column, row, cell in places:
        seen[row, column] = True
        if (result := by_name.get(cell.name)) is not None and (number := value(result)) is not None:
            grid[row, column] = number
    return grid, seen, starts


def squares_caption() -> str:
    """Which square is which."""
    tables = "; ".join(
        f"{name}: {' and '.join(axis_name(axis) for axis in LAYOUTS[name].rows)} along it, "
        f"{axis_name(LAYOUTS[name].column)} down it"
        for name in TABLES
    )
    return (
        f"Every cell of the paper's tables as a square; grey ones were not run, or have no such number. {tables}. The "
        "gain is on all test images; blue and purple are above 0."
    )
