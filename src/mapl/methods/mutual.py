"""Mutual learning at home: two networks per client that learn from each other, and no letters."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from mapl.client import Client
from mapl.losses import cross_entropy, distillation
from mapl.methods._contrast import ContrastSettings, contrast
from mapl.methods._courier import COURIER, FixedShareSettings, WithCourier

__all__ = ["Mutual"]


class MutualSettings(ContrastSettings, FixedShareSettings):
    """Mutual learning's settings; those of the own network's losses are MAPL's."""

    name: str = "mutual"
    distil: float = Field(1.0, ge=0, description="Weight λ of what each network learns from the other.")
    distil_temperature: float = Field(4.0, gt=0, description="Temperature T of that distillation.")


class Mutual(WithCourier[MutualSettings]):
    """No exchange at all: the own network and a courier that stays at home learn from each other.

    The own network learns from labels and from MAPL's losses, the courier from labels. Each also learns by distillation
    from the other's current answers. Both answer.

    It is a second control for methods with a courier: two networks per client, but nothing from other clients.
    """

    name = "mutual"
    Settings = MutualSettings
    views = 2
    augmentation = "contrastive"
    silent = True

    def uses(self) -> tuple[str, ...]:
        return self.settings.uses()

    def loss(self, client: Client, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Of the own network: MAPL's terms and λ · distillation. Of the courier: cross-entropy and the same.

        On both views. No gradient goes into the answers that the other network learns from.
        """
        model, use = client.model, self.settings
        embedding = model.embed(images)
        own, courier = model.classify(embedding), model.call(COURIER, images)
        return {
            **contrast(client, embedding, own, labels, use),
            "distillation": use.distil * distillation(own, courier, use.distil_temperature),
            "courier": cross_entropy(courier, labels),
            "courier_distillation": use.distil * distillation(courier, own, use.distil_temperature),
        }

    def share_of_both(self, client: Client) -> float:
        return self.settings.share
