"""A method with a network of its own: a small second network beside every client's backbone.

Backbones differ from client to client, so they stay at home. The second network has the same shape everywhere: clients
average it with their neighbours, and classify with both. Run it from the folder that holds this file:

    mapl run --method own_network:SharedGuide
"""

import math
from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor, nn

from mapl import Client, Inbox, Letter, Method, MethodSettings
from mapl.keys import ALWAYS, NOBODY, key, seeded
from mapl.losses import cross_entropy


class SharedGuideSettings(MethodSettings):
    """Settings of SharedGuide."""

    name: str = "own_network:SharedGuide"
    guide_rate: float = Field(3e-3, gt=0, description="Learning rate of the shared network.")


class SharedGuide(Method[SharedGuideSettings]):
    """Clients share a small network and keep their backbones to themselves.

    Letter: the parameters of the shared network. State: none beside the model.
    """

    name = "shared-guide"
    Settings = SharedGuideSettings
    answers_with = ("backbone", "guide")  # what `scores` is given

    def modules(self, client: Client) -> dict[str, nn.Module]:
        pixels, classes = math.prod(client.train.shape), client.shapes.classes
        with seeded(key(client.seed, NOBODY, ALWAYS, "guide")):  # everybody starts from the same weights
            guide = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 32), nn.ReLU(), nn.Linear(32, classes))
        return {"guide": guide}

    def learning_rates(self) -> dict[str, float]:
        return {"guide": self.settings.guide_rate}

    def loss(self, client: Client, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        own, shared = client.model(images), client.model.call("guide", images)
        return {"backbone": cross_entropy(own, labels), "guide": cross_entropy(shared, labels)}

    def scores(self, client: Client, outputs: Mapping[str, Tensor]) -> Tensor:
        own = client.model.classify(outputs["backbone"])
        return own.log_softmax(1) + outputs["guide"].log_softmax(1)

    def wants(self, client: Client, round: int) -> Tensor:
        return client.neighbours

    def letter(self, client: Client, round: int) -> Letter:
        return client.letter(round, client.model.own["guide"].state_dict())

    def absorb(self, client: Client, round: int, inbox: Inbox) -> None:
        if not len(inbox):
            return
        with torch.no_grad():
            for name, mine in client.model.own["guide"].state_dict().items():
                mine.copy_((mine + inbox.tensor(name).sum(0)) / (1 + len(inbox)))
