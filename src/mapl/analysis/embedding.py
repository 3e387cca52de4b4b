"""Embeddings of the clients' test images: a sample of them, in the plane, and how alike those of two clients are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mapl.keys import ALWAYS, NOBODY, generator
from mapl.runs.part import Part

POINTS = 800


def in_the_plane(vectors: Tensor) -> NDArray[np.float64]:
    """Vectors (n, d) laid out by t-SNE, (n, 2)."""
    from sklearn.manifold import TSNE  # slow to import, and most commands never need it

    # Wide enough a neighbourhood for t-SNE's usual 30, but it has to be smaller than the number of points.
    layout = TSNE(
        perplexity=min(30.0, (len(vectors) - 1) / 3),
        init="pca" if vectors.shape[1] > 1 else "random",
        max_iter=500,  # half of the usual: this many points have settled by then
        random_state=0,
    )
    points: NDArray[np.float64] = layout.fit_transform(vectors.numpy()).astype(np.float64)
    return points


def sample(part: Part) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings, labels and owners of at most `POINTS` test images, as many from each client as can be.

    They are the recipe's own test images, also where a run is tested with all.
    """
    seed, purpose = part.recipe.seed, "points of the report"
    chosen = torch.randperm(len(part.clients), generator=generator(seed, NOBODY, ALWAYS, purpose))[:POINTS]
    share = max(1, POINTS // len(part.clients))
    vectors, labels, owners = [], [], []
    for i in sorted(chosen.tolist()):
        client = part.clients[i]
        points = torch.randperm(client.tests, generator=generator(seed, i, ALWAYS, purpose))[:share]
        vectors.append(part.engine.embed(client)[points].cpu())
        labels.append(client.test.labels[points].cpu())
        owners.append(torch.full_like(labels[-1], i))
    return torch.cat(vectors), torch.cat(labels), torch.cat(owners)


def alignment(vectors: Tensor, clients: Tensor, kinds: Sequence[Tensor]) -> list[tuple[float, float]]:
    """For each kind: how often the nearest point at another client is of the same one, and how often any such point."""
    elsewhere = clients[:, None] != clients[None, :]
    nearest = torch.cdist(vectors, vectors).masked_fill(~elsewhere, float("inf")).argmin(1)
    shares = []
    for kind in kinds:
        same = (kind[:, None] == kind[None, :]) & elsewhere
        shares.append((float((kind[nearest] == kind).double().mean()), float(same.sum() / elsewhere.sum())))
    return shares
