"""What a figure needs of a finished run beyond its history: heads, images of each class, embeddings in the plane.

Rounded, because it is kept in the results store for good, a line a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from mapl.embedding import alignment, in_the_plane, sample
from mapl.graph import head_similarity
from mapl.history import Record
from mapl.losses import Form, unit_rows
from mapl.world import World

Extra = Literal["heads", "distribution", "embedding"]


def extras(world: World, record: Record, which: Iterable[Extra]) -> dict[str, Any]:
    """What goes into a row's `extra`, by name: of a run's record and its world after the last round, or a restored one.

    The record says after which round that was.
    """
    made: dict[str, Any] = {name: MAKERS[name](world) for name in which}
    return {**made, "rounds": len(record.rounds)} if made else {}


def heads(world: World) -> dict[str, Any]:
    """How alike the heads of every two clients are (M, M): as the graph's own form has it, and class by class.

    The released form is the second; a run of that form has them twice.
    """
    form: Form = getattr(getattr(world.recipe.method, "graph", None), "form", "released")
    stack = torch.stack([client.model.head.weight.detach().cpu() for client in world.clients])
    return {"form": form, "own": _all_pairs(stack, form), "by_class": _all_pairs(stack, "released")}


def _all_pairs(heads: Tensor, form: Form) -> list[list[float]]:
    return [_rounded(head_similarity(head, heads, form), 4) for head in heads]


def distribution(world: World) -> list[list[int]]:
    """Training images of each class, a row a client."""
    classes = world.clients[0].model.head.out_features
    return [client.train.counts(classes) for client in world.clients]


@torch.no_grad()
def embedding(world: World) -> dict[str, Any]:
    """Test images in the plane, twice: their embeddings z, and their projections p together with the prototypes ξ.

    Prototypes are compared with projections, never with embeddings, so that the second is the only plane where they
    have a place. Directions alone matter there, as in the loss.
    """
    vectors, labels, owners = sample(world)
    projections = torch.cat([_project(world, i, vectors[owners == i]) for i in range(len(world.clients))])
    held = [(c.id, k) for c in world.clients for k in sorted(set(c.train.labels.tolist()))]
    prototypes = torch.stack([world.clients[i].model.prototypes[k].cpu() for i, k in held])
    clusters = torch.tensor([client.cluster for client in world.clients])[owners]
    (aligned, by_chance), (kin, kin_by_chance) = alignment(vectors, owners, (labels, clusters))
    (projected, _), *_ = alignment(unit_rows(projections), owners, (labels,))
    return {
        "z": [_rounded(point, 2) for point in torch.from_numpy(in_the_plane(vectors))],
        "p": [_rounded(p, 2) for p in torch.from_numpy(in_the_plane(unit_rows(torch.cat([projections, prototypes]))))],
        "labels": labels.tolist() + [k for _, k in held],
        "clients": owners.tolist() + [i for i, _ in held],
        "prototypes": len(held),
        "aligned": round(aligned, 4),
        "p_aligned": round(projected, 4),
        "by_chance": round(by_chance, 4),
        "kin": round(kin, 4),
        "kin_by_chance": round(kin_by_chance, 4),
    }


def _project(world: World, client: int, embeddings: Tensor) -> Tensor:
    model = world.clients[client].model
    training = model.training
    model.eval()
    made = model.project(embeddings.to(model.prototypes.device)).cpu()
    model.train(training)
    return made


def _rounded(values: Tensor, digits: int) -> list[float]:
    # + 0.0, because −0.0 and 0.0 would be two spellings of one number.
    return [round(value, digits) + 0.0 for value in values.tolist()]


MAKERS: dict[str, Callable[[World], Any]] = {
    "heads": heads,
    "distribution": distribution,
    "embedding": embedding,
}
