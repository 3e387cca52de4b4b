"""Dropout whose draws are keyed by client, round and step."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor, nn

from mapl.engine.cuda.kernels import dropout as kernels
from mapl.engine.cuda.kernels.launch import launch
from mapl.engine.cuda.layers.geometry import rows
from mapl.engine.cuda.layers.stack import Keys


class _Dropout(torch.autograd.Function):
    """The backward pass draws the mask again instead of keeping it, so it is a dropout and can be differentiated."""

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
    launch(kernels.dropout, grid, x, y, keys.seed, keys.cursor, member, layer, rate, BLOCK=1024)
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
