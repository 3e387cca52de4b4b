"""FedClassAvg (Jang et al., "FedClassAvg: Local Representation Learning for Personalized Federated…", 2022)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import mse_loss

from mapl.client import Client, Server
from mapl.losses import cross_entropy, supervised_contrastive
from mapl.methods._base import Centralised, MethodSettings
from mapl.methods._mixing import flatten, load_flat, weighted_mean
from mapl.network import Inbox, Letter, Spec

__all__ = ["FedClassAvg"]

BASE_TEMPERATURE = 0.07
"""In the authors' program the contrastive loss has the factor temperature / base temperature."""


class FedClassAvgSettings(MethodSettings):
    """FedClassAvg's settings."""

    name: str = "fedclassavg"
    mu: float = Field(0.1, ge=0, description="Weight μ of the pull of the head towards its value at the round's start.")
    temperature: float = Field(100.0, gt=0, description="τ of the contrastive loss.")
    contrast: Literal["port", "original"] = Field(
        "port", description="MAPL's authors' port (normalised embeddings), or FedClassAvg's own program (raw, scaled)."
    )


class FedClassAvg(Centralised[FedClassAvgSettings]):
    """A server averages heads, weighted by numbers of samples; embeddings are trained with a contrastive loss.

    Loss: supervised contrastive loss of the embeddings of two views, cross-entropy of the first view, and
    μ/2 · Σ MSE(head parameter, its value at the round's start).

    Letter, both ways: weight and bias of the head (φ) as one vector `head`.

    Differs from the authors' program, which omits the last term in the first batch of a round. The term and its
    gradient are zero there anyway.
    """

    name = "fedclassavg"
    Settings = FedClassAvgSettings
    views = 2
    augmentation = "contrastive"
    averages = True

    def prepare(self, client: Client) -> None:
        client.state["start.weight"] = client.model.head.weight.detach().clone()
        client.state["start.bias"] = client.model.head.bias.detach().clone()

    def start_epoch(self, client: Client, round: int, epoch: int) -> None:
        if epoch == 0:
            with torch.no_grad():
                client.state["start.weight"].copy_(client.model.head.weight)
                client.state["start.bias"].copy_(client.model.head.bias)

    def loss(self, client: Client, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        head, use = client.model.head, self.settings
        embedding = client.model.embed(images)
        first = len(labels) // self.views
        logits = client.model.classify(embedding[:first])
        pull = mse_loss(head.weight, client.state["start.weight"]) + mse_loss(head.bias, client.state["start.bias"])
        return {
            "cross_entropy": cross_entropy(logits, labels[:first]),
            "contrastive": supervised_contrastive(embedding, labels, use.temperature, "released")
            if use.contrast == "port"
            else raw_contrastive(embedding, labels, use.temperature),
            "proximity": use.mu / 2 * pull,
        }

    def letter(self, client: Client, round: int) -> Letter:
        return client.letter(round, {"head": flatten(client.model.head)})

    def schema(self, node: Client | Server, round: int) -> dict[str, Spec]:
        return {"head": Spec((node.shapes.head,))}

    def aggregate(self, server: Server, round: int, inbox: Inbox) -> dict[str, Tensor]:
        return {"head": weighted_mean(self.mixing, inbox.samples, inbox.tensor("head"))}

    def absorb(self, client: Client, round: int, inbox: Inbox) -> None:
        if len(inbox):
            load_flat(inbox.tensor("head")[0], client.model.head)


def raw_contrastive(embedding: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """FedClassAvg's own contrastive loss: inner products of raw embeddings / τ, log outside the sum, times τ/0.07.

    embedding: (B, d_z); labels: (B,). A sample without a positive contributes 0.
    """
    others = ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    positives = (labels[:, None] == labels[None, :]) & others
    products = embedding @ embedding.T / temperature
    log_probability = products - products.masked_fill(~others, -math.inf).logsumexp(dim=1, keepdim=True)
    summed = (log_probability * positives).sum(dim=1) / positives.sum(dim=1).clamp(min=1)
    return -temperature / BASE_TEMPERATURE * summed.mean()
