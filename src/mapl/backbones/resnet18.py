"""ResNet18: K. He, X. Zhang, S. Ren, J. Sun, *Deep residual learning for image recognition*, 2015, arXiv 1512.03385."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

__all__ = ["ResNet18"]


class Block(nn.Module):
    """ReLU(x + F(x)) with two 3×3 convolutions in F; if the shape changes, x goes through a 1×1 convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.downsample.extend((nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)))

    def forward(self, x: Tensor) -> Tensor:
        change = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(self.downsample(x) + change)


def layer(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(Block(inputs, outputs, stride), Block(outputs, outputs))


class ResNet18(nn.Sequential):
    """ResNet18 (He et al. 2015) with its ImageNet stem.

    The stem (7×7 with stride 2, then max pooling with stride 2) and the four layers reduce a 32-pixel image to 1×1. Two
    things differ from the original: the number of input channels, and `fc`, which maps to the embedding instead of
    classes.

    Tensors have their usual public names: a public state dict loads without its `fc.*`. Initial weights are those of
    the public definition: convolutions normal with variance 2 / fan-out, batch normalisation 1 and 0, `fc` by torch.
    """

    name = "resnet18"

    def __init__(self, image: tuple[int, int, int], embedding: int):
        super().__init__(
            OrderedDict(
                conv1=nn.Conv2d(image[0], 64, 7, stride=2, padding=3, bias=False),
                bn1=nn.BatchNorm2d(64),
                relu=nn.ReLU(),
                maxpool=nn.MaxPool2d(3, stride=2, padding=1),
                layer1=layer(64, 64, 1),
                layer2=layer(64, 128, 2),
                layer3=layer(128, 256, 2),
                layer4=layer(256, 512, 2),
                avgpool=nn.AdaptiveAvgPool2d(1),
                flatten=nn.Flatten(),
                fc=nn.Linear(512, embedding),
            )
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
