"""How samples lie in a slot's memory: images with their channels last, and everything else as it is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mapl.shape import is_image, vocabulary

IMAGES = 4
"""Dimensions of a batch of images."""


def laid(shape: Sequence[int]) -> tuple[int, ...]:
    """The sizes of one sample in memory: (H, W, C) of an image."""
    return (*shape[1:], shape[0]) if is_image(shape) else tuple(shape)


def type_of(shape: Sequence[int], dtype: torch.dtype) -> torch.dtype:
    """What samples are stored as: ids of tokens whole, numbers in `dtype`."""
    return torch.int64 if vocabulary(shape) else dtype


def stored(samples: Tensor) -> Tensor:
    """A batch of samples (n, …) as they lie in memory."""
    return samples.permute(0, 2, 3, 1) if samples.ndim == IMAGES else samples


def seen(batches: Tensor) -> Tensor:
    """What lies in memory for each member (G, n, …), as networks see it: images (G, n, C, H, W)."""
    return batches.permute(0, 1, 4, 2, 3) if batches.ndim == IMAGES + 1 else batches


def together(samples: Tensor) -> Tensor:
    """A batch of samples whose numbers lie in memory as in a slot."""
    return samples.contiguous(memory_format=torch.channels_last if samples.ndim == IMAGES else torch.contiguous_format)
