"""One round: learn, write letters, read them, adjust."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mapl.clock import Clock
from mapl.errors import MaplError
from mapl.network import Post
from mapl.recipe import Recipe
from mapl.runs.exchange import exchange, letters_ahead
from mapl.runs.history import Round, sparse_row
from mapl.runs.part import Part


def play_round(part: Part, t: int, clock: Clock | None = None) -> tuple[Round, dict[str, float]]:
    """One round: learn, write letters, read them, adjust. Returns its line and the seconds of each part."""
    clock = clock or Clock()
    seconds = clock.new_round()
    with clock.part("train"):
        losses = part.engine.train_all(part.clients, t)
    with clock.part("evaluate"):
        tested = _test(part, t, "trained")
    before = part.ledger.messages, part.ledger.bytes
    post = Post(part.ledger, part.recipe.network.letter_limit)
    with clock.part("exchange"):
        inboxes = exchange(part.method, part.clients, part.server, part.topology, post, t)
        part.method.absorb_all(t, inboxes)
    with clock.part("evaluate"):
        tested = tested or _test(part, t, "mixed")
    line = Round(
        round=t,
        losses={term: [loss[term] for loss in losses] for term in losses[0]},
        accuracy=tested["accuracy"] if tested else None,
        messages=part.ledger.messages - before[0],
        bytes=part.ledger.bytes - before[1],
        rows=_changed_rows(part),
        all_images=tested.get("all_images") if tested else None,
    )
    part.rounds.append(line)
    return line, seconds


def _test(part: Part, t: int, moment: str) -> dict[str, list[float]] | None:
    """Accuracies, if this round is tested and this is the moment for it. Both kinds come from one pass."""
    if part.recipe.evaluate.moment != moment or not (is_tested(part.recipe, t) or _spends_budget(part, t, moment)):
        return None
    answers = part.engine.evaluate_all(part.clients)
    own = [right[: client.tests] for client, right in zip(part.clients, answers, strict=True)]
    shares = {"accuracy": [_share(right) for right in own]}
    if part.recipe.evaluate.all_images:
        shares["all_images"] = [_share(right) for right in answers]
    return shares


def _share(right: Tensor) -> float:
    return int(right.sum()) / len(right)


def is_tested(recipe: Recipe, t: int) -> bool:
    return (t + 1) % recipe.evaluate.every == 0 or t + 1 == recipe.rounds


def budget_is_spent(part: Part) -> bool:
    """Whether the network has sent all the messages that it may."""
    budget = part.recipe.network.message_budget
    return budget is not None and part.ledger.messages >= budget


def _spends_budget(part: Part, t: int, moment: str) -> bool:
    """Whether this round's letters are the last; then it is tested like any last round."""
    budget = part.recipe.network.message_budget
    if budget is None:
        return False
    if moment == "mixed":  # they have been sent
        return budget_is_spent(part)
    return part.ledger.messages + letters_ahead(part.method, part.clients, part.server, part.topology, t) >= budget


def _changed_rows(part: Part) -> dict[int, dict[str, list[Any]]]:
    changed = {}
    for client in part.clients:
        row = part.method.weights(client)
        if row is not None and (client.id not in part.rows or not torch.equal(row, part.rows[client.id])):
            if not row.isfinite().all():
                raise MaplError(
                    f"the weights of client {client.id} are no longer finite in round {len(part.rounds)}; "
                    "a lower train.learning_rate usually helps"
                )
            part.rows[client.id] = row.clone()
            changed[client.id] = sparse_row(row)
    return changed
