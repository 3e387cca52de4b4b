"""Maps of who has what and who listens to whom: classes, their overlap, and the mixing matrix W."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from mapl.analysis.clusters import class_overlap, first_mixed, share_inside
from mapl.report.drawing import FAINT, INK, beside, figure, is_narrow, tidy
from mapl.report.lines import PALETTE
from mapl.report.text import percent
from mapl.runs.record import Record

GREYS = LinearSegmentedColormap.from_list("greys", ["#FFFFFF", "#5F5F5F"])
LABELLED = 24
"""Up to so many clients or classes, the axis shows their own numbers."""
FEW = 4
"""With fewer rows than these, cells are not square: the panels would be slits."""
SMALL = 10
"""Numbers that fit along a small panel."""


def by_cluster(clusters: Sequence[int]) -> list[int]:
    """Clients ordered by cluster, so that each cluster is a block."""
    return sorted(range(len(clusters)), key=lambda i: (clusters[i], i))


def clusters_of(record: Record) -> list[int]:
    return [card.cluster for card in record.clients]


def rows_and_columns(record: Record) -> tuple[list[int], list[int]]:
    """The clients along the sides of a map of W, each cluster together. A part has rows for its own clients alone.

    The clients that it does not have come last among the columns: it may listen to them.
    """
    rows = [record.clients[place].id for place in by_cluster(clusters_of(record))]
    return rows, rows + sorted(set(range(record.recipe.clients)) - set(rows))


def data_figure(record: Record) -> Figure:
    """Clients × classes, coloured by cluster; and the share of classes that each pair of clients has in common."""
    order = by_cluster(clusters_of(record))
    cards = [record.clients[i] for i in order]
    clusters = sorted({card.cluster for card in cards})
    classes = 1 + max((k for card in cards for k in card.classes), default=0)
    held = np.zeros((len(cards), classes))
    for row, card in enumerate(cards):
        held[row, card.classes] = 1 + clusters.index(card.cluster) % len(PALETTE)
    drawn, (left, right) = beside(3.9, (1.5, 1))
    palette = ListedColormap(["white", *PALETTE])
    left.imshow(held, cmap=palette, vmin=0, vmax=len(PALETTE), aspect="auto", interpolation="nearest")
    columns, rows = [str(k) for k in range(classes)], [str(card.id) for card in cards]
    cells(left, "Who has which class", "class", "client", columns, rows)
    left.set_xticks(np.arange(-0.5, classes), minor=True)
    left.set_yticks(np.arange(-0.5, len(cards)), minor=True)
    if classes <= 4 * LABELLED and len(cards) <= 4 * LABELLED:
        left.grid(which="minor", color="white", linewidth=1.2)
    left.tick_params(which="minor", length=0)
    shown = shared_classes(right, record, "Share of classes in common", 12)
    bar = drawn.colorbar(shown, ax=right, shrink=0.8)
    slim(bar)
    return drawn


def graph_rounds(record: Record, start: int | None) -> dict[int, str]:
    """The rounds (from 0) whose graph is shown, and why: first mixed, first learned, half way from there, last."""
    last, first = len(record.rounds) - 1, first_mixed(record)
    if first is None:
        return {}
    learned = max(first, first + (last - first) // 3 if start is None else start)
    # If two of them are the same round, the later entry names it.
    reasons = {(learned + last) // 2: "half way", learned: "a third" if start is None else "first learned"}
    return dict(sorted({**reasons, first: "first", last: "last"}.items()))


def graph_figure(record: Record, rounds: dict[int, str]) -> Figure:
    """The true overlap of the data, and W as the rounds pass, on one scale."""
    clusters = clusters_of(record)
    order, (rows, columns) = by_cluster(clusters), rows_and_columns(record)
    matrices = {t: record.weights(t) for t in rounds}
    across = 2 if is_narrow() else 1 + len(rounds)
    down = -(-(1 + len(rounds)) // across)
    drawn = figure(2.5 * down, "compressed")
    grid = drawn.subplots(down, across, squeeze=False).flatten()
    panels = grid[: 1 + len(rounds)]
    for panel in grid[len(panels) :]:
        panel.set_visible(False)
    shared_classes(panels[0], record, "true overlap of classes", SMALL)
    top = max(float(matrix.max()) for matrix in matrices.values())
    shown = None
    for panel, (t, why) in zip(panels[1:], rounds.items(), strict=True):
        values = arranged(matrices[t], rows, columns)
        shown = panel.imshow(values, cmap="Blues", vmin=0, vmax=top, interpolation="nearest")
        share = share_inside(record.among(t), clusters)
        inside = "" if share is None else f"\n{percent(share)} inside clusters"
        title, sides = f"round {t + 1} ({why}){inside}", ([str(i) for i in columns], [str(i) for i in rows])
        cells(panel, title, "listens to", "", *sides, SMALL)
        boundaries(panel, clusters, order)
    if len(rows) < FEW:
        for panel in panels:
            panel.set_aspect("auto")
    panels[1].set_ylabel("client", fontsize=9, color=INK)
    if shown is not None:
        bar = drawn.colorbar(shown, ax=list(panels[1:]), shrink=0.75 / down, pad=0.015)
        bar.set_label("weight", fontsize=9, color=INK)
        slim(bar)
    return drawn


def slim(bar: Colorbar) -> None:
    """A colour bar without outline, in small type."""
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, colors=INK, length=2)


def shared_classes(axes: Axes, record: Record, title: str, most: int) -> AxesImage:
    """The share of classes that each pair of a run's clients has in common."""
    return overlap(axes, [card.classes for card in record.clients], clusters_of(record), title, most, record.held)


