"""FML (Shen et al., "Federated Mutual Learning", 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from mapl.client import Client, Server
from mapl.methods._base import Centralised
from mapl.methods._courier import COURIER, build_courier, courier_of, load_courier
from mapl.methods._mixing import flatten, weighted_mean
from mapl.methods._mutual import DeepMutual, DeepMutualSettings
from mapl.network import Inbox, Letter, Spec

__all__ = ["FML"]


class FMLSettings(DeepMutualSettings):
    """FML's settings. The meme network is called courier, as in the other methods that have one."""

    name: str = "fml"


class FML(DeepMutual[FMLSettings], Centralised[FMLSettings]):
    """Own networks and small common ones learn from each other, and a server averages the common ones.

    The common network, in its paper the meme, is the courier: the same architecture and the same first weights
    everywhere. The own network never leaves home, and it is the one that answers. The server's average is plain: every
    client counts the same, whatever its number of samples.

    Letter, both ways: the courier's parameters and normalisation statistics as one vector `courier`.

    Its paper's α and β are the weights of the labels. Here they are those of the other network's answers, as in
    ProxyFL. The default, 0.5, is the same.
    """

    name = "fml"
    Settings = FMLSettings
    without_letters = "proxyfl"
    averages = True

    def letter(self, client: Client, round: int) -> Letter:
        return client.letter(round, {COURIER: courier_of(client)})

    def schema(self, node: Client | Server, round: int) -> dict[str, Spec]:
        vector = courier_of(node) if isinstance(node, Client) else flatten(build_courier(node, self.settings))
        return {COURIER: Spec((len(vector),))}

    def aggregate(self, server: Server, round: int, inbox: Inbox) -> dict[str, Tensor]:
        couriers = inbox.tensor(COURIER)
        if self.mixing.kind == "mean":
            return {COURIER: couriers.mean(dim=0)}
        return {COURIER: weighted_mean(self.mixing, torch.ones(len(couriers)), couriers)}

    def absorb(self, client: Client, round: int, inbox: Inbox) -> None:
        if len(inbox):
            load_courier(client, inbox.tensor(COURIER)[0])
