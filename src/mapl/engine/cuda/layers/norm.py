"""Batch normalisation of a group."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor, nn

from mapl.engine.cuda.kernels import norm as kernels
from mapl.engine.cuda.kernels.launch import launch, once
from mapl.engine.cuda.layers.geometry import align, rows
from mapl.engine.cuda.layers.stack import CannotGroup, Stack, grid_of

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
            launch(kernel, grid, *arguments, STAGE=kernels.WHOLE.value, SPLITS=1, **constants)
            return
        launch(kernel, grid, *arguments, STAGE=kernels.PARTS.value, SPLITS=1, **constants)
        splits = max(64, triton.next_power_of_2(self.splits))
        launch(kernel, grid, *arguments, STAGE=kernels.FINISH.value, SPLITS=splits, **constants)

    def parts(self, x: Tensor) -> Tensor:
        """Room for what the first kernel tells the second."""
        return x.new_empty((self.clients, self.splits, 2, self.channels), dtype=torch.float32)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor | None, layer: GroupNorm) -> Tensor:
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
        self.momentum, self.eps = float(module.momentum), float(module.eps)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 3:
            raise CannotGroup(f"normalisation {self.name} goes over a third dimension")
        self.stack.call(self, self.name)
        if self.training:
            self.stack.counted.add(f"{self.name}.num_batches_tracked")
        frozen = f"{self.name}.weight" not in self.stack.gradients
        if frozen and x.requires_grad and torch.is_grad_enabled():
            return self._with_running_statistics(x)
        token = None if frozen else self.stack.token
        y: Tensor = _Norm.apply(x, token, self)  # type: ignore[no-untyped-call]
        return y

    def _with_running_statistics(self, x: Tensor) -> Tensor:
        """Evaluation mode with a gradient of x: in plain torch, since few methods need it."""
        stack, name = self.stack, self.name
        shape = stack.clients, 1, -1, *[1] * (x.ndim - 2)
        tensors = (stack.weights[f"{name}.weight"], stack.weights[f"{name}.bias"])
        statistics = (stack.buffers[f"{name}.running_mean"], stack.buffers[f"{name}.running_var"])
        weight, bias, mean, variance = (tensor.reshape(shape) for tensor in (*tensors, *statistics))
        members = x.float().view(stack.clients, -1, *x.shape[1:])
        y = ((members - mean) * torch.rsqrt(variance + self.eps) * weight + bias).flatten(0, 1).to(x.dtype)
        return torch.relu(y) if self.relu else y
