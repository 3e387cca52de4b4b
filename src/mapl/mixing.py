"""Robust rules that mix vectors: a few bad ones cannot move the result far. Plain functions of tensors.

A reader mixes n vectors with weights w_j ≥ 0, normalised here to Σ w_j = 1. Those with weight 0 take no part.

    clip       c + Σ w_j min(1, τ / ‖x_j − c‖) (x_j − c), with τ the median of ‖x_j − c‖    (centred clipping)
    trimmed    per coordinate, the mean without the smallest and the largest values
    median     per coordinate, the weighted median
    geometric  argmin_z Σ w_j ‖x_j − z‖, by a fixed number of Weiszfeld's steps

A client trusts its own vector: it is the centre c, it is never trimmed, and of several medians the one nearest to it
counts. A server has none: its centre is the coordinate-wise median, and of several medians the middle one counts.
docs/robust.md says what each costs and withstands.

The bits of a mix depend only on its own vectors, weights and width n, not on how many mixes are computed at once: every
step is element by element, sorts and cumulates along one mix, or adds in a fixed order (`total`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

BLOCK = 2**12
"""Coordinates that are processed at a time, so that memory does not grow with the length of vectors."""
MEMBERS = 2**5
"""Vectors that are processed at a time."""
STEPS = 8
"""Weiszfeld's steps. They start from the coordinate-wise median, which is near already."""
ROUNDING = 1e-9
"""Sums of weights that differ by less are equal."""


class MixingSettings(BaseModel):
    """How a client, or a server, mixes the letters that it reads."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Literal["mean", "clip", "trimmed", "median", "geometric"] = Field(
        "mean",
        description="The weighted mean, or a rule that withstands bad letters: clipped differences, trimmed mean, "
        "median, geometric median.",
    )
    trim: float = Field(
        0.2, ge=0, lt=0.5, description="With 'trimmed', the share of the weight that is cut off at either end."
    )


@torch.no_grad()
def robust_mean(use: MixingSettings, rows: Tensor, index: Tensor, weights: Tensor, own: Tensor | None = None) -> Tensor:
    """The robust means of b readers, (b, F).

    Args:
        use: the rule, any but 'mean'.
        rows: (N, F), vectors that several readers may share.
        index: (b, n), the rows that each reader mixes.
        weights: (b, n), on any device, each row with a positive sum.
        own: (b,), where each reader's own vector stands in its row of `index`; None for a server.
    """
    index, weights = index.to(rows.device), weights.to(rows.device, torch.float64)
    own = None if own is None else own.to(rows.device)
    tall = max(1, MEMBERS // index.shape[1])
    result = rows.new_empty(len(index), rows.shape[1])
    for first in range(0, len(index), tall):
        some = slice(first, first + tall)
        mixes = Mixes(rows, index[some], normalised(weights[some]), None if own is None else own[some])
        result[some] = _centre(mixes, use)
    return result


def _centre(mixes: Mixes, use: MixingSettings) -> Tensor:
    match use.kind:
        case "clip":
            return clipped(mixes)
        case "trimmed":
            return torch.cat([trimmed(x, mixes, use.trim, part) for part, x in mixes.blocks()], dim=1)
        case "median":
            return medians(mixes)
        case "geometric":
            return geometric(mixes)
        case "mean":
            raise ValueError("the mean is not a robust rule")


@dataclass(frozen=True)
class Mixes:
    """The vectors and weights of b readers."""

    rows: Tensor
    index: Tensor
    weights: Tensor
    """(b, n), each row summing to 1."""
    own: Tensor | None

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """The vectors in float64 (b, n, f), some coordinates at a time. Those that take no part are 0."""
        takes_part = (self.weights > 0).unsqueeze(2)
        for first in range(0, self.rows.shape[1], BLOCK):
            part = slice(first, first + BLOCK)
            x = self.rows[:, part][self.index].double()
            yield part, x.where(takes_part, x.new_zeros(()))

    def mine(self, part: slice = slice(None)) -> Tensor | None:
        """(b, f) the readers' own vectors, even where a reader gives itself no weight."""
        if self.own is None:
            return None
        return self.rows[:, part][self.index.gather(1, self.own.unsqueeze(1)).squeeze(1)].double()

    def distances(self, centre: Tensor) -> Tensor:
        """(b, n) ‖x_j − centre‖ for a centre (b, F)."""
        squares = torch.zeros_like(self.weights)
        for part, x in self.blocks():
            squares += total((x - centre[:, part].unsqueeze(1)).square(), 2)
        return squares.sqrt()


class Sorted(NamedTuple):
    """Values sorted along dimension 1, each with its weight and with the weight up to and including it."""

    values: Tensor
    weights: Tensor
    reached: Tensor
    order: Tensor


