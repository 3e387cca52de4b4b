"""Who trains on data like mine: a client compares what local training did to heads of the same start.

Training moves a classifier's head by the classes that a client has and by what they look like, whomever it averaged
with before. So two clients with data alike move their heads alike. This needs no images and no labels of anybody else.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mapl.losses import norm_or_one

KIN = 0.0
"""The cosine above which clients are kin: their updates agree more than they disagree.

What changes no answer is taken out of an update (`drifted`), so clients without a class in common disagree: one raises
the scores of its classes, and lowers those of the other's. Clients that share some of their classes are in between.
"""


DECAY = 0.98
"""How much of the earlier updates a client keeps, per round: a change of its data shows after some fifty rounds."""


def drifted(drift: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """The direction in which training moves a head, over rounds: DECAY · drift + u / ‖u‖.

    u = after − before, less its mean over classes. That mean is the same vector for every class, so it changes no
    answer, and it is much the same for all clients. Every round counts the same, however far it moved the head. A head
    that did not move adds nothing.

    Args:
        drift: (K, D), the sum so far.
        before: (K, D), the head at the start of a round's local training.
        after: (K, D), the head at its end.
    """
    update = after - before
    update = update - update.mean(dim=0)
    return DECAY * drift + update / norm_or_one(update.flatten())


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
