"""DFedAvgM (Sun, Li and Wang, "Decentralized Federated Averaging", 2022)."""

from __future__ import annotations

import torch
from torch import Tensor

from mapl.client import Client, Peers, Server
from mapl.methods._base import MethodSettings
from mapl.methods._mixing import insert, mixed, with_me
from mapl.methods._plain import Plain, classifier, load_classifier
from mapl.network import MOST, Inbox, Letter, Spec

__all__ = ["DFedAvgM"]


class DFedAvgMSettings(MethodSettings):
    """DFedAvgM has no settings of its own: its momentum is that of the recipe's optimiser."""

    name: str = "dfedavgm"


class DFedAvgM(Plain[DFedAvgMSettings]):
    """Peers mix whole models with a doubly stochastic matrix.

    Its paper trains by SGD with heavy-ball momentum and resets the momentum every round: `train.optimizer = "sgd"` with
    `train.reset = true`. With `train.optimizer = "adam"` it trains like the other methods. The recipe records which.

    W is Metropolis–Hastings, w_ij = 1 / (1 + max(d_i, d_j)), which is uniform on the full mesh.

    Letter: backbone and head (θ + φ) as one vector `model`, and the sender's number of neighbours, `degree`.
    """

    name = "dfedavgm"
    Settings = DFedAvgMSettings
    homogeneous = True
    averages = True

    def wants(self, client: Client, round: int) -> Tensor:
        return client.neighbours

    def letter(self, client: Client, round: int) -> Letter:
        degree = torch.tensor([len(client.neighbours)])
        return client.letter(round, {"model": classifier(client), "degree": degree}, client.architecture)

    def schema(self, node: Client | Server, round: int) -> dict[str, Spec]:
        model = Spec((node.shapes.backbone + node.shapes.head,))
        return {"model": model, "degree": Spec((1,), torch.int64, low=1, high=MOST)}

    def absorb(self, client: Client, round: int, inbox: Inbox) -> None:
        """A neighbour whose letter is missing is left out; its weight stays with the client."""
        client.peers = Peers.alone(client.id, client.samples)
        if not len(inbox):
            return
        heard, me = with_me(client, inbox)
        degrees = inbox.tensor("degree").squeeze(1).cpu().clamp(min=len(client.neighbours))
        row = 1 / (1 + degrees.double())
        weights = insert(row, 1 - row.sum(), me)
        samples = insert(inbox.samples, torch.tensor(client.samples), me)
        client.peers = Peers(heard.numpy(), weights.numpy(), samples.numpy())
        models = insert(inbox.tensor("model"), classifier(client), me)
        load_classifier(client, mixed(self.mixing, weights, models, me))

    def weights(self, client: Client) -> Peers:
        return client.peers
