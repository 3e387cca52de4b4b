"""Embeddings of the clients' test images: a sample, its layout in the plane, and how well clients align."""

from __future__ import annotations

import math
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

    # 30 is t-SNE's usual perplexity; it has to be smaller than the number of points.
    layout = TSNE(
        perplexity=min(30.0, (len(vectors) - 1) / 3),
        init="pca" if vectors.shape[1] > 1 else "random",
        max_iter=500,  # half the default: so few points have settled by then
        random_state=0,
    )
    points: NDArray[np.float64] = layout.fit_transform(vectors.numpy()).astype(np.float64)
    return points


def sample(part: Part) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings, labels and owners of at most `POINTS` test images, spread evenly over clients.

    These are the recipe's own test images, even if the run is also tested on all images.
    """
    seed, purpose = part.recipe.seed, "points of the report"
    chosen = torch.randperm(len(part.clients), generator=generator(seed, NOBODY, ALWAYS, purpose))[:POINTS]
    share = max(1, POINTS // len(part.clients))
    vectors, labels, owners = [], [], []
    for i in sorted(chosen.tolist()):
        client = part.clients[i]
        points = torch.randperm(client.tests, generator=generator(seed, client.id, ALWAYS, purpose))[:share]
        vectors.append(part.engine.embed(client)[points].cpu())
        labels.append(client.test.labels[points].cpu())
        owners.append(torch.full_like(labels[-1], client.id))
    return torch.cat(vectors), torch.cat(labels), torch.cat(owners)


def alignment(vectors: Tensor, clients: Tensor, kinds: Sequence[Tensor]) -> list[tuple[float, float]]:
    """For each kind of label: how often the nearest point of another client shares it, and how often by chance."""
    elsewhere = clients[:, None] != clients[None, :]
    nearest = torch.cdist(vectors, vectors).masked_fill(~elsewhere, math.inf).argmin(1)
    shares = []
    for label in kinds:
        same = (label[:, None] == label[None, :]) & elsewhere
        shares.append((float((label[nearest] == label).double().mean()), float(same.sum() / elsewhere.sum())))
    return shares
