"""ShuffleNetV2: N. Ma, X. Zhang, H.-T. Zheng, J. Sun, *ShuffleNet V2*, 2018 (arXiv 1807.11164)."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from mapl.backbones._blocks import conv_bn_relu

__all__ = ["ShuffleNet"]


def depthwise(channels: int, stride: int) -> tuple[nn.Module, nn.Module]:
    """One 3×3 filter per channel, and batch normalisation without a ReLU."""
    return nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False), nn.BatchNorm2d(channels)


class Unit(nn.Module):
    """Two branches side by side, whose channels are then interleaved.

    With stride 1, the first half of the channels passes unchanged and the second half is convolved. With stride 2, both
    branches convolve all channels.
    """

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        half = outputs // 2
        self.splits = stride == 1
        self.branch1 = nn.Sequential()
        if not self.splits:
            self.branch1.extend((*depthwise(inputs, stride), *conv_bn_relu(inputs, half, kernel=1)))
        self.branch2 = nn.Sequential(
            *conv_bn_relu(half if self.splits else inputs, half, kernel=1),
            *depthwise(half, stride),
            *conv_bn_relu(half, half, kernel=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1) if self.splits else (x, x)
        both = torch.stack((self.branch1(left), self.branch2(right)), dim=2)
        return both.flatten(1, 2)  # l1, r1, l2, r2, …: the shuffle


def stage(inputs: int, outputs: int, units: int) -> nn.Sequential:
    return nn.Sequential(Unit(inputs, outputs, 2), *(Unit(outputs, outputs, 1) for _ in range(units - 1)))


class ShuffleNet(nn.Sequential):
    """ShuffleNetV2 ×1.0 (Ma et al. 2018) with its ImageNet stem.

    MAPL's text cites the first ShuffleNet; its released program uses version 2 with width 1, and so does this file. The
    stem (3×3 with stride 2, then max pooling with stride 2) and the three stages reduce a 32-pixel image to 1×1. Two
    things differ from the original: the number of input channels, and `fc`, which maps to the embedding instead of
    classes.

    Tensors have their usual public names: a public state dict loads without its `fc.*`. Weights are initialised by
    torch, as in the public definition.
    """

    name = "shufflenet"

    def __init__(self, image: tuple[int, int, int], embedding: int):
        super().__init__(
            OrderedDict(
                conv1=conv_bn_relu(image[0], 24, stride=2),
                maxpool=nn.MaxPool2d(3, stride=2, padding=1),
                stage2=stage(24, 116, 4),
                stage3=stage(116, 232, 8),
                stage4=stage(232, 464, 4),
                conv5=conv_bn_relu(464, 1024, kernel=1),
                avgpool=nn.AdaptiveAvgPool2d(1),
                flatten=nn.Flatten(),
                fc=nn.Linear(1024, embedding),
            )
        )
