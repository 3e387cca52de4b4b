"""The head of a model with the ReLU before it, in a few kernels, for one client or for all of a group."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from mapl.engine.cuda.kernels import head as kernels
from mapl.engine.cuda.kernels.launch import launch, once
from mapl.engine.cuda.kernels.launch import precision as of_products
from mapl.engine.cuda.losses import MOST_CLASSES, block_of, dense, fits, small, stack_members


def classify(z: Tensor, weight: Tensor, bias: Tensor, precision: torch.dtype | None) -> Tensor | None:
    """ReLU(z) Wᵀ + b, (B, d_z) → (B, K), in float32: one kernel, and two for the backward pass.

    With a `precision` of bfloat16 numbers are rounded where autocast rounds them. None where it cannot be had.
    """
    if precision not in (None, torch.bfloat16) or not fits(z, weight) or bias.dtype != torch.float32:
        return None
    if not small(classes=len(weight)):
        return None
    logits: Tensor = _Head.apply(None, precision is not None, z, weight, bias)  # type: ignore[no-untyped-call]
    return logits


class _Head(torch.autograd.Function):
    """The head of one client (`members` is None), or those of as many at once."""

    ROWS = 16

    @staticmethod
    def forward(members: int | None, low: bool, z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if members is None:
            z, weight, bias = z.unsqueeze(0), weight.unsqueeze(0), bias.unsqueeze(0)
        z, weight, bias = dense(z), dense(weight), dense(bias)
        (g, n, d), k = z.shape, weight.shape[1]
        logits = z.new_empty((g, n, k))
        launch(
            kernels.head_forward, (triton.cdiv(n, _Head.ROWS), g), z, weight, bias, logits, n, k, d, z.stride(0),
            weight.stride(0), bias.stride(0), **_Head._arithmetic(low), **_Head._blocks(d, k),
        )  # fmt: skip
        return logits.squeeze(0) if members is None else logits

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.members, ctx.low, z, weight, _ = inputs
        ctx.save_for_backward(z, weight)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        z, weight = ctx.saved_tensors
        if ctx.members is None:
            z, weight, dy = z.unsqueeze(0), weight.unsqueeze(0), dy.unsqueeze(0)
        z, weight, dy = dense(z), dense(weight), dense(dy)
        found = _Head._inputs(z, weight, dy, ctx.low), *_Head._weights(z, dy, ctx.low)
        return None, None, *(d.squeeze(0) if ctx.members is None else d for d in found)

    @staticmethod
    def _arithmetic(low: bool) -> dict[str, Any]:
        return {"LOW": low, "PRECISION": "tf32" if low else of_products()}

    @staticmethod
    def _blocks(d: int, k: int) -> dict[str, int]:
        """A program's share: the more classes there are, the fewer columns of the weight."""
        return {"ROWS": _Head.ROWS, "COLUMNS": block_of(k, MOST_CLASSES), "BLOCK_D": block_of(d, 64 if k <= 32 else 16)}

    @staticmethod
    def _inputs(z: Tensor, weight: Tensor, dy: Tensor, low: bool) -> Tensor:
        (g, n, d), k = z.shape, weight.shape[1]
        dz = z.new_empty((g, n, d))
        blocks = _Head._blocks(d, k)
        grid = triton.cdiv(n, blocks["ROWS"]), triton.cdiv(d, blocks["BLOCK_D"]), g
        launch(
            kernels.head_inputs, grid, z, weight, dy, dz, n, k, d, z.stride(0), weight.stride(0), dy.stride(0),
            **_Head._arithmetic(low), **blocks,
        )  # fmt: skip
        return dz

    @staticmethod
    def _weights(z: Tensor, dy: Tensor, low: bool) -> tuple[Tensor, Tensor]:
        (g, n, d), k = z.shape, dy.shape[2]
        dweight, dbias = z.new_empty((g, k, d)), z.new_empty((g, k))
        blocks = _Head._blocks(d, k)
        launch(
            kernels.head_weights, (triton.cdiv(d, blocks["BLOCK_D"]), g), z, dy, dweight, dbias, n, k, d,
            z.stride(0), dy.stride(0), **_Head._arithmetic(low), **blocks,
        )  # fmt: skip
        return dweight, dbias

    @staticmethod
    def vmap(info: Any, in_dims: Any, members: None, low: bool, z: Tensor, weight: Tensor, bias: Tensor) -> Any:
        stacked = stack_members(info.batch_size, in_dims[2:], (z, weight, bias))
        return _Head.apply(info.batch_size, low, *stacked), 0  # type: ignore[no-untyped-call]
