"""Pooling of a group's images."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mapl.engine.cuda.kernels import pooling as kernels
from mapl.engine.cuda.kernels.launch import launch, once
from mapl.engine.cuda.layers.geometry import align, is_power, rows, shift, tiles


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
        launch(kernels.pool_forward, grid, x, y, which, places, *geometry, K=k, **share)
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
        launch(kernels.pool_backward, grid, rows(dy), which, dx, places, *geometry, **share)
        return dx, None, None, None, None


class MaxPool(nn.Module):
    """Maximum pooling that keeps one byte per window, where torch's keeps eight."""

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
