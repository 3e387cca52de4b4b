"""ProxyFL (Kalra et al., "Decentralized federated learning through proxy model sharing", 2023)."""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor

from mapl.client import Client, Peers, Server
from mapl.methods._courier import COURIER, courier_of, courier_spec, load_courier
from mapl.methods._mixing import insert, mixed, with_me
from mapl.methods._mutual import DeepMutual, DeepMutualSettings
from mapl.network import Inbox, Letter, Spec

__all__ = ["ProxyFL"]

MASS = "mass"
LEAST = 1e-300
"""The smallest mass of a client. Without it, a client that loses every letter would have none after 1,074 rounds."""


class ProxyFLSettings(DeepMutualSettings):
    """ProxyFL's settings. The proxy is called courier, as in the other methods that have one."""

    name: str = "proxyfl"
    keep: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="Share of the proxy that a client keeps when it sends the rest; 0: it passes the proxy on, as in "
        "the authors' program.",
    )


class ProxyFL(DeepMutual[ProxyFLSettings]):
    """Private networks and small proxies learn from each other, and PushSum mixes the proxies.

    The proxy is the courier: the same architecture and the same first weights everywhere. The private network never
    leaves home, and it is the one that answers.

    Every client has a proxy and a mass, 1 at the start. In a round it sends half of both to one peer and gets half of
    another's. Its new proxy is the mean of what it then has, weighted by mass. Peers stand in a circle in the order of
    their numbers, and in rounds 0, 1, 2, … a client sends 1, 2, 4, … places ahead; after ⌈log₂ n⌉ rounds it starts
    again (the directed exponential graph). No mass is created or lost, so the mean of all proxies, weighted by mass, is
    kept. A letter that is lost takes its mass with it. Its reader's proxy stays as it is.

    A circle consists of a client and its neighbours. On the full mesh, on a ring, and wherever else all clients have
    neighbours at the same distances, everyone reads exactly one letter and is read exactly once. On other topologies a
    letter may be read by nobody or by several clients. Then mass is not kept, but a new proxy is still a mean.

    Letter: the proxy's parameters and normalisation statistics as one vector `courier`, and the `mass` that goes with
    it (1,). A client hears another peer every round, so letters are always full with `network.compress = "top-k"`.

    Differs from its paper: no differential privacy. Differs from the authors' program, which has no masses: there a
    client sends its whole proxy and goes on with the one that it gets (`keep = 0`).
    """

    name = "proxyfl"
    Settings = ProxyFLSettings
    unread_without_letters = frozenset({"keep"})

    def prepare(self, client: Client) -> None:
        client.state[MASS] = torch.ones(1, dtype=torch.float64)

    def wants(self, client: Client, round: int) -> Tensor:
        """The one peer whose turn it is to send to this client."""
        peers = client.neighbours
        if not len(peers):
            return peers
        me = int((peers < client.id).sum())
        circle = insert(peers, torch.tensor(client.id), me)
        hops = len(peers).bit_length()  # ⌈log₂ n⌉ for a circle of n = len(peers) + 1
        source = (me - 2 ** (round % hops)) % len(circle)
        return circle[source : source + 1]

    def reads_anew(self, round: int) -> bool:
        """Every round, because the peer is another one."""
        return True

    def letter(self, client: Client, round: int) -> Letter:
        return client.letter(round, {COURIER: courier_of(client), MASS: (1 - self.settings.keep) * client.state[MASS]})

    def schema(self, node: Client | Server, round: int) -> dict[str, Spec]:
        """A mass is more than 0, and a mean of masses that began with 1. It may differ from others by any factor."""
        assert isinstance(node, Client)  # there is no server
        mass = Spec((1,), torch.float64, low=math.ulp(0.0), high=2.0)
        return {COURIER: courier_spec(node), MASS: mass}

    def absorb(self, client: Client, round: int, inbox: Inbox) -> None:
        """Add what arrived to what was kept. A client that reaches nobody has sent nothing, and keeps everything."""
        client.peers = Peers.alone(client.id, client.samples)
        if not len(client.neighbours):
            return
        kept = (self.settings.keep * client.state[MASS]).clamp(min=LEAST)
        heard, me = with_me(client, inbox)
        masses = insert(inbox.tensor(MASS).cpu(), kept, me).squeeze(1) if len(inbox) else kept
        client.state[MASS].copy_(masses.sum())
        if not len(inbox):
            return
        weights = masses / masses.sum()
        samples = insert(inbox.samples, torch.tensor(client.samples), me)
        client.peers = Peers(heard.numpy(), weights.numpy(), samples.numpy())
        load_courier(client, mixed(self.mixing, weights, insert(inbox.tensor(COURIER), courier_of(client), me)))

    def weights(self, client: Client) -> Peers:
        return client.peers
