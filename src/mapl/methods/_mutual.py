"""Deep mutual learning (Zhang et al., 2018) of a client's own network and its courier, for ProxyFL and FML."""

from __future__ import annotations

from typing import Literal, TypeVar

from pydantic import Field
from torch import Tensor

from mapl.client import Client
from mapl.losses import cross_entropy, distillation
from mapl.methods._courier import COURIER, FixedShareSettings, WithCourier


class DeepMutualSettings(FixedShareSettings):
    """How the two networks learn from each other."""

    alpha: float = Field(
        0.5, ge=0, le=1, description="Weight α of the courier's answers in the own network's loss; labels have 1 − α."
    )
    beta: float = Field(
        0.5, ge=0, le=1, description="Weight β of the own network's answers in the courier's loss; labels have 1 − β."
    )
    answer: Literal["own", "courier", "both"] = Field(
        "own", description="What classifies: the own network, the courier, or both, weighted by `share`."
    )


D = TypeVar("D", bound=DeepMutualSettings)


class DeepMutual(WithCourier[D]):
    """Both networks learn from labels and from each other's current answers, on one plainly augmented view."""

    def loss(self, client: Client, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """(1 − α) · l_ce(own) + α · KL(courier ‖ own) + (1 − β) · l_ce(courier) + β · KL(own ‖ courier).

        No gradient goes into the answers that the other network learns from.
        """
        use, own, courier = self.settings, client.model(images), client.model.call(COURIER, images)
        return {
            "cross_entropy": (1 - use.alpha) * cross_entropy(own, labels),
            "distillation": use.alpha * distillation(own, courier, temperature=1.0),
            "courier": (1 - use.beta) * cross_entropy(courier, labels),
            "courier_distillation": use.beta * distillation(courier, own, temperature=1.0),
        }

    def share_of_both(self, client: Client) -> float:
        return self.settings.share
