"""What the page is told about a run, as plain trees for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from mapl.errors import MaplError
from mapl.names import printable
from mapl.recipe import Recipe, has_letters
from mapl.runs.graph import ROWS, Row
from mapl.runs.record import ClientCard, Record

Tree = dict[str, Any]

KINDS = 7
"""Up to so many sets of classes have a colour and a line of the legend each; more share a scale of colours."""
RECENT = 10
"""Rounds whose times say how long the next ones will take."""


def still(record: Record, names: Mapping[int, str] | None = None, title: str = "") -> Tree:
    """What does not change while a run goes on: its name, settings and clients.

    A part of a network knows the cards of its own clients alone; the others are dots without any.
    """
    cards = {card.id: card for card in record.clients}
    kinds = _kinds(record.clients)
    names = names or {}
    return {
        "name": printable(title or record.folder.name),
        "method": printable(record.recipe.method.name),
        "data": printable(record.recipe.data.name),
        "planned": record.recipe.rounds,
        "letters": has_letters(record.recipe),
        "held": record.held,
        "kinds": [{"label": class_words(classes), "number": number} for classes, number in kinds.items()],
        "many": len(kinds) > KINDS,
        "clients": [
            _client(cards.get(i), list(kinds), printable(names.get(i, f"client {i}")))
            for i in range(record.recipe.clients)
        ],
        "settings": settings(record.recipe),
    }


def _client(card: ClientCard | None, kinds: Sequence[tuple[int, ...]], name: str) -> Tree:
    if card is None:
        return {"name": name, "kind": None}
    return {
        "name": name,
        "kind": kinds.index(tuple(sorted(card.classes))),
        "classes": class_words(card.classes),
        "backbone": printable(card.backbone),
        "samples": card.samples,
    }


def _kinds(cards: Sequence[ClientCard]) -> dict[tuple[int, ...], int]:
    """The sets of classes that clients have, in order, and how many clients have each."""
    sets = sorted(tuple(sorted(card.classes)) for card in cards)
    return {classes: sets.count(classes) for classes in dict.fromkeys(sets)}


def class_words(classes: Sequence[int]) -> str:
    """class 3; classes 0–4, 7."""
    spans: list[list[int]] = []
    for one in sorted(classes):
        if spans and one == spans[-1][-1] + 1:
            spans[-1].append(one)
        else:
            spans.append([one])
    words = ", ".join(str(span[0]) if len(span) == 1 else f"{span[0]}–{span[-1]}" for span in spans)
    return f"{'class' if len(classes) == 1 else 'classes'} {words or 'none'}"


def settings(recipe: Recipe) -> Tree:
    """The settings that matter most, by their names in a recipe."""
    train, partition = recipe.train, recipe.partition
    return {
        "learning rate": train.learning_rate,
        "epochs a round": train.epochs,
        "optimiser": train.optimizer,
        "batch": train.batch,
        "shots": partition.shots,
        "topology": recipe.network.topology.name,
        "seed": recipe.seed,
    }


def lines(record: Record, start: int) -> list[Tree]:
    """The rounds from `start` on (from 0)."""
    return [{"a": line.accuracy, "m": line.messages, "b": line.bytes} for line in islice(record.rounds, start, None)]


def accuracies(record: Record, start: int) -> list[list[float] | None]:
    """The accuracies by client of the rounds from `start` on."""
    return [line.accuracy for line in islice(record.rounds, start, None)]


def edges(rows: Mapping[int, Row], clients: int) -> dict[str, tuple[list[int], list[float]]]:
    """W of a round: by client, to whom it listens and how much, as the history has it.

    Whoever wrote the folder could write anything into it, so what the page cannot show is refused.
    """
    for client, (ids, weights) in rows.items():
        if len(ids) and not 0 <= ids.min() <= ids.max() < clients:
            raise MaplError(f"{ROWS}: the row of client {client} has weights for clients that the run does not have")
        if not np.isfinite(weights).all():
            raise MaplError(f"{ROWS}: the row of client {client} has a weight that is not a finite number")
    return {str(client): (row.ids.tolist(), row.weights.tolist()) for client, row in rows.items()}


def left(record: Record) -> float | None:
    """Seconds until the last round, if the next rounds take as long as the last ones did."""
    if record.finished or not record.times:
        return None
    recent = [line["seconds"] for line in record.times[-RECENT:]]
    return sum(recent) / len(recent) * (record.recipe.rounds - len(record.rounds))


def amount(size: int) -> str:
    """A number of bytes: 512 B, 3.4 MiB."""
    if size < 1000:
        return f"{size} B"
    value, units = size / 1024, ["KiB", "MiB", "GiB", "TiB"]
    while value >= 1000 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.1f} {units[0]}" if value < 10 else f"{value:.0f} {units[0]}"
