"""Layers for a group of G clients of one architecture: each member's own weights, one launch for all where possible.

A group's activations are (G · B, C, H, W), channels last, member after member. All layers that treat every sample by
itself (ReLU, pooling, concatenation, …) work on that as they are. Those with weights, or with statistics of a batch,
are here. Their gradients are written straight into the group's flat gradient: autograd never holds them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor, nn

from mapl.engine.cuda import kernels
from mapl.engine.cuda.branches import beside, rejoin
from mapl.engine.cuda.convolutions import (
    Depthwise,
    OneByOne,
    Products,
    Sizes,
    Stem,
    align,
    is_power,
    rows,
    shift,
    tiles,
)
from mapl.engine.cuda.kernels import once


class CannotGroup(Exception):
    """Why clients of some kind cannot train as a group."""


@dataclass
class Keys:
    """What the draws of layers are a function of."""

    seed: Tensor
    """(G,) int64: the key of each member in this round."""
    cursor: Tensor
    """(1,) int64: steps taken in this round."""


@dataclass
class Stack:
    """What the layers of a group read and write, each (G, …), a row a member."""

    clients: int
    keys: Keys
    weights: dict[str, Tensor]
    """Parameters by name, in the precision they are computed in."""
    gradients: dict[str, Tensor]
    """Where each parameter's gradient goes."""
    buffers: dict[str, Tensor]
    active: Tensor
    """(G,) uint8: who takes part in this step."""
    step: Tensor
    """(G,) int64: steps that each member has taken with its optimiser."""
    called: set[str]
    """The layers that this step has called. One that is called twice would overwrite its own gradient."""
    counted: set[str]
    """The counters of batches that a step moves on; they are added to once a round."""
    token: Tensor
    """An empty tensor that requires a gradient: it tells autograd that a layer has weights to go back for."""

    def call(self, layer: nn.Module, name: str) -> None:
        """Note that a step calls a layer with weights."""
        if layer.training:
            if name in self.called:
                raise CannotGroup(f"layer {name} is called twice in a step")
            self.called.add(name)


def grid_of(clients: int, x: Tensor) -> tuple[int, int]:
    """(R, C): rows of each member and channels of a tensor (G · B, C, …) that lies channels last."""
    channels = x.shape[1]
    return x.numel() // channels // clients, channels


BLOCKS = (
    (128, (128, 32, 4)),
    (512, (512, 16, 8)),
    (8192, (128, 32, 4)),
    (math.inf, (512, 16, 8)),
)
"""For normalisations of so many rows at most: rows, channels and warps of a block."""


@dataclass(frozen=True)
class _Blocks:
    """How a normalisation of R rows is cut up: in one kernel, or where they are too many for a block, in two."""

    rows: int
    channels: int
    clients: int
    training: bool = True

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows and channels of a block, and its warps: small blocks, but not too many of them to put together."""
        # A test puts nothing together, and kernels for one size will do; but a grid has that many blocks at most.
        free = not self.training and self.rows <= BLOCKS[0][0] * 65535
        return next(sizes for most, sizes in BLOCKS if self.rows <= most or free)

    @property
    def splits(self) -> int:
        return int(triton.cdiv(self.rows, self.sizes[0]))

    @property
    def align(self) -> int:
        return align(self.channels)

    def launch(self, kernel: Any, *arguments: Any, **constants: Any) -> None:
        block_r, block_c, warps = self.sizes
        grid = triton.cdiv(self.channels, block_c), self.splits, self.clients
        constants |= {"ALIGN": self.align, "BLOCK_R": block_r, "BLOCK_C": block_c, "num_warps": warps}
        if self.splits == 1 or not self.training:
            kernels.launch(kernel, grid, *arguments, STAGE=kernels.WHOLE.value, SPLITS=1, **constants)
            return
        kernels.launch(kernel, grid, *arguments, STAGE=kernels.PARTS.value, SPLITS=1, **constants)
        splits = max(64, triton.next_power_of_2(self.splits))
        kernels.launch(kernel, grid, *arguments, STAGE=kernels.FINISH.value, SPLITS=splits, **constants)

    def parts(self, x: Tensor) -> Tensor:
        """Room for what the first kernel tells the second."""
        return x.new_empty((self.clients, self.splits, 2, self.channels), dtype=torch.float32)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, layer: GroupNorm) -> Tensor:
        stack, name = layer.stack, layer.name
        x = rows(x)
        r, c = grid_of(stack.clients, x)
        weight, bias = stack.weights[f"{name}.weight"], stack.weights[f"{name}.bias"]
        mean, var = stack.buffers[f"{name}.running_mean"], stack.buffers[f"{name}.running_var"]
        y = torch.empty_like(x)
        saved = x.new_empty((2, stack.clients, c), dtype=torch.float32)
        blocks = _Blocks(r, c, stack.clients, layer.training)
        blocks.launch(
            kernels.norm_forward, x, y, weight, bias, mean, var, saved[0], saved[1], blocks.parts(x), stack.active,
            r, c // blocks.align, weight.stride(0), layer.momentum, layer.eps, int(layer.relu), TRAIN=layer.training,
        )  # fmt: skip
        ctx.save_for_backward(x, saved)
        ctx.layer = layer
        return y

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        x, saved = ctx.saved_tensors
        layer: GroupNorm = ctx.layer
        stack, name = layer.stack, layer.name
        r, c = grid_of(stack.clients, x)
        weight, bias = stack.weights[f"{name}.weight"], stack.weights[f"{name}.bias"]
        dweight, dbias = stack.gradients[f"{name}.weight"], stack.gradients[f"{name}.bias"]
        dx, blocks = torch.empty_like(x), _Blocks(r, c, stack.clients)
        blocks.launch(
            kernels.norm_backward, x, rows(dy), dx, weight, bias, saved[0], saved[1], dweight, dbias, blocks.parts(x),
            r, c // blocks.align, weight.stride(0), dweight.stride(0), int(layer.relu),
        )  # fmt: skip
        return dx, None, None


class GroupNorm(nn.Module):
    """Batch normalisation with each member's own statistics, and the ReLU after it."""

    def __init__(self, stack: Stack, name: str, module: nn.Module, relu: bool):
        super().__init__()
        self.stack, self.name, self.relu = stack, name, relu
        self.momentum, self.eps = module.momentum, module.eps

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 3:
            raise CannotGroup(f"normalisation {self.name} goes over a third dimension")
        self.stack.call(self, self.name)
        if self.training:
            self.stack.counted.add(f"{self.name}.num_batches_tracked")
        y: Tensor = _Norm.apply(x, self.stack.token, self)  # type: ignore[no-untyped-call]
        return y


