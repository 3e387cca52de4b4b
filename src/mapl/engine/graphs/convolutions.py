"""Convolutions of a group of G clients of one architecture, each with filters of its own.

Each is an autograd function of the images (G · B, C, H, W), channels last, member after member. The gradient of the
filters is written straight into the group's flat gradient: autograd never holds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor, nn

from mapl.engine.graphs import conv_kernels, kernels


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

    BLOCK_M, PLACES, PROGRAMS = 64, 64, 528

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
        geometry = c, o, h, w, ho, wo, shift(s), p
        places = n // clients * ho * wo
        Products._launch(conv_kernels.forward, (x, weight, y), places, o, c, weight, geometry)
        ctx.save_for_backward(x, weight)
        ctx.gradient, ctx.geometry = gradient, geometry
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        x, weight = ctx.saved_tensors
        dy = rows(dy)
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
        kernels.launch(
            kernel, grid, *tensors, places, weight.stride(0), *geometry, K=weight.shape[3], PRECISION=_precision(),
            **blocks,
        )  # fmt: skip

    @staticmethod
    def _filters(x: Tensor, dy: Tensor, gradient: Tensor, geometry: tuple[int, ...]) -> None:
        """The filters' gradient; where their programs are too few for a GPU, each is split over the places."""
        clients, o, c, k, _ = gradient.shape
        places, block = len(x) // clients * dy.shape[2] * dy.shape[3], Products.PLACES
        tiles = triton.cdiv(o, _block(o)) * k * k * triton.cdiv(c, _block(c))
        splits = max(1, min(triton.cdiv(places, 4 * block), Products.PROGRAMS // (tiles * clients)))
        each = triton.cdiv(triton.cdiv(places, splits), block) * block
        splits, size = triton.cdiv(places, each), o * k * k * c
        parts, row = gradient, gradient.stride(0)
        if splits > 1:
            parts, row = torch.empty((clients, splits, size), dtype=torch.float32, device=x.device), size
        blocks = {"BLOCK_M": _block(o), "BLOCK_N": _block(c), "BLOCK_K": block, "num_stages": 3}
        kernels.launch(
            conv_kernels.filters, (tiles, splits, clients), x, dy, parts, places, row, *geometry, each, K=k,
            PRECISION=_precision(), **blocks,
        )  # fmt: skip
        if splits > 1:
            grid = triton.cdiv(size, 1024), clients
            kernels.launch(conv_kernels.add_splits, grid, parts, gradient, size, gradient.stride(0), splits, BLOCK=1024)


def _block(channels: int) -> int:
    """How many channels a program takes: matrix units want 16 at least."""
    return int(min(64, max(16, triton.next_power_of_2(channels))))


def _precision() -> str:
    """How numbers of 32 bits are multiplied; narrower ones have no choice."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


_side_streams: dict[tuple[int, int], torch.cuda.Stream] = {}
"""Streams beside a stream, by (its handle, number): members' convolutions are branches of one graph."""


def _side(device: torch.device, number: int) -> torch.cuda.Stream:
    at = (torch.cuda.current_stream(device).cuda_stream, number)
    if at not in _side_streams:
        priority = torch.cuda.current_stream(device).priority
        _side_streams[at] = torch.cuda.Stream(device, priority)  # type: ignore[no-untyped-call]
    return _side_streams[at]


@contextmanager
def _beside(device: torch.device, g: int, clients: int) -> Iterator[None]:
    """What a group does for member g alone runs beside what it does for the others."""
    if device.type != "cuda" or clients == 1:
        yield
        return
    stream = _side(device, g)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield


def _together(device: torch.device, clients: int) -> None:
    """Wait for all members."""
    if device.type == "cuda" and clients > 1:
        for g in range(clients):
            torch.cuda.current_stream(device).wait_stream(_side(device, g))


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
            with _beside(x.device, g, len(weight)):
                made.append(_convolve(batch, weight[g], sizes))
        _together(x.device, len(weight))
        return made[0] if len(made) == 1 else torch.cat(made)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        x, weight = ctx.saved_tensors
        dy, sizes, wanted = rows(dy), ctx.sizes, ctx.needs_input_grad[0]
        found = []
        for g, (batch, d) in enumerate(zip(x.chunk(len(weight)), dy.chunk(len(weight)), strict=True)):
            with _beside(x.device, g, len(weight)):
                dx, dw, _ = torch.ops.aten.convolution_backward(
                    d, batch, weight[g], None, sizes.stride, sizes.padding, sizes.dilation, False, [0, 0],
                    sizes.groups, [wanted, True, False],
                )  # fmt: skip
                ctx.gradient[g].copy_(dw)
                found.append(dx)
        _together(x.device, len(weight))
        if not wanted:
            return None, None, None, None, None
        return found[0] if len(found) == 1 else torch.cat(found), None, None, None, None


def _convolve(x: Tensor, weight: Tensor, sizes: Sizes) -> Tensor:
    return F.conv2d(x, weight, None, sizes.stride, sizes.padding, sizes.dilation, sizes.groups)


def _lines(shape: Any) -> tuple[tuple[int, int, int], dict[str, int]]:
    """For kernels over the lines of images (N, C, H, W): the grid, and a program's share of a line."""
    n, c, h, w = shape
    block = min(64, triton.next_power_of_2(c))
    share = {"BLOCK_W": min(triton.next_power_of_2(w), 1024 // block), "BLOCK_C": block}
    return (triton.cdiv(w, share["BLOCK_W"]) * triton.cdiv(c, block), h, n), share


class Stem(torch.autograd.Function):
    """A convolution of few channels, as a matrix product with what its filter sees at each place (no way back to x).

    Libraries want channels by the eight: with three they are several times as slow as this.
    """

    BLOCK_P = 32

    @staticmethod
    def fits(sizes: Sizes, channels: int) -> bool:
        return sizes.plain and channels <= 4 and sizes.groups == 1

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, weight: Tensor, gradient: Tensor, sizes: Sizes) -> Tensor:
        x = rows(x)
        k, s, p, ho, wo = sizes.square(x)
        n, c, h, w = x.shape
        width = triton.cdiv(k * k * c, 16) * 16
        seen = x.new_empty((len(weight), n // len(weight) * ho * wo, width))
        places = n * ho * wo
        grid = (triton.cdiv(places, Stem.BLOCK_P),)
        share = {"WIDTH": width, "BLOCK_K": triton.next_power_of_2(width), "BLOCK_P": Stem.BLOCK_P, "num_warps": 8}
        kernels.launch(kernels.columns, grid, x, seen, places, c, h, w, ho, wo, s, p, K=k, **share)
        ctx.save_for_backward(seen)
        ctx.gradient = gradient
        y = torch.bmm(seen, F.pad(_as_matrices(weight), (0, width - k * k * c)).mT)
        return y.view(n, ho, wo, -1).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, None, None, None, None]:
        (seen,) = ctx.saved_tensors
        gradient = _as_matrices(ctx.gradient)
        d = rows(dy).permute(0, 2, 3, 1).reshape(len(seen), -1, dy.shape[1])
        gradient.copy_(torch.bmm(d.mT, seen)[..., : gradient.shape[2]])
        return None, None, None, None, None


def _as_matrices(filters: Tensor) -> Tensor:
    """Filters (G, O, I, K, K), channels last in memory, as matrices (G, O, K · K · I): a view."""
    return filters.movedim(2, 4).flatten(2)


class Depthwise(torch.autograd.Function):
    """One filter a channel and member."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, weight: Tensor, gradient: Tensor, sizes: Sizes) -> Tensor:
        x = rows(x)
        k, s, p, ho, wo = sizes.square(x)
        n, c, h, w = x.shape
        y = torch.empty((n, c, ho, wo), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        geometry = c, h, w, ho, wo, shift(s), p
        grid, share = _lines(y.shape)
        member = n // len(weight), weight.stride(0)
        kernels.launch(kernels.depthwise_forward, grid, x, weight, y, *member, *geometry, K=k, **share)
        ctx.save_for_backward(x, weight)
        ctx.gradient, ctx.kernel, ctx.geometry = gradient, k, geometry
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None, None]:
        x, weight = ctx.saved_tensors
        k, geometry, gradient, dy = ctx.kernel, ctx.geometry, ctx.gradient, rows(dy)
        clients, images, dx = len(weight), len(x) // len(weight), torch.empty_like(x)
        grid, share = _lines(x.shape)
        member = images, weight.stride(0)
        kernels.launch(kernels.depthwise_backward, grid, dy, weight, dx, *member, *geometry, K=k, **share)
        taps = k * k, triton.cdiv(x.shape[1], 32), clients
        lines = images * dy.shape[2] * dy.shape[3], gradient.stride(0)
        sizes = {"K": k, "BLOCK_R": 256, "BLOCK_C": 32, "num_warps": 8}
        kernels.launch(kernels.depthwise_weights, taps, x, dy, gradient, *lines, *geometry, **sizes)
        return dx, None, None, None, None
