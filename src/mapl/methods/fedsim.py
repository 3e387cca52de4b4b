"""FedSim (Pillutla et al., "Federated Learning with Partial Model Personalization", 2022)."""

from __future__ import annotations

import torch
from torch import Tensor

from mapl.client import Client, Server
from mapl.methods._base import Centralised, MethodSettings
from mapl.methods._mixing import flatten, load_flat, weighted_mean
from mapl.methods._plain import Plain
from mapl.network import MOST, Inbox, Letter, Spec

__all__ = ["FedSim"]


class FedSimSettings(MethodSettings):
    """FedSim has no settings of its own."""

    name: str = "fedsim"


class FedSim(Plain[FedSimSettings], Centralised[FedSimSettings]):
    """A server averages heads, weighted by numbers of batches; backbones stay personal.

    One optimiser trains the shared and the personal part together ("simultaneous").

    Letter: weight and bias of the head (φ) as one vector `head`; to the server also the number of `batches`.

    Differs from its paper: there the shared part is most of the network. In MAPL's comparison it is the head, so
    backbones may differ.
    """

    name = "fedsim"
    Settings = FedSimSettings
    averages = True

    def prepare(self, client: Client) -> None:
        # Counted inside a training step, so it lives on the model's device.
        client.state["batches"] = client.model.head.weight.new_zeros(1, dtype=torch.int64)

    def start_epoch(self, client: Client, round: int, epoch: int) -> None:
        client.state["batches"].zero_()

    def loss(self, client: Client, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        client.state["batches"].add_(1)
        return super().loss(client, images, labels)

    def letter(self, client: Client, round: int) -> Letter:
        return client.letter(round, {"head": flatten(client.model.head), "batches": client.state["batches"]})

    def schema(self, node: Client | Server, round: int) -> dict[str, Spec]:
        head = {"head": Spec((node.shapes.head,))}
        return {**head, "batches": Spec((1,), torch.int64, low=1, high=MOST)} if isinstance(node, Server) else head

    def aggregate(self, server: Server, round: int, inbox: Inbox) -> dict[str, Tensor]:
        return {"head": weighted_mean(self.mixing, inbox.tensor("batches").squeeze(1), inbox.tensor("head"))}

    def absorb(self, client: Client, round: int, inbox: Inbox) -> None:
        if len(inbox):
            load_flat(inbox.tensor("head")[0], client.model.head)
