"""The paper's figures, drawn from the results store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from mapl.paper.statistics import CellResult
from mapl.paper.store import Row
from mapl.report import maps
from mapl.report.lines import DASHES, PALETTE
from mapl.report.style import FAINT, INK, figure, tidy, whole_rounds

STYLES: dict[str, tuple[str, Any, float]] = {
    "MAPL": ("#0072B2", "-", 2.4),
    "FedClassAvg": ("#D55E00", "-", 1.5),
    "FedProto": ("#009E73", (0, (5, 1.5)), 1.5),
    "FedSim": ("#CC79A7", (0, (3, 1, 1, 1)), 1.5),
    "Local": ("#4D4D4D", (0, (1, 1.2)), 1.5),
}
"""Colour, dash and width of each method: told apart without colours, too."""


# Convergence


def conv_figure(results: Sequence[CellResult]) -> Figure:
    """Test accuracy by round, a panel a scenario, a line a method: mean over seeds, their range shaded."""
    made = figure(3.9)
    scenarios = sorted({int(r.cell.setting["scenario"]) for r in results})
    panels = made.subplots(1, len(scenarios), squeeze=False, sharey=True)[0]
    for panel, scenario in zip(panels, scenarios, strict=True):
        here = [r for r in results if r.cell.setting["scenario"] == scenario]
        for result in sorted(here, key=lambda r: list(STYLES).index(r.cell.method), reverse=True):
            _line(panel, result)
        tidy(panel, f"Scenario {scenario}", "round", "test accuracy (%)" if panel is panels[0] else "")
        whole_rounds(panel, max(r.rows[0].rounds for r in here), ticks=5)
    present = {r.cell.method for r in results}
    handles = [
        Line2D([], [], color=c, linestyle=d, linewidth=w, label=m) for m, (c, d, w) in STYLES.items() if m in present
    ]
    made.legend(handles=handles, loc="outside upper left", ncols=len(handles), frameon=False, fontsize=9)
    return made


def _line(axes: Axes, result: CellResult) -> None:
    colour, dash, width = STYLES[result.cell.method]
    rounds, values = _together(result.rows, "accuracy")
    axes.fill_between(rounds, 100 * values.min(0), 100 * values.max(0), color=colour, alpha=0.15, linewidth=0)
    axes.plot(rounds, 100 * values.mean(0), color=colour, linestyle=dash, linewidth=width)


def _together(rows: Sequence[Row], name: str) -> tuple[Any, Any]:
    """Rounds counted from 1 at which all seeds were tested, and the values (seeds, rounds)."""
    by_round = [dict(zip(row.curve["round"], row.curve[name], strict=True)) for row in rows]
    shared = sorted(set.intersection(*(set(values) for values in by_round)))
    return np.array(shared) + 1, np.array([[values[t] for t in shared] for values in by_round])


# The similarity of heads


def class_sim_figure(without: Row, with_proto: Row) -> Figure:
    """Images of each class at each client; how alike heads are without and with l_proto. The diagonal is left out."""
    made = figure(3.15, "compressed")
    data, *panels = made.subplots(1, 3)
    _distribution(made, data, with_proto)
    for panel, row, title in zip(panels, (without, with_proto), ("without", "with"), strict=True):
        similarity = heads(row)
        inside, between, chance = separation(similarity, row.clusters)
        note = f"inside {inside:.2f}, between {between:.2f}; AUC {chance:.2f}"
        _similarity(made, panel, similarity, row.clusters, rf"heads, {title} $l_\mathrm{{proto}}$" + f"\n{note}")
    return made


def heads(row: Row) -> Tensor:
    """How alike the heads of every two clients are (M, M), class by class."""
    return torch.tensor(row.extra["heads"]["by_class"], dtype=torch.float64)


def separation(similarity: Tensor, clusters: Sequence[int]) -> tuple[float, float, float]:
    """Mean similarity of pairs inside and between clusters, and how often a pair inside is the more similar one."""
    label = torch.tensor(list(clusters))
    above = torch.ones_like(similarity).triu(1).bool()
    same = label[:, None] == label[None, :]
    inside, between = similarity[above & same], similarity[above & ~same]
    wins = (inside[:, None] > between[None, :]).double() + 0.5 * (inside[:, None] == between[None, :]).double()
    return float(inside.mean()), float(between.mean()), float(wins.mean())


def _distribution(made: Figure, axes: Axes, row: Row) -> None:
    counts = torch.tensor(row.extra["distribution"], dtype=torch.float64)
    order = maps.by_cluster(row.clusters)
    shown = axes.imshow(counts[order].numpy(), cmap="Greys", vmin=0, vmax=1.3 * float(counts.max()))
    classes = [str(k) for k in range(counts.shape[1])]
    maps.cells(axes, "training images\nof each client", "class", "client", classes, [str(i) for i in order])
    for place in range(1, len(order)):
        if row.clusters[order[place]] != row.clusters[order[place - 1]]:
            axes.axhline(place - 0.5, color=PALETTE[1], linewidth=1)
    bar = made.colorbar(shown, ax=axes, shrink=0.7, pad=0.03)
    bar.ax.set_ylim(0, float(counts.max()))
    bar.set_label("images", fontsize=8.5, color=INK)
    maps.slim(bar)


def _similarity(made: Figure, axes: Axes, similarity: Tensor, clusters: Sequence[int], title: str) -> None:
    order = maps.by_cluster(clusters)
    values = maps.arranged(similarity, order)
    np.fill_diagonal(values, np.nan)
    top = float(np.nanmax(np.abs(values)))
    # Orange and purple, which the colour-blind can tell apart, with white at 0.
    axes.set_facecolor(FAINT)
    shown = axes.imshow(values, cmap="PuOr_r", vmin=-top, vmax=top, interpolation="nearest")
    labels = [str(i) for i in order]
    maps.cells(axes, "", "client", "client", labels, labels)
    axes.set_title(title, fontsize=9, loc="left", color=INK)
    maps.boundaries(axes, clusters, order)
    bar = made.colorbar(shown, ax=axes, shrink=0.7, pad=0.03)
    bar.set_label("cosine", fontsize=8.5, color=INK)
    maps.slim(bar)


# Edges, messages and clusters by round


def graph_curves(groups: Mapping[str, Sequence[Row]]) -> Figure:
    """Edges in use, messages a round, and the share of weight inside clusters; a line a setting, mean over seeds."""
    made = figure(3.6)
    panels = made.subplots(1, 3)
    handles = []
    for number, (label, rows) in enumerate(groups.items()):
        dash = DASHES[number % len(DASHES)]  # in the warm-up lines lie on top of each other
        look: dict[str, Any] = {"color": PALETTE[number % len(PALETTE)], "linestyle": dash}
        size = len(rows[0].clusters)
        rounds, edges = _together(rows, "edges")
        panels[0].plot(rounds, 100 * edges.mean(0) / (size * (size - 1)), linewidth=1.7, **look)
        _, sent = _together(rows, "messages")
        each = np.diff(sent.mean(0), prepend=0) / np.diff(rounds, prepend=0)
        panels[1].plot(rounds, 100 * each / (size * (size - 1)), linewidth=1.7, **look)
        _, inside = _together(rows, "inside")
        panels[2].plot(rounds, 100 * np.where(inside < 0, np.nan, inside).mean(0), linewidth=1.7, **look)
        handles.append(Line2D([], [], linewidth=2, label=label, **look))
    for panel, title, y in zip(
        panels,
        ("Edges in use", "Messages of a round", "Weight given to others\nthat stays inside true clusters"),
        ("% of the full mesh", "% of the full mesh", "%"),
        strict=True,
    ):
        tidy(panel, title, "round", y)
        whole_rounds(panel, max(row.rounds for rows in groups.values() for row in rows), ticks=5)
        panel.set_ylim(0, 105)
    made.legend(handles=handles, loc="outside upper left", ncols=min(3, len(handles)), frameon=False, fontsize=9)
    return made
