"""Plain training: what Local and the baselines that only mix weights have in common."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy

from mapl.client import Client
from mapl.methods._base import Method, S
from mapl.methods._mixing import flatten, load_flat


class Plain(Method[S]):
    """Cross-entropy on one plainly augmented view; so on the empty network it is Local."""

    without_letters = "local"

    def loss(self, client: Client, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"cross_entropy": cross_entropy(client.model(images), labels)}


def classifier(client: Client) -> Tensor:
    """θ and φ of a client, batch-normalisation statistics included, as one vector."""
    return flatten(client.model.backbone, client.model.head)


def load_classifier(client: Client, vector: Tensor) -> None:
    """Write such a vector back into the client's model."""
    load_flat(vector, client.model.backbone, client.model.head)
