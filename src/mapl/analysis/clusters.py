"""How well a learned graph recovers the clusters that the data were dealt in. For reports: no method sees this.

A measure that does not exist for a graph is None.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mapl.runs.record import Record


def share_inside(weights: Tensor, clusters: Sequence[int]) -> float | None:
    """Share of the weight that clients give to *others* which stays inside their own cluster.

    weights: W (M, M), one row per client. The diagonal does not count: a client that listens to nobody recovers
    nothing. None where nobody listens to anybody, where all clients are in one cluster, and where every client is a
    cluster of its own.
    """
    if not 1 < len(set(clusters)) < len(clusters):
        return None
    label = torch.tensor(list(clusters))
    others = weights.clone().fill_diagonal_(0)
    inside = others[label[:, None] == label[None, :]].sum()
    total = others.sum()
    return float(inside / total) if total > 0 else None


def share_by_chance(clusters: Sequence[int]) -> float | None:
    """What `share_inside` is for a uniform graph."""
    return share_inside(torch.ones(len(clusters), len(clusters), dtype=torch.float64), clusters)


def adjusted_rand(weights: Tensor, clusters: Sequence[int]) -> float | None:
    """Adjusted Rand index of the true clusters and a spectral clustering of the symmetrised graph; 1 is perfect.

    None with fewer than two clusters, and where every client is a cluster of its own.
    """
    from sklearn.cluster import SpectralClustering  # slow to import, and most commands never need it
    from sklearn.metrics import adjusted_rand_score

    count = len(set(clusters))
    if count < 2 or count >= len(clusters):
        return None
    # A floor keeps the graph connected, which the spectral embedding assumes.
    affinity = (weights + weights.T).div(2).clamp_min(1e-9).numpy()
    clustering = SpectralClustering(count, affinity="precomputed", random_state=0, assign_labels="discretize")
    return float(adjusted_rand_score(list(clusters), clustering.fit_predict(affinity)))


def class_overlap(classes: Sequence[Sequence[int]]) -> Tensor:
    """Share of classes that each pair of clients has in common (M, M): |A ∩ B| / |A ∪ B|."""
    sets = [set(c) for c in classes]
    return torch.tensor([[len(a & b) / max(1, len(a | b)) for b in sets] for a in sets], dtype=torch.float64)


def edges(weights: Tensor) -> int:
    """How many weights to others are above 0."""
    return int((weights.clone().fill_diagonal_(0) > 0).sum())


def first_mixed(record: Record) -> int | None:
    """The first round (from 0) after which some client listens to another; None if that never happened."""
    rounds = ((t, record.graph.rows(t)) for t in range(len(record.rounds)))
    return next((t for t, rows in rounds if any((ids != client).any() for client, (ids, _) in rows.items())), None)
