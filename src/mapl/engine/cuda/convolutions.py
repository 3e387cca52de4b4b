"""Convolutions of a group of G clients of one architecture, each with filters of its own.

Each is an autograd function of the images (G · B, C, H, W), channels last, member after member. The gradient of the
filters is written straight into the group's flat gradient: autograd never holds it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor, nn

from mapl.engine.cuda import conv_kernels, kernels
from mapl.engine.cuda.branches import all_members, beside, member
from mapl.engine.cuda.kernels import once

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


class Products(torch.autograd.Function):
    """A convolution as matrix products with what the filters see, for all members in one launch.

    A library's kernels are made for one member's filters: a launch each, their results to be put together.
    """

    BLOCK_M, PLACES = 128, 64

    @staticmethod
    def fits(sizes: Sizes) -> bool:
        return sizes.plain and sizes.groups == 1

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, weight: Tensor, gradient: Tensor, sizes: Sizes) -> Tensor:
        x = rows(x)
        clients, o, c = weight.shape[:3]
        _, s, p, ho, wo = sizes.square(x)
        n, _, h, w = x.shape
        y = torch.empty((n, o, ho, wo), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        geometry = c // align(c), o // align(o), h, w, ho, wo, shift(s), p
        places = n // clients * ho * wo
        Products._launch(conv_kernels.forward, (x, weight, y), places, o, c, weight, geometry)
        ctx.save_for_backward(x, weight)
        ctx.gradient, ctx.geometry = gradient, geometry
        return y

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        x, weight = ctx.saved_tensors
        dy = rows(dy)
        with beside(x, dy):
            Products._filters(x, dy, ctx.gradient, ctx.geometry)
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None
        (n, c, h, w), (clients, o) = x.shape, weight.shape[:2]
        dx = torch.empty_like(x)
        Products._launch(conv_kernels.inputs, (dy, weight, dx), n // clients * h * w, c, o, weight, ctx.geometry)
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
        block_m, block_n, block_k = Products.BLOCK_M, _block(made), _block(summed)
        grid = triton.cdiv(places, block_m) * triton.cdiv(made, block_n), len(weight)
        blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "num_stages": 3}
        constants = Products._constants(weight) | blocks
        kernels.launch(kernel, grid, *tensors, places, weight.stride(0), *geometry, **constants)

    @staticmethod
    def _constants(filters: Tensor) -> dict[str, Any]:
        _, o, c, k, _ = filters.shape
        return {"ALIGN_C": align(c), "ALIGN_CO": align(o), "K": k, "PRECISION": precision()}

    @staticmethod
    def _filters(x: Tensor, dy: Tensor, gradient: Tensor, geometry: tuple[int, ...]) -> None:
        clients, o, c, k, _ = gradient.shape
        places = len(x) // clients * dy.shape[2] * dy.shape[3]
        tiles = triton.cdiv(o, _block(o)) * k * k * triton.cdiv(c, _block(c))
        sums = _Splits(gradient, places, tiles, Products.PLACES)
        blocks = {"BLOCK_M": _block(o), "BLOCK_N": _block(c), "BLOCK_K": Products.PLACES, "num_stages": 3}
        kernels.launch(
            conv_kernels.filters, (tiles, sums.splits, clients), x, dy, sums.parts, places, sums.row, *geometry,
            sums.each, **Products._constants(gradient), **blocks,
        )  # fmt: skip
        sums.add()


class _Splits:
    """Filters' gradients (G, …) as sums over places; where programs are too few for a GPU, each sum is split."""

    PROGRAMS, MOST = 264, 128

    def __init__(self, gradient: Tensor, places: int, tiles: int, block: int):
        """`tiles` programs a member make the gradient, `block` places at a time."""
        clients = len(gradient)
        most = min(_Splits.MOST, triton.cdiv(places, 4 * block), _Splits.PROGRAMS // (tiles * clients))
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
            kernels.launch(
                conv_kernels.add_splits, (triton.cdiv(self.size, 128), len(self.gradient)), self.parts, self.gradient,
                self.size, self.gradient.stride(0), self.splits, BLOCK_S=16, BLOCK=128,
            )  # fmt: skip


def _block(channels: int) -> int:
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


def precision() -> str:
    """How numbers of 32 bits are multiplied; narrower ones have no choice."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


class OneByOne(torch.autograd.Function):
    """The library's convolution, a member after another.

    For those that are dilated, grouped or not square, and for a member by itself, for whom the library is faster.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, weight: Tensor, gradient: Tensor, sizes: Sizes) -> Tensor:
        x = rows(x)
        ctx.save_for_backward(x, weight)
        ctx.gradient, ctx.sizes = gradient, sizes
        made = []
        for g, batch in enumerate(x.chunk(len(weight))):
            with member(x.device, g, len(weight)):
                made.append(_convolve(batch, weight[g], sizes))
        all_members(x.device, len(weight))
        return made[0] if len(made) == 1 else torch.cat(made)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        x, weight = ctx.saved_tensors
        dy, sizes = rows(dy), ctx.sizes
        pairs = list(zip(x.chunk(len(weight)), dy.chunk(len(weight)), strict=True))
        with beside(x, dy):
            for g, (batch, d) in enumerate(pairs):
                ctx.gradient[g].copy_(_back(d, batch, weight[g], sizes, [False, True, False])[1])
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None
        found = []
        for g, (batch, d) in enumerate(pairs):
            with member(x.device, g, len(weight)):
                found.append(_back(d, batch, weight[g], sizes, [True, False, False])[0])
        all_members(x.device, len(weight))
        return found[0] if len(found) == 1 else torch.cat(found), None, None, None, None


