"""One round: train, write letters, read them, absorb them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from mapl.client import Client, Peers
from mapl.clock import Clock
from mapl.engine._base import Answers
from mapl.errors import NotFinite
from mapl.measures import Measure, measured
from mapl.network import same_since
from mapl.recipe import Recipe
from mapl.runs.chain import Round
from mapl.runs.contract import check_absorbed, checked_row
from mapl.runs.diagnosis import explained, watching_letters, why_not_finite
from mapl.runs.exchange import Exchange, letters_ahead, look_around
from mapl.runs.part import Part


def play_round(part: Part, t: int, clock: Clock | None = None) -> tuple[Round, dict[str, float]]:
    """Play one round for the clients that this process holds: train, ask, write, exchange, absorb, record.

    Returns the round's line of the history, and the seconds of each part.
    """
    clock = clock or Clock()
    seconds = clock.new_round()
    taking = part.taking_part(t)
    there = None if taking is None else set(taking.tolist())
    present = part.clients if there is None else [client for client in part.clients if client.id in there]
    with clock.part("train"), explained(part):
        losses = part.engine.train_all(present, t) if present else []
    look_around(part.method, part.clients, part.server, part.topology, t, part.reachable, taking)
    with clock.part("evaluate"):
        tested = _test(part, t, "trained")
    before = part.ledger.messages, part.ledger.bytes
    with clock.part("exchange"):
        sent = exchange(part, t, present)
    with clock.part("evaluate"):
        tested = tested or _test(part, t, "mixed")
    line = Round(
        round=t,
        losses=_by_term(part.clients, present, losses),
        accuracy=tested.accuracy if tested else None,
        messages=part.ledger.messages - before[0],
        bytes=part.ledger.bytes - before[1],
        all_images=tested.all_images if tested else None,
        ways=tested.ways if tested else None,
        measures=tested.measures if tested else None,
        released=[sent.released[client.id] for client in part.clients] if part.noise else None,
        refused=sent.refused or None,
    )
    part.round = t + 1
    return line, seconds


def _by_term(
    clients: Sequence[Client], present: Sequence[Client], losses: Sequence[dict[str, float]]
) -> dict[str, list[float | None]]:
    """The losses by term, then by client; None for one that did not take part."""
    by_client = {client.id: loss for client, loss in zip(present, losses, strict=True)}
    nothing: dict[str, float] = {}
    terms = losses[0] if losses else nothing
    return {term: [by_client.get(client.id, nothing).get(term) for client in clients] for term in terms}


def exchange(part: Part, t: int, present: Sequence[Client] | None = None) -> Exchange:
    """The letters of a round: written, carried, checked, read and absorbed. The result has their counts.

    `present`: the clients held here that take part, if not all do.
    """
    network = part.recipe.network
    letters = Exchange(
        part.method,
        part.clients if present is None else present,
        part.server,
        part.transport,
        part.ledger,
        round=t,
        limit=network.letter_limit,
        noise=part.noise,
        compressor=part.compressor,
        drawn_in=part.topology.drawn_in(t),
        same_since=same_since(network.participation, network.joiners, t),
        read=part.read,
        # Who reaches nobody now may still be asked, by somebody who comes back or is not known here yet.
        directed=part.topology.directed or (part.reachable is not None and part.topology.settings.name != "none"),
    )
    pairs = letters.run()
    with watching_letters(part, pairs, t):
        returned: object = part.method.absorb_all(t, pairs)  # type: ignore[func-returns-value]
    check_absorbed(part.method, returned)
    return letters


def graph(part: Part) -> dict[int, Peers]:
    """The rows of W of the clients held here, by client; empty if the method has no graph."""
    method = part.method
    found = {client.id: checked_row(method, client, method.weights(client)) for client in part.clients}
    rows = {client: row for client, row in found.items() if row is not None}
    for client, row in rows.items():
        if not np.isfinite(row.weights).all():
            raise NotFinite(
                f"the weights of client {client} are no longer finite in round {part.round - 1}; {why_not_finite(part)}"
            )
    return rows


@dataclass(frozen=True)
class _Test:
    """Accuracies by client, as `Round` has them."""

    accuracy: list[float]
    all_images: list[float] | None
    ways: dict[str, list[float]] | None
    measures: dict[Measure, list[float]]


def _test(part: Part, t: int, moment: str) -> _Test | None:
    """Accuracies, if this round is tested at this moment. All kinds come from one pass."""
    if part.recipe.evaluate.moment != moment or not (is_tested(part.recipe, t) or _spends_budget(part, t, moment)):
        return None
    found = part.engine.evaluate_all(part.clients)
    right = [one.right for one in found]
    answers = [rows[0] for rows in right]
    own = [one[: client.tests] for client, one in zip(part.clients, answers, strict=True)]
    everything = part.recipe.evaluate.all_images
    ways = {
        way: [
            _share(rows[1 + number, : None if everything else c.tests])
            for c, rows in zip(part.clients, right, strict=True)
        ]
        for number, way in enumerate(part.method.ways)
    }
    return _Test(
        [_share(one) for one in own],
        [_share(one) for one in answers] if everything else None,
        ways or None,
        _measures(part.clients, found),
    )


def _measures(clients: Sequence[Client], found: Sequence[Answers]) -> dict[Measure, list[float]]:
    """What else is measured of the answers that the accuracies are of, to six digits: the history stays small."""
    own = [
        [one[: client.tests].numpy() for one in (answers.labels, answers.predicted[0], answers.confidence)]
        for client, answers in zip(clients, found, strict=True)
    ]
    return {name: values.round(6).tolist() for name, values in measured(*zip(*own, strict=True)).items()}


def _share(right: Tensor) -> float:
    return int(right.sum()) / len(right)


def is_tested(recipe: Recipe, t: int) -> bool:
    return (t + 1) % recipe.evaluate.every == 0 or t + 1 == recipe.rounds


def budget_is_spent(part: Part) -> bool:
    """Whether the message budget is used up."""
    budget = part.recipe.network.message_budget
    return budget is not None and part.ledger.messages >= budget


def _spends_budget(part: Part, t: int, moment: str) -> bool:
    """Whether this round's letters use up the budget. It is then tested like any last round."""
    budget = part.recipe.network.message_budget
    if budget is None:
        return False
    if moment == "mixed":  # they have been sent
        return budget_is_spent(part)
    # Who does not take part reaches nobody, and so asks nobody.
    return part.ledger.messages + letters_ahead(part.method, part.clients, t) >= budget
