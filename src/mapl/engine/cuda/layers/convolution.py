"""A convolution of a group, in the way that suits its sizes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mapl.engine.cuda.layers.bias import Bias
from mapl.engine.cuda.layers.depthwise import Depthwise
from mapl.engine.cuda.layers.geometry import Sizes
from mapl.engine.cuda.layers.linear import Matrices
from mapl.engine.cuda.layers.one_by_one import OneByOne
from mapl.engine.cuda.layers.pooling import MaxPool
from mapl.engine.cuda.layers.products import Products
from mapl.engine.cuda.layers.stack import Stack
from mapl.engine.cuda.layers.stem import Stem


class GroupConv(nn.Module):
    """A convolution with each member's own filters, and what comes after it: ReLU, and then maximum pooling.

    Bias and ReLU are monotone and the same everywhere in a channel, so the maximum can be taken first: they then
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
        token, weight, gradient = self.stack.of(f"{self.name}.weight")
        x = x.to(weight.dtype)
        if self.pointwise:
            y = self._pointwise(x, token, weight.flatten(2), None if gradient is None else gradient.flatten(2))
        elif self.keeps_size and x.shape[2:] == (1, 1):
            # Of a single pixel a filter sees its middle alone; the gradient of the rest is zero, and stays so.
            middle = (..., self.sizes.padding[0], self.sizes.padding[1])
            y = self._pointwise(x, token, weight[middle], None if gradient is None else gradient[middle])
        else:
            y = self._way(x).apply(x, token, weight, gradient, self.sizes)
        if self.pool is not None:
            y = self.pool(y)
        if self.has_bias:
            y = Bias.apply(y, self.stack, f"{self.name}.bias", self.relu)  # type: ignore[no-untyped-call]
        return y

    def _way(self, x: Tensor) -> Any:
        if self.depthwise:
            return Depthwise
        if not x.requires_grad and Stem.fits(self.sizes, x.shape[1]):
            return Stem
        return Products if self.stack.clients > 1 and Products.fits(self.sizes) else OneByOne

    def _pointwise(self, x: Tensor, token: Tensor | None, weight: Tensor, gradient: Tensor | None) -> Tensor:
        """A 1×1 convolution: a matrix product of all pixels of a member with its weight."""
        n, c, h, w = x.shape
        pixels = x.permute(0, 2, 3, 1).reshape(self.stack.clients, -1, c)
        y: Tensor = Matrices.apply(pixels, token, weight, gradient)  # type: ignore[no-untyped-call]
        return y.view(n, h, w, -1).permute(0, 3, 1, 2)
