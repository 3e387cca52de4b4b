"""How images and filters lie in memory, and how kernels cut them up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor, nn

TILE = 1024
"""Values that a program makes which goes over places of images."""


def rows(x: Tensor) -> Tensor:
    """The tensor with its samples channels last in memory, which kernels take for granted."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x.contiguous()


def is_power(stride: int) -> bool:
    return stride & (stride - 1) == 0


def shift(stride: int) -> int:
    """A stride of 2^shift; kernels divide by it with a shift."""
    return stride.bit_length() - 1


@dataclass(frozen=True)
class Sizes:
    """A convolution without its weights."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def plain(self) -> bool:
        """Square, undilated, and with a stride that kernels can divide by."""
        square = all(len(set(size)) == 1 for size in (self.kernel, self.stride, self.padding))
        return square and self.dilation == (1, 1) and is_power(self.stride[0])

    def square(self, x: Tensor) -> tuple[int, int, int, int, int]:
        """Kernel, stride and padding of a square one, and the height and width that it makes of x."""
        k, s, p = self.kernel[0], self.stride[0], self.padding[0]
        return k, s, p, (x.shape[2] + 2 * p - k) // s + 1, (x.shape[3] + 2 * p - k) // s + 1

    @staticmethod
    def of(module: nn.Conv2d) -> Sizes:
        assert not isinstance(module.padding, str)
        return Sizes(module.kernel_size, module.stride, module.padding, module.dilation, module.groups)


def block_of(channels: int) -> int:
    """How many channels a program takes: matrix units want 16 at least."""
    return int(min(64, max(16, triton.next_power_of_2(channels))))


def align(channels: int) -> int:
    """The largest power of two, up to 8 (16 bytes in low precision), that divides a number of channels.

    Kernels that are told it can read so many at a time.
    """
    return math.gcd(channels, 8)


def tiles(shape: Any, clients: int) -> tuple[tuple[int, int, int], int, dict[str, int]]:
    """For kernels over all places of images (N, C, H, W): the grid, a member's places, and a program's share."""
    n, c, h, w = shape
    block = min(64, triton.next_power_of_2(c))
    share = {"BLOCK_P": TILE // block, "BLOCK_C": block, "ALIGN": align(c)}
    places = n // clients * h * w
    return (triton.cdiv(places, share["BLOCK_P"]), triton.cdiv(c, block), clients), places, share
