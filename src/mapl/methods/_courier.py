"""The courier: a small network beside every client's own, the same everywhere, so that it can be averaged."""

from __future__ import annotations

from collections import OrderedDict

import torch
from pydantic import Field
from torch import Tensor, nn

from mapl.client import Client
from mapl.errors import MaplError
from mapl.keys import ALWAYS, NOBODY, key, seeded
from mapl.methods._base import MethodSettings
from mapl.model import check_output, find_backbone

COURIER = "courier"


class CourierNetworkSettings(MethodSettings):
    """The small common network."""

    courier: str = Field("courier", description="Backbone of the courier: a known name, or an import path.")
    features: int = Field(64, ge=1, description="Dimension of the courier's embedding, before its head.")
    courier_rate: float | None = Field(
        None, gt=0, description="Learning rate of the courier; 'none': that of the own network."
    )


def build_courier(client: Client, use: CourierNetworkSettings) -> nn.Sequential:
    """A courier: images (B, C, H, W) → logits (B, K). All clients of a run start with the same weights."""
    channels, height, width = client.train.pixels.shape[1:]
    image = (channels, height, width)
    with seeded(key(client.seed, NOBODY, ALWAYS, f"courier {use.courier}")):
        backbone = find_backbone(use.courier)(image, use.features)
        if not isinstance(backbone, nn.Module):
            raise MaplError(
                f"method.courier: backbone {use.courier!r} returned a {type(backbone).__name__}, not a torch.nn.Module"
            )
        head = nn.Linear(use.features, client.shapes.classes)
    check_output(f"method.courier: backbone {use.courier!r}", backbone, image, use.features, "method.features")
    return nn.Sequential(OrderedDict(backbone=backbone, relu=nn.ReLU(), head=head))


def head_of(network: nn.Module) -> Tensor:
    """Weight and bias of a courier's head side by side: (K, features + 1)."""
    head = network.head
    assert isinstance(head, nn.Linear)
    return torch.cat([head.weight.detach(), head.bias.detach().unsqueeze(1)], dim=1)
