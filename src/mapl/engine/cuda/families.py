"""Families: clients of one kind, which take turns in the same slots."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from mapl.client import Client
from mapl.engine.cuda.convert import all_grouped
from mapl.engine.cuda.layers import CannotGroup, Keys, Stack
from mapl.engine.cuda.layout import Layout
from mapl.engine.cuda.slot import Slot
from mapl.model import ClientModel, architecture


@dataclass(frozen=True)
class Kind:
    """Clients that can take each other's place in a slot."""

    backbone: str
    architecture: str
    """The names and shapes of its networks' tensors."""
    layers: str
    """Its networks as torch prints them: two of one architecture may differ in a rate or a slope."""
    batch: int

    @staticmethod
    def of(client: Client, batch: int) -> Kind:
        """The kind of a client whose batches have so many images."""
        model = client.model
        own = architecture(model.own) if len(model.own) else ""
        return Kind(client.backbone, client.architecture + own, f"{model.backbone!r} {model.own!r}", batch)


@dataclass
class Family:
    """All clients of one kind, and the slots that they take turns in."""

    kind: Kind
    clients: list[Client]
    layout: Layout
    group: bool
    steps: int
    operations: float
    """Of one image's way through its largest network; counted where it can learn in groups."""
    size: int = 1
    eager: bool = False
    """Whether no step of it can be captured."""
    slots: list[Slot] = field(default_factory=list)

    def turns(self, present: set[int]) -> list[list[tuple[Slot, list[Client]]]]:
        """Who is in which slot in each turn."""
        clients = sorted((c for c in self.clients if c.id in present), key=lambda c: -c.samples)
        chunks = [clients[i : i + self.size] for i in range(0, len(clients), self.size)]
        lanes = len(self.slots)
        return [list(zip(self.slots, chunks[i : i + lanes], strict=False)) for i in range(0, len(chunks), lanes)]


def groupable(model: ClientModel) -> bool:
    """Whether its networks can be rewritten for a group."""
    nothing = torch.empty(0)
    stack = Stack(1, Keys(nothing, nothing), {}, {}, {}, nothing, nothing, {}, set(), nothing)
    try:
        all_grouped(model, stack)
    except CannotGroup:
        return False
    return True


def operations_of(client: Client) -> float:
    """Floating-point operations of one image's way through its largest network: layers with weights, a product and its
    sum being two.

    Torch's own counter loads its whole compiler, which takes seconds; and this is counted before models come to a GPU,
    which would load programs that nothing else runs.
    """
    image = client.train.inputs[:2].float()
    counts: list[int] = []

    def count(layer: nn.Conv2d | nn.Linear, _: object, output: Tensor) -> None:
        counts.append(2 * output.numel() * layer.weight[0].numel())

    training = client.model.training
    client.model.eval()
    with torch.no_grad(), ExitStack() as hooks:
        for layer in client.model.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                hooks.enter_context(layer.register_forward_hook(count))
        embedding = client.model.embed(image)
        largest = sum(counts)
        for name in client.model.own:
            counts.clear()
            _call_with_either(client.model, name, image, embedding)
            largest = max(largest, sum(counts))
    client.model.train(training)
    return largest / len(image)


def _call_with_either(model: ClientModel, name: str, image: Tensor, embedding: Tensor) -> None:
    """Run an own network on images, or if it takes none, on embeddings; what takes neither is small enough."""
    for x in (image, embedding):
        with suppress(RuntimeError, ValueError, TypeError, IndexError):
            model.call(name, x)
            return
