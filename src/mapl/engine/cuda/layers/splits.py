"""Gradients of filters as sums that are split among programs."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from mapl.engine.cuda.kernels import convolutions as kernels
from mapl.engine.cuda.kernels.launch import launch


class Splits:
    """Filters' gradients (G, …) as sums over places; where programs are too few for a GPU, each sum is split."""

    PROGRAMS, MOST = 264, 128

    def __init__(self, gradient: Tensor, places: int, tiles: int, block: int):
        """`tiles` programs a member make the gradient, `block` places at a time."""
        clients = len(gradient)
        most = min(Splits.MOST, triton.cdiv(places, 4 * block), Splits.PROGRAMS // (tiles * clients))
        self.each = triton.cdiv(triton.cdiv(places, max(1, most)), block) * block
        self.splits, self.size = triton.cdiv(places, self.each), gradient[0].numel()
        self.gradient = self.parts = gradient
        self.row = gradient.stride(0)
        if self.splits > 1:
            self.row = self.size
            self.parts = gradient.new_empty((clients, self.splits, self.size), dtype=torch.float32)

    def add(self) -> None:
        """Put the splits together."""
        if self.splits > 1:
            launch(
                kernels.add_splits, (triton.cdiv(self.size, 128), len(self.gradient)), self.parts, self.gradient,
                self.size, self.gradient.stride(0), self.splits, BLOCK_S=16, BLOCK=128,
            )  # fmt: skip
