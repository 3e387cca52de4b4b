"""The tables of a run report: arms, clients, runs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import torch
from torch import Tensor

from mapl.analysis.clusters import first_mixed
from mapl.measures import METRICS, TITLES
from mapl.names import DASH
from mapl.report.document import Entry, Table
from mapl.report.lines import Line
from mapl.report.sentences import gain_cell
from mapl.report.text import percent, ranges
from mapl.runs.record import Record

MOST_CLIENTS = 200
"""Clients that the table of clients lists."""


def arms_table(lines: Sequence[Line]) -> Table:
    """One row per arm."""
    way = ["way to pooled"] if shows_way(lines) else []
    # On a narrow screen the first columns are in sight.
    after = ["seeds", "std over clients", "inside clusters", "messages", "MiB", "seconds"]
    titles = ["arm", "accuracy (%)", "collaboration gain", *way, *after]
    return Table(titles, [[Entry((line.label,), colour=line.colour), *_numbers(line, bool(way))] for line in lines])


def measures_table(lines: Sequence[Line]) -> Table | None:
    """What is measured beside accuracy, one row per arm; None if no run has it."""
    known = [name for name in METRICS[1:] if any(line.arm and name in line.arm.measures for line in lines)]
    rows: list[list[str | Entry]] = [
        [
            Entry((line.label,), colour=line.colour),
            *(line.arm.measures[name].text() if name in line.arm.measures else DASH for name in known),
        ]
        for line in lines
        if line.arm is not None
    ]
    return Table(["arm", *(f"{TITLES[name]} (%)" for name in known)], rows) if known else None


def shows_way(lines: Sequence[Line]) -> bool:
    """Whether some arm has both a control and a ceiling among the runs."""
    return any(line.arm is not None and line.arm.way for line in lines)


def _numbers(line: Line, way: bool) -> list[str]:
    arm = line.arm
    if arm is None:
        seconds = fmean(run.seconds for run in line.runs)
        return ["not tested yet", *[DASH] * (1 + way), str(len(line.runs)), *[DASH] * 4, f"{seconds:,.0f}"]
    return [
        arm.accuracy.text(),
        gain_cell(arm),
        *([arm.way or DASH] if way else []),
        str(len(arm.seeds)),
        f"{100 * arm.spread:.1f}",
        percent(arm.inside),
        f"{arm.messages:,.0f}",
        f"{arm.bytes / 2**20:,.1f}",
        f"{arm.seconds:,.0f}",
    ]


def runs_table(lines: Sequence[Line]) -> Table:
    """One row per run: its folder, and how far it came."""
    rows = [
        [
            run.folder.name,
            line.label,
            str(run.recipe.seed),
            f"{len(run.rounds)} of {run.recipe.rounds}",
            f"{100 * run.mean:.1f}" if run.tested else DASH,
            run.recipe.fingerprint(),
            run.data,
        ]
        for line in lines
        for run in line.runs
    ]
    return Table(["folder", "arm", "seed", "rounds", "accuracy (%)", "fingerprint", "data"], rows, words=2)


MOST_REFUSED = 100
"""Rows of the table of letters that were left out."""


def refused_table(lines: Sequence[Line]) -> Table:
    """One row per run, sender and reason: how many letters were left out."""
    rows = [
        [run.folder.name, str(sender), reason, f"{number:,}"]
        for line in lines
        for run in line.runs
        for sender, reasons in run.refused.items()
        for reason, number in reasons.items()
    ]
    return Table(["folder", "sender", "reason", "letters left out"], rows[:MOST_REFUSED], words=3)


def clients_table(record: Record) -> Table:
    """One row per client."""
    weights = None if first_mixed(record) is None else record.weights().clone().fill_diagonal_(0)
    accuracy = record.accuracy if record.tested else None
    rows = [
        [
            str(card.id),
            str(card.cluster),
            card.backbone,
            ranges(card.classes),
            DASH if weights is None else _listens_to(weights[card.id]),
            f"{card.parameters:,}",
            f"{card.samples:,}",
            f"{card.tests:,}",
            DASH if accuracy is None else f"{100 * float(accuracy[place]):.1f}",
        ]
        for place, card in enumerate(record.clients[:MOST_CLIENTS])
    ]
    titles = "client|cluster|backbone|classes|listens most to|parameters|training samples|test samples|accuracy (%)"
    return Table(titles.split("|"), rows, words=5)


def _listens_to(weights: Tensor) -> str:
    """Whom a client listens to most, apart from itself; equal weights are named together."""
    share = float(weights.max())
    if share <= 0:
        return "nobody"
    alike = torch.nonzero(weights > share - 1e-9).flatten().tolist()
    return f"{ranges(alike)} ({share:.2f}{' each' if len(alike) > 1 else ''})"
