"""The paper's figures, drawn from the results store: convergence, similarity of heads, and the graph."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from mapl.analysis.clusters import share_inside
from mapl.paper.statistics import CellResult
from mapl.paper.store import StoredRun
from mapl.report import maps
from mapl.report.drawing import FAINT, INK, figure, tidy, whole_rounds
from mapl.report.embedding import MARKERS, MUTED
from mapl.report.lines import DASHES, PALETTE
from mapl.report.text import percent

STYLES: dict[str, tuple[str, Any, float]] = {
    "MAPL": ("#0072B2", "-", 2.4),
    "FedClassAvg": ("#D55E00", "-", 1.5),
    "FedProto": ("#009E73", (0, (5, 1.5)), 1.5),
    "FedSim": ("#CC79A7", (0, (3, 1, 1, 1)), 1.5),
    "Local": ("#4D4D4D", (0, (1, 1.2)), 1.5),
}
"""Colour, dash and width of each method; dashes tell them apart without colours."""

SHOWN_ROUNDS = (49, 100, 109, 199)
"""Rounds, counted from 0, whose W col_graph shows beside the last; the paper shows T = 50 and 200."""
MOST_COLUMNS = 6
FEWEST_COLUMNS = 3
"""Even for one run, so that its graph does not fill the page."""


# Convergence


def conv_figure(results: Sequence[CellResult]) -> Figure:
    """Test accuracy by round, one panel per scenario and one line per method: mean over seeds, their range shaded."""
    drawn = figure(3.9)
    scenarios = sorted({int(r.cell.setting["scenario"]) for r in results})
    panels = drawn.subplots(1, len(scenarios), squeeze=False, sharey=True)[0]
    for panel, scenario in zip(panels, scenarios, strict=True):
        here = [r for r in results if r.cell.setting["scenario"] == scenario]
        for result in sorted(here, key=lambda r: list(STYLES).index(r.cell.method), reverse=True):
            _line(panel, result)
        tidy(panel, f"Scenario {scenario}", "round", "test accuracy (%)" if panel is panels[0] else "")
        whole_rounds(panel, max(r.runs[0].rounds for r in here), ticks=5)
    present = {r.cell.method for r in results}
    handles = [
        Line2D([], [], color=c, linestyle=d, linewidth=w, label=m) for m, (c, d, w) in STYLES.items() if m in present
    ]
    drawn.legend(handles=handles, loc="outside upper left", ncols=len(handles), frameon=False, fontsize=9)
    return drawn


def _line(axes: Axes, result: CellResult) -> None:
    colour, dash, width = STYLES[result.cell.method]
    rounds, values = _together(result.runs, "accuracy")
    axes.fill_between(rounds, 100 * values.min(0), 100 * values.max(0), color=colour, alpha=0.15, linewidth=0)
    axes.plot(rounds, 100 * values.mean(0), color=colour, linestyle=dash, linewidth=width)


def _together(runs: Sequence[StoredRun], name: str) -> tuple[Any, Any]:
    """Rounds, counted from 1, at which all seeds were tested, and the values (seeds, rounds); NaN draws a gap."""
    curves = [run.inside_curve if name == "inside" else run.curve[name] for run in runs]
    by_round = [dict(zip(run.curve["round"], curve, strict=True)) for run, curve in zip(runs, curves, strict=True)]
    shared = sorted(set.intersection(*(set(values) for values in by_round)))
    return np.array(shared) + 1, np.array([[values[t] for t in shared] for values in by_round], dtype=np.float64)


# The similarity of heads


def class_sim_figure(without: StoredRun, with_proto: StoredRun) -> Figure:
    """Images per class of each client, and how alike heads are without and with l_proto, apart from the diagonal."""
    drawn = figure(3.15, "compressed")
    data, *panels = drawn.subplots(1, 3)
    _distribution(drawn, data, with_proto)
    for panel, run, title in zip(panels, (without, with_proto), ("without", "with"), strict=True):
        similarity = heads(run)
        inside, between, auc = separation(similarity, run.clusters)
        note = f"inside {inside:.2f}, between {between:.2f}; AUC {auc:.2f}"
        _similarity(drawn, panel, similarity, run.clusters, rf"heads, {title} $l_\mathrm{{proto}}$" + f"\n{note}")
    return drawn


def heads(run: StoredRun) -> Tensor:
    """How alike the heads of each pair of clients are (M, M), class by class."""
    return torch.tensor(run.extra["heads"]["by_class"], dtype=torch.float64)


def separation(similarity: Tensor, clusters: Sequence[int]) -> tuple[float, float, float]:
    """Mean similarity of pairs inside and between clusters, and how often a pair inside is more similar (AUC)."""
    label = torch.tensor(list(clusters))
    above = torch.ones_like(similarity).triu(1).bool()
    same = label[:, None] == label[None, :]
    inside, between = similarity[above & same], similarity[above & ~same]
    wins = (inside[:, None] > between[None, :]).double() + 0.5 * (inside[:, None] == between[None, :]).double()
    return float(inside.mean()), float(between.mean()), float(wins.mean())


def _distribution(drawn: Figure, axes: Axes, run: StoredRun) -> None:
    counts = torch.tensor(run.extra["distribution"], dtype=torch.float64)
    order = maps.by_cluster(run.clusters)
    shown = axes.imshow(counts[order].numpy(), cmap="Greys", vmin=0, vmax=1.3 * float(counts.max()))
    classes = [str(k) for k in range(counts.shape[1])]
    maps.cells(axes, "training images\nof each client", "class", "client", classes, [str(i) for i in order])
    for place in range(1, len(order)):
        if run.clusters[order[place]] != run.clusters[order[place - 1]]:
            axes.axhline(place - 0.5, color=PALETTE[1], linewidth=1)
    bar = drawn.colorbar(shown, ax=axes, shrink=0.7, pad=0.03)
    bar.ax.set_ylim(0, float(counts.max()))
    bar.set_label("images", fontsize=8.5, color=INK)
    maps.slim(bar)


def _similarity(drawn: Figure, axes: Axes, similarity: Tensor, clusters: Sequence[int], title: str) -> None:
    order = maps.by_cluster(clusters)
    values = maps.arranged(similarity, order)
    np.fill_diagonal(values, math.nan)
    top = float(np.nanmax(np.abs(values)))
    # Orange and purple are safe for colour-blind readers; white is 0.
    axes.set_facecolor(FAINT)
    shown = axes.imshow(values, cmap="PuOr_r", vmin=-top, vmax=top, interpolation="nearest")
    labels = [str(i) for i in order]
    maps.cells(axes, "", "client", "client", labels, labels)
    axes.set_title(title, fontsize=9, loc="left", color=INK)
    maps.boundaries(axes, clusters, order)
    bar = drawn.colorbar(shown, ax=axes, shrink=0.7, pad=0.03)
    bar.set_label("cosine", fontsize=8.5, color=INK)
    maps.slim(bar)


# The graph by round


def graph_curves(groups: Mapping[str, Sequence[StoredRun]]) -> Figure:
    """Edges in use, messages per round and share of weight inside clusters; one line per setting, mean over seeds."""
    drawn = figure(3.6)
    panels = drawn.subplots(1, 3)
    handles = []
    for number, (label, runs) in enumerate(groups.items()):
        dash = DASHES[number % len(DASHES)]  # during the warm-up, lines lie on top of each other
        look: dict[str, Any] = {"color": PALETTE[number % len(PALETTE)], "linestyle": dash}
        size = len(runs[0].clusters)
        rounds, edges = _together(runs, "edges")
        panels[0].plot(rounds, 100 * edges.mean(0) / (size * (size - 1)), linewidth=1.7, **look)
        _, sent = _together(runs, "messages")
        each = np.diff(sent.mean(0), prepend=0) / np.diff(rounds, prepend=0)
        panels[1].plot(rounds, 100 * each / (size * (size - 1)), linewidth=1.7, **look)
        _, inside = _together(runs, "inside")
        panels[2].plot(rounds, 100 * inside.mean(0), linewidth=1.7, **look)
        handles.append(Line2D([], [], linewidth=2, label=label, **look))
    for panel, title, y in zip(
        panels,
        ("Edges in use", "Messages per round", "Weight given to others\nthat stays inside true clusters"),
        ("% of the full mesh", "% of the full mesh", "%"),
        strict=True,
    ):
        tidy(panel, title, "round", y)
        whole_rounds(panel, max(run.rounds for runs in groups.values() for run in runs), ticks=5)
        panel.set_ylim(0, 105)
    drawn.legend(handles=handles, loc="outside upper left", ncols=min(3, len(handles)), frameon=False, fontsize=9)
    return drawn


# The graph


def col_graph_figure(run: StoredRun, early: StoredRun | None) -> Figure:
    """The paper's three parts: the true overlap of classes, W as rounds pass, and embeddings, early and late."""
    drawn = figure(5.7)
    halves: Any = drawn.subfigures(2, 1, height_ratios=(1, 1.7))
    above, below = halves
    _weights_by_round(above, run)
    clouds = [(r, "z", f"(c) embeddings z, round {r.rounds}") for r in (early, run) if r is not None]
    clouds.append((run, "p", f"projections p and prototypes ★, round {run.rounds}"))
    panels = below.subplots(1, len(clouds), squeeze=False)[0]
    for panel, (one, plane, title) in zip(panels, clouds, strict=True):
        _cloud(panel, one, plane, title)
    classes = sorted({k for own in run.classes for k in own})
    dots = [Line2D([], [], color=MUTED[k % 10], marker="o", markersize=5, linestyle="", label=str(k)) for k in classes]
    shapes = [
        Line2D([], [], color=INK, marker=MARKERS[i], markersize=5, linestyle="", label=f"cluster {i}")
        for i in sorted(set(run.clusters))
    ]
    below.legend(
        handles=[*dots, *shapes], loc="outside lower center", ncols=len(dots) + len(shapes), frameon=False,
        fontsize=8.5, handletextpad=0.1, columnspacing=1.1, title="class and cluster", title_fontsize=8.5,
    )  # fmt: skip
    return drawn


