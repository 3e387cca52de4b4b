"""What the small convolutional backbones share."""

from __future__ import annotations

from torch import nn


def conv_bn_relu(inputs: int, outputs: int, stride: int = 1, groups: int = 1, kernel: int = 3) -> nn.Sequential:
    """A convolution that keeps the size (but for its stride), batch normalisation, ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


def pooled(inputs: int, embedding: int) -> nn.Sequential:
    """Average over a 2×2 grid of the last feature map, then a linear map to the embedding."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * inputs, embedding))
