"""A multilayer perceptron."""

from __future__ import annotations

import math

from torch import nn

__all__ = ["MLP"]


class MLP(nn.Sequential):
    """Two hidden layers of 128 on the flattened image: it does not know which pixels are neighbours."""

    name = "mlp"

    def __init__(self, image: tuple[int, int, int], embedding: int):
        super().__init__(
            nn.Flatten(),
            nn.Linear(math.prod(image), 128),
            nn.BatchNorm1d(128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.BatchNorm1d(128),
            nn.ReLU(),
            nn.Linear(128, embedding),
        )
