"""The networks of a slot: how its members' losses, gradients and answers are computed.

`Together` runs all members as one, their networks rewritten (`convert`). `Alone` has one member, whose network runs as
its author wrote it.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mapl.client import Client
from mapl.engine.cuda import losses
from mapl.engine.cuda.branches import fork
from mapl.engine.cuda.convert import Batched, all_grouped
from mapl.engine.cuda.guards import recorded
from mapl.engine.cuda.layers import CannotGroup, Keys, keyed
from mapl.engine.cuda.layout import frozen_paths
from mapl.engine.cuda.models import HEADS, GroupModel, MemberModel
from mapl.engine.cuda.room import Room
from mapl.losses import computed_by
from mapl.methods._base import Method
from mapl.model import PROTOTYPES, ClientModel


class Networks(ABC):
    """The networks of a slot's members, whose tensors are in its room."""

    models: list[ClientModel]
    """What a method is given of each member outside of a training step."""
    learned: set[str]
    """The parameters that the last step found gradients of."""

    @abstractmethod
    def terms(self, method: Method[Any], members: list[Client], images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The terms (G,) of the members' losses, for images (G, B, C, H, W). Their gradients go to the room."""

    @abstractmethod
    def outputs(self, names: Iterable[str], x: Tensor) -> dict[str, Tensor]:
        """What networks make of images (G, n, C, H, W) in evaluation mode: (G, n, …) each, in float32."""

    @abstractmethod
    def train(self) -> None:
        """Training mode, but for frozen networks."""


class Together(Networks):
    """The networks of a group: its members' as one."""

    def __init__(self, room: Room, client: Client, precision: torch.dtype | None, looked: Callable[[], None]):
        self.room, self.learned = room, set()
        self._networks = all_grouped(client.model, room.stack)
        self._frozen = frozen_paths(client.model)
        self.models = [self._member(client.model, g, precision, looked) for g in range(room.size)]
        batched = {path: Batched(net, room.size, path.startswith("own.")) for path, net in self._networks.items()}
        self._model = GroupModel.of(client.model, batched)
        self._model.precision = precision
        self._heads = [name for name in HEADS if name in room.layout.entries]
        self.train()  # a frozen network must never run in training mode, not even while kernels are built

    def _member(
        self, model: ClientModel, g: int, precision: torch.dtype | None, looked: Callable[[], None]
    ) -> ClientModel:
        member = MemberModel.of(model, partial(self._whole, model, g), looked)
        member.precision = precision
        heads = {"head.weight": member.head.weight, "head.bias": member.head.bias, PROTOTYPES: member.prototypes}
        for name, tensor in heads.items():
            if tensor is not None:
                tensor.data = self.room.layout.entries[name].view(self.room.flat[g])
        return member

    def _whole(self, model: ClientModel, g: int) -> ClientModel:
        """Member g's full model, its networks as their authors wrote them."""
        room, whole = self.room, copy.deepcopy(model).to(self.room.device)
        room.layout.attach(whole, room.flat[g], room.counters[g])
        keyed(whole, Keys(room.keys.seed[g : g + 1], room.keys.cursor))
        return whole

    def train(self) -> None:
        for path, network in self._networks.items():
            network.train(path not in self._frozen)

    def terms(self, method: Method[Any], members: list[Client], images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The method's loss under vmap, the members' networks as one."""
        room = self.room
        room.stack.called.clear()
        fork(images)
        heads = {n: room.stack.weights[n].detach().requires_grad_(room.layout.learns(n)) for n in self._heads}
        with computed_by(losses.FUSED):
            terms = self._loss_of_all(_Loss(method, members[0], self._model), members[0], heads, images, labels)
        _go_back(terms, room.ones)
        for name, value in heads.items():
            _keep(room.stack.gradients.get(name), value.grad)
        self.learned = {name for name, value in heads.items() if value.grad is not None}
        layers = [layer for layer, learns in room.stack.called.items() if learns]
        self.learned |= {f"{layer}.{tensor}" for layer in layers for tensor in ("weight", "bias")}
        return terms

    def _loss_of_all(
        self, loss: _Loss, member: Client, heads: dict[str, Tensor], images: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """The terms (G,) of the method's loss, as functions of the heads' parameters."""
        if self.room.size == 1:
            one = {f"model.{n}": value.squeeze(0) for n, value in heads.items()}
            alone = functional_call(loss, one, (images[0], labels[0], member.state), tie_weights=False)
            return {name: value.view(1) for name, value in alone.items()}

        def of_one(values: dict[str, Tensor], x: Tensor, y: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
            terms: dict[str, Tensor] = functional_call(loss, values, (x, y, state), tie_weights=False)
            return terms

        named = {f"model.{n}": value for n, value in heads.items()}
        terms: dict[str, Tensor] = torch.func.vmap(of_one, randomness="different")(
            named, images, labels, self.room.state
        )  # fmt: skip
        return terms

    def outputs(self, names: Iterable[str], x: Tensor) -> dict[str, Tensor]:
        room, answers = self.room, {}
        for name in names:
            path = name if name == "backbone" else f"own.{name}"
            network = self._networks[path].eval()
            with torch.autocast(room.device.type, room.dtype, enabled=room.dtype != torch.float32):
                y: Tensor = network(x.flatten(0, 1)).float()
            network.train(path not in self._frozen)
            answers[name] = y.view(room.size, -1, *y.shape[1:])
        return answers


class Alone(Networks):
    """The network of one client, as its author wrote it."""

    def __init__(self, room: Room, client: Client, precision: torch.dtype | None):
        self.room, self.learned = room, set()
        model = copy.deepcopy(client.model).to(room.device)
        room.layout.bind(model, room.flat[0], room.counters[0])
        model.precision = precision
        keyed(model, room.keys)
        self.models = [model]

    def train(self) -> None:
        self.models[0].train()

    def terms(self, method: Method[Any], members: list[Client], images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        (member,) = members
        parameters = dict(member.model.named_parameters())
        for parameter in parameters.values():
            parameter.grad = None
        with computed_by(losses.FUSED):
            terms = method.loss(recorded(member, member.model, member.state), _rows_last(images[0]), labels[0])
        _go_back(terms, self.room.ones)
        for name, parameter in parameters.items():
            gradient = self.room.stack.gradients.get(name)
            _keep(None if gradient is None else gradient[0], parameter.grad)
        self.learned = {name for name, parameter in parameters.items() if parameter.grad is not None}
        return terms

    def outputs(self, names: Iterable[str], x: Tensor) -> dict[str, Tensor]:
        (model,) = self.models
        model.eval()
        images = _rows_last(x[0])
        answers = {n: model.embed(images) if n == "backbone" else model.call(n, images) for n in names}
        model.train()
        return {name: answer.unsqueeze(0) for name, answer in answers.items()}


class _Loss(nn.Module):
    """A method's loss as a function of the parameters that it reads."""

    def __init__(self, method: Method[Any], member: Client, model: ClientModel):
        super().__init__()
        self.model = model
        self._method, self._member = method, member

    def forward(self, images: Tensor, labels: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return self._method.loss(recorded(self._member, self.model, state), images, labels)


class _Ends(torch.autograd.Function):
    """One end of several terms (G,), from which the backward pass goes to all of them with ones.

    Torch takes the ones too, but to compare their shapes it loads its algebra, which takes seconds.
    """

    @staticmethod
    def forward(ctx: Any, ones: Tensor, *terms: Tensor) -> Tensor:
        ctx.gradients = [ones.view(term.shape).to(term.dtype) for term in terms]
        return ones.new_empty(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.gradients


def _go_back(terms: dict[str, Tensor], ones: Tensor) -> None:
    """Gradients of the sum of all terms of all members, which itself is never made."""
    ends = [value for value in terms.values() if value.requires_grad]
    if not ends:
        raise CannotGroup("no term of the loss depends on a parameter")
    torch.autograd.backward(_Ends.apply(ones, *ends))  # type: ignore[no-untyped-call]


def _keep(place: Tensor | None, gradient: Tensor | None) -> None:
    """Write a gradient to its place; a frozen parameter has none."""
    if place is not None:
        place.zero_() if gradient is None else place.copy_(gradient)


def _rows_last(images: Tensor) -> Tensor:
    """Images in the order of memory that a network's author expects; `contiguous` leaves those of one channel alone."""
    return images.clone(memory_format=torch.contiguous_format)