class _Bias(torch.autograd.Function):
    """x + b, and ReLU; the bias has its gradient from partial sums that are added in a fixed order."""

    STEPS, BLOCK_R, BLOCK_C = 8, 64, 64

    @staticmethod
    def forward(ctx: Any, x: Tensor, stack: Stack, name: str, relu: bool) -> Tensor:
        x = rows(x)
        r, c = grid_of(stack.clients, x)
        bias = stack.weights[name]
        y = torch.empty_like(x)
        grid = (triton.cdiv(r, _Bias.BLOCK_R), triton.cdiv(c, _Bias.BLOCK_C), stack.clients)
        kernels.launch(
            kernels.bias_forward,
            grid,
            x,
            y,
            bias,
            r,
            c,
            bias.stride(0),
            RELU=relu,
            BLOCK_R=_Bias.BLOCK_R,
            BLOCK_C=_Bias.BLOCK_C,
        )
        ctx.save_for_backward(y if relu else x.new_empty(0))
        ctx.use = stack, name, relu, r, c
        return y

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        stack, name, relu, r, c = ctx.use
        (y,) = ctx.saved_tensors
        dy = rows(dy)
        dx = torch.empty_like(dy) if relu else dy
        blocks, gradient = triton.cdiv(r, _Bias.BLOCK_R * _Bias.STEPS), stack.gradients[name]
        parts = gradient if blocks == 1 else dy.new_empty((stack.clients, blocks, c), dtype=torch.float32)
        kernels.launch(
            kernels.bias_backward,
            (triton.cdiv(c, _Bias.BLOCK_C), blocks, stack.clients),
            y,
            dy,
            dx,
            parts,
            r,
            c,
            parts.stride(0),
            RELU=relu,
            STEPS=_Bias.STEPS,
            BLOCK_R=_Bias.BLOCK_R,
            BLOCK_C=_Bias.BLOCK_C,
        )
        if blocks > 1:
            with beside(parts):
                gradient.copy_(parts.sum(1))
        return dx, None, None, None


