"""How well a learned graph recovers the clusters that the data were dealt in. For reports: no method sees this."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def share_inside(weights: Tensor, clusters: Sequence[int]) -> float:
    """Share of the weight that clients give to *others* which stays inside their own cluster; NaN if they give none.

    weights: W (M, M), one row a client. The diagonal does not count: a client that listens to nobody recovers nothing.
    NaN, too, where there is one cluster alone, which nobody could leave.
    """
    if len(set(clusters)) < 2:
        return float("nan")
    label = torch.tensor(list(clusters))
    others = weights.clone().fill_diagonal_(0)
    inside = others[label[:, None] == label[None, :]].sum()
    total = others.sum()
    return float(inside / total) if total > 0 else float("nan")


def share_by_chance(clusters: Sequence[int]) -> float:
    """What `share_inside` is for a uniform graph."""
    return share_inside(torch.ones(len(clusters), len(clusters), dtype=torch.float64), clusters)


def adjusted_rand(weights: Tensor, clusters: Sequence[int]) -> float:
    """Adjusted Rand index of the true clusters and a spectral clustering of the symmetrised graph: 1 is perfect."""
    from sklearn.cluster import SpectralClustering  # slow to import, and most commands never need it
    from sklearn.metrics import adjusted_rand_score

    count = len(set(clusters))
    if count < 2 or count >= len(clusters):
        return float("nan")
    # A floor keeps the graph connected, which the spectral embedding assumes.
    affinity = (weights + weights.T).div(2).clamp_min(1e-9).numpy()
    found = SpectralClustering(count, affinity="precomputed", random_state=0, assign_labels="discretize").fit_predict(
        affinity
    )
    return float(adjusted_rand_score(list(clusters), found))


def class_overlap(classes: Sequence[Sequence[int]]) -> Tensor:
    """Share of classes that each pair of clients has in common (M, M): |A ∩ B| / |A ∪ B|."""
    sets = [set(c) for c in classes]
    return torch.tensor([[len(a & b) / max(1, len(a | b)) for b in sets] for a in sets], dtype=torch.float64)
