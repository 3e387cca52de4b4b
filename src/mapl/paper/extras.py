"""What a figure needs of a finished run beyond its history: heads, images of each class, embeddings in the plane.

Rounded, because it is kept in the results store for good, a line a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from mapl.analysis.embedding import alignment, in_the_plane, sample
from mapl.collaboration import head_similarity
from mapl.losses import Form, unit_rows
from mapl.runs.history import Record
from mapl.runs.part import Part

Extra = Literal["heads", "distribution", "embedding"]


def extras(part: Part, record: Record, which: Iterable[Extra]) -> dict[str, Any]:
    """What goes into a row's `extra`, by name: of a run's record and its part after the last round, or a restored one.

    The record says after which round that was.
    """
    made: dict[str, Any] = {name: MAKERS[name](part) for name in which}
    return {**made, "rounds": len(record.rounds)} if made else {}


def heads(part: Part) -> dict[str, Any]:
    """How alike the heads of every two clients are (M, M): as the graph's own form has it, and class by class.

    The released form is the second; a run of that form has them twice.
    """
    form: Form = getattr(getattr(part.recipe.method, "graph", None), "form", "released")
    stack = torch.stack([client.model.head.weight.detach().cpu() for client in part.clients])
    return {"form": form, "own": _all_pairs(stack, form), "by_class": _all_pairs(stack, "released")}


def _all_pairs(heads: Tensor, form: Form) -> list[list[float]]:
    return [_rounded(head_similarity(head, heads, form), 4) for head in heads]


def distribution(part: Part) -> list[list[int]]:
    """Training images of each class, a row a client."""
    classes = part.clients[0].model.head.out_features
    return [client.train.counts(classes) for client in part.clients]


@torch.no_grad()
def embedding(part: Part) -> dict[str, Any]:
    """Test images in the plane, twice: their embeddings z, and their projections p together with the prototypes ξ.

    Prototypes are compared with projections, never with embeddings, so that the second is the only plane where they
    have a place. Directions alone matter there, as in the loss.
    """
    vectors, labels, owners = sample(part)
    projections = torch.cat([_project(part, i, vectors[owners == i]) for i in range(len(part.clients))])
    held = [(c.id, k) for c in part.clients for k in sorted(set(c.train.labels.tolist()))]
    prototypes = torch.stack([part.clients[i].model.prototypes[k].cpu() for i, k in held])
    clusters = torch.tensor([client.cluster for client in part.clients])[owners]
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


def _project(part: Part, client: int, embeddings: Tensor) -> Tensor:
    model = part.clients[client].model
    training = model.training
    model.eval()
    made = model.project(embeddings.to(model.prototypes.device)).cpu()
    model.train(training)
    return made


def _rounded(values: Tensor, digits: int) -> list[float]:
    # + 0.0, because −0.0 and 0.0 would be two spellings of one number.
    return [round(value, digits) + 0.0 for value in values.tolist()]


MAKERS: dict[str, Callable[[Part], Any]] = {
    "heads": heads,
    "distribution": distribution,
    "embedding": embedding,
}
