"""Who trains on data like mine: a client compares what local training did to heads of the same start.

Training moves a classifier's head by the classes that a client has and by what they look like, whomever it averaged
with before. So two clients with data alike move their heads alike. This needs no images and no labels of anybody else.

A client sums its updates: drift ← drift + kept · update. A round counts by how much of the update before it was `kept`
by the mix. So the drift stays what it was when the client and its kin have converged, and nothing is forgotten.

Where shares are uneven, drifts differ by how often each class occurs, and nobody may look like kin. Who hears nobody
close takes those with whom it has classes in common, by drifts without that part (`without_shares`).
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

CLOSE = 0.7
"""The cosine from which a client's data are much like one's own. Who hears nobody so close takes others, too."""

COMMON = 0.1
"""The cosine of drifts `without_shares` above which two clients have classes in common."""


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


def without_shares(drift: Tensor) -> Tensor:
    """What a drift (…, K, D) says of how classes look, without how often each occurs: (…, K, D − 1).

    The last column is the bias b, which moves by how often a class occurs. By as much, training moves each row of the
    weights along the mean of all embeddings. So for every feature the part along b is taken out: V − b (bᵀV) / ‖b‖².
    What is left of a class that a client does not have is about 0.
    """
    weights, bias = drift[..., :-1], drift[..., -1:]
    length = bias.square().sum(-2, keepdim=True).clamp_min(torch.finfo(drift.dtype).tiny)
    return weights - bias * ((bias * weights).sum(-2, keepdim=True) / length)


def circle_weights(cosines: Tensor, common: Tensor, sizes: Tensor) -> Tensor:
    """How much each client listens to the members of its circle: equally to kin, not at all to others.

    Kin are those with a cosine above 0. If the largest is below `CLOSE`, so are all who have classes in common with the
    client, however unevenly.

    Circles of several clients are concatenated. The cosine of a client with itself is 1, so it is always its own kin.

    Args:
        cosines: (P,), of the client's drift with that of each member.
        common: (P,), the same `without_shares`.
        sizes: (B,), how many members each circle has, Σ = P.

    Returns:
        (P,), non-negative, summing to 1 in every circle.
    """
    of = torch.repeat_interleave(torch.arange(len(sizes)), sizes)

    def count(members: Tensor) -> Tensor:
        return torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, of, members.double())

    nobody_close = count(cosines >= CLOSE) == 1  # the client itself
    kin = (cosines > KIN) | (nobody_close[of] & (common > COMMON))
    return kin.double() / count(kin)[of]
