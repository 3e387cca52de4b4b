"""A multilayer perceptron."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

__all__ = ["MLP"]


class MLP(nn.Sequential):
    """Two hidden layers of 128 on a row of a table, or a flattened image.

    It does not know which pixels are neighbours.
    """

    name = "mlp"

    def __init__(self, shape: Sequence[int], embedding: int):
        super().__init__(
            nn.Flatten(),
            nn.Linear(math.prod(shape), 128),
            nn.BatchNorm1d(128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.BatchNorm1d(128),
            nn.ReLU(),
            nn.Linear(128, embedding),
        )
