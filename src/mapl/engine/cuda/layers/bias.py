"""Biases of a group, with the ReLU after them."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from mapl.engine.cuda.branches import beside
from mapl.engine.cuda.kernels import bias as kernels
from mapl.engine.cuda.kernels.launch import launch, once
from mapl.engine.cuda.layers.geometry import rows
from mapl.engine.cuda.layers.stack import Stack, grid_of


class Bias(torch.autograd.Function):
    """x + b, and ReLU; the bias has its gradient from partial sums that are added in a fixed order."""

    STEPS, BLOCK_R, BLOCK_C = 8, 64, 64

    @staticmethod
    def forward(ctx: Any, x: Tensor, stack: Stack, name: str, relu: bool) -> Tensor:
        x = rows(x)
        r, c = grid_of(stack.clients, x)
        bias = stack.weights[name]
        y = torch.empty_like(x)
        grid = (triton.cdiv(r, Bias.BLOCK_R), triton.cdiv(c, Bias.BLOCK_C), stack.clients)
        launch(
            kernels.bias_forward,
            grid,
            x,
            y,
            bias,
            r,
            c,
            bias.stride(0),
            RELU=relu,
            BLOCK_R=Bias.BLOCK_R,
            BLOCK_C=Bias.BLOCK_C,
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
        blocks, gradient = triton.cdiv(r, Bias.BLOCK_R * Bias.STEPS), stack.gradients.get(name)
        # The sums of a frozen bias are made and thrown away, in the one kernel that goes back through the ReLU.
        direct = gradient is not None and blocks == 1
        parts = gradient if direct else dy.new_empty((stack.clients, blocks, c), dtype=torch.float32)
        launch(
            kernels.bias_backward,
            (triton.cdiv(c, Bias.BLOCK_C), blocks, stack.clients),
            y,
            dy,
            dx,
            parts,
            r,
            c,
            parts.stride(0),
            RELU=relu,
            STEPS=Bias.STEPS,
            BLOCK_R=Bias.BLOCK_R,
            BLOCK_C=Bias.BLOCK_C,
        )
        if gradient is not None and blocks > 1:
            with beside(parts):
                gradient.copy_(parts.sum(1))
        return dx, None, None, None
