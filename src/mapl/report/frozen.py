"""The runs that a report shows moving: what the page of `mapl watch` is told of them, all at once and with a limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from mapl.analysis.clusters import first_mixed
from mapl.analysis.control import twins
from mapl.live import scene
from mapl.names import printable
from mapl.recipe import has_letters
from mapl.report.document import Scene
from mapl.report.lines import Line
from mapl.report.text import count
from mapl.runs.graph import Row
from mapl.runs.record import Record

Tree = dict[str, Any]
Thing = TypeVar("Thing")

MOST_RUNS = 12
"""Arms that the page shows moving, one run each."""
GRAPHS = 2**20
"""About how many bytes the W of all these runs may take together."""
TESTS = 2**19
"""The same for the accuracies of their clients."""
WEIGHT, ACCURACY = 26, 9
"""Bytes that one of them takes as text."""
FEWEST = 8
"""Rounds to keep W of. If that is too much, each keeps only its largest weights."""


def frozen(lines: Sequence[Line], first: Line) -> Scene | None:
    """One run of each arm, `first` before the others; None if no round was played."""
    order = [line for line in (first, *(line for line in lines if line is not first)) if line.typical.rounds]
    order = order[:MOST_RUNS]
    if not order:
        return None
    runs = [run for line in lines for run in line.runs]
    graphs = sum(line.typical.graph.exists for line in order)
    return Scene({"runs": [_run(line, runs, GRAPHS // max(1, graphs), TESTS // len(order)) for line in order]})


def _run(line: Line, runs: Sequence[Record], graphs: int, tests: int) -> Tree:
    """An arm's run, with at most so many bytes of W and of accuracies."""
    record = line.typical
    control = control_among(record, runs)
    kept = _tests(record, tests // (1 if control is None else 2))
    tree: Tree = {
        "label": f"{line.label}, seed {record.recipe.seed}",
        "about": printable(_about(line)),
        "run": scene.still(record),
        "lines": [{"a": kept.get(one.round), "m": one.messages, "b": one.bytes} for one in record.rounds],
    }
    if control is not None:
        theirs = {one.round: _rounded(one.accuracy or ()) for one in control.tested}
        tree["control"] = {
            "name": printable(control.folder.name),
            "lines": [theirs.get(t) if t in kept else None for t in range(len(record.rounds))],
        }
    changes, words = _changes(record, graphs)
    some = "" if len(kept) == len(record.tested) else f"This page has {len(kept)} of its {len(record.tested)} tests. "
    return {**tree, "label": printable(tree["label"]), "changes": changes, "sampled": some + words}


def _about(line: Line) -> str:
    name = f"folder {line.typical.folder.name}"
    tested = sum(bool(run.tested) for run in line.runs)
    return name if tested < 3 else f"{name}, the middle one of {tested} by accuracy"


def control_among(record: Record, runs: Sequence[Record]) -> Record | None:
    """The run among these that is the control of this one; of several the longest."""
    if not (has_letters(record.recipe) and record.whole):
        return None
    for twin in twins(record.recipe):
        wanted = (twin.fingerprint(), record.data)
        alike = [run for run in runs if run.whole and run.tested and (run.recipe.fingerprint(), run.data) == wanted]
        if alike:
            return max(alike, key=lambda run: len(run.rounds))
    return None


def _tests(record: Record, size: int) -> dict[int, list[float]]:
    """The accuracies by client of as many tests as fit, by round (from 0), the first and the last among them."""
    fit = size // (ACCURACY * len(record.clients))
    return {one.round: _rounded(one.accuracy or ()) for one in spread(record.tested, fit)}


def _rounded(accuracy: Sequence[float]) -> list[float]:
    return [round(value, 6) for value in accuracy]


def spread(things: Sequence[Thing], most: int) -> list[Thing]:
    """At most so many of them, but not fewer than two, evenly: the first and the last are among them."""
    if len(things) <= max(2, most):
        return list(things)
    return [things[place] for place in np.linspace(0, len(things) - 1, max(2, most)).round().astype(int)]


def _changes(record: Record, size: int) -> tuple[list[tuple[int, Tree]], str]:
    """The rows of W that changed, by round (from 0), in rounds that are chosen so that all fit; and what was left out.

    What is kept is exact.
    """
    first = first_mixed(record)
    if first is None:
        return [], ""
    last, fit = len(record.rounds) - 1, size // WEIGHT
    sizes = [_weights(record.graph.rows(t)) for t in {first, (first + last) // 2, last}]
    fewest = min(FEWEST, last + 1 - first)
    cut = max(sizes) * fewest > fit
    largest = max(1, fit // fewest // len(record.clients))
    rounds = spread(range(first, last + 1), fewest if cut else fit // max(sizes))
    before: dict[int, Row] = {}
    changes: list[tuple[int, Tree]] = []
    for t in rounds:
        rows = record.graph.rows(t)
        if cut:
            rows = {client: strongest(row, client, largest) for client, row in rows.items()}
        changed = {client: row for client, row in rows.items() if not _same(row, before.get(client))}
        changes.append((t, scene.edges(changed, record.recipe.clients)))
        before = rows
    return changes, _left_out(last + 1 - first, rounds, largest if cut else 0)


def _weights(rows: dict[int, Row]) -> int:
    return sum(len(row.ids) for row in rows.values())


def _same(row: Row, other: Row | None) -> bool:
    return other is not None and all(map(np.array_equal, row, other))


def strongest(row: Row, client: int, most: int) -> Row:
    """The client's weight for itself, and its largest ones for others, so many in all; in the order of the row."""
    if len(row.ids) <= most:
        return row
    rank = np.argsort(np.where(row.ids == client, -math.inf, -row.weights), kind="stable")
    kept = np.sort(rank[:most])
    return Row(row.ids[kept], row.weights[kept])


def _left_out(played: int, rounds: Sequence[int], largest: int) -> str:
    """What a reader has to know about the W of this page."""
    if len(rounds) == played and not largest:
        return ""
    text = f"To stay small, this page has W of {count(len(rounds), 'round')} of {played:,}"
    if largest:
        text += f", and of each client the {count(largest, 'largest weight', 'largest weights')}"
    return f"{text}. mapl watch shows all of it."