class _Matrices(torch.autograd.Function):
    """x (G, R, I) times each member's weight (G, O, I), transposed: (G, R, O)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, weight: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.gradient = gradient
        return torch.bmm(x, weight.mT)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None]:
        x, weight = ctx.saved_tensors
        dy = dy.contiguous()
        with beside(x, dy):
            torch.bmm(dy.mT, x, out=ctx.gradient)
        return torch.bmm(dy, weight) if ctx.needs_input_grad[0] else None, None, None, None


class GroupConv(nn.Module):
    """A convolution with each member's own filters, and what comes after it: ReLU, and then maximum pooling.

    Bias and ReLU are monotone and alike at all places of a channel, so that the maximum can be taken first: they then
    have fewer values to go over, and every value and gradient is the same.
    """

    def __init__(self, stack: Stack, name: str, module: nn.Conv2d, relu: bool, pool: nn.MaxPool2d | None = None):
        super().__init__()
        self.stack, self.name, self.relu = stack, name, relu
        self.pool = MaxPool(pool) if pool is not None else None
        self.sizes = Sizes.of(module)
        self.has_bias = module.bias is not None
        self.depthwise = self.sizes.plain and 1 < module.groups == module.in_channels == module.out_channels
        self.keeps_size = all(2 * p + 1 == k for p, k in zip(self.sizes.padding, self.sizes.kernel, strict=True))
        self.keeps_size = self.keeps_size and module.groups == 1 and module.dilation == (1, 1)
        self.pointwise = module.kernel_size == module.stride == (1, 1) and module.padding == (0, 0)
        self.pointwise = self.pointwise and module.groups == 1

    def forward(self, x: Tensor) -> Tensor:
        self.stack.call(self, self.name)
        weight, gradient = self.stack.weights[f"{self.name}.weight"], self.stack.gradients[f"{self.name}.weight"]
        x = x.to(weight.dtype)
        if self.pointwise:
            y = self._pointwise(x, weight.flatten(2), gradient.flatten(2))
        elif self.keeps_size and x.shape[2:] == (1, 1):
            # Of a single pixel a filter sees its middle alone; the gradient of the rest is zero, and stays so.
            middle = (..., self.sizes.padding[0], self.sizes.padding[1])
            y = self._pointwise(x, weight[middle], gradient[middle])
        else:
            y = self._way(x).apply(x, self.stack.token, weight, gradient, self.sizes)
        if self.pool is not None:
            y = self.pool(y)
        if self.has_bias:
            y = _Bias.apply(y, self.stack, f"{self.name}.bias", self.relu)  # type: ignore[no-untyped-call]
        return y

    def _way(self, x: Tensor) -> Any:
        if self.depthwise:
            return Depthwise
        if not x.requires_grad and Stem.fits(self.sizes, x.shape[1]):
            return Stem
        return Products if self.stack.clients > 1 and Products.fits(self.sizes) else OneByOne

    def _pointwise(self, x: Tensor, weight: Tensor, gradient: Tensor) -> Tensor:
        """A 1×1 convolution: a matrix product of all pixels of a member with its weight."""
        n, c, h, w = x.shape
        pixels = x.permute(0, 2, 3, 1).reshape(self.stack.clients, -1, c)
        y: Tensor = _Matrices.apply(pixels, self.stack.token, weight, gradient)  # type: ignore[no-untyped-call]
        return y.view(n, h, w, -1).permute(0, 3, 1, 2)


class GroupLinear(nn.Module):
    """A linear layer with each member's own weights."""

    def __init__(self, stack: Stack, name: str, module: nn.Linear, relu: bool):
        super().__init__()
        self.stack, self.name, self.relu, self.has_bias = stack, name, relu, module.bias is not None

    def forward(self, x: Tensor) -> Tensor:
        self.stack.call(self, self.name)
        weight, gradient = self.stack.weights[f"{self.name}.weight"], self.stack.gradients[f"{self.name}.weight"]
        flat = x.to(weight.dtype).reshape(self.stack.clients, -1, x.shape[-1])
        y: Tensor = _Matrices.apply(flat, self.stack.token, weight, gradient)  # type: ignore[no-untyped-call]
        y = y.flatten(0, 1)
        if self.has_bias:
            y = _Bias.apply(y, self.stack, f"{self.name}.bias", self.relu)  # type: ignore[no-untyped-call]
        return y.view(*x.shape[:-1], -1)


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, k: int, s: int, p: int, ceil: bool) -> Tensor:
        x = rows(x)
        n, c, h, w = x.shape
        # On the CPU, where it is nothing: tensors without memory (meta) would have torch load its algebra, for seconds.
        ho, wo = F.max_pool2d(torch.empty(1, 1, h, w), k, s, p, ceil_mode=ceil).shape[2:]
        y = torch.empty((n, c, ho, wo), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        which = torch.empty_like(y, dtype=torch.uint8)
        geometry = c // align(c), h, w, ho, wo, shift(s), p
        grid, places, share = tiles(y.shape, 1)
        kernels.launch(kernels.pool_forward, grid, x, y, which, places, *geometry, K=k, **share)
        ctx.save_for_backward(which)
        ctx.use = k, -(-k // s), geometry, x.shape
        return y

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None, None]:
        (which,) = ctx.saved_tensors
        k, windows, geometry, shape = ctx.use
        dx = torch.empty(shape, dtype=dy.dtype, device=dy.device, memory_format=torch.channels_last)
        grid, places, share = tiles(shape, 1)
        share |= {"K": k, "WINDOWS": windows}
        kernels.launch(kernels.pool_backward, grid, rows(dy), which, dx, places, *geometry, **share)
        return dx, None, None, None, None


class MaxPool(nn.Module):
    """Maximum pooling that remembers a byte a window, where torch's remembers eight."""

    def __init__(self, module: nn.MaxPool2d):
        super().__init__()
        self.sizes = _one(module.kernel_size), _one(module.stride), _one(module.padding)
        self.ceil = module.ceil_mode

    @staticmethod
    def fits(module: nn.MaxPool2d) -> bool:
        square = all(
            isinstance(v, int) or len(set(v)) == 1 for v in (module.kernel_size, module.stride, module.padding)
        )
        plain = _one(module.dilation) == 1 and not module.return_indices and _one(module.kernel_size) <= 15
        return square and plain and is_power(_one(module.stride))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = _Pool.apply(x, *self.sizes, self.ceil)  # type: ignore[no-untyped-call]
        return y


class AveragePool(nn.Module):
    """Adaptive average pooling as a matrix of ones and zeros times the pixels: several times as fast as torch's."""

    def __init__(self, module: nn.AdaptiveAvgPool2d):
        super().__init__()
        self.size = module.output_size
        self._sums: dict[tuple[int, int], tuple[Tensor, Tensor, torch.Size]] = {}

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        if (h, w) not in self._sums:
            # What torch's own makes of each single pixel says which outputs it is part of.
            pixels = torch.eye(h * w, device=x.device).view(h * w, 1, h, w)
            parts = F.adaptive_avg_pool2d(pixels, self.size)
            shares = parts.flatten(1).T  # (outputs, pixels)
            self._sums[h, w] = (shares > 0).to(x.dtype), shares.amax(1, keepdim=True), parts.shape[2:]
        sums, share, size = self._sums[h, w]
        pooled = torch.matmul(sums, x.permute(0, 2, 3, 1).reshape(n, h * w, c)) * share.to(x.dtype)
        return pooled.view(n, *size, c).permute(0, 3, 1, 2)


def _one(size: Any) -> int:
    return int(size if isinstance(size, int) else size[0])


class _Dropout(torch.autograd.Function):
    """The mask is drawn again on the way back rather than kept; so the way back is a dropout too, and has its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: Keys, layer: int, rate: float) -> Tensor:
        ctx.use = keys, layer, rate
        return drop(x, keys, layer, rate)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        dx: Tensor = _Dropout.apply(dy, *ctx.use)  # type: ignore[no-untyped-call]
        return dx, None, None, None


def drop(x: Tensor, keys: Keys, layer: int, rate: float) -> Tensor:
    """x (G · B, …) with a share of it zeroed and the rest scaled up."""
    x = rows(x)
    y, member = torch.empty_like(x), x.numel() // len(keys.seed)
    grid = triton.cdiv(member, 1024), len(keys.seed)
    kernels.launch(kernels.dropout, grid, x, y, keys.seed, keys.cursor, member, layer, rate, BLOCK=1024)
    return y


def keyed(model: nn.Module, keys: Keys) -> None:
    """Replace every dropout of a model by one with these keys."""
    for path, module in list(model.named_modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                number = dropout_number(f"{path}.{name}" if path else name)
                setattr(module, name, KeyedDropout(keys, number, child.p))


def dropout_number(path: str) -> int:
    """A number for a layer, by its name in the client's model; the same in every engine."""
    return sum((i + 1) * ord(letter) for i, letter in enumerate(path)) % 100_003


class KeyedDropout(nn.Module):
    """Dropout whose draws are keyed by client, round and step, so that every engine on a GPU drops the same."""

    def __init__(self, keys: Keys, layer: int, rate: float):
        super().__init__()
        self.keys, self.layer, self.rate = keys, layer, rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        y: Tensor = _Dropout.apply(x, self.keys, self.layer, self.rate)  # type: ignore[no-untyped-call]
        return y


OPTIMISERS = 396
"""Programs of an optimiser: enough to keep the memory busy, few enough that other streams compute meanwhile."""


def optimise(
    flat: Tensor,
    low: Tensor | None,
    grad_low: Tensor,
    grad_high: Tensor,
    moments: tuple[Tensor, Tensor],
    learns: Tensor,
    stack: Stack,
    constants: dict[str, Any],
) -> None:
    """A step of every active member's optimiser, one launch for all parameters; shapes as in `kernels.optimise`."""
    rejoin(flat.device)
    n_low, n = grad_low.shape[1], grad_low.shape[1] + grad_high.shape[1]
    programs = min(triton.cdiv(n, 1024), triton.cdiv(OPTIMISERS, stack.clients))
    kernels.launch(kernels.optimise, (programs, stack.clients),
        flat, flat if low is None else low, grad_low, grad_high, *moments, learns, stack.step, stack.active,
        flat.stride(0), n_low, n, COPY=low is not None, BLOCK=1024, **constants,
    )  # fmt: skip
