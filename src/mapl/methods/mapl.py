"""MAPL: model-agnostic peer-to-peer learning (Mukherjee, Simonetto and Jamali-Rad; Section 4, Algorithms 1 to 3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from mapl.client import Client, Peers, Server
from mapl.clock import part
from mapl.collaboration import GraphSettings, learn_rows
from mapl.methods._base import Method
from mapl.methods._circles import Circles, groups
from mapl.methods._contrast import ContrastSettings, contrast
from mapl.network import Inbox, Letter, Spec, specs

__all__ = ["Mapl"]

NARROW = 64
"""Rows of W up to this width are learned on the CPU, where they are stored: calling a GPU would take longer."""


class MaplSettings(ContrastSettings):
    """MAPL's settings. The defaults are the paper's, except for the graph's confidence (docs/graph.md says why)."""

    name: str = "mapl"
    warmup: int = Field(100, ge=0, description="T_thr: the first round (counted from 0) that learns the graph.")
    learn_graph: bool = Field(True, description="Whether the graph is learned (CGL) or stays uniform.")
    graph: GraphSettings = Field(GraphSettings(), description="Graph learning; it has a form of its own.")


class Mapl(Method[MaplSettings]):
    """Prototypes are shared and mixed; a collaboration graph is learned from the similarity of heads.

    Letter: the prototypes ξ_i (K, d_p); after the warm-up also the weight of the head φ_i (K, d_z); the number of
    training samples in the header. Never data, never labels.

    Between rounds a client keeps `client.peers`: its row of W, and the number of samples that each peer reported.
    """

    name = "mapl"
    Settings = MaplSettings
    views = 2
    augmentation = "contrastive"
    averages = True
    unread_without_letters = frozenset({"warmup", "learn_graph", "graph"})

    def uses(self) -> tuple[str, ...]:
        return self.settings.uses()

    def loss(self, client: Client, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """PML (Algorithm 1): l_ce + l_cont + l_proto + l_uni, on both views."""
        embedding = client.model.embed(images)
        return contrast(client, embedding, client.model.classify(embedding), labels, self.settings)

    def wants(self, client: Client, round: int) -> Tensor:
        """Everyone it can reach, except those whose edge CGL has set to zero."""
        dropped = client.peers.ids[client.peers.weights == 0]
        if not len(dropped):
            return client.neighbours
        return client.neighbours[torch.from_numpy(~np.isin(client.neighbours.numpy(), dropped))]

    def learns_graph(self) -> bool:
        return self.settings.learn_graph

    def letter(self, client: Client, round: int) -> Letter:
        return client.letter(round, self.contents(client, round))

    def contents(self, client: Client, round: int) -> dict[str, Tensor]:
        """The tensors of a letter."""
        tensors: dict[str, Tensor] = {"prototypes": client.model.prototypes}
        if self.settings.learn_graph and round >= self.settings.warmup:
            tensors["head"] = client.model.head.weight
        return tensors

    def schema(self, node: Client | Server, round: int) -> Mapping[str, Spec]:
        assert isinstance(node, Client)  # there is no server
        return specs(self.contents(node, round))

    def absorb(self, client: Client, round: int, inbox: Inbox) -> None:
        """CGL (Algorithm 2) after the warm-up, then ξ_i ← Σ_j w_ij ξ_j over itself and the senders (Algorithm 3)."""
        self.absorb_all(round, [(client, inbox)])

    def absorb_all(self, round: int, pairs: Iterable[tuple[Client, Inbox]]) -> None:
        """`absorb` for many clients. The arithmetic of each is the same however many there are."""
        learns = self.settings.learn_graph and round >= self.settings.warmup
        for group in groups(pairs):
            for client, inbox in group:
                self.meet(client, inbox)
            circles = Circles(group)
            weights = circles.read(lambda peers: peers.weights)
            mass = np.add.reduceat(weights, circles.starts[:-1])
            if not mass.all():  # such a client gives no weight to itself or to anyone it heard
                self.absorb_all(round, [pair for pair, some in zip(group, mass, strict=True) if some])
                continue
            # Peers that were not heard this round (out of reach, or their letter was lost) keep their weight.
            weights = weights / np.repeat(mass, circles.sizes)
            if learns:
                with part("graph"):
                    self.learn(circles, weights)
                circles.write_weights(weights * np.repeat(mass, circles.sizes))
            self.mix(circles, weights)

    def learn(self, circles: Circles, weights: NDArray[np.float64]) -> None:
        """A round of CGL for every row of `weights` (P,), in place."""
        use = self.settings.graph
        device = circles.letters.rows("head")[0].device
        similarity = np.ones_like(weights)
        if use.use_similarity:
            similarity = circles.cosines("head", lambda client: client.model.head.weight, use.form)
        # γ_j = n_j / Σ n, or n_j over their mean, among all that the client has ever heard from.
        known = [client.peers.samples for client in circles.clients]
        whole = [samples.sum() if use.confidence == "share" else samples.mean() for samples in known]
        confidence = circles.read(lambda peers: peers.samples) / np.repeat(whole, circles.sizes)
        for rows in circles.widths():
            # Chosen by a row's own width, never by the number of rows, so that its bits do not depend on the others.
            where = device if rows.width > NARROW else torch.device("cpu")
            w, s, gamma = (rows.rectangle(x).to(where) for x in (weights, similarity, confidence))
            rows.write(weights, learn_rows(w, rows.me.to(where), s, gamma, rows.members.to(where), use))

    def meet(self, client: Client, inbox: Inbox) -> None:
        """Give a client heard for the first time the mean of the nonzero weights, so that the first row is uniform."""
        peers, senders, samples = client.peers, inbox.senders.numpy(), inbox.samples.numpy()
        strangers = ~peers.knows(senders)
        if strangers.any():
            weight = float(peers.weights[peers.weights > 0].mean())
            peers.meet(senders[strangers], weight, samples[strangers])
            peers.weights /= peers.weights.sum()
        peers.samples[peers.places(senders)] = samples

    def mix(self, circles: Circles, weights: NDArray[np.float64]) -> None:
        """ξ_i ← Σ_j w_ij ξ_j, or what a robust rule has in its place."""
        table = circles.table("prototypes", lambda client: client.model.prototypes)
        circles.mix(self.mixing, table, weights, [client.model.prototypes for client in circles.clients])

    def weights(self, client: Client) -> Peers:
        return client.peers