def _weights_by_round(drawn: Any, run: StoredRun) -> None:
    kept = sorted(map(int, run.weights))
    rounds = [t for t in kept if t in SHOWN_ROUNDS or t == kept[-1]]
    panels = drawn.subplots(1, 1 + len(rounds))
    maps.overlap(panels[0], run.classes, run.clusters, "(a) share of classes\nin common", maps.SMALL)
    top = max(float(run.matrix(t).max()) for t in rounds)
    shown = None
    for panel, t in zip(panels[1:], rounds, strict=True):
        name = "(b) W, round" if panel is panels[1] else "round"
        shown = _weights(panel, run, run.matrix(t), top, f"{name} {t + 1}")
    panels[1].set_ylabel("client", fontsize=9, color=INK)
    bar = drawn.colorbar(shown, ax=list(panels[1:]), shrink=0.8, pad=0.01)
    maps.slim(bar)


def _weights(axes: Axes, run: StoredRun, matrix: Tensor, top: float, title: str) -> Any:
    order = maps.by_cluster(run.clusters)
    shown = axes.imshow(maps.arranged(matrix, order), cmap="Blues", vmin=0, vmax=top, interpolation="nearest")
    share = share_inside(matrix, run.clusters)
    inside = "" if share is None else f"\n{percent(share)} inside"
    labels = [str(i) for i in order]
    maps.cells(axes, f"{title}{inside}", "", "", labels, labels, 10 if len(labels) <= 10 else 5)
    maps.boundaries(axes, run.clusters, order)
    return shown