def _back(dy: Tensor, x: Tensor, weight: Tensor, sizes: Sizes, wanted: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a library's convolution that are wanted: of x, of its filters, of a bias."""
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        dy, x, weight, None, sizes.stride, sizes.padding, sizes.dilation, False, [0, 0], sizes.groups, wanted
    )
    return found


def _convolve(x: Tensor, weight: Tensor, sizes: Sizes) -> Tensor:
    return F.conv2d(x, weight, None, sizes.stride, sizes.padding, sizes.dilation, sizes.groups)


class Stem(torch.autograd.Function):
    """A convolution of few channels with no way back to x, as one without padding of blocks of pixels.

    Libraries want channels by the eight: with three they are several times as slow as this. Blocks of stride × stride
    pixels, taken as the channels of one, have a stride of one, and what a line of a filter sees lies side by side.
    """

    BLOCK_M = 64

    @staticmethod
    def fits(sizes: Sizes, channels: int) -> bool:
        return sizes.plain and channels <= 4 and sizes.groups == 1

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, weight: Tensor, gradient: Tensor, sizes: Sizes) -> Tensor:
        k, s, p, ho, wo = sizes.square(x)
        clients, o = weight.shape[:2]
        taps = -(-k // s)
        seen = _in_blocks(x, s, p, (ho - 1 + taps, wo - 1 + taps))
        filters = _in_blocks(weight.flatten(0, 1), s, 0, (taps, taps))
        y = torch.empty((len(x), o, ho, wo), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        geometry = o, *seen.shape[1:3], ho, wo
        places, blocks = len(x) // clients * ho * wo, Stem._blocks(filters)
        grid = triton.cdiv(places, Stem.BLOCK_M) * triton.cdiv(o, blocks["BLOCK_N"]), clients
        kernels.launch(conv_kernels.stem_forward, grid, seen, filters, y, places, *geometry, **blocks)
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
        sums = _Splits(found, ctx.places, programs, Stem.BLOCK_M)
        grid = programs, sums.splits, clients
        kernels.launch(
            conv_kernels.stem_filters, grid, seen, rows(dy), sums.parts, ctx.places, *ctx.geometry, sums.each,
            **ctx.blocks,
        )  # fmt: skip
        sums.add()
        pixels = found[..., : s * s * c].view(clients, o, taps, taps, s, s, c).permute(0, 1, 6, 2, 4, 3, 5)
        ctx.gradient.copy_(pixels.reshape(clients, o, c, taps * s, taps * s)[..., :k, :k])
        return None, None, None, None, None

    @staticmethod
    def _blocks(filters: Tensor) -> dict[str, Any]:
        o, taps, _, c = filters.shape
        blocks = {"BLOCK_M": Stem.BLOCK_M, "BLOCK_N": _block(o), "BLOCK_K": _block(taps * taps * c)}
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


class Depthwise(torch.autograd.Function):
    """One filter a channel and member."""

    BLOCK_R, BLOCK_C = 64, 32

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, weight: Tensor, gradient: Tensor, sizes: Sizes) -> Tensor:
        x = rows(x)
        k, s, p, ho, wo = sizes.square(x)
        n, c, h, w = x.shape
        y = torch.empty((n, c, ho, wo), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        geometry = c // align(c), h, w, ho, wo, shift(s), p
        grid, places, share = tiles(y.shape, len(weight))
        kernels.launch(kernels.depthwise_forward, grid, x, weight, y, places, weight.stride(0), *geometry, K=k, **share)
        ctx.save_for_backward(x, weight)
        ctx.gradient, ctx.kernel, ctx.geometry = gradient, k, geometry
        return y

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None, None]:
        x, weight = ctx.saved_tensors
        k, geometry, dy, dx = ctx.kernel, ctx.geometry, rows(dy), torch.empty_like(x)
        with beside(x, dy):
            Depthwise._filters(x, dy, ctx.gradient, geometry)
        grid, places, share = tiles(x.shape, len(weight))
        kernels.launch(
            kernels.depthwise_backward, grid, dy, weight, dx, places, weight.stride(0), *geometry, K=k, **share
        )
        return dx, None, None, None, None

    @staticmethod
    def _filters(x: Tensor, dy: Tensor, gradient: Tensor, geometry: tuple[int, ...]) -> None:
        clients, c, _, k, _ = gradient.shape
        places = len(x) // clients * dy.shape[2] * dy.shape[3]
        taps = k * k * triton.cdiv(c, Depthwise.BLOCK_C)
        sums = _Splits(gradient, places, taps, Depthwise.BLOCK_R)
        blocks = {"K": k, "ALIGN": align(c), "BLOCK_R": Depthwise.BLOCK_R, "BLOCK_C": Depthwise.BLOCK_C}
        kernels.launch(
            kernels.depthwise_weights, (taps, sums.splits, clients), x, dy, sums.parts, places, sums.row, *geometry,
            sums.each, **blocks,
        )  # fmt: skip
        sums.add()
