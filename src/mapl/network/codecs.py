"""Smaller forms of float32 tensors, as plain functions on rows: one row per letter.

Every function treats a row by itself, so the result for a letter does not depend on the letters that are computed with
it. Nothing is read back from a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

BLOCK = 64
"""How many consecutive numbers share one scale. A letter may be one long vector of weights and of normalisation
statistics; a single scale would round the small ones to zero."""
CACHED = 2**18
"""Numbers (1 MiB) that a CPU core works on at a time, so that they stay in its cache."""
MOST = 2**26
"""The same for a GPU, so that copies stay below a gigabyte."""

_LARGEST = torch.finfo(torch.float32).max
_LARGEST_SCALE = _LARGEST / 128
"""Any int8 number times this is finite."""


def batches(count: int, like: Tensor) -> Iterator[slice]:
    """Which of `count` tensors of one shape to compute together: a few on a CPU, many on a GPU."""
    together = max(1, (MOST if like.is_cuda else CACHED) // max(1, like.numel()))
    for first in range(0, count, together):
        yield slice(first, first + together)


def rows(tensors: Sequence[Tensor]) -> Tensor:
    """(g, n) the tensors, flattened. A single one is not copied if it is contiguous."""
    flat = [tensor.detach().reshape(-1) for tensor in tensors]
    return flat[0].unsqueeze(0) if len(flat) == 1 else torch.stack(flat)


# bfloat16


def to_bfloat16(numbers: Tensor) -> Tensor:
    """Rounded to the nearest bfloat16. The few numbers that would round to infinity become the largest one."""
    largest = torch.finfo(torch.bfloat16).max
    return numbers.clamp(-largest, largest).to(torch.bfloat16)


# int8


def blocks(count: int) -> int:
    """How many scales `count` numbers have."""
    return -(-count // BLOCK)


def to_int8(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """(g, n) float32 as int8 (g, n) and scales (g, blocks): the largest magnitude of each block becomes 127."""
    length = numbers.shape[1]
    missing = blocks(length) * BLOCK - length
    padded = torch.nn.functional.pad(numbers, (0, missing)) if missing else numbers
    cells = padded.reshape(len(numbers), blocks(length), BLOCK)
    scales = cells.abs().amax(2) / 127
    # A block of zeros, or of numbers whose scale underflows, has scale 0. It is divided by 1 and rounds to zeros.
    divisors = scales.masked_fill(scales == 0, 1).unsqueeze(2)
    whole = (cells / divisors).round_().clamp_(-127, 127).to(torch.int8)
    return whole.flatten(1)[:, :length], scales


def from_int8(values: Tensor, scales: Tensor) -> Tensor:
    """(g, n) float32 from int8 (g, n) and scales (g, blocks).

    Always finite, whatever a letter says: a block whose scale is NaN, because its sender diverged, becomes zeros. Over
    bytes such a letter is refused before it gets here.
    """
    count, length = values.shape
    whole = length // BLOCK
    scales = scales.nan_to_num(0.0).clamp(-_LARGEST_SCALE, _LARGEST_SCALE)
    result = torch.empty(values.shape, dtype=torch.float32, device=values.device)
    for some in batches(count, values[:1]):
        given, target, scale = values[some], result[some], scales[some]
        cells = len(given), whole, BLOCK
        torch.mul(
            given[:, : whole * BLOCK].view(cells), scale[:, :whole, None], out=target[:, : whole * BLOCK].view(cells)
        )
        torch.mul(given[:, whole * BLOCK :], scale[:, whole:], out=target[:, whole * BLOCK :])  # the short last block
    return result


# top-k


def share(keep: float, count: int) -> int:
    """How many of `count` numbers an increment carries."""
    return min(count, math.ceil(keep * count))


def largest_gaps(numbers: Tensor, believed: Tensor, count: int) -> Tensor:
    """(g, count) the positions, ascending, at which two float32 (g, n) differ most. Of equals, the first ones count."""
    # As integers, magnitudes have the same order, and NaN is the largest. The lower half makes every number unique.
    gaps = (numbers - believed).abs_().view(torch.int32).long()
    first_is_more = torch.arange(gaps.shape[1], 0, -1, device=gaps.device)
    unique = gaps.bitwise_left_shift_(32).add_(first_is_more)
    return unique.topk(count, dim=1, sorted=False).indices.sort(dim=1).values
