"""What figures need of a run's models: similarity of heads, images per class, embeddings in the plane.

Rounded, because the results store keeps it for good, one line per run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from mapl.analysis.embedding import alignment, in_the_plane, sample
from mapl.collaboration import head_similarity
from mapl.losses import Form, unit_rows
from mapl.runs.part import Part
from mapl.runs.record import Record

Extra = Literal["heads", "distribution", "embedding"]


def extras(part: Part, record: Record, which: Iterable[Extra]) -> dict[str, Any]:
    """`StoredRun.extra` of a run, from its part after the last round. The record says which round that was."""
    values: dict[str, Any] = {name: MAKERS[name](part) for name in which}
    return {**values, "rounds": len(record.rounds)} if values else {}


def heads(part: Part) -> dict[str, Any]:
    """Similarity of the heads of all pairs of clients (M, M): in the form of the run's graph, and class by class.

    Class by class is the released form; a run of that form has the same matrix twice.
    """
    form: Form = getattr(getattr(part.recipe.method, "graph", None), "form", "released")
    stack = torch.stack([client.model.head.weight.detach().cpu() for client in part.clients])
    return {"form": form, "own": _all_pairs(stack, form), "by_class": _all_pairs(stack, "released")}


def _all_pairs(heads: Tensor, form: Form) -> list[list[float]]:
    return [_rounded(head_similarity(head, heads, form), 4) for head in heads]


def distribution(part: Part) -> list[list[int]]:
    """Training images per class, one row per client."""
    classes = part.clients[0].model.head.out_features
    return [client.train.counts(classes) for client in part.clients]


@torch.no_grad()
def embedding(part: Part) -> dict[str, Any]:
    """Test images in the plane, twice: their embeddings z, and their projections p together with the prototypes ξ.

    The loss compares prototypes with projections, never with embeddings, and by direction alone. So does the second
    plane.
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
    projections = model.project(embeddings.to(model.prototypes.device)).cpu()
    model.train(training)
    return projections


def _rounded(values: Tensor, digits: int) -> list[float]:
    # + 0.0 turns −0.0 into 0.0.
    return [round(value, digits) + 0.0 for value in values.tolist()]


MAKERS: dict[str, Callable[[Part], Any]] = {
    "heads": heads,
    "distribution": distribution,
    "embedding": embedding,
}