def overlap(
    axes: Axes,
    classes: Sequence[Sequence[int]],
    clusters: Sequence[int],
    title: str,
    most: int = 12,
    names: Sequence[int] | None = None,
) -> AxesImage:
    """The share of classes that each pair of clients has in common. `names`: their numbers, if not 0, 1, 2, …"""
    order = by_cluster(clusters)
    shown = axes.imshow(arranged(class_overlap(classes), order), cmap=GREYS, vmin=0, vmax=1, interpolation="nearest")
    labels = [str(i if names is None else names[i]) for i in order]
    cells(axes, title, "client", "client", labels, labels, most)
    boundaries(axes, clusters, order)
    return shown


def arranged(
    matrix: Tensor, order: Sequence[int], columns: Sequence[int] | None = None
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """The matrix with rows and columns in this order, or with rows in this one and columns in another."""
    rows, across = torch.tensor(list(order)), torch.tensor(list(order if columns is None else columns))
    return matrix[rows][:, across].numpy().astype(np.float64)


def boundaries(axes: Axes, clusters: Sequence[int], order: Sequence[int]) -> None:
    """Lines between the true clusters."""
    for place in range(1, len(order)):
        if clusters[order[place]] != clusters[order[place - 1]]:
            axes.axhline(place - 0.5, color=PALETTE[1], linewidth=1)
            axes.axvline(place - 0.5, color=PALETTE[1], linewidth=1)


def cells(axes: Axes, title: str, x: str, y: str, columns: Sequence[str], rows: Sequence[str], most: int = 12) -> None:
    """A map's axes: numbers of clients and classes, at most `most` of them shown, no grid."""
    tidy(axes, title, x, y)
    axes.grid(visible=False)
    axes.title.set_fontsize(9)
    for axis, labels in ((axes.xaxis, columns), (axes.yaxis, rows)):
        if len(labels) <= LABELLED:
            step = -(-len(labels) // most)
            axis.set_ticks(range(0, len(labels), step), labels[::step])
        else:
            axis.set_major_locator(MaxNLocator(6, integer=True))
    axes.tick_params(labelsize=7.5)
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color(FAINT)
