"""Small networks for the courier, which travels between clients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mapl.backbones._blocks import conv_bn_relu, large, pooled
from mapl.backbones.residual import Block
from mapl.backbones.transformer import Transformer
from mapl.shape import is_image, vocabulary

__all__ = ["CourierBackbone"]


HIDDEN = 64
"""Width of the hidden layers for samples that are neither images nor texts."""


class CourierBackbone(nn.Sequential):
    """A small network whose size follows that of the samples.

    Images of 16 pixels or more: a stem that halves them, and three residual blocks, with 32, 64 and 128 channels for
    colour images (0.31 million parameters) and half as many for grey ones (0.08 million). Smaller images: three plain
    convolutions (0.02 million). docs/courier.md compares them with others. Rows of a table and signals: two hidden
    layers of 64. Texts: one layer of attention, 32 wide.
    """

    name = "courier"

    def __init__(self, shape: Sequence[int], embedding: int):
        super().__init__(*_layers(shape, embedding))


class Stage(nn.Module):
    """ReLU(P x + F(x)): two convolutions in F, the first with stride 2, and a 1×1 convolution with stride 2 as P."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.first = conv_bn_relu(inputs, outputs, stride=2)
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=2, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.shortcut(x) + self.second(self.first(x)))


def _layers(shape: Sequence[int], embedding: int) -> list[nn.Module]:
    if vocabulary(shape):
        return [Transformer(shape, embedding, width=32, layers=1)]
    if not is_image(shape):
        return [nn.Flatten(), *_hidden(math.prod(shape)), *_hidden(HIDDEN), nn.Linear(HIDDEN, embedding)]
    channels, height, width = shape
    image = channels, height, width
    return _residual(image, embedding) if large(image) else _plain(image, embedding)


def _hidden(inputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU()]


def _residual(image: tuple[int, int, int], embedding: int) -> list[nn.Module]:
    width = 32 if image[0] > 1 else 16
    stages = [
        conv_bn_relu(image[0], width, stride=2),
        Block(width),
        Stage(width, 2 * width),
        Stage(2 * width, 4 * width),
    ]
    return [*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, embedding)]


def _plain(image: tuple[int, int, int], embedding: int) -> list[nn.Module]:
    return [conv_bn_relu(image[0], 16), conv_bn_relu(16, 32, stride=2), conv_bn_relu(32, 32), pooled(32, embedding)]
