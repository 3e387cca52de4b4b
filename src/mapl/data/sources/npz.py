"""Your own data, as arrays in one file."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.lib.npyio import NpzFile

from mapl.data.dataset import Dataset, DataSettings
from mapl.data.files import unchanged
from mapl.data.found import Pair, dataset_of
from mapl.data.naming import found_in
from mapl.errors import MaplError

__all__ = ["Npz"]


class Npz:
    """Your own data: one .npz file with samples and labels, or with train_images, train_labels, test_images, …

    `data.folder` is that file. Samples are called images, features, tokens, x or data; labels are called labels, y or
    target. `train_` and `test_` come first (train_images) or last (x_train). Images are (N, H, W), (N, H, W, C) or
    (N, C, H, W) with 1 or 3 channels: uint8, uint16, or floats from 0 to 1. Features are (N, …), token ids (N, L).
    Samples called x or data are what their type and shape say. Labels are numbers or names. Without test samples, a
    fifth of each class become test samples, the same each time.
    """

    name: ClassVar[str] = "npz"
    suggests: ClassVar[dict[str, Any]] = {}
    own: ClassVar[bool] = True
    alike: ClassVar[str] = "cnn"

    def load(self, settings: DataSettings) -> Dataset:
        return dataset_of(self.name, repr(str(settings.own())), *self.found(settings))

    def found(self, settings: DataSettings) -> Pair:
        """What is in the file."""
        path = settings.own()
        with unchanged(path):
            return _found(path)


def _found(path: Path) -> Pair:
    where = repr(str(path))
    try:
        with opened(path) as file:
            return found_in(file.files, file.__getitem__, where)
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise MaplError(f"{where} is not an .npz file of plain arrays, or is cut off: {error}") from error


def opened(path: Path) -> NpzFile:
    """The file, whose arrays are not read yet."""
    # No pickles: a data file must not be able to run code.
    file = np.load(path, allow_pickle=False)
    if not isinstance(file, NpzFile):
        raise MaplError(f"{str(path)!r} is a single array; it should be an .npz file with samples and labels")
    return file
