"""One round: learn, write letters, read them, adjust."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mapl.clock import Clock
from mapl.errors import MaplError
from mapl.exchange import exchange, letters_ahead
from mapl.history import Round, sparse_row
from mapl.network import Post
from mapl.recipe import Recipe
from mapl.world import World


def play_round(world: World, t: int, clock: Clock | None = None) -> tuple[Round, dict[str, float]]:
    """One round: learn, write letters, read them, adjust. Returns its line and the seconds of each part."""
    clock = clock or Clock()
    seconds = clock.new_round()
    with clock.part("train"):
        losses = world.engine.train_all(world.clients, t)
    with clock.part("evaluate"):
        tested = _test(world, t, "trained")
    before = world.ledger.messages, world.ledger.bytes
    post = Post(world.ledger, world.recipe.network.letter_limit)
    with clock.part("exchange"):
        inboxes = exchange(world.method, world.clients, world.server, world.topology, post, t)
        world.method.absorb_all(t, inboxes)
    with clock.part("evaluate"):
        tested = tested or _test(world, t, "mixed")
    line = Round(
        round=t,
        losses={term: [loss[term] for loss in losses] for term in losses[0]},
        accuracy=tested["accuracy"] if tested else None,
        messages=world.ledger.messages - before[0],
        bytes=world.ledger.bytes - before[1],
        rows=_changed_rows(world),
        all_images=tested.get("all_images") if tested else None,
    )
    world.rounds.append(line)
    return line, seconds


def _test(world: World, t: int, moment: str) -> dict[str, list[float]] | None:
    """Accuracies, if this round is tested and this is the moment for it. Both kinds come from one pass."""
    if world.recipe.evaluate.moment != moment or not (is_tested(world.recipe, t) or _spends_budget(world, t, moment)):
        return None
    answers = world.engine.evaluate_all(world.clients)
    own = [right[: client.tests] for client, right in zip(world.clients, answers, strict=True)]
    shares = {"accuracy": [_share(right) for right in own]}
    if world.recipe.evaluate.all_images:
        shares["all_images"] = [_share(right) for right in answers]
    return shares


def _share(right: Tensor) -> float:
    return int(right.sum()) / len(right)


def is_tested(recipe: Recipe, t: int) -> bool:
    return (t + 1) % recipe.evaluate.every == 0 or t + 1 == recipe.rounds


def budget_is_spent(world: World) -> bool:
    """Whether the network has sent all the messages that it may."""
    budget = world.recipe.network.message_budget
    return budget is not None and world.ledger.messages >= budget


def _spends_budget(world: World, t: int, moment: str) -> bool:
    """Whether this round's letters are the last; then it is tested like any last round."""
    budget = world.recipe.network.message_budget
    if budget is None:
        return False
    if moment == "mixed":  # they have been sent
        return budget_is_spent(world)
    return world.ledger.messages + letters_ahead(world.method, world.clients, world.server, world.topology, t) >= budget


def _changed_rows(world: World) -> dict[int, dict[str, list[Any]]]:
    changed = {}
    for client in world.clients:
        row = world.method.weights(client)
        if row is not None and (client.id not in world.rows or not torch.equal(row, world.rows[client.id])):
            if not row.isfinite().all():
                raise MaplError(
                    f"the weights of client {client.id} are no longer finite in round {len(world.rounds)}; "
                    "a lower train.learning_rate usually helps"
                )
            world.rows[client.id] = row.clone()
            changed[client.id] = sparse_row(row)
    return changed
