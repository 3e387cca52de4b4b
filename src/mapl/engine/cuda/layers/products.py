"""Convolutions of all members in one launch."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from mapl.engine.cuda.branches import beside
from mapl.engine.cuda.kernels import convolutions as kernels
from mapl.engine.cuda.kernels.launch import launch, once, precision
from mapl.engine.cuda.layers.geometry import Sizes, align, block_of, rows, shift
from mapl.engine.cuda.layers.splits import Splits


class Products(torch.autograd.Function):
    """A convolution as matrix products with what the filters see, for all members in one launch.

    A library's kernels take one member's filters: one launch per member, and their results have to be joined.
    """

    BLOCK_M, PLACES = 128, 64

    @staticmethod
    def fits(sizes: Sizes) -> bool:
        return sizes.plain and sizes.groups == 1

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, token: Tensor | None, weight: Tensor, gradient: Tensor | None, sizes: Sizes
    ) -> Tensor:
        x = rows(x)
        clients, o, c = weight.shape[:3]
        _, s, p, ho, wo = sizes.square(x)
        n, _, h, w = x.shape
        y = torch.empty((n, o, ho, wo), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        geometry = c // align(c), o // align(o), h, w, ho, wo, shift(s), p
        places = n // clients * ho * wo
        Products._launch(kernels.forward, (x, weight, y), places, o, c, weight, geometry)
        ctx.save_for_backward(x, weight)
        ctx.gradient, ctx.geometry = gradient, geometry
        return y

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        x, weight = ctx.saved_tensors
        dy = rows(dy)
        if ctx.gradient is not None:
            with beside(x, dy):
                Products._filters(x, dy, ctx.gradient, ctx.geometry)
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None
        (n, c, h, w), (clients, o) = x.shape, weight.shape[:2]
        dx = torch.empty_like(x)
        Products._launch(kernels.inputs, (dy, weight, dx), n // clients * h * w, c, o, weight, ctx.geometry)
        return dx, None, None, None, None

    @staticmethod
    def _launch(
        kernel: Any,
        tensors: tuple[Tensor, ...],
        places: int,
        made: int,
        summed: int,
        weight: Tensor,
        geometry: tuple[int, ...],
    ) -> None:
        """`places` of a member get `made` channels each, from sums over the taps of `summed` channels."""
        block_m, block_n, block_k = Products.BLOCK_M, block_of(made), block_of(summed)
        grid = triton.cdiv(places, block_m) * triton.cdiv(made, block_n), len(weight)
        blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "num_stages": 3}
        constants = Products._constants(weight) | blocks
        launch(kernel, grid, *tensors, places, weight.stride(0), *geometry, **constants)

    @staticmethod
    def _constants(filters: Tensor) -> dict[str, Any]:
        _, o, c, k, _ = filters.shape
        return {"ALIGN_C": align(c), "ALIGN_CO": align(o), "K": k, "PRECISION": precision()}

    @staticmethod
    def _filters(x: Tensor, dy: Tensor, gradient: Tensor, geometry: tuple[int, ...]) -> None:
        clients, o, c, k, _ = gradient.shape
        places = len(x) // clients * dy.shape[2] * dy.shape[3]
        tiles = triton.cdiv(o, block_of(o)) * k * k * triton.cdiv(c, block_of(c))
        sums = Splits(gradient, places, tiles, Products.PLACES)
        blocks = {"BLOCK_M": block_of(o), "BLOCK_N": block_of(c), "BLOCK_K": Products.PLACES, "num_stages": 3}
        launch(
            kernels.filters, (tiles, sums.splits, clients), x, dy, sums.parts, places, sums.row, *geometry,
            sums.each, **Products._constants(gradient), **blocks,
        )  # fmt: skip
        sums.add()
