"""pFedSim (Tan et al., "pFedSim: Similarity-Aware Model Aggregation Towards Personalized Federated Learning", 2023)."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from mapl.client import Client, Server
from mapl.collaboration import similarities
from mapl.methods._base import Centralised, MethodSettings
from mapl.methods._mixing import flatten, load_flat, mixed, row_of, weighted_mean
from mapl.methods._plain import Plain
from mapl.network import Inbox, Letter, Spec

__all__ = ["PFedSim"]

SELF_SIMILARITY = 0.9999
"""φ_ii: below 1, so that −ln(1 − φ_ii) is finite."""


class PFedSimSettings(MethodSettings):
    """pFedSim's settings."""

    name: str = "pfedsim"
    warmup: int = Field(
        200, ge=0, description="The first round (counted from 0) with personal averages; FedAvg before."
    )


class PFedSim(Plain[PFedSimSettings], Centralised[PFedSimSettings]):
    """FedAvg for a warm-up, then a server mixes backbones by the similarity of heads, which stay personal.

    Similarity φ_ij = max(0, mean over rows of the cosine of the heads' weights), φ_ii = 0.9999; weights
    ω_ij ∝ −ln(1 − φ_ij), rows summing to 1.

    Letter to the server: the backbone (θ) as one vector, `head.weight` and `head.bias` (φ). Reply: in the warm-up their
    averages, weighted by numbers of samples; then only a personal backbone.

    Differs from its paper: the warm-up is a number of rounds, not a share of them.
    """

    name = "pfedsim"
    Settings = PFedSimSettings
    homogeneous = True
    personal = True
    averages = True

    def letter(self, client: Client, round: int) -> Letter:
        head = client.model.head
        tensors = {"backbone": flatten(client.model.backbone), "head.weight": head.weight, "head.bias": head.bias}
        return client.letter(round, tensors, client.architecture)

    def schema(self, node: Client | Server, round: int) -> dict[str, Spec]:
        backbone = {"backbone": Spec((node.shapes.backbone,))}
        if isinstance(node, Client) and round >= self.settings.warmup:
            return backbone
        classes, embedding = node.shapes.classes, node.shapes.embedding
        return {**backbone, "head.weight": Spec((classes, embedding)), "head.bias": Spec((classes,))}

    def aggregate(self, server: Server, round: int, inbox: Inbox) -> dict[str, Tensor]:
        if round < self.settings.warmup:
            names = ("backbone", "head.weight", "head.bias")
            return {name: weighted_mean(self.mixing, inbox.samples, inbox.tensor(name)) for name in names}
        weights = personal_weights(inbox.tensor("head.weight"))
        everyone = torch.arange(len(inbox))  # row i is the mix for client i
        backbones = mixed(self.mixing, weights, inbox.tensor("backbone"), everyone)
        return {"clients": inbox.senders, "backbones": backbones}

    def reply(self, server: Server, client: int, round: int, aggregate: dict[str, Tensor]) -> Letter:
        if round < self.settings.warmup:
            return server.letter(round, aggregate)
        return server.letter(round, {"backbone": row_of(client, aggregate["clients"], aggregate["backbones"])})

    def absorb(self, client: Client, round: int, inbox: Inbox) -> None:
        if not len(inbox):
            return
        load_flat(inbox.tensor("backbone")[0], client.model.backbone)
        if round < self.settings.warmup:
            with torch.no_grad():
                client.model.head.weight.copy_(inbox.tensor("head.weight")[0])
                client.model.head.bias.copy_(inbox.tensor("head.bias")[0])


def personal_weights(heads: Tensor) -> Tensor:
    """ω (M, M), rows summing to 1, from the heads' weights (M, K, d_z)."""
    count = len(heads)
    everybody = torch.arange(count, device=heads.device)
    starts = torch.arange(0, count**2 + 1, count, device=heads.device)
    similarity = similarities(heads, everybody, (starts, everybody.repeat(count)), "released").view(count, count)
    similarity = similarity.clamp(0, SELF_SIMILARITY).fill_diagonal_(SELF_SIMILARITY)
    weights = -torch.log1p(-similarity)
    return weights / weights.sum(dim=1, keepdim=True)
