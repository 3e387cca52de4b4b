"""Your own images, as arrays in one file."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Container
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.lib.npyio import NpzFile

from mapl.data.arrays import Array, labelled, mean_and_std
from mapl.data.dataset import Dataset, DataSettings
from mapl.data.partition import DRAWN, divided
from mapl.errors import MaplError

__all__ = ["Npz"]

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
UNDIVIDED = ("images", "labels")
"""A file may have these alone."""


class Npz:
    """Your own images: one .npz file with train_images, train_labels, test_images and test_labels.

    `data.folder` is that file. Images are uint8 (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels. Labels
    are whole numbers from 0. Images are normalised with the mean and standard deviation of the training images. A file
    with images and labels alone is taken, too: of each class, a fifth become test images, the same each time.
    """

    name: ClassVar[str] = "npz"
    suggests: ClassVar[dict[str, Any]] = {}
    own: ClassVar[bool] = True
    alike: ClassVar[str] = "cnn"

    def load(self, settings: DataSettings) -> Dataset:
        path = settings.own()
        arrays = _arrays(path)
        prefixes = ["train_", "test_"] if "train_labels" in arrays else [""]
        labels = {prefix: _labels(arrays[f"{prefix}labels"], prefix, path) for prefix in prefixes}
        classes = 1 + max(int(found.max(initial=0)) for found in labels.values())
        found = [
            labelled(_channels_first(arrays[f"{prefix}images"], prefix, path), labels[prefix], classes, path)
            for prefix in prefixes
        ]
        drawn = len(found) == 1
        train, test = divided(found[0], path) if drawn else found
        return Dataset(self.name, train, test, classes, *mean_and_std(train.pixels), found=(DRAWN,) if drawn else ())


def _arrays(path: Path) -> dict[str, Array]:
    try:
        with opened(path) as file:
            names = ARRAYS if is_split(file) else UNDIVIDED
            if missing := [name for name in names if name not in file]:
                raise MaplError(f"{str(path)!r} has no array {', '.join(missing)}")
            return {name: file[name] for name in names}
    except FileNotFoundError:
        raise MaplError(f"there is no file {str(path)!r}") from None
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise MaplError(f"{str(path)!r} is not an .npz file of plain arrays, or is cut off: {error}") from error


def opened(path: Path) -> NpzFile:
    """The file, whose arrays are not read yet."""
    # No pickles: a data file must not be able to run code.
    file = np.load(path, allow_pickle=False)
    if not isinstance(file, NpzFile):
        raise MaplError(f"{str(path)!r} is a single array; it should be an .npz file with {', '.join(ARRAYS)}")
    return file


def is_split(file: Container[str]) -> bool:
    """Whether a file says which are test images, or is not even undivided."""
    return any(name in file for name in ARRAYS) or not any(name in file for name in UNDIVIDED)


def _labels(labels: Array, prefix: str, path: Path) -> Array:
    if not np.issubdtype(labels.dtype, np.integer):
        raise MaplError(f"{str(path)!r} has {prefix}labels of type {labels.dtype}; they should be whole numbers")
    return labels.reshape(len(labels)) if labels.ndim == 2 and labels.shape[1] == 1 else labels


def _channels_first(images: Array, prefix: str, path: Path) -> Array:
    """(N, C, H, W) from any of the three layouts; channels count as last if both readings are possible."""
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and images.shape[3] in (1, 3):
        return images.transpose(0, 3, 1, 2)
    if images.ndim == 4 and images.shape[1] in (1, 3):
        return images
    raise MaplError(
        f"{str(path)!r} has {prefix}images of shape {images.shape}; they should be (N, H, W), (N, H, W, C) or "
        "(N, C, H, W) with 1 or 3 channels"
    )
