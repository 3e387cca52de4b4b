"""SVHN, cropped digits (Netzer et al., 2011), http://ufldl.stanford.edu/housenumbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mapl.data.arrays import labelled
from mapl.data.dataset import Dataset, DataSettings, Images
from mapl.data.published import IMAGENET_MEAN, IMAGENET_STD, SUGGESTS, Download, Published
from mapl.errors import MaplError

__all__ = ["Svhn"]

FILES = {
    "svhn/train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "svhn/test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
}
MOST = 100_000
"""Images in one file. Published are 73,257 and 26,032."""


class Svhn:
    """99,289 colour images of 32×32 pixels of digits on house numbers."""

    name: ClassVar[str] = "svhn"
    suggests: ClassVar[dict[str, Any]] = SUGGESTS
    published: ClassVar[Published] = Published(
        name,
        layouts=(FILES,),
        downloads=tuple(
            Download(path, md5, (f"http://ufldl.stanford.edu/housenumbers/{Path(path).name}",), most=MOST * 3073)
            for path, md5 in FILES.items()
        ),
    )

    def load(self, settings: DataSettings) -> Dataset:
        train, test = (_images(path) for path in self.published.open(settings.root()).values())
        return Dataset(self.name, train, test, classes=10, mean=IMAGENET_MEAN, std=IMAGENET_STD)


def _images(path: Path) -> Images:
    """A MATLAB file with `X` (32, 32, 3, N) and `y` (N, 1); the digit 0 has the label 10."""
    from scipy.io import loadmat, whosmat  # slow to import, and only this data set needs it

    try:
        # Before anything is unpacked: a small file can announce and hold any size.
        if large := [name for name, shape, _ in whosmat(path) if math.prod(shape) > MOST * 3072]:
            raise MaplError(f"{str(path)!r} announces more than {MOST:,} images in its variable {large[0]!r}")
        fields = loadmat(path, variable_names=["X", "y"])
        pixels, labels = fields["X"], fields["y"].ravel()
    except MaplError:
        raise
    except KeyError as error:
        raise MaplError(f"{str(path)!r} is not a file of SVHN's cropped digits: it has no variable {error}") from None
    except Exception as error:  # scipy raises many kinds of errors for a broken file
        raise MaplError(f"{str(path)!r} is not a MATLAB file that can be read, or is cut off: {error}") from error
    if pixels.ndim != 4:
        raise MaplError(f"{str(path)!r} has images of shape {pixels.shape}, not (32, 32, 3, N)")
    labels = np.where(labels == 10, 0, labels)
    return labelled(pixels.transpose(3, 2, 0, 1), labels, 10, path, shape=(3, 32, 32))
