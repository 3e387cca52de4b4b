"""Linear layers of a group."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mapl.engine.cuda.branches import beside
from mapl.engine.cuda.kernels.launch import once
from mapl.engine.cuda.layers.bias import Bias
from mapl.engine.cuda.layers.stack import Stack


class Matrices(torch.autograd.Function):
    """x (G, R, I) times each member's weight (G, O, I), transposed: (G, R, O)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor | None, weight: Tensor, gradient: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.gradient = gradient
        return torch.bmm(x, weight.mT)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None]:
        x, weight = ctx.saved_tensors
        dy = dy.contiguous()
        if ctx.gradient is not None:
            with beside(x, dy):
                torch.bmm(dy.mT, x, out=ctx.gradient)
        return torch.bmm(dy, weight) if ctx.needs_input_grad[0] else None, None, None, None


class GroupLinear(nn.Module):
    """A linear layer with each member's own weights."""

    def __init__(self, stack: Stack, name: str, module: nn.Linear, relu: bool):
        super().__init__()
        self.stack, self.name, self.relu, self.has_bias = stack, name, relu, module.bias is not None

    def forward(self, x: Tensor) -> Tensor:
        self.stack.call(self, self.name)
        token, weight, gradient = self.stack.of(f"{self.name}.weight")
        flat = x.to(weight.dtype).reshape(self.stack.clients, -1, x.shape[-1])
        y: Tensor = Matrices.apply(flat, token, weight, gradient)  # type: ignore[no-untyped-call]
        y = y.flatten(0, 1)
        if self.has_bias:
            y = Bias.apply(y, self.stack, f"{self.name}.bias", self.relu)  # type: ignore[no-untyped-call]
        return y.view(*x.shape[:-1], -1)
