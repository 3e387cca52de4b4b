"""Blocks that the small convolutional backbones share."""

from __future__ import annotations

from torch import nn

LARGE = 16
"""An image is large if its shorter side has this many pixels or more."""


def large(image: tuple[int, int, int]) -> bool:
    """Whether images (C, H, W) are shrunk first: at full size the first layers would take most of a step."""
    return min(image[1:]) >= LARGE


def conv_bn_relu(inputs: int, outputs: int, stride: int = 1, groups: int = 1, kernel: int = 3) -> nn.Sequential:
    """A convolution with padding that keeps the size (apart from the stride), batch normalisation, ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def stem(image: tuple[int, int, int], outputs: int) -> nn.Sequential:
    """The first convolution: 3×3 with stride 1, or 5×5 with stride 4 for large images."""
    kernel, stride = (5, 4) if large(image) else (3, 1)
    return conv_bn_relu(image[0], outputs, stride, kernel=kernel)


def pooled(inputs: int, embedding: int) -> nn.Sequential:
    """Average pooling of the last feature map to 2×2, then a linear layer to the embedding."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * inputs, embedding))
