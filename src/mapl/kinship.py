"""Who trains on data like mine: a client compares what local training did to heads of the same start.

Training moves a classifier's head by the classes that a client has and by what they look like, whomever it averaged
with before. So two clients with data alike move their heads alike. This needs no images and no labels of anybody else.

A client sums its updates: drift ← drift + kept · update. A round counts by how much of the update before it was `kept`
by the mix. So the drift stays what it was when the client and its kin have converged, and nothing is forgotten.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mapl.losses import norm_or_one

KIN = 0.0
"""The cosine above which clients are kin: their updates agree more than they disagree.

What changes no answer is taken out of an update (`update_of`), so clients without a class in common disagree: one
raises the scores of its classes, and lowers those of the other's. Clients that share some of them are in between.
"""


def update_of(before: Tensor, after: Tensor) -> Tensor:
    """What happened to a head, less its mean over classes: (K, D).

    That mean is the same vector for every class, so it changes no answer, and it is much the same for all clients.
    """
    update = after - before
    return update - update.mean(dim=0)


def kept(update: Tensor, moved: Tensor) -> Tensor:
    """How much of a client's update the mix with its kin kept: (⟨u, m⟩ / ‖u‖²)², at least 0 and at most 1.

    Near 1 while kin learn the same. Once they have learned it, the mixed head stays where it is, so their updates add
    up to about 0: what is left of them is only how the data of each differ from those of its kin. A mix keeps 1/n² of
    each of n unrelated updates, and nothing of updates that add up to 0.

    Args:
        update: u (K, D), what the client's own training did to the head (`update_of`).
        moved: m (K, D), what the training and the mix that followed did to it together.
    """
    share: Tensor = (update * moved).sum() / update.square().sum().clamp_min(torch.finfo(update.dtype).tiny)
    return share.clamp(0, 1).square()


def direction(drift: Tensor) -> Tensor:
    """A drift (K, D) at a length that does not tell its age: the root mean square of its numbers is 1, or all are 0."""
    return drift * (math.sqrt(drift.numel()) / norm_or_one(drift.flatten()))


def circle_weights(cosines: Tensor, sizes: Tensor) -> Tensor:
    """How much each client listens to the members of its circle: equally to kin, not at all to others.

    Circles of several clients are concatenated. The cosine of a client with itself is 1, so it is always its own kin.

    Args:
        cosines: (P,), of the client's drift with that of each member.
        sizes: (B,), how many members each circle has, Σ = P.

    Returns:
        (P,), non-negative, summing to 1 in every circle.
    """
    kin = (cosines > KIN).double()
    of = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    counts = torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, of, kin)
    return kin / counts[of]
