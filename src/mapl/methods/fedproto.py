"""FedProto (Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", 2021)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from mapl.client import Client, Server
from mapl.losses import cross_entropy
from mapl.methods._base import Centralised, MethodSettings
from mapl.mixing import robust_mean
from mapl.network import MOST, Inbox, Letter, Spec

__all__ = ["FedProto"]


class FedProtoSettings(MethodSettings):
    """FedProto's settings."""

    name: str = "fedproto"
    strength: float = Field(0.1, ge=0, description="Weight λ of the distance to the global prototypes.")
    average: Literal["clients", "samples"] = Field(
        "clients",
        description="A global prototype is the mean over clients (authors' program) or samples (their paper).",
    )
    inference: Literal["head", "prototype"] = Field(
        "head", description="Classify by the head, or by the nearest global prototype."
    )


class FedProto(Centralised[FedProtoSettings]):
    """A server averages each class's mean embedding; embeddings are pulled towards those averages.

    Loss: cross-entropy + λ · MSE(embedding, global prototype of its class), 0 for a class that has none yet.

    Letter, both ways: `prototypes` (K, d_z) and `held` (K,), the number of clients or samples behind each of them. A
    client's prototypes are the mean embeddings of its last local epoch, as computed during training.
    """

    name = "fedproto"
    Settings = FedProtoSettings
    without_letters = "local"
    averages = True

    def prepare(self, client: Client) -> None:
        weight = client.model.head.weight.detach()  # (K, d_z), on the device where the loss is computed
        classes = len(weight)
        client.state["sums"] = torch.zeros_like(weight)
        client.state["counts"] = weight.new_zeros(classes, dtype=torch.int64)
        client.state["prototypes"] = torch.zeros_like(weight)
        client.state["known"] = weight.new_zeros(classes)

    def start_epoch(self, client: Client, round: int, epoch: int) -> None:
        client.state["sums"].zero_()
        client.state["counts"].zero_()

    def loss(self, client: Client, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        state = client.state
        embedding = client.model.embed(images)
        state["sums"].index_add_(0, labels, embedding.detach())
        state["counts"].index_add_(0, labels, torch.ones_like(labels))
        distance = (embedding - state["prototypes"][labels]).square().mean(dim=1) * state["known"][labels]
        return {
            "cross_entropy": cross_entropy(client.model.classify(embedding), labels),
            "prototype": self.settings.strength * distance.mean(),
        }

    def letter(self, client: Client, round: int) -> Letter:
        counts = client.state["counts"]
        means = client.state["sums"] / counts.clamp(min=1).unsqueeze(1)
        held = counts if self.settings.average == "samples" else (counts > 0).long()
        return client.letter(round, {"prototypes": means, "held": held})

    def schema(self, node: Client | Server, round: int) -> dict[str, Spec]:
        classes, embedding = node.shapes.classes, node.shapes.embedding
        # A client counts as one, and the server adds up.
        most = 1 if isinstance(node, Server) and self.settings.average == "clients" else MOST
        return {"prototypes": Spec((classes, embedding)), "held": Spec((classes,), torch.int64, low=0, high=most)}

    def aggregate(self, server: Server, round: int, inbox: Inbox) -> dict[str, Tensor]:
        held = inbox.tensor("held")  # (n, K)
        total = held.sum(dim=0)
        if self.mixing.kind != "mean":
            return {"prototypes": self.robust_prototypes(held, inbox.tensor("prototypes")), "held": total}
        sums = torch.einsum("nk,nkd->kd", held.double(), inbox.tensor("prototypes").double())
        means = sums / total.clamp(min=1).unsqueeze(1)
        return {"prototypes": means.float(), "held": total}

    def robust_prototypes(self, held: Tensor, prototypes: Tensor) -> Tensor:
        """(K, d_z) each class by the robust rule, from `held` (n, K) and `prototypes` (n, K, d_z)."""
        clients, classes, width = prototypes.shape
        index = torch.arange(clients * classes).view(clients, classes).T  # (K, n)
        means = robust_mean(self.mixing, prototypes.reshape(-1, width), index, held.T)
        return means.where(held.any(dim=0).unsqueeze(1), means.new_zeros(()))

    def absorb(self, client: Client, round: int, inbox: Inbox) -> None:
        if len(inbox):
            client.state["prototypes"].copy_(inbox.tensor("prototypes")[0])
            client.state["known"].copy_(inbox.tensor("held")[0] > 0)

    def scores(self, client: Client, outputs: Mapping[str, Tensor]) -> Tensor:
        embedding, by_head = outputs["backbone"], super().scores(client, outputs)
        if self.settings.inference == "head":
            return by_head
        known = client.state["known"] > 0
        by_prototype = -torch.cdist(embedding, client.state["prototypes"]).masked_fill(~known, math.inf)
        # Before the first letter no class has a prototype. `where` runs on the device, so nothing waits for a value.
        return torch.where(known.any(), by_prototype, by_head)
