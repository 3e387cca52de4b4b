"""Pictures by round: accuracy, the terms of the loss, and what was sent."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mapl.keys import ALWAYS, NOBODY, key
from mapl.report.drawing import INK, beside, figure, is_narrow, legend, plain, tidy, whole_rounds
from mapl.report.lines import Line, accuracy_curve, loss_curve, loss_terms, mebibytes_curve, message_curve


def accuracy_figure(lines: Sequence[Line]) -> Figure:
    """Accuracy by round, one line per arm with its spread over clients; beside it, each client at the last test."""
    drawn, (by_round, by_client) = beside(4.4, (3, min(3.0, max(1.0, 0.34 * len(lines)))))
    strength = 0.22 / math.sqrt(len(lines))
    for line in lines:
        curve = accuracy_curve(line)
        if curve is None:
            continue
        by_round.fill_between(curve.rounds, curve.low, curve.high, color=line.colour, alpha=strength, linewidth=0)
        marker = "o" if len(curve.rounds) < 30 else ""
        by_round.plot(
            curve.rounds, curve.mean, color=line.colour, linestyle=line.dash, linewidth=2, marker=marker, markersize=3.5
        )
        _strip(by_client, line)
    tidy(by_round, "Mean over clients, 10–90 % of them shaded", "round", "test accuracy (%)")
    tidy(by_client, "Each client, last test")
    whole_rounds(by_round, max(line.length for line in lines))
    _mark_warmup(by_round, lines)
    by_client.tick_params(labelbottom=False, bottom=False)
    by_client.grid(axis="x", visible=False)
    by_client.set_xlim(-0.6, max(line.place for line in lines) + 0.6)
    legend(drawn, _handles(lines))
    return drawn


def _strip(axes: Axes, line: Line) -> None:
    """Every client of every seed as a dot, and their mean as a bar."""
    values = 100 * np.concatenate([run.accuracy.numpy() for run in line.runs if run.tested])
    scatter = np.random.default_rng(key(0, NOBODY, ALWAYS, "scatter of the report")).uniform(-0.24, 0.24, len(values))
    axes.scatter(line.place + scatter, values, s=14, color=line.colour, alpha=0.55, linewidths=0)
    axes.plot([line.place - 0.34, line.place + 0.34], [values.mean()] * 2, color=line.colour, linewidth=2)


def _mark_warmup(axes: Axes, lines: Sequence[Line]) -> None:
    """A mark where graph learning starts, if all arms start in the same round."""
    starts = {start for line in lines if (start := graph_start(line)) is not None}
    if len(starts) == 1:
        axes.axvline(start := starts.pop() + 1, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
        place = axes.get_xaxis_transform()
        axes.text(start, 0.02, " graph learning starts", fontsize=8, color=INK, transform=place)


def graph_start(line: Line) -> int | None:
    """The first round (from 0) in which the arm learns a graph; None if it does not, or has not come so far."""
    recipe = line.first.recipe
    start = getattr(recipe.method, "warmup", None)
    learns = getattr(recipe.method, "learn_graph", False) and recipe.network.topology.name != "none"
    return start if learns and isinstance(start, int) and start < line.length else None


def loss_figure(lines: Sequence[Line]) -> Figure:
    """One panel per term of the loss, one line per arm."""
    terms = list(dict.fromkeys(term for line in lines for term in loss_terms(line)))
    columns = min(2 if is_narrow() else 4, len(terms))
    rows = -(-len(terms) // columns)
    drawn = figure(0.5 + 2.5 * rows)
    panels = drawn.subplots(rows, columns, squeeze=False).flatten()
    for panel, term in zip(panels, terms, strict=False):
        for line in lines:
            if term not in loss_terms(line):
                continue
            curve = loss_curve(line, term)
            marker = "o" if len(curve.rounds) == 1 else ""
            panel.fill_between(
                curve.rounds, curve.low, curve.high, color=line.colour, alpha=0.2 / math.sqrt(len(lines)), linewidth=0
            )
            panel.plot(curve.rounds, curve.mean, color=line.colour, linestyle=line.dash, linewidth=1.6, marker=marker)
        tidy(panel, term_name(term), "round", "loss" if panel in panels[::columns] else "")
        whole_rounds(panel, max(line.length for line in lines), ticks=6)
    for panel in panels[len(terms) :]:
        panel.set_visible(False)
    legend(drawn, _handles(lines))
    return drawn


def term_name(term: str) -> str:
    return {"cross_entropy": "cross-entropy"}.get(term, term.replace("_", " "))


def messages_figure(lines: Sequence[Line]) -> Figure:
    """Messages per round, against the full mesh, and MiB sent so far."""
    drawn, (messages, sizes) = beside(3.6, (1, 1))
    for line in lines:
        curve, sent = message_curve(line), mebibytes_curve(line)
        marker = "o" if len(curve.rounds) == 1 else ""
        messages.step(
            curve.rounds, curve.mean, where="mid", color=line.colour, linestyle=line.dash, linewidth=1.8, marker=marker
        )
        sizes.plot(sent.rounds, sent.mean, color=line.colour, linestyle=line.dash, linewidth=1.8, marker=marker)
    meshes = sorted({mesh(line) for line in lines})
    for edges in meshes:
        messages.axhline(edges, color=INK, linewidth=1, linestyle="--")
    tidy(messages, "Messages per round", "round", "messages")
    tidy(sizes, "Sent so far", "round", "MiB")
    for panel in (messages, sizes):
        whole_rounds(panel, max(line.length for line in lines))
        panel.set_ylim(bottom=0)
    messages.set_ylim(top=1.12 * max(*meshes, messages.get_ylim()[1]))
    full = Line2D([], [], color=INK, linewidth=1, linestyle="--", label="full mesh, M(M − 1)")
    legend(drawn, [*_handles(lines), full])
    return drawn


def mesh(line: Line) -> int:
    """Messages per round when everybody writes to everybody: M(M − 1). Those of a part are the ones that it reads."""
    return len(line.first.clients) * (line.first.recipe.clients - 1)


def _handles(lines: Sequence[Line]) -> list[Line2D]:
    return [Line2D([], [], color=x.colour, linestyle=x.dash, linewidth=2, label=plain(x.label)) for x in lines]
