"""MAPL+: MAPL that also mixes backbones (Appendix, "Model homogeneous setting")."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mapl.client import Client, Server
from mapl.methods._circles import Circles
from mapl.methods._mixing import flatten, insert, load_flat, weighted_mean
from mapl.methods.mapl import Mapl, MaplSettings
from mapl.network import Inbox, Letter, Spec

__all__ = ["MaplPlus"]


class MaplPlusSettings(MaplSettings):
    """MAPL+ has MAPL's settings."""

    name: str = "mapl+"


class MaplPlus(Mapl):
    """MAPL, and backbones are mixed with the same row of W as the prototypes.

    In a homogeneous network these are the backbones of all neighbours, as in the paper. In a mixed one, which the paper
    does not cover, they are those of the same architecture: the row is restricted to them and scaled to sum to 1.

    Letter: MAPL's, and the backbone's parameters and batch-normalisation statistics as one vector `backbone`; the
    header names the architecture.
    """

    name = "mapl+"
    Settings = MaplPlusSettings
    without_letters = "mapl"

    def letter(self, client: Client, round: int) -> Letter:
        tensors = {**self.contents(client, round), "backbone": flatten(client.model.backbone)}
        return client.letter(round, tensors, architecture=client.architecture)

    def schema(self, node: Client | Server, round: int) -> Mapping[str, Spec]:
        return {**super().schema(node, round), "backbone": Spec((node.shapes.backbone,), by_architecture=True)}

    def mix(self, circles: Circles, weights: NDArray[np.float64]) -> None:
        super().mix(circles, weights)
        for (client, start, end), inbox in zip(circles.spans(), circles.inboxes, strict=True):
            self.mix_backbone(client, inbox, torch.from_numpy(weights[start:end]))

    def mix_backbone(self, client: Client, inbox: Inbox, weights: Tensor) -> None:
        """θ_i ← Σ_j w_ij θ_j over itself and the senders of its architecture; weights (n + 1,)."""
        alike = torch.tensor([a == client.architecture for a in inbox.architectures])
        weights = weights[insert(alike, torch.tensor(True), int((inbox.senders < client.id).sum()))]
        if not alike.any() or weights.sum() == 0:
            return
        inbox = inbox.select(alike)
        me = int((inbox.senders < client.id).sum())
        stacked = insert(inbox.tensor("backbone"), flatten(client.model.backbone), me)
        load_flat(weighted_mean(self.mixing, weights, stacked, me), client.model.backbone)
