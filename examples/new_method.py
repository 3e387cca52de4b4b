"""A new method is one file: what a client minimises, what it shares, what it does with what it hears.

This one trains by cross-entropy. Every client then moves its head half-way to the median of its neighbours' heads,
which a few outliers cannot pull far. Run it by its import path, from the folder that holds this file:

    mapl run --method new_method:MedianHead
"""

import torch
from pydantic import Field
from torch import Tensor

from mapl import Client, Inbox, Letter, Method, MethodSettings
from mapl.losses import cross_entropy


class MedianHeadSettings(MethodSettings):
    """One sentence per setting. It is also the help text in the recipe's reference."""

    name: str = "new_method:MedianHead"
    pull: float = Field(0.5, ge=0, le=1, description="How far a head moves to the median of its neighbours'.")


class MedianHead(Method[MedianHeadSettings]):
    """Heads move towards the median of the neighbours' heads.

    Letter: the weight of the head (K, d_z). State: none beside the model.
    """

    name = "median-head"
    Settings = MedianHeadSettings

    def loss(self, client: Client, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"cross_entropy": cross_entropy(client.model(images), labels)}

    def wants(self, client: Client, round: int) -> Tensor:
        return client.neighbours

    def letter(self, client: Client, round: int) -> Letter:
        return client.letter(round, {"head": client.model.head.weight})

    def absorb(self, client: Client, round: int, inbox: Inbox) -> None:
        if len(inbox):
            with torch.no_grad():  # in place: what a training step reads is overwritten, never replaced
                median = inbox.tensor("head").median(dim=0).values
                client.model.head.weight.lerp_(median, self.settings.pull)
