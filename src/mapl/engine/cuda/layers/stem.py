"""The first convolution of a network, which sees few channels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from mapl.engine.cuda.kernels import convolutions as kernels
from mapl.engine.cuda.kernels.launch import launch, once, precision
from mapl.engine.cuda.layers.geometry import Sizes, block_of, rows
from mapl.engine.cuda.layers.splits import Splits


class Stem(torch.autograd.Function):
    """A convolution of few channels, without a gradient of x: as one without padding, of blocks of pixels.

    Libraries want channels by the eight: with three they are several times as slow as this. Blocks of stride × stride
    pixels, taken as the channels of one, have a stride of one, and what a line of a filter sees lies side by side.
    """

    BLOCK_M = 64

    @staticmethod
    def fits(sizes: Sizes, channels: int) -> bool:
        return sizes.plain and channels <= 4 and sizes.groups == 1

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, token: Tensor | None, weight: Tensor, gradient: Tensor | None, sizes: Sizes
    ) -> Tensor:
        k, s, p, ho, wo = sizes.square(x)
        clients, o = weight.shape[:2]
        taps = -(-k // s)
        seen = _in_blocks(x, s, p, (ho - 1 + taps, wo - 1 + taps))
        filters = _in_blocks(weight.flatten(0, 1), s, 0, (taps, taps))
        y = torch.empty((len(x), o, ho, wo), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        geometry = o, *seen.shape[1:3], ho, wo
        places, blocks = len(x) // clients * ho * wo, Stem._blocks(filters)
        grid = triton.cdiv(places, Stem.BLOCK_M) * triton.cdiv(o, blocks["BLOCK_N"]), clients
        launch(kernels.stem_forward, grid, seen, filters, y, places, *geometry, **blocks)
        ctx.save_for_backward(seen)
        ctx.gradient, ctx.geometry, ctx.blocks, ctx.places, ctx.stride = gradient, geometry, blocks, places, s
        return y

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[None, None, None, None, None]:
        (seen,) = ctx.saved_tensors
        clients, o, c, k, _ = ctx.gradient.shape
        taps, s = ctx.blocks["K"], ctx.stride
        found = dy.new_empty((clients, o, taps, taps, ctx.blocks["C"]))
        programs = triton.cdiv(found[0, 0].numel(), ctx.blocks["BLOCK_K"]) * triton.cdiv(o, ctx.blocks["BLOCK_N"])
        sums = Splits(found, ctx.places, programs, Stem.BLOCK_M)
        grid = programs, sums.splits, clients
        launch(
            kernels.stem_filters, grid, seen, rows(dy), sums.parts, ctx.places, *ctx.geometry, sums.each,
            **ctx.blocks,
        )  # fmt: skip
        sums.add()
        pixels = found[..., : s * s * c].view(clients, o, taps, taps, s, s, c).permute(0, 1, 6, 2, 4, 3, 5)
        ctx.gradient.copy_(pixels.reshape(clients, o, c, taps * s, taps * s)[..., :k, :k])
        return None, None, None, None, None

    @staticmethod
    def _blocks(filters: Tensor) -> dict[str, Any]:
        o, taps, _, c = filters.shape
        blocks = {"BLOCK_M": Stem.BLOCK_M, "BLOCK_N": block_of(o), "BLOCK_K": block_of(taps * taps * c)}
        return {"C": c, "K": taps, "PRECISION": precision(), "num_stages": 2, **blocks}


def _in_blocks(images: Tensor, s: int, padding: int, size: tuple[int, int]) -> Tensor:
    """(N, C, H, W) as `size` blocks of s × s pixels, (N, *size, s · s · C), with zeros around.

    Their channels are filled up to a multiple of four, so that several can be read at a time.
    """
    n, c, h, w = images.shape
    high, wide = size[0] * s, size[1] * s
    padded = F.pad(images, (padding, wide - padding - w, padding, high - padding - h))
    pixels = padded.view(n, c, size[0], s, size[1], s).permute(0, 2, 4, 3, 5, 1).reshape(n, *size, s * s * c)
    return F.pad(pixels, (0, -pixels.shape[3] % 4)) if pixels.shape[3] % 4 else pixels.contiguous()
