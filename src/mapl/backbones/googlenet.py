"""GoogLeNet: C. Szegedy et al., *Going deeper with convolutions*, 2014 (arXiv 1409.4842)."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

__all__ = ["GoogLeNet"]


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """A convolution with padding, batch normalisation and ReLU, under their public names."""
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
            bn=nn.BatchNorm2d(outputs, eps=0.001),
            relu=nn.ReLU(),
        )
    )


def pool(size: int) -> nn.MaxPool2d:
    """Max pooling that halves the size, rounding up."""
    return nn.MaxPool2d(size, stride=2, ceil_mode=True)


class Inception(nn.Module):
    """Four branches side by side: 1×1; 1×1 then 3×3; 1×1 then "5×5" (which is 3×3 here); pooling then 1×1.

    The pairs are the (hidden, output) channels of a branch.
    """

    def __init__(self, inputs: int, one: int, three: tuple[int, int], five: tuple[int, int], pooled: int):
        super().__init__()
        self.branch1 = conv(inputs, one, 1)
        self.branch2 = nn.Sequential(conv(inputs, three[0], 1), conv(three[0], three[1], 3))
        self.branch3 = nn.Sequential(conv(inputs, five[0], 1), conv(five[0], five[1], 3))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), conv(inputs, pooled, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)), dim=1)


class GoogLeNet(nn.Sequential):
    """GoogLeNet (Szegedy et al. 2014) with batch normalisation and its ImageNet stem.

    The widely distributed version: batch normalisation (ε = 0.001) after every convolution instead of local response
    normalisation, 3×3 convolutions where the paper has 5×5, dropout of 0.2 before `fc`. The stem and the pooling reduce
    a 32-pixel image to 1×1. Three things differ: the number of input channels; `fc`, which maps to the embedding
    instead of classes; and there are no auxiliary heads, because MAPL does not use their outputs.

    Tensors have their usual public names: a public state dict loads without its `fc.*`, `aux1.*` and `aux2.*`. (Public
    weights may also expect images normalised with mean and deviation 0.5.) Initial weights: convolutions from a
    truncated normal with deviation 0.01, as in the public definition; `fc` by torch, as if replaced there.
    """

    name = "googlenet"

    def __init__(self, image: tuple[int, int, int], embedding: int):
        super().__init__(
            OrderedDict(
                conv1=conv(image[0], 64, 7, stride=2),
                maxpool1=pool(3),
                conv2=conv(64, 64, 1),
                conv3=conv(64, 192, 3),
                maxpool2=pool(3),
                inception3a=Inception(192, 64, (96, 128), (16, 32), 32),
                inception3b=Inception(256, 128, (128, 192), (32, 96), 64),
                maxpool3=pool(3),
                inception4a=Inception(480, 192, (96, 208), (16, 48), 64),
                inception4b=Inception(512, 160, (112, 224), (24, 64), 64),
                inception4c=Inception(512, 128, (128, 256), (24, 64), 64),
                inception4d=Inception(512, 112, (144, 288), (32, 64), 64),
                inception4e=Inception(528, 256, (160, 320), (32, 128), 128),
                maxpool4=pool(2),
                inception5a=Inception(832, 256, (160, 320), (32, 128), 128),
                inception5b=Inception(832, 384, (192, 384), (48, 128), 128),
                avgpool=nn.AdaptiveAvgPool2d(1),
                flatten=nn.Flatten(),
                dropout=nn.Dropout(0.2),
                fc=nn.Linear(1024, embedding),
            )
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.trunc_normal_(module.weight, std=0.01)
