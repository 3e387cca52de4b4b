"""A small AlexNet for small images, after A. Krizhevsky, I. Sutskever, G. Hinton, *ImageNet classification*, 2012."""

from __future__ import annotations

from torch import nn

__all__ = ["AlexNet"]


class AlexNet(nn.Sequential):
    """A small AlexNet (after Krizhevsky et al. 2012), the one of MAPL's experiments.

    Three 3×3 convolutions of 64, 128 and 256 channels instead of five, ReLU without normalisation, average pooling to
    3×3 and two linear layers with dropout before the first. MAPL does not say how its convolutions are padded: here by
    one pixel, which keeps the size. Weights are initialised by torch. The 2012 network is `alexnet-original`.
    """

    name = "alexnet"

    def __init__(self, image: tuple[int, int, int], embedding: int):
        super().__init__(
            nn.Conv2d(image[0], 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2, stride=1, padding=1),
            nn.Conv2d(64, 128, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2, stride=2, padding=1),
            nn.Conv2d(128, 256, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(3),
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(9 * 256, 512),
            nn.ReLU(),
            nn.Linear(512, embedding),
        )
