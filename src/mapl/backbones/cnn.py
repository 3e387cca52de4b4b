"""A plain convolutional network."""

from __future__ import annotations

from torch import nn

from mapl.backbones._blocks import conv_bn_relu, pooled, stem

__all__ = ["CNN"]


class CNN(nn.Sequential):
    """Three plain convolutions; the first has stride 4 for images of 16 pixels or more."""

    name = "cnn"

    def __init__(self, image: tuple[int, int, int], embedding: int):
        super().__init__(stem(image, 24), conv_bn_relu(24, 48, stride=2), conv_bn_relu(48, 64), pooled(64, embedding))