def _cloud(axes: Axes, run: StoredRun, plane: str, title: str) -> None:
    """Test images as points: colour is class, shape is cluster; prototypes, if the plane has them, are stars."""
    embedding: Mapping[str, Any] = run.extra["embedding"]
    points = np.array(embedding[plane])
    images = len(embedding["labels"]) - embedding["prototypes"]
    labels, clients = np.array(embedding["labels"]), np.array(embedding["clients"])
    clusters = np.array(run.clusters)[clients]
    for i in sorted(set(run.clusters)):
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


def final_graphs_figure(runs: Sequence[StoredRun], titles: Sequence[str]) -> Figure:
    """W at the end of each run, on one scale."""
    columns = max(FEWEST_COLUMNS, min(MOST_COLUMNS, len(runs)))
    lines = -(-len(runs) // columns)
    breaks = max(title.count("\n") for title in titles)
    drawn = figure(0.2 + (1.85 * MOST_COLUMNS / columns + 0.16 * breaks) * lines)
    panels = drawn.subplots(lines, columns, squeeze=False)
    top = max(float(run.matrix().clone().fill_diagonal_(0).max()) for run in runs)
    shown: Any = None
    for panel, run, title in zip(panels.flatten(), runs, titles, strict=False):
        shown = _weights(panel, run, run.matrix(), top, title)
        panel.title.set_fontsize(8)
    for panel in panels.flatten()[len(runs) :]:
        panel.set_visible(False)
    bar = drawn.colorbar(shown, ax=list(panels.flatten()[: len(runs)]), shrink=0.6 if lines > 1 else 0.9, pad=0.01)
    bar.set_label("weight given to another", fontsize=8.5, color=INK)
    maps.slim(bar)
    return drawn
