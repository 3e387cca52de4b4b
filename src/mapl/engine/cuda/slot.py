"""A slot: room on the GPU for a group of G clients of one kind, and their training step as one CUDA graph.

Clients come and go: their models are copied in (one copy each), trained for a round, and copied back. So a handful of
graphs serves any number of clients, and an optimiser's state exists for those in a slot alone.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import triton
from torch import Tensor, nn
from torch.func import functional_call

from mapl.client import Client
from mapl.data.augment import Augmentation
from mapl.engine.cuda import kernels, loss_kernels, losses
from mapl.engine.cuda.convert import Batched, Hidden, grouped
from mapl.engine.cuda.guards import no_draws, recorded
from mapl.engine.cuda.layers import CannotGroup, Keys, Stack, keyed, optimise
from mapl.engine.cuda.layout import Layout
from mapl.engine.settings import TrainSettings
from mapl.engine.views import Views
from mapl.losses import computed_by
from mapl.methods._base import Method
from mapl.model import ClientModel

ADAM_EPS = 1e-8
SHARED = ("head.weight", "head.bias", "prototypes")
"""Parameters that a method reads by itself; autograd follows them, and no layer of a group does."""


class _Ends(torch.autograd.Function):
    """One end of several terms (G,), from which the way back goes to all of them with ones.

    Torch takes the ones too, but to compare their shapes it loads its algebra, which takes seconds.
    """

    @staticmethod
    def forward(ctx: Any, ones: Tensor, *terms: Tensor) -> Tensor:
        ctx.gradients = [ones.view(term.shape).to(term.dtype) for term in terms]
        return ones.new_empty(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.gradients


class Slot:
    """Room for `size` clients of the kind that `client` is of."""

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
        self.method, self.train, self.layout, self.size = method, train, layout, size
        self.device, self.group = device, group
        self.dtype = precision or torch.float32
        self.priority = _priority(client) if size > 1 else 0
        self.stream = torch.cuda.Stream(device, self.priority) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._make_tensors(client, steps)
        self.members = [self._member(client, g, precision) for g in range(size)]
        self._networks: dict[str, nn.Module] = {}
        if group:
            self.model = self._group_model(client.model)
        self.views: Views | None = None
        """What makes its members' images: one for each slot, since it has memory of its own."""
        self.filled: tuple[int, list[int]] | None = None
        """Whose images of which round it holds."""
        self.terms: list[str] = []
        self.graph: torch.cuda.CUDAGraph | None = None
        self.test_graph: torch.cuda.CUDAGraph | None = None
        self.test_places: Tensor | None = None

    # What it holds

    def _make_tensors(self, client: Client, steps: int) -> None:
        g, layout, device = self.size, self.layout, self.device
        batch = min(self.train.batch, client.samples) * self.method.views
        c, h, w = client.train.pixels.shape[1:]
        self.flat = torch.zeros(g, layout.size, device=device)
        self.low = torch.zeros(g, layout.low, device=device, dtype=self.dtype) if layout.low else None
        self.grad_low = torch.zeros(g, layout.low, device=device, dtype=self.dtype)
        self.grad_high = torch.zeros(g, layout.parameters - layout.low, device=device)
        self.moments = torch.zeros(2, g, layout.parameters, device=device)
        self.counters = torch.zeros(g, len(layout.counters), device=device, dtype=torch.int64)
        self.state = {
            name: torch.zeros(g, *value.shape, dtype=value.dtype, device=device)
            for name, value in client.state.items()
            if value.device.type == client.model.head.weight.device.type
        }
        # A network as its author wrote it gets what it would get eagerly; autocast makes of that what it does.
        dtype = self.dtype if self.group else torch.float32
        self.images = torch.zeros(g, steps, batch, h, w, c, device=device, dtype=dtype)
        self.labels = torch.zeros(g, steps, batch, device=device, dtype=torch.int64)
        self.plan = torch.zeros(steps, g, device=device, dtype=torch.uint8)
        self.cursor = torch.zeros(1, device=device, dtype=torch.int64)
        self.learns = torch.ones(layout.parameters, device=device)
        self.ones = torch.ones(g, device=device)
        self.keys = Keys(torch.zeros(g, device=device, dtype=torch.int64), self.cursor)
        self.stack = self._stack()

    def _stack(self) -> Stack:
        layout, weights, gradients = self.layout, {}, {}
        for name, entry in layout.entries.items():
            if entry.start < layout.low and self.low is not None:
                weights[name], gradients[name] = entry.view(self.low), entry.view(self.grad_low)
            elif entry.start < layout.parameters:
                weights[name] = entry.view(self.flat)
                gradients[name] = entry.view(self.grad_high, layout.low)
        buffers = {n: e.view(self.flat) for n, e in layout.entries.items() if e.start >= layout.parameters}
        zeros = torch.zeros(self.size, device=self.device, dtype=torch.int64)
        token = torch.zeros((), device=self.device, requires_grad=True)
        return Stack(self.size, self.keys, weights, gradients, buffers, zeros.byte(), zeros, set(), set(), token)

    def _member(self, client: Client, g: int, precision: torch.dtype | None) -> Client:
        """A client whose model and state are row g of this slot: what a method is given."""
        model = _heads(client.model, self.device) if self.group else copy.deepcopy(client.model).to(self.device)
        if self.group:
            self._bind_heads(model, g)
        else:
            self.layout.bind(model, self.flat[g], self.counters[g])
        model.precision = precision
        if not self.group:
            keyed(model, self.keys)
        state = {name: stacked[g] for name, stacked in self.state.items()}
        return dataclasses.replace(client, model=model, state=state)

    def _bind_heads(self, model: ClientModel, g: int) -> None:
        tensors = {"head.weight": model.head.weight, "head.bias": model.head.bias, "prototypes": model.prototypes}
        for name, tensor in tensors.items():
            tensor.data = self.layout.entries[name].view(self.flat[g])

    def _group_model(self, model: ClientModel) -> ClientModel:
        """What a method sees under vmap: one client's model, whose networks run for all members at once."""
        made = _heads(self.members[0].model, self.device)
        made.__class__ = _FusedHeads
        for part in ("backbone", "projector"):
            network = grouped(getattr(model, part), part, self.stack)
            self._networks[part] = network
            made._modules[part] = Batched(network, self.size)
        return made

    # Clients come and go

    def load(self, clients: Sequence[Client], rows: Sequence[Tensor], counters: Sequence[Tensor]) -> None:
        """Bring clients in; where there are fewer than places, the last places keep what they had."""
        for g, client in enumerate(clients):
            self.flat[g].copy_(rows[g], non_blocking=True)
            self.counters[g].copy_(counters[g], non_blocking=True)
            for name, stacked in self.state.items():
                stacked[g].copy_(client.state[name], non_blocking=True)
            fields = {f.name: getattr(client, f.name) for f in dataclasses.fields(client)}
            vars(self.members[g]).update({k: v for k, v in fields.items() if k not in ("model", "state")})
            mine = {name: stacked[g] for name, stacked in self.state.items()}
            self.members[g].state = {**client.state, **mine}
        if self.low is not None:
            self.low.copy_(self.flat[:, : self.layout.low])

    def store(self, clients: Sequence[Client], rows: Sequence[Tensor], counters: Sequence[Tensor]) -> None:
        """Take the clients' models and states back."""
        for g, client in enumerate(clients):
            rows[g].copy_(self.flat[g], non_blocking=True)
            counters[g].copy_(self.counters[g], non_blocking=True)
            for name, stacked in self.state.items():
                client.state[name].copy_(stacked[g], non_blocking=True)

    def count(self, steps: Sequence[int]) -> None:
        """Batches that the members' normalisations have seen; the layers of a group do not count by themselves."""
        if self.group:
            moved = [[n if name in self.stack.counted else 0 for name in self.layout.counters] for n in steps]
            self.counters[: len(steps)] += sent(torch.tensor(moved, dtype=torch.int64), self.device)

    def load_moments(self, g: int, moments: Tensor, step: int) -> None:
        """The optimiser of a member that lives on from round to round."""
        self.moments[:, g].copy_(moments, non_blocking=True)
        self.stack.step[g].fill_(step)

    # The step

    def step(self) -> None:
        """A training step of every member; no value is read by the host, so that it can be captured."""
        torch.index_select(self.plan, 0, self.cursor, out=self.stack.active.view(1, -1))
        images = self.images.index_select(1, self.cursor)[:, 0].permute(0, 1, 4, 2, 3)
        labels = self.labels.index_select(1, self.cursor)[:, 0]
        before = [value.clone() for value in self.state.values()] if self.size > 1 else []
        terms = self._group_terms(images, labels) if self.group else self._single_terms(images[0], labels[0])
        optimise(
            self.flat, self.low, self.grad_low, self.grad_high, (self.moments[0], self.moments[1]), self.learns,
            self.stack, self.constants(),
        )  # fmt: skip
        self._account(terms, before)

    def _account(self, terms: dict[str, Tensor], before: list[Tensor]) -> None:
        """Add up the losses, go to the next batch; who has no batch left keeps the state it had."""
        active, step = self.stack.active, self.stack.step
        for stacked, old in zip(self.state.values(), before, strict=False):
            stacked.copy_(torch.where(active.view(-1, *[1] * (old.ndim - 1)) > 0, stacked, old))
        values = torch.stack([value.detach().view(self.size) for value in terms.values()])
        if not self.terms:
            self.terms = list(terms)
            self.totals = torch.zeros_like(values)
        number, room = len(values), triton.next_power_of_2(values.numel())
        kernels.launch(
            loss_kernels.account, (1,), values, self.totals, active, step, self.cursor, number, self.size, BLOCK=room
        )

    def _group_terms(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Loss and gradients of all members at once: the method's loss under vmap, their networks as one."""
        self.stack.called.clear()
        shared = {n: self.stack.weights[n].detach().requires_grad_() for n in SHARED}
        with computed_by(losses.FUSED):
            terms = self._loss_of_all(shared, images, labels)
        self._go_back(terms)
        for name, value in shared.items():
            gradient = self.stack.gradients[name]
            gradient.zero_() if value.grad is None else gradient.copy_(value.grad)
        self.learned = {name for name, value in shared.items() if value.grad is not None}
        self.learned |= {f"{layer}.{tensor}" for layer in self.stack.called for tensor in ("weight", "bias")}
        return terms

    def _loss_of_all(self, shared: dict[str, Tensor], images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The terms (G,) of the method's loss, as functions of the parameters in `shared`."""
        loss = _Loss(self.method, self.members[0], self.model)
        if self.size == 1:
            one = {f"model.{n}": value.squeeze(0) for n, value in shared.items()}
            found = functional_call(loss, one, (images[0], labels[0], self.members[0].state), tie_weights=False)
            return {name: value.view(1) for name, value in found.items()}

        def of_one(values: dict[str, Tensor], x: Tensor, y: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
            found: dict[str, Tensor] = functional_call(loss, values, (x, y, state), tie_weights=False)
            return found

        named = {f"model.{n}": value for n, value in shared.items()}
        terms: dict[str, Tensor] = torch.func.vmap(of_one, randomness="different")(
            named, images, labels, self.state
        )  # fmt: skip
        return terms

    def _go_back(self, terms: dict[str, Tensor]) -> None:
        """Gradients of the sum of all terms of all members, which itself is never made."""
        ends = [value for value in terms.values() if value.requires_grad]
        if not ends:
            raise CannotGroup("no term of the loss depends on a parameter")
        torch.autograd.backward(_Ends.apply(self.ones, *ends))  # type: ignore[no-untyped-call]

    def _single_terms(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """One client, its network as its author wrote it."""
        member = self.members[0]
        parameters = dict(member.model.named_parameters())
        for parameter in parameters.values():
            parameter.grad = None
        with computed_by(losses.FUSED):
            terms = self.method.loss(recorded(member, member.model, member.state), _rows_last(images), labels)
        self._go_back(terms)
        for name, parameter in parameters.items():
            gradient = self.stack.gradients[name][0]
            gradient.zero_() if parameter.grad is None else gradient.copy_(parameter.grad)
        self.learned = {name for name, parameter in parameters.items() if parameter.grad is not None}
        return terms

    def constants(self) -> dict[str, Any]:
        """What the optimiser's kernel takes, from the recipe."""
        use = self.train
        beta1, beta2 = use.betas if use.optimizer == "adam" else (use.momentum, 0.0)
        return {
            "lr": use.learning_rate, "eps": ADAM_EPS, "decay": use.weight_decay, "DECAYS": use.weight_decay > 0,
            "ADAM": use.optimizer == "adam",
            "BETA1": beta1, "BETA2": beta2, "LOG1": _log(beta1), "LOG2": _log(beta2),
        }  # fmt: skip

    def capture(self) -> None:
        """Try the step, so that every kernel is chosen and built; then record it."""
        for member in self.members:
            member.model.train()
        for network in self._networks.values():
            network.train()
        self.plan.zero_()
        with self.lane():
            self._rehearse()
            for name, entry in self.layout.entries.items():
                if entry.start < self.layout.parameters and name not in self.learned:
                    entry.view(self.learns).zero_()
            self.graph = self._record(self.step)

    def _rehearse(self) -> None:
        """Everything that will be recorded or called, so that what does not work is found out about now."""
        with no_draws(self.device):
            self._rehearse_steps()
        for member in self.members:  # what a method does besides, with what there is of a client in a slot
            self.method.start_epoch(member, 0, 0)
            with torch.no_grad():
                z = torch.zeros(2, member.model.head.in_features, device=self.device)
                self.method.scores(member, {"backbone": z})

    def _rehearse_steps(self) -> None:
        """Twice: the first lets libraries set themselves up, the second must not wait for the GPU even once."""
        if self.stream is None:
            self.try_all()
            return
        mode = torch.cuda.get_sync_debug_mode()
        try:
            for check in (0, 2):
                torch.cuda.set_sync_debug_mode(check)
                self.try_all()
        finally:
            torch.cuda.set_sync_debug_mode(mode)

    def try_all(self) -> None:
        """A step, and embeddings as a test wants them: a network may do something else there."""
        self.cursor.zero_()
        self.step()
        with torch.no_grad():
            self.embed(self.images[:, 0, :2].permute(0, 1, 4, 2, 3).to(memory_format=torch.contiguous_format))

    def _record(self, work: Callable[[], Any]) -> torch.cuda.CUDAGraph | None:
        """Some work as a CUDA graph; on a CPU, where tests run, there is none, and it is done each time anew."""
        if self.stream is None:
            return None
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            work()
        return graph

    def replay(self) -> None:
        """A step of all members."""
        self.graph.replay() if self.graph is not None else self.step()

    @contextmanager
    def lane(self) -> Iterator[None]:
        """What is done inside waits for all that was asked for before, and runs beside what is asked for after."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Whatever is asked for after this waits for the slot."""
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def begin(self, steps: Sequence[int], seeds: Sequence[int], reset: bool) -> None:
        """Before a round: how many batches each member has, and the keys of their dropouts."""
        plan = torch.tensor([[t < n for n in steps] for t in range(len(self.plan))], dtype=torch.uint8)
        self.plan[:, : len(steps)].copy_(sent(plan, self.device))
        self.plan[:, len(steps) :].zero_()
        self.keys.seed[: len(seeds)].copy_(sent(torch.tensor(seeds, dtype=torch.int64), self.device))
        self.cursor.zero_()
        self.totals.zero_()
        if reset:
            self.moments.zero_()
            self.stack.step.zero_()

    @torch.no_grad()
    def embed_at(self, pool: Tensor, augmentation: Augmentation, places: Tensor) -> Tensor:
        """Embeddings (n_clients, n, d_z) of images of a pool, given by their places there; captured at the first."""

        def forward() -> None:
            assert self.test_places is not None
            images = augmentation.normalise(pool[self.test_places.flatten()]).to(self.images.dtype)
            images = images.contiguous(memory_format=torch.channels_last)
            self.test_found = self.embed(images.view(self.size, -1, *images.shape[1:]))

        if self.test_places is None:
            self.test_places = torch.zeros(self.size, places.shape[1], dtype=torch.int64, device=self.device)
            forward()
            self.test_graph = self._record(forward)
        self.test_places[: len(places)].copy_(places)
        self.test_graph.replay() if self.test_graph is not None else forward()
        return self.test_found[: len(places)].clone()

    def embed(self, x: Tensor) -> Tensor:
        """Embeddings (G, n, d_z) of images (G, n, C, H, W), without gradient, in evaluation mode."""
        if self.group:
            network = self._networks["backbone"]
            network.eval()
            with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
                z: Tensor = network(x.flatten(0, 1)).float()
            network.train()
            return z.view(self.size, -1, z.shape[1])
        model = self.members[0].model
        model.eval()
        z = model.embed(_rows_last(x[0])).unsqueeze(0)
        model.train()
        return z


def _priority(client: Client) -> int:
    """Of a group's stream, −1 to −3: the longest chains of kernels go first, since a round waits for their ends."""
    layers = sum(not any(module.children()) for module in client.model.backbone.modules())
    return -1 - min(2, layers // 100)


class _Heads(Hidden, ClientModel):
    """What there is of one client's model in a group: its head and its prototypes."""

    forward = ClientModel.forward  # type: ignore[assignment]


class _FusedHeads(_Heads):
    """The same while it trains: the head, and the ReLU before it, in one kernel."""

    def classify(self, embedding: Tensor) -> Tensor:
        logits = losses.classify(embedding, self.head.weight, self.head.bias, self.precision)
        return super().classify(embedding) if logits is None else logits


def _heads(model: ClientModel, device: torch.device) -> ClientModel:
    made = copy.copy(model)
    made.__class__ = _Heads
    made._modules, made._parameters = {"backbone": Hidden(), "projector": Hidden()}, dict(model._parameters)
    made._modules["head"] = copy.deepcopy(model.head).to(device)
    made._parameters["prototypes"] = nn.Parameter(model.prototypes.detach().to(device, copy=True))
    return made


class _Loss(nn.Module):
    """A method's loss as a function of the parameters that it reads."""

    def __init__(self, method: Method[Any], member: Client, model: ClientModel):
        super().__init__()
        self.model = model
        self._method, self._member = method, member

    def forward(self, images: Tensor, labels: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return self._method.loss(recorded(self._member, self.model, state), images, labels)


def _rows_last(images: Tensor) -> Tensor:
    """Images in the order of memory that a network's author expects; `contiguous` leaves those of one channel alone."""
    return images.clone(memory_format=torch.contiguous_format)


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Values of the host on the device, without waiting for them to arrive."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values


def _log(beta: float) -> float:
    return math.log(beta) if beta else -1e30
