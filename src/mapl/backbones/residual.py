"""A small residual network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mapl.backbones._blocks import conv_bn_relu, pooled, stem

__all__ = ["Residual"]


class Block(nn.Module):
    """ReLU(x + F(x)) with two convolutions in F."""

    def __init__(self, channels: int):
        super().__init__()
        self.first = conv_bn_relu(channels, channels)
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(self.first(x)))


class Residual(nn.Sequential):
    """A stem, with stride 4 for images of 16 pixels or more, and two residual blocks."""

    name = "residual"

    def __init__(self, image: tuple[int, int, int], embedding: int):
        super().__init__(stem(image, 24), Block(24), conv_bn_relu(24, 48, stride=2), Block(48), pooled(48, embedding))
