"""A slot: room on the GPU for a group of G clients of one kind, and their training step, captured once.

Clients come and go: their models are copied in (one copy each), trained for a round, and copied back. So a handful of
captured steps serves any number of clients, and an optimiser's state exists for those in a slot alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import triton
from torch import Tensor

from mapl.client import Client
from mapl.data.kinds import Augmenting
from mapl.engine.cuda.guards import no_draws
from mapl.engine.cuda.kernels import account as kernels
from mapl.engine.cuda.kernels.launch import launch
from mapl.engine.cuda.layout import Layout
from mapl.engine.cuda.memory import seen, together
from mapl.engine.cuda.networks import Alone, Networks, Together
from mapl.engine.cuda.optimiser import constants_of, optimise, rates_of
from mapl.engine.cuda.room import Room
from mapl.engine.cuda.views import Views
from mapl.engine.settings import TrainSettings
from mapl.methods._base import Method


class Slot(Room):
    """Room for `size` clients of the kind that `client` is of, and what they do there."""

    def __init__(
        self,
        method: Method[Any],
        train: TrainSettings,
        client: Client,
        layout: Layout,
        size: int,
        steps: int,
        group: bool,
        device: torch.device,
        precision: torch.dtype | None,
    ):
        self.method, self.train = method, train
        self.priority = _priority(client) if size > 1 else 0
        self.stream = torch.cuda.Stream(device, self.priority) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        batch = min(train.batch, client.samples) * method.views
        super().__init__(client, layout, size, steps, batch, group, device, precision or torch.float32)
        self.rates = rates_of(method.learning_rates(), layout, train.learning_rate, device)
        self.networks: Networks = (
            Together(self, client, precision, self._looked) if group else Alone(self, client, precision)
        )
        self.members = [
            dataclasses.replace(client, model=model, state=client.state | self._state_of(g))
            for g, model in enumerate(self.networks.models)
        ]
        """The clients that are in: what a method is given, their models and states rows of this slot. State that is
        kept on the host stays the client's."""
        self.views: Views | None = None
        """What makes its members' images: one for each slot, since it has memory of its own."""
        self.filled: tuple[int, list[int]] | None = None
        """The round and the clients whose images it holds."""
        self.terms: list[str] = []
        self._captured: torch.cuda.CUDAGraph | None = None
        self._answers: dict[tuple[str, ...], _Answers] = {}

    def load(self, clients: Sequence[Client], rows: Sequence[Tensor], counters: Sequence[Tensor]) -> None:
        super().load(clients, rows, counters)
        for g, client in enumerate(clients):
            fields = {f.name: getattr(client, f.name) for f in dataclasses.fields(client)}
            vars(self.members[g]).update({k: v for k, v in fields.items() if k not in ("model", "state")})
            self.members[g].state = client.state | self._state_of(g)

    def _state_of(self, g: int) -> dict[str, Tensor]:
        return {name: stacked[g] for name, stacked in self.state.items()}

    def begin(self, steps: Sequence[int], seeds: Sequence[int], reset: bool, factor: float) -> None:
        super().begin(steps, seeds, reset, factor)
        self.totals.zero_()

    def _looked(self) -> None:
        """A method looks at a member's network: counters must be up to date, and values may change."""
        self.count()
        self.stale = True

    def start_epochs(self, round: int, epochs: dict[int, int]) -> None:
        """Tell the method which members begin an epoch, and which."""
        for g, epoch in epochs.items():
            self.method.start_epoch(self.members[g], round, epoch)
        if self.stale:
            self.refresh()

    # The step

    def step(self) -> None:
        """A training step of every member; no value is read by the host, so that it can be captured."""
        torch.index_select(self.plan, 0, self.cursor, out=self.stack.active.view(1, -1))
        images = seen(self.images.index_select(1, self.cursor)[:, 0])
        labels = self.labels.index_select(1, self.cursor)[:, 0]
        before = [rows.clone() for rows in self.state_rows] if self.size > 1 else []
        terms = self.networks.terms(self.method, self.members, images, labels)
        optimise(
            self.flat, self.low, (self.grad_low, self.grad_high), (self.moments[0], self.moments[1]), self.learns,
            self.rates, self.factor, self.stack, constants_of(self.train),
        )  # fmt: skip
        self._account(terms, before)

    def _account(self, terms: dict[str, Tensor], before: list[Tensor]) -> None:
        """Add up the losses and go to the next batch. A member without a batch keeps the state it had."""
        active, step = self.stack.active, self.stack.step
        for rows, old in zip(self.state_rows, before, strict=False):
            rows.copy_(torch.where(active.view(-1, 1) > 0, rows, old))
        values = torch.stack([value.detach().view(self.size) for value in terms.values()])
        if not self.terms:
            self.terms = list(terms)
            self.totals = torch.zeros_like(values)
        number, room = len(values), triton.next_power_of_2(values.numel())
        launch(kernels.account, (1,), values, self.totals, active, step, self.cursor, number, self.size, BLOCK=room)

    def replay(self) -> None:
        """A step of all members."""
        self._captured.replay() if self._captured is not None else self.step()
        self.taken += 1

    # Capturing

    def capture(self) -> None:
        """Try the step, so that every kernel is chosen and built; then capture it."""
        for member in self.members:
            member.model.train()
        self.networks.train()
        self.plan.zero_()
        with self.lane():
            self._rehearse()
            for name, entry in self.layout.entries.items():
                if self.layout.learns(name) and name not in self.networks.learned:
                    entry.view(self.learns).zero_()
            self._captured = self.record(self.step)

    def _rehearse(self) -> None:
        """Try everything that will be captured or called, so that failures show up now."""
        with no_draws(self.device):
            outputs = self._rehearse_steps()
        self.start_epochs(0, dict.fromkeys(range(self.size), 0))
        with torch.no_grad():
            for g, member in enumerate(self.members):
                self.method.scores(member, {name: outputs[name][g] for name in self.method.answers_with})

    def _rehearse_steps(self) -> dict[str, Tensor]:
        """Twice: the first lets libraries set themselves up, the second must not wait for the GPU even once."""
        if self.stream is None:
            return self.try_all()
        mode = torch.cuda.get_sync_debug_mode()
        try:
            self.try_all()
            torch.cuda.set_sync_debug_mode(2)
            return self.try_all()
        finally:
            torch.cuda.set_sync_debug_mode(mode)

    def try_all(self) -> dict[str, Tensor]:
        """A step, and the networks' outputs for two images in evaluation mode, where they may do something else."""
        self.cursor.zero_()
        self.step()
        two = seen(self.images[:, 0, :2]).to(memory_format=torch.contiguous_format)
        with torch.no_grad():
            return self.networks.outputs({"backbone": None} | dict.fromkeys(self.method.answers_with), two)

    def record(self, work: Callable[[], Any]) -> torch.cuda.CUDAGraph | None:
        """Capture some work; on a CPU, where tests run, nothing is captured, and it is done each time anew."""
        if self.stream is None:
            return None
        torch.cuda.synchronize(self.device)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, stream=self.stream, capture_error_mode="thread_local"):
            work()
        return captured

    # Streams

    @contextmanager
    def lane(self) -> Iterator[None]:
        """Work inside waits for everything launched before, and runs beside what is launched after."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Everything launched after this waits for the slot."""
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)

    # Tests

    def answers_at(
        self, names: tuple[str, ...], pool: Tensor, augmentation: Augmenting, places: Tensor
    ) -> dict[str, Tensor]:
        """What networks make of images of a pool, (n_clients, n, …) each; places: of the images, (n_clients, n)."""
        if names not in self._answers:
            self._answers[names] = _Answers(self, names, pool, augmentation, places.shape[1])
        return self._answers[names].at(places)


