"""The tensors of a slot: models, optimisers, images and labels of a group of G clients, and how they come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mapl.client import Client
from mapl.engine.cuda.layers import Keys, Stack
from mapl.engine.cuda.layout import ALIGN, Layout
from mapl.engine.cuda.memory import laid, type_of


class Room:
    """Room for `size` clients of the kind that `client` is of, with `steps` batches of `batch` images per round."""

    def __init__(
        self,
        client: Client,
        layout: Layout,
        size: int,
        steps: int,
        batch: int,
        group: bool,
        device: torch.device,
        dtype: torch.dtype,
    ):
        self.layout, self.size, self.group, self.device, self.dtype = layout, size, group, device, dtype
        shape = client.train.shape
        self.flat = torch.zeros(size, layout.size, device=device)
        self.low = torch.zeros(size, layout.low, device=device, dtype=dtype) if layout.low else None
        frozen = layout.fixed - layout.parameters
        self.low_frozen = torch.zeros(size, frozen, device=device, dtype=dtype) if frozen else None
        self.grad_low = torch.zeros(size, layout.low, device=device, dtype=dtype)
        self.grad_high = torch.zeros(size, layout.parameters - layout.low, device=device)
        self.moments = torch.zeros(2, size, layout.parameters, device=device)
        self.counters = torch.zeros(size, len(layout.counters), device=device, dtype=torch.int64)
        here = client.model.head.weight.device.type
        kept = {name: value for name, value in client.state.items() if value.device.type == here}
        self.state_rows, self.state = _in_rows(kept, size, device)
        # A network as its author wrote it gets what it would get eagerly; autocast makes of that what it does.
        stored_as = type_of(shape, dtype if group else torch.float32)
        self.images = torch.zeros(size, steps, batch, *laid(shape), device=device, dtype=stored_as)
        self.labels = torch.zeros(size, steps, batch, device=device, dtype=torch.int64)
        self.plan = torch.zeros(steps, size, device=device, dtype=torch.uint8)
        self.cursor = torch.zeros(1, device=device, dtype=torch.int64)
        self.factor = torch.ones(1, device=device)
        """What all learning rates are multiplied by in this round. A captured step reads it from here."""
        self.learns = torch.ones(layout.parameters, device=device)
        self.ones = torch.ones(size, device=device)
        self.keys = Keys(torch.zeros(size, device=device, dtype=torch.int64), self.cursor)
        self.stack = self._stack()
        self.stale = False
        """Whether a method may have changed values since they were last copied to low precision."""
        self._steps: list[int] = []
        self._counted: list[int] = []
        self.taken = 0
        """Steps of this round."""

    def _stack(self) -> Stack:
        layout, weights, gradients, buffers = self.layout, {}, {}, {}
        for name, entry in layout.entries.items():
            if entry.start < layout.low and self.low is not None:
                weights[name], gradients[name] = entry.view(self.low), entry.view(self.grad_low)
            elif entry.start < layout.parameters:
                weights[name], gradients[name] = entry.view(self.flat), entry.view(self.grad_high, layout.low)
            elif entry.start < layout.fixed and self.low_frozen is not None:
                weights[name] = entry.view(self.low_frozen, layout.parameters)
            elif name in layout.buffers:
                buffers[name] = entry.view(self.flat)
            else:
                weights[name] = entry.view(self.flat)
        zeros = torch.zeros(self.size, device=self.device, dtype=torch.int64)
        token = torch.zeros((), device=self.device, requires_grad=True)
        return Stack(self.size, self.keys, weights, gradients, buffers, zeros.byte(), zeros, {}, set(), token)

    def load(self, clients: Sequence[Client], rows: Sequence[Tensor], counters: Sequence[Tensor]) -> None:
        """Bring clients in; where there are fewer than places, the last places keep what they had."""
        for g, client in enumerate(clients):
            self.flat[g].copy_(rows[g], non_blocking=True)
            self.counters[g].copy_(counters[g], non_blocking=True)
            for name, stacked in self.state.items():
                stacked[g].copy_(client.state[name], non_blocking=True)
        self.refresh()

    def refresh(self) -> None:
        """Copy values to low precision, where layers read them."""
        if self.low is not None:
            self.low.copy_(self.flat[:, : self.layout.low])
        if self.low_frozen is not None:
            self.low_frozen.copy_(self.flat[:, self.layout.parameters : self.layout.fixed])
        self.stale = False

    def store(self, clients: Sequence[Client], rows: Sequence[Tensor], counters: Sequence[Tensor]) -> None:
        """Take the clients' models and states back."""
        self.count()
        for g, client in enumerate(clients):
            rows[g].copy_(self.flat[g], non_blocking=True)
            counters[g].copy_(self.counters[g], non_blocking=True)
            for name, stacked in self.state.items():
                client.state[name].copy_(stacked[g], non_blocking=True)

    def begin(self, steps: Sequence[int], seeds: Sequence[int], reset: bool, factor: float) -> None:
        """Before a round: how many batches each member has, the keys of their dropouts, the factor of their rates."""
        self.factor.fill_(factor)
        plan = torch.tensor([[t < n for n in steps] for t in range(len(self.plan))], dtype=torch.uint8)
        self.plan[:, : len(steps)].copy_(sent(plan, self.device))
        self.plan[:, len(steps) :].zero_()
        self.keys.seed[: len(seeds)].copy_(sent(torch.tensor(seeds, dtype=torch.int64), self.device))
        self.cursor.zero_()
        self._steps, self._counted, self.taken = list(steps), [0] * len(steps), 0
        if reset:
            self.moments.zero_()
            self.stack.step.zero_()

    def count(self) -> None:
        """Bring the members' counters of batches up to date; the layers of a group do not count by themselves."""
        now = [min(self.taken, steps) for steps in self._steps]
        new = [n - before for n, before in zip(now, self._counted, strict=True)]
        if self.group and any(new):
            moved = [[n if name in self.stack.counted else 0 for name in self.layout.counters] for n in new]
            self.counters[: len(new)] += sent(torch.tensor(moved, dtype=torch.int64), self.device)
        self._counted = now

    def load_moments(self, g: int, moments: Tensor, step: int) -> None:
        """The optimiser of a member that lives on from round to round."""
        self.moments[:, g].copy_(moments, non_blocking=True)
        self.stack.step[g].fill_(step)


def _in_rows(values: Mapping[str, Tensor], size: int, device: torch.device) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Zeros like `values` for every member, (G, …) each: parts of a few tensors (G, n), one for every dtype."""
    rows, parts = [], {}
    for dtype in dict.fromkeys(value.dtype for value in values.values()):
        some = {name: value for name, value in values.items() if value.dtype == dtype}
        widths = [-(-value.numel() // ALIGN) * ALIGN for value in some.values()]
        rows.append(torch.zeros(size, sum(widths), dtype=dtype, device=device))
        for (name, value), row in zip(some.items(), torch.split(rows[-1], widths, dim=1), strict=True):
            parts[name] = row[:, : value.numel()].view(size, *value.shape)
    return rows, {name: parts[name] for name in values}


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Values of the host on the device, without waiting for them to arrive."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values
