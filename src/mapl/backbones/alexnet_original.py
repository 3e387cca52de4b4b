"""AlexNet: A. Krizhevsky, I. Sutskever, G. Hinton, *ImageNet classification with deep convolutional networks*, 2012."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from mapl.errors import MaplError

__all__ = ["AlexNetOriginal"]

SMALLEST = 63
"""The shorter side in pixels; with less, nothing is left to pool after the last convolution."""


class AlexNetOriginal(nn.Sequential):
    """AlexNet (Krizhevsky et al. 2012) in one column, for images of 224 pixels, at least 63.

    The widely distributed version (A. Krizhevsky, *One weird trick*, 2014, arXiv 1404.5997): one column of five
    convolutions instead of two, no local response normalisation. Two things differ: the number of input channels, and
    `classifier.6`, which maps to the embedding instead of classes.

    Tensors have their usual public names: a public state dict loads without its `classifier.6.*`. Weights are
    initialised by torch, as in the public definition.
    """

    name = "alexnet-original"

    def __init__(self, image: tuple[int, int, int], embedding: int):
        if min(image[1:]) < SMALLEST:
            raise MaplError(
                f"backbone 'alexnet-original' needs images of {SMALLEST} pixels or more, not {image[1]}×{image[2]}; "
                "use 'alexnet' for small images"
            )
        super().__init__(
            OrderedDict(
                features=nn.Sequential(
                    nn.Conv2d(image[0], 64, 11, stride=4, padding=2),
                    nn.ReLU(),
                    nn.MaxPool2d(3, stride=2),
                    nn.Conv2d(64, 192, 5, padding=2),
                    nn.ReLU(),
                    nn.MaxPool2d(3, stride=2),
                    nn.Conv2d(192, 384, 3, padding=1),
                    nn.ReLU(),
                    nn.Conv2d(384, 256, 3, padding=1),
                    nn.ReLU(),
                    nn.Conv2d(256, 256, 3, padding=1),
                    nn.ReLU(),
                    nn.MaxPool2d(3, stride=2),
                ),
                avgpool=nn.AdaptiveAvgPool2d(6),
                flatten=nn.Flatten(),
                classifier=nn.Sequential(
                    nn.Dropout(0.5),
                    nn.Linear(36 * 256, 4096),
                    nn.ReLU(),
                    nn.Dropout(0.5),
                    nn.Linear(4096, 4096),
                    nn.ReLU(),
                    nn.Linear(4096, embedding),
                ),
            )
        )