class _Answers:
    """Outputs of some networks for images of a pool, `number` of each member at a time; captured at once."""

    def __init__(self, slot: Slot, names: tuple[str, ...], pool: Tensor, augmentation: Augmenting, number: int):
        self._slot, self._names, self._pool, self._augmentation = slot, names, pool, augmentation
        self._places = torch.zeros(slot.size, number, dtype=torch.int64, device=slot.device)
        self._forward()
        self._captured = slot.record(self._forward)

    @torch.no_grad()
    def _forward(self) -> None:
        slot = self._slot
        images = self._augmentation.normalise(self._pool[self._places.flatten()]).to(slot.images.dtype)
        images = together(images)
        self._outputs = slot.networks.outputs(self._names, images.view(slot.size, -1, *images.shape[1:]))

    def at(self, places: Tensor) -> dict[str, Tensor]:
        self._places[: len(places)].copy_(places)
        self._captured.replay() if self._captured is not None else self._forward()
        return {name: output[: len(places)].clone() for name, output in self._outputs.items()}


def _priority(client: Client) -> int:
    """Of a group's stream, −1 to −3: the longest chains of kernels go first, since a round waits for them."""
    networks = client.model.backbone, *client.model.own.values()
    layers = sum(not any(module.children()) for network in networks for module in network.modules())
    return -1 - min(2, layers // 100)
