"""The shape of one sample, which is all that a backbone is told of the data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

IMAGE_SIDES = 3
"""An image has channels, height and width."""


class Shape(tuple[int, ...]):
    """The sizes of one sample: (C, H, W) of an image, (F,) of a row of a table, (C, L) of a signal, (L,) of a text.

    A text is made of token ids, whole numbers below `vocabulary`, where id 0 stands for nothing (padding). For
    everything else `vocabulary` is 0, and a sample is made of floating-point numbers. As a tuple it equals its sizes.
    """

    vocabulary: int

    def __new__(cls, sizes: Iterable[int], vocabulary: int = 0) -> Shape:
        shape = super().__new__(cls, sizes)
        shape.vocabulary = vocabulary
        return shape

    @property
    def facts(self) -> tuple[tuple[int, ...], int]:
        """What two shapes have to have in common to be one."""
        return tuple(self), self.vocabulary


def vocabulary(shape: Sequence[int]) -> int:
    """How many token ids there are; 0 if samples are not made of tokens."""
    return getattr(shape, "vocabulary", 0)


def is_image(shape: Sequence[int]) -> bool:
    """Whether samples have channels, height and width."""
    return len(shape) == IMAGE_SIDES and not vocabulary(shape)


def usual_backbone(shape: Sequence[int]) -> str:
    """The name of the backbone for samples that are no images."""
    return "transformer" if vocabulary(shape) else "mlp"


def blank(shape: Sequence[int], count: int) -> Tensor:
    """Samples of a shape that say nothing, as a backbone gets them."""
    return torch.zeros(count, *shape, dtype=torch.int64 if vocabulary(shape) else torch.float32)


def random_samples(shape: Sequence[int], count: int, draw: torch.Generator) -> Tensor:
    """Samples of a shape that are drawn at random, as a backbone gets them."""
    if vocabulary(shape):
        return torch.randint(vocabulary(shape), (count, *shape), generator=draw)
    return torch.rand(count, *shape, generator=draw)


def told(shape: Sequence[int]) -> str:
    """Samples of a shape in words: 'images of 8×8 pixels and 1 channel'."""
    if vocabulary(shape):
        return f"texts of {shape[0]} tokens out of {vocabulary(shape)}"
    if is_image(shape):
        channels, height, width = shape
        return f"images of {width}×{height} pixels and {channels} channel{'s' if channels > 1 else ''}"
    if len(shape) == 1:
        return f"rows of {shape[0]} number{'s' if shape[0] > 1 else ''}"
    return f"samples of {'×'.join(map(str, shape))} numbers"
