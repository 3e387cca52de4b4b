"""What MNIST and FashionMNIST have in common: four idx files, 10 classes, 28×28 grey pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mapl.data.arrays import labelled
from mapl.data.dataset import Dataset, DataSettings, Images
from mapl.data.idx import read_idx
from mapl.data.published import SUGGESTS, Download, Published

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

GREY_SUGGESTS: dict[str, Any] = {**SUGGESTS, "augment": {"contrastive": {"greyscale": 0}}}
"""The defaults of a recipe with these data sets: no random greyscale, as in the released program. They are grey."""


def publish(name: str, folder: str, md5s: tuple[str, ...], addresses: tuple[str, ...]) -> Published:
    """Four files, gzipped or not; the checksums are for the gzipped ones, in the order of `FILES`."""
    packed = {f"{folder}/{file}.gz": md5 for file, md5 in zip(FILES, md5s, strict=True)}
    return Published(
        name,
        layouts=(packed, {f"{folder}/{file}": None for file in FILES}),
        downloads=tuple(
            Download(path, md5, tuple(address + Path(path).name for address in addresses), most=60_000 * 28 * 28 + 16)
            for path, md5 in packed.items()
        ),
    )


def read(published: Published, settings: DataSettings, class_names: tuple[str, ...] = ()) -> Dataset:
    train_images, train_labels, test_images, test_labels = published.open(settings.root()).values()
    return Dataset(
        name=published.name,
        train=_images(train_images, train_labels),
        test=_images(test_images, test_labels),
        classes=10,
        mean=(0.1307,),
        std=(0.3081,),
        class_names=class_names,
    )


def _images(images: Path, labels: Path) -> Images:
    pixels = read_idx(images, 28, 28)[:, None]
    return labelled(pixels, read_idx(labels), 10, images, shape=(1, 28, 28))
