"""Where the clients of a run live while they are in no slot: their models, and optimisers that live on."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mapl.client import Client
from mapl.engine.cuda.layout import Layout
from mapl.engine.settings import EngineSettings


class Homes:
    """One flat vector per client, on the GPU, or in the host's pinned memory where the GPU has no room for all."""

    def __init__(self, elements: int, settings: EngineSettings, device: torch.device):
        """`elements` are the numbers that will be kept of all clients."""
        self.device = device
        self.place = self._place(elements, settings.memory)
        self.rows: dict[int, Tensor] = {}
        """The model of each client, (size of its layout,)."""
        self.counters: dict[int, Tensor] = {}
        """Its whole numbers."""
        self.moments: dict[int, tuple[Tensor, int]] = {}
        """An optimiser's two moments (2, parameters), and the steps that it has taken."""

    def _place(self, elements: int, share: float | None) -> torch.device:
        if share is None and self.device.type == "cuda":
            share = torch.cuda.get_device_properties(self.device).total_memory / 2**31
        return torch.device("cpu") if share is not None and 4 * elements > share * 2**30 else self.device

    @property
    def on_host(self) -> bool:
        """Whether models wait on the host."""
        return self.place.type != self.device.type

    def bind(self, client: Client, layout: Layout, precision: torch.dtype | None) -> None:
        """Move a client's model to a home of its own."""
        row = torch.zeros(layout.size, device=self.place, pin_memory=self.on_host)
        counters = torch.zeros(len(layout.counters), device=self.place, dtype=torch.int64, pin_memory=self.on_host)
        layout.bind(client.model, row, counters)
        client.model.precision = precision if self.place.type == "cuda" else None
        self.rows[client.id], self.counters[client.id] = row, counters

    def keep_moments(self, client: Client, layout: Layout, moments: Tensor, steps: int) -> None:
        """Keep a client's optimiser, which has taken so many steps more."""
        kept, before = self.moments.get(client.id) or (self._no_moments(layout), 0)
        kept.copy_(moments, non_blocking=True)
        self.moments[client.id] = (kept, before + steps)

    def _no_moments(self, layout: Layout) -> Tensor:
        return torch.zeros(2, layout.parameters, device=self.place, pin_memory=self.on_host)

    def optimizer_state(self, client: Client, layout: Layout, adam: bool) -> dict[str, Tensor]:
        """A client's optimiser as torch's optimisers name it, by the position of each parameter in the model."""
        if client.id not in self.moments:
            return {}
        moments, step = self.moments[client.id]
        state: dict[str, Tensor] = {}
        for position, (name, _) in enumerate(client.model.named_parameters()):
            if not layout.learns(name):
                continue
            entry, path = layout.entries[name], f"{client.id}.{position}"
            if adam:
                state[f"{path}.step"] = torch.tensor(float(step))
            for row, moment in enumerate(_moments(adam)):
                state[f"{path}.{moment}"] = entry.view(moments[row])
        return state

    def load_optimizer(self, client: Client, layout: Layout, adam: bool, state: Mapping[str, Tensor]) -> None:
        """Take such tensors back. A parameter that is not among them never had a gradient: its moments are zero."""
        moments, step = self._no_moments(layout), 0
        for position, (name, _) in enumerate(client.model.named_parameters()):
            for row, moment in enumerate(_moments(adam)):
                path = f"{client.id}.{position}"
                if layout.learns(name) and f"{path}.{moment}" in state:
                    layout.entries[name].view(moments[row]).copy_(state[f"{path}.{moment}"])
                    step = max(1, int(state.get(f"{path}.step", 0)))
        if step:
            self.moments[client.id] = (moments, step)


def _moments(adam: bool) -> tuple[str, ...]:
    return ("exp_avg", "exp_avg_sq") if adam else ("momentum_buffer",)
