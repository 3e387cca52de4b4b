"""CIFAR-10 (Krizhevsky, 2009), https://www.cs.toronto.edu/~kriz/cifar.html."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from mapl.data.arrays import labelled
from mapl.data.dataset import Dataset, DataSettings, Images
from mapl.data.pickles import read_pickle
from mapl.data.published import CIFAR_CLASSES, IMAGENET_MEAN, IMAGENET_STD, SUGGESTS, Download, Published
from mapl.errors import MaplError

__all__ = ["Cifar10"]

FOLDER, ARCHIVE = "cifar-10-batches-py", "cifar-10-python.tar.gz"
ARCHIVE_MD5 = "c58f30108f718f92721af3b95e74349a"
BATCHES = {
    f"{FOLDER}/data_batch_1": "c99cafc152244af753f735de768cd75f",
    f"{FOLDER}/data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    f"{FOLDER}/data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    f"{FOLDER}/data_batch_4": "634d18415352ddfa80567beed471001a",
    f"{FOLDER}/data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    f"{FOLDER}/test_batch": "40351d587109b95175f43aff81a1287e",
}
LARGEST = 4 * 10_000 * 3073
"""Bytes of a batch of 10,000 images with their labels. The oldest form of pickles takes up to four for one."""


class Cifar10:
    """60,000 colour images of 32×32 pixels in 10 classes of vehicles and animals.

    Read from cifar-10-batches-py/, or directly from cifar-10-python.tar.gz.
    """

    name: ClassVar[str] = "cifar10"
    suggests: ClassVar[dict[str, Any]] = SUGGESTS
    published: ClassVar[Published] = Published(
        name,
        layouts=(BATCHES, {ARCHIVE: ARCHIVE_MD5}),
        downloads=(
            Download(
                ARCHIVE,
                ARCHIVE_MD5,
                (f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}",),
                most=6 * LARGEST,
                unpack=FOLDER,
            ),
        ),
    )

    def load(self, settings: DataSettings) -> Dataset:
        found = self.published.open(settings.root())
        batches = {path: _images(content, where) for path, content, where in _contents(found)}
        if missing := [path for path in BATCHES if path not in batches]:
            raise MaplError(f"{str(found[ARCHIVE])!r} does not contain {', '.join(missing)}")
        *train, test = (batches[path] for path in BATCHES)
        return Dataset(
            name=self.name,
            train=Images(torch.cat([part.pixels for part in train]), torch.cat([part.labels for part in train])),
            test=test,
            classes=10,
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
            class_names=CIFAR_CLASSES,
        )


def _contents(found: Mapping[str, Path]) -> Iterator[tuple[str, bytes, Path]]:
    """Each batch: its name, its bytes, and the file they come from."""
    for path, place in found.items():
        try:
            if path != ARCHIVE:
                _check_size(place.stat().st_size, place)
                yield path, place.read_bytes(), place
                continue
            # In the order of the archive: seeking back in a compressed file means starting over.
            with tarfile.open(place) as archive:
                for member in archive:
                    if member.name in BATCHES and (file := archive.extractfile(member)) is not None:
                        _check_size(member.size, place / member.name)
                        yield member.name, file.read(), place / member.name
        except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
            raise MaplError(f"{str(place)!r} is broken or cut off: {error}") from error


def _check_size(size: int, where: Path) -> None:
    if size > LARGEST:
        raise MaplError(f"{str(where)!r} has {size:,} bytes; a batch of CIFAR-10 has at most {LARGEST:,}")


def _images(content: bytes, where: Path) -> Images:
    """A batch: a dictionary with `data` (N, 3072), the red, green and blue plane of each image, and a list `labels`."""
    batch = read_pickle(content, str(where))
    fields = {key.decode() if isinstance(key, bytes) else key: value for key, value in _items(batch)}
    data, labels = fields.get("data"), fields.get("labels")
    if not isinstance(data, np.ndarray) or not isinstance(labels, list):
        raise MaplError(
            f"{str(where)!r} is not a batch of CIFAR-10: it should have an array 'data' and a list 'labels'"
        )
    if data.ndim != 2 or data.shape[1] != 3 * 32 * 32 or not all(type(label) is int for label in labels):
        raise MaplError(
            f"{str(where)!r} has images of shape {data.shape[1:]}, not (3072,), or labels that are not whole numbers"
        )
    return labelled(data.reshape(-1, 3, 32, 32), np.array(labels, np.int64), 10, where)


def _items(batch: Any) -> Iterator[tuple[Any, Any]]:
    return iter(batch.items()) if isinstance(batch, dict) else iter(())
