"""scikit-learn's handwritten digits: small, real, and nothing to download."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from sklearn.datasets import load_digits

from mapl.data.dataset import Dataset, DataSettings, Images

__all__ = ["Digits"]


class Digits:
    """1,797 real handwritten digits of 8×8 pixels, embedded in scikit-learn.

    Every third image, in the order of publication, is a test image: 1,198 for training (about 120 a class) and 599 for
    tests (about 60 a class).
    """

    name: ClassVar[str] = "digits"
    suggests: ClassVar[dict[str, Any]] = {}

    def load(self, settings: DataSettings) -> Dataset:
        bunch = load_digits()
        # The published grey levels are 0 to 16.
        pixels = torch.from_numpy(bunch.images * (255 / 16)).round().to(torch.uint8).unsqueeze(1)
        labels = torch.from_numpy(bunch.target).to(torch.int64)
        test = torch.arange(len(labels)) % 3 == 2
        return Dataset(
            name=self.name,
            train=Images(pixels[~test], labels[~test]),
            test=Images(pixels[test], labels[test]),
            classes=10,
            mean=(0.305,),
            std=(0.376,),
        )
