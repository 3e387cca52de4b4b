"""Depthwise convolutions of a group."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from mapl.engine.cuda.branches import beside
from mapl.engine.cuda.kernels import depthwise as kernels
from mapl.engine.cuda.kernels.launch import launch, once
from mapl.engine.cuda.layers.geometry import Sizes, align, rows, shift, tiles
from mapl.engine.cuda.layers.splits import Splits


class Depthwise(torch.autograd.Function):
    """One filter per channel and member."""

    BLOCK_R, BLOCK_C = 64, 32

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, token: Tensor | None, weight: Tensor, gradient: Tensor | None, sizes: Sizes
    ) -> Tensor:
        x = rows(x)
        k, s, p, ho, wo = sizes.square(x)
        n, c, h, w = x.shape
        y = torch.empty((n, c, ho, wo), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        geometry = c // align(c), h, w, ho, wo, shift(s), p
        grid, places, share = tiles(y.shape, len(weight))
        launch(kernels.depthwise_forward, grid, x, weight, y, places, weight.stride(0), *geometry, K=k, **share)
        ctx.save_for_backward(x, weight)
        ctx.gradient, ctx.kernel, ctx.geometry = gradient, k, geometry
        return y

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None, None]:
        x, weight = ctx.saved_tensors
        k, geometry, dy, dx = ctx.kernel, ctx.geometry, rows(dy), torch.empty_like(x)
        if ctx.gradient is not None:
            with beside(x, dy):
                Depthwise._filters(x, dy, ctx.gradient, geometry)
        grid, places, share = tiles(x.shape, len(weight))
        launch(kernels.depthwise_backward, grid, dy, weight, dx, places, weight.stride(0), *geometry, K=k, **share)
        return dx, None, None, None, None

    @staticmethod
    def _filters(x: Tensor, dy: Tensor, gradient: Tensor, geometry: tuple[int, ...]) -> None:
        clients, c, _, k, _ = gradient.shape
        places = len(x) // clients * dy.shape[2] * dy.shape[3]
        taps = k * k * triton.cdiv(c, Depthwise.BLOCK_C)
        sums = Splits(gradient, places, taps, Depthwise.BLOCK_R)
        blocks = {"K": k, "ALIGN": align(c), "BLOCK_R": Depthwise.BLOCK_R, "BLOCK_C": Depthwise.BLOCK_C}
        launch(
            kernels.depthwise_weights, (taps, sums.splits, clients), x, dy, sums.parts, places, sums.row, *geometry,
            sums.each, **blocks,
        )  # fmt: skip
        sums.add()
