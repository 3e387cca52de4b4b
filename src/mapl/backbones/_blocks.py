"""What the small convolutional backbones share."""

from __future__ import annotations

from torch import nn

LARGE = 16
"""Pixels of the shorter side from which on an image is large."""


def large(image: tuple[int, int, int]) -> bool:
    """Whether images (C, H, W) are shrunk to a quarter first: at full size the first layers are most of a step."""
    return min(image[1:]) >= LARGE


def conv_bn_relu(inputs: int, outputs: int, stride: int = 1, groups: int = 1, kernel: int = 3) -> nn.Sequential:
    """A convolution that keeps the size (but for its stride), batch normalisation, ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def stem(image: tuple[int, int, int], outputs: int) -> nn.Sequential:
    """The first convolution: 3×3 at full size, or 5×5 at every fourth pixel of a large image."""
    kernel, stride = (5, 4) if large(image) else (3, 1)
    return conv_bn_relu(image[0], outputs, stride, kernel=kernel)


def pooled(inputs: int, embedding: int) -> nn.Sequential:
    """Average over a 2×2 grid of the last feature map, then a linear map to the embedding."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * inputs, embedding))
