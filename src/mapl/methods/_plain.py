"""Plain training, for Local and for the baselines that only mix weights."""

from __future__ import annotations

from torch import Tensor

from mapl.client import Client, Server
from mapl.losses import cross_entropy
from mapl.methods._base import Centralised, Method, S
from mapl.methods._mixing import flatten, load_flat
from mapl.network import Inbox, Letter, Spec


class Plain(Method[S]):
    """Cross-entropy on one plainly augmented view. On the empty network, that is Local."""

    without_letters = "local"

    def loss(self, client: Client, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"cross_entropy": cross_entropy(client.model(images), labels)}


class WholeModels(Plain[S], Centralised[S]):
    """Plain training. Clients send whole models to the server, and the reply replaces them.

    Letter, both ways: backbone and head (θ + φ) as one vector `model`, batch-normalisation statistics included.
    """

    homogeneous = True
    averages = True

    def letter(self, client: Client, round: int) -> Letter:
        return client.letter(round, {"model": classifier(client)}, client.architecture)

    def schema(self, node: Client | Server, round: int) -> dict[str, Spec]:
        return {"model": Spec((node.shapes.backbone + node.shapes.head,))}

    def absorb(self, client: Client, round: int, inbox: Inbox) -> None:
        if len(inbox):
            load_classifier(client, inbox.tensor("model")[0])


def classifier(client: Client) -> Tensor:
    """θ and φ of a client, batch-normalisation statistics included, as one vector."""
    return flatten(client.model.backbone, client.model.head)


def load_classifier(client: Client, vector: Tensor) -> None:
    """Write such a vector back into the client's model."""
    load_flat(vector, client.model.backbone, client.model.head)
