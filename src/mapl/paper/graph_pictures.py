"""The collaboration graph as the paper draws it: what data have in common, W as rounds pass, and embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from mapl.analysis.clusters import share_inside
from mapl.paper.store import Row
from mapl.report import maps
from mapl.report.embedding import MARKERS, MUTED
from mapl.report.style import INK, figure, tidy

SHOWN_ROUNDS = (49, 100, 109, 199)
"""Whose W the figure of the graph shows, counted from 0, and the last; the paper shows T = 50 and 200."""
COLUMNS = 6
FEWEST = 3
"""Columns for one run alone, so that its graph is no larger than a page."""


def col_graph_figure(row: Row, early: Row | None) -> Figure:
    """The paper's three parts: what data have in common; W as rounds pass; embeddings in the plane, early and late."""
    made = figure(5.7)
    halves: Any = made.subfigures(2, 1, height_ratios=(1, 1.7))
    above, below = halves
    _graphs(above, row)
    clouds = [(r, "z", f"(c) embeddings z, round {r.rounds}") for r in (early, row) if r is not None]
    clouds.append((row, "p", f"projections p and prototypes ★, round {row.rounds}"))
    panels = below.subplots(1, len(clouds), squeeze=False)[0]
    for panel, (one, plane, title) in zip(panels, clouds, strict=True):
        _cloud(panel, one, plane, title)
    classes = sorted({k for own in row.classes for k in own})
    dots = [Line2D([], [], color=MUTED[k % 10], marker="o", markersize=5, linestyle="", label=str(k)) for k in classes]
    shapes = [
        Line2D([], [], color=INK, marker=MARKERS[i], markersize=5, linestyle="", label=f"cluster {i}")
        for i in sorted(set(row.clusters))
    ]
    below.legend(
        handles=[*dots, *shapes], loc="outside lower center", ncols=len(dots) + len(shapes), frameon=False,
        fontsize=8.5, handletextpad=0.1, columnspacing=1.1, title="class and cluster", title_fontsize=8.5,
    )  # fmt: skip
    return made


def _graphs(made: Any, row: Row) -> None:
    kept = sorted(map(int, row.weights))
    rounds = [t for t in kept if t in SHOWN_ROUNDS or t == kept[-1]]
    panels = made.subplots(1, 1 + len(rounds))
    maps.overlap(panels[0], row.classes, row.clusters, "(a) share of classes\nin common", maps.SMALL)
    top = max(float(row.matrix(t).max()) for t in rounds)
    shown = None
    for panel, t in zip(panels[1:], rounds, strict=True):
        name = "(b) W, round" if panel is panels[1] else "round"
        shown = _weights(panel, row, row.matrix(t), top, f"{name} {t + 1}")
    panels[1].set_ylabel("client", fontsize=9, color=INK)
    bar = made.colorbar(shown, ax=list(panels[1:]), shrink=0.8, pad=0.01)
    maps.slim(bar)


def _weights(axes: Axes, row: Row, matrix: Tensor, top: float, title: str) -> Any:
    order = maps.by_cluster(row.clusters)
    shown = axes.imshow(maps.arranged(matrix, order), cmap="Blues", vmin=0, vmax=top, interpolation="nearest")
    share = share_inside(matrix, row.clusters)
    inside = "" if share != share else f"\n{100 * share:.0f} % inside"
    labels = [str(i) for i in order]
    maps.cells(axes, f"{title}{inside}", "", "", labels, labels, 10 if len(labels) <= 10 else 5)
    maps.boundaries(axes, row.clusters, order)
    return shown


def _cloud(axes: Axes, row: Row, plane: str, title: str) -> None:
    """Test images as points: colour is class, shape is cluster; prototypes as stars where they have a place."""
    found: Mapping[str, Any] = row.extra["embedding"]
    points = np.array(found[plane])
    images = len(found["labels"]) - found["prototypes"]
    labels, clients = np.array(found["labels"]), np.array(found["clients"])
    clusters = np.array(row.clusters)[clients]
    for i in sorted(set(row.clusters)):
        here = np.flatnonzero(clusters[:images] == i)
        colours = [MUTED[k % 10] for k in labels[here]]
        axes.scatter(
            points[here, 0], points[here, 1], s=8, c=colours, marker=MARKERS[i % len(MARKERS)], alpha=0.7, linewidths=0
        )
    stars = points[images:]
    colours = [MUTED[k % 10] for k in labels[images:]]
    if len(stars):
        look: dict[str, Any] = {"marker": "*", "edgecolors": "black", "linewidths": 0.6, "zorder": 3}
        axes.scatter(stars[:, 0], stars[:, 1], s=50, c=colours, **look)
    tidy(axes, title)
    axes.title.set_fontsize(9)
    axes.grid(visible=False)
    axes.tick_params(labelbottom=False, labelleft=False, length=0)
    axes.set_aspect("equal", adjustable="datalim")
    for spine in axes.spines.values():
        spine.set_visible(True)


def final_graphs(rows: Sequence[Row], titles: Sequence[str]) -> Figure:
    """W at the end of each run, on one scale."""
    columns = max(FEWEST, min(COLUMNS, len(rows)))
    lines = -(-len(rows) // columns)
    words = max(title.count("\n") for title in titles)
    made = figure(0.2 + (1.85 * COLUMNS / columns + 0.16 * words) * lines)
    panels = made.subplots(lines, columns, squeeze=False)
    top = max(float(row.matrix().clone().fill_diagonal_(0).max()) for row in rows)
    shown: Any = None
    for panel, row, title in zip(panels.flatten(), rows, titles, strict=False):
        shown = _weights(panel, row, row.matrix(), top, title)
        panel.title.set_fontsize(8)
    for panel in panels.flatten()[len(rows) :]:
        panel.set_visible(False)
    bar = made.colorbar(shown, ax=list(panels.flatten()[: len(rows)]), shrink=0.6 if lines > 1 else 0.9, pad=0.01)
    bar.set_label("weight given to another", fontsize=8.5, color=INK)
    maps.slim(bar)
    return made
