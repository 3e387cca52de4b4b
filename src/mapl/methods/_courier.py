"""The courier: a small network beside every client's own, the same everywhere, so that it can be averaged."""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn

from mapl.client import Client, Server
from mapl.keys import ALWAYS, NOBODY, key, seeded
from mapl.methods._base import Method, MethodSettings
from mapl.methods._mixing import flatten, length_of, load_all_flat, load_flat
from mapl.model import check_output, find_backbone, make_backbone
from mapl.network import Spec

COURIER = "courier"


class CourierNetworkSettings(MethodSettings):
    """The small common network."""

    courier: str = Field("courier", description="Backbone of the courier: a known name, or an import path.")
    features: int = Field(64, ge=1, description="Dimension of the courier's embedding, before its head.")
    courier_rate: float | None = Field(
        None, gt=0, description="Learning rate of the courier; 'none': that of the own network."
    )
    answer: Literal["own", "courier", "both"] = Field(
        "both", description="What classifies: the own network, the courier, or both, weighted by `share`."
    )


class FixedShareSettings(CourierNetworkSettings):
    """The small common network, whose share in the answers never changes."""

    share: float = Field(0.5, ge=0, le=1, description="The courier's share in 'both'.")


C = TypeVar("C", bound=CourierNetworkSettings)


class WithCourier(Method[C]):
    """A method whose clients have a courier beside their own network. Either may answer, or both."""

    answers_with = ("backbone", COURIER)
    """The own network, and the courier or a copy of it."""
    ways = ("own", COURIER)
    scores_are = "probabilities"

    def modules(self, client: Client) -> dict[str, nn.Module]:
        return {COURIER: build_courier(client, self.settings)}

    def learning_rates(self) -> dict[str, float]:
        rate = self.settings.courier_rate
        return {} if rate is None else {COURIER: rate}

    def scores(self, client: Client, outputs: Mapping[str, Tensor]) -> Tensor:
        """Probabilities (n, K): (1 − share) · own + share · courier."""
        own, courier = self.logits(client, outputs)
        return torch.lerp(own.softmax(1), courier.softmax(1), self.share(client))

    def logits(self, client: Client, outputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Of the own network and of the courier: (n, K) each."""
        backbone, courier = self.answers_with
        return client.model.classify(outputs[backbone]), outputs[courier]

    def scores_by_way(self, client: Client, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(zip(self.ways, self.logits(client, outputs), strict=True))

    def share(self, client: Client) -> float:
        """How much the courier counts in the client's answers."""
        answer = self.settings.answer
        return self.share_of_both(client) if answer == "both" else float(answer == "courier")

    @abstractmethod
    def share_of_both(self, client: Client) -> float:
        """How much the courier counts if both networks answer."""


def build_courier(node: Client | Server, use: CourierNetworkSettings) -> nn.Sequential:
    """A courier: samples (B, …) → logits (B, K). All clients of a run start with the same weights."""
    shape = node.shape if isinstance(node, Server) else node.train.shape
    with seeded(key(node.seed, NOBODY, ALWAYS, f"courier {use.courier}")):
        backbone = make_backbone(
            f"method.courier: backbone {use.courier!r}", find_backbone(use.courier), shape, use.features
        )
        head = nn.Linear(use.features, node.shapes.classes)
    check_output(f"method.courier: backbone {use.courier!r}", backbone, shape, use.features, "method.features")
    return nn.Sequential(OrderedDict(backbone=backbone, relu=nn.ReLU(), head=head))


def courier_of(client: Client) -> Tensor:
    """The client's courier, normalisation statistics included, as one vector."""
    return flatten(client.model.own[COURIER])


def courier_spec(client: Client) -> Spec:
    """The shape and dtype of `courier_of`, without making it."""
    courier = client.model.own[COURIER]
    return Spec((length_of(courier),), next(courier.parameters()).dtype)


def load_courier(client: Client, vector: Tensor) -> None:
    """Write such a vector back into the client's courier."""
    load_flat(vector, client.model.own[COURIER])


def load_couriers(clients: Sequence[Client], vectors: Sequence[Tensor]) -> None:
    """`load_courier` for many clients at once."""
    load_all_flat((v, (client.model.own[COURIER],)) for client, v in zip(clients, vectors, strict=True))


def head_of(network: nn.Module) -> Tensor:
    """Weight and bias of a courier's head side by side: (K, features + 1)."""
    head = network.head
    assert isinstance(head, nn.Linear)
    return torch.cat([head.weight.detach(), head.bias.detach().unsqueeze(1)], dim=1)
