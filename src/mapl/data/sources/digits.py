"""scikit-learn's handwritten digits: small, real, with no download."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from mapl.data.dataset import Dataset, DataSettings, Images

__all__ = ["Digits"]


class Digits:
    """1,797 real handwritten digits of 8×8 pixels, included in scikit-learn.

    Every third image is a test image: 1,198 for training (about 120 per class) and 599 for tests (about 60 per class).
    """

    name: ClassVar[str] = "digits"
    alike: ClassVar[str] = "cnn"
    """The backbone of all clients if a method needs one architecture."""
    # A run takes seconds, and clients get so few images that collaboration can help.
    suggests: ClassVar[dict[str, Any]] = {
        "clients": 10,
        "rounds": 45,
        "method": {"warmup": 20},
        "partition": {"shots": 5, "shots_range": [3, 8], "test_shots": "all", "sharding": "random"},
        "model": {"embedding": 64, "projection": 64, "hidden": 128},
        "augment": {
            # Digits cannot be mirrored, have no colour, and fill the image.
            "contrastive": {
                "crop_scale": [0.5, 1.0],
                "flip": 0,
                "brightness": 0,
                "contrast": 0,
                "saturation": 0,
                "hue": 0,
                "greyscale": 0,
            },
            "plain": {"crop_padding": 1, "flip": 0},
        },
        "train": {"batch": 8, "learning_rate": 1e-3},
        "evaluate": {"every": 5},
    }

    def load(self, settings: DataSettings) -> Dataset:
        from sklearn.datasets import load_digits  # slow to import, and other data sets do not need it

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