def in_order(x: Tensor, weights: Tensor) -> Sorted:
    """x (b, n, f), sorted by value; what takes no part is last. Equal values keep their order."""
    values, order = x.masked_fill((weights == 0).unsqueeze(2), math.inf).sort(dim=1, stable=True)
    sorted_weights = weights.unsqueeze(2).expand_as(x).gather(1, order)
    return Sorted(values, sorted_weights, sorted_weights.cumsum(1), order)


def between(x: Sorted) -> tuple[Tensor, Tensor]:
    """The smallest and the largest weighted median (b, f): at most half of the weight is below or above either."""
    last = x.values.shape[1] - 1
    low = (x.reached < 0.5 - ROUNDING).sum(1, keepdim=True).clamp(max=last)
    high = (x.reached <= 0.5 + ROUNDING).sum(1, keepdim=True).clamp(max=last)
    return x.values.gather(1, low).squeeze(1), x.values.gather(1, high).squeeze(1)


def median(x: Sorted, mine: Tensor | None) -> Tensor:
    """The median that is nearest to the reader's own value, or the one in the middle: (b, f)."""
    lower, upper = between(x)
    return (lower + upper) / 2 if mine is None else mine.clamp(lower, upper)


def medians(mixes: Mixes) -> Tensor:
    """The coordinate-wise weighted medians (b, F)."""
    return torch.cat([median(in_order(x, mixes.weights), mixes.mine(part)) for part, x in mixes.blocks()], dim=1)


def trimmed(x: Tensor, mixes: Mixes, trim: float, part: slice) -> Tensor:
    """The mean of the values that have at least `trim` of the weight below and above them: (b, f).

    The reader's own value always counts. If nothing is left, it is the median.
    """
    ordered = in_order(x, mixes.weights)
    below, above = ordered.reached - ordered.weights, 1 - ordered.reached
    kept = (below >= trim - ROUNDING) & (above >= trim - ROUNDING)
    if mixes.own is not None:
        kept |= ordered.order == mixes.own[:, None, None]
    kept &= ordered.weights > 0
    zero = x.new_zeros(())
    weights = ordered.weights.where(kept, zero)
    mass = total(weights, 1)
    mean = total(weights * ordered.values.where(kept, zero), 1) / mass
    return mean.where(mass > 0, median(ordered, mixes.mine(part)))


def clipped(mixes: Mixes) -> Tensor:
    """Centred clipping (b, F): differences from the centre that are longer than their median are cut to it.

    A client's own difference is 0. It does not count in the median.
    """
    mine = mixes.mine()
    centre = medians(mixes) if mine is None else mine
    lengths = mixes.distances(centre)
    others = mixes.weights
    if mixes.own is not None:
        others = normalised(others.scatter(1, mixes.own.unsqueeze(1), 0.0))
    radius, _ = between(in_order(lengths.unsqueeze(2), others))  # (b, 1)
    factors = mixes.weights * (radius / lengths).nan_to_num(nan=1.0).clamp(max=1)
    moved = [
        centre[:, part] + total(factors.unsqueeze(2) * (x - centre[:, part].unsqueeze(1)), 1)
        for part, x in mixes.blocks()
    ]
    return torch.cat(moved, dim=1)


def geometric(mixes: Mixes) -> Tensor:
    """The weighted geometric median (b, F), nearly."""
    centre = medians(mixes)
    for _ in range(STEPS):
        lengths = mixes.distances(centre)
        typical, _ = between(in_order(lengths.unsqueeze(2), mixes.weights))
        # A vector at the centre would have an infinite pull.
        pull = normalised(mixes.weights / lengths.maximum(1e-9 * typical).clamp(min=1e-150))
        centre = torch.cat([total(pull.unsqueeze(2) * x, 1) for _, x in mixes.blocks()], dim=1)
    return centre


def normalised(weights: Tensor) -> Tensor:
    """Weights (b, n) scaled so that each row sums to 1; a row of zeros stays."""
    mass = total(weights, 1).unsqueeze(1)
    return weights / mass.where(mass > 0, torch.ones_like(mass))


def total(x: Tensor, dim: int) -> Tensor:
    """The sum along a dimension, halves added to each other: its order depends on the length of that dimension alone.

    `torch.sum` chooses its order by shape and by the number of threads.
    """
    while (length := x.shape[dim]) > 1:
        half = length // 2
        folded = x.narrow(dim, 0, half) + x.narrow(dim, half, half)
        x = torch.cat([folded, x.narrow(dim, length - 1, 1)], dim) if length % 2 else folded
    return x.squeeze(dim)
