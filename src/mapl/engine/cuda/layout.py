"""Where each tensor of a client's model lies in one flat vector, so that a client is moved by one copy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mapl.model import PROJECTOR, ClientModel

ALIGN = 64
"""Every tensor begins at a multiple of this many elements: matrix units read 16 bytes at a time."""


@dataclass(frozen=True)
class Entry:
    """One tensor's place."""

    name: str
    shape: torch.Size
    start: int
    channels_last: bool

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def view(self, flat: Tensor, origin: int = 0) -> Tensor:
        """This tensor in flat vectors (…, n) that begin at `origin`, as (…, *shape)."""
        start = self.start - origin
        part = flat[..., start : start + self.size]
        if self.channels_last:
            o, i, h, w = self.shape
            return part.view(*part.shape[:-1], o, h, w, i).movedim(-1, -3)
        return part.view(*part.shape[:-1], *self.shape)


class Layout:
    """The flat vector of an architecture, in four regions.

    - [0, low): parameters that are computed in low precision: the weights and biases of convolutions and linear layers
    - [low, parameters): other parameters, with the head and the prototypes: methods compute with them directly
    - [parameters, fixed): parameters of the first kind that take no gradient
    - [fixed, size): other parameters that take no gradient, and buffers

    An optimiser goes over the first two.
    """

    def __init__(self, model: ClientModel, *, group: bool, low_precision: bool = False):
        """A group's layers read filters channels last; otherwise filters lie as their author has them."""
        self._group = group
        low = set(_low(model)) if low_precision else set()
        parameters = dict(model.named_parameters())
        learned = {name: p for name, p in parameters.items() if p.requires_grad}
        frozen = {name: p for name, p in parameters.items() if not p.requires_grad}
        buffers = {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}
        self.entries: dict[str, Entry] = {}
        self.low = self._place({n: p for n, p in learned.items() if n in low}, 0)
        self.parameters = self._place({n: p for n, p in learned.items() if n not in low}, self.low)
        self.fixed = self._place({n: p for n, p in frozen.items() if n in low}, self.parameters)
        self.size = self._place({n: p for n, p in frozen.items() if n not in low} | buffers, self.fixed)
        self.buffers = frozenset(buffers)
        self.counters = [name for name, buffer in model.named_buffers() if not buffer.is_floating_point()]
        """Whole numbers, such as how many batches a normalisation has seen: (n,) int64 in a vector of their own."""

    def _place(self, tensors: dict[str, Tensor], start: int) -> int:
        for name, tensor in tensors.items():
            self.entries[name] = Entry(name, tensor.shape, start, self._group and tensor.ndim == 4)
            start += -(-tensor.numel() // ALIGN) * ALIGN
        return start

    def learns(self, name: str) -> bool:
        """Whether this is a parameter that takes a gradient."""
        return name in self.entries and self.entries[name].start < self.parameters

    def bind(self, model: ClientModel, flat: Tensor, counters: Tensor) -> None:
        """Make every tensor of a model a view of `flat` (size,) or `counters` (n,), with its value."""
        for name, tensor in _tensors(model):
            view = self._view(name, flat, counters)
            view.copy_(tensor.detach())
            tensor.data = view

    def attach(self, model: ClientModel, flat: Tensor, counters: Tensor) -> None:
        """Make every tensor of a model a view of `flat` or `counters`, with the value that it has there."""
        for name, tensor in _tensors(model):
            tensor.data = self._view(name, flat, counters)

    def _view(self, name: str, flat: Tensor, counters: Tensor) -> Tensor:
        entry = self.entries.get(name)
        return counters[self.counters.index(name)] if entry is None else entry.view(flat)

    def fits(self, model: ClientModel) -> bool:
        """Whether a model can be laid out so: its whole numbers are single ones, and everything else is float32."""
        return all(
            tensor.dtype == torch.float32 if name in self.entries else tensor.dtype == torch.int64 and not tensor.ndim
            for name, tensor in _tensors(model)
        )


def networks(model: ClientModel) -> dict[str, nn.Module]:
    """The networks of a client, by their paths in its model: backbone, projector if there is one, the method's own."""
    found = {"backbone": model.backbone}
    if model.has(PROJECTOR):
        found[PROJECTOR] = model.projector
    return found | {f"own.{name}": network for name, network in model.own.items()}


def frozen_paths(model: ClientModel) -> set[str]:
    """The paths of the networks that are not trained."""
    return {f"own.{name}" for name in model.frozen}


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _low(model: ClientModel) -> Iterator[str]:
    for prefix, network in networks(model).items():
        for path, module in network.named_modules(prefix=prefix):
            if isinstance(module, nn.Conv2d | nn.Linear):
                yield from (f"{path}.{name}" for name, _ in module.named_parameters(recurse=False))
