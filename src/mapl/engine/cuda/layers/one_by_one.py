"""The library's convolutions, one member after another."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mapl.engine.cuda.branches import all_members, beside, member
from mapl.engine.cuda.kernels.launch import once
from mapl.engine.cuda.layers.geometry import Sizes, rows


class OneByOne(torch.autograd.Function):
    """The library's convolution, a member after another.

    For dilated, grouped or non-square convolutions, and for a group of one, where the library is faster.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, token: Tensor | None, weight: Tensor, gradient: Tensor | None, sizes: Sizes
    ) -> Tensor:
        x = rows(x)
        ctx.save_for_backward(x, weight)
        ctx.gradient, ctx.sizes = gradient, sizes
        outputs = []
        for g, batch in enumerate(x.chunk(len(weight))):
            with member(x.device, g, len(weight)):
                outputs.append(_convolve(batch, weight[g], sizes))
        all_members(x.device, len(weight))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        x, weight = ctx.saved_tensors
        dy, sizes = rows(dy), ctx.sizes
        pairs = list(zip(x.chunk(len(weight)), dy.chunk(len(weight)), strict=True))
        if ctx.gradient is not None:
            with beside(x, dy):
                for g, (batch, d) in enumerate(pairs):
                    ctx.gradient[g].copy_(_back(d, batch, weight[g], sizes, [False, True, False])[1])
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None
        input_gradients = []
        for g, (batch, d) in enumerate(pairs):
            with member(x.device, g, len(weight)):
                input_gradients.append(_back(d, batch, weight[g], sizes, [True, False, False])[0])
        all_members(x.device, len(weight))
        return input_gradients[0] if len(input_gradients) == 1 else torch.cat(input_gradients), None, None, None, None


def _back(dy: Tensor, x: Tensor, weight: Tensor, sizes: Sizes, wanted: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a library's convolution that are wanted: of x, of its filters, of a bias."""
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        dy, x, weight, None, sizes.stride, sizes.padding, sizes.dilation, False, [0, 0], sizes.groups, wanted
    )
    return gradients


def _convolve(x: Tensor, weight: Tensor, sizes: Sizes) -> Tensor:
    return F.conv2d(x, weight, None, sizes.stride, sizes.padding, sizes.dilation, sizes.groups)
