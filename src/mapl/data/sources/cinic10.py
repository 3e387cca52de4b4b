"""CINIC-10 (Darlow et al., 2018), https://github.com/BayesWatch/cinic-10."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from mapl.data.arrays import Array, labelled
from mapl.data.dataset import Dataset, DataSettings, Progress, unseen
from mapl.data.imagefiles import decode, image_files
from mapl.data.published import CIFAR_CLASSES, IMAGENET_MEAN, IMAGENET_STD, SUGGESTS, Download, Published, log

__all__ = ["Cinic10"]

FOLDER = "cinic-10"
SPLITS = ("train", "test")
SHAPE = (3, 32, 32)
CACHE = "decoded.safetensors"


class Cinic10:
    """270,000 colour images of 32×32 pixels in the classes of CIFAR-10, from CIFAR-10 and from ImageNet.

    As in the paper, the training and the test images are used, 90,000 each, and the validation images are not. The
    first time, the files are decoded one by one. The result is kept in cinic-10/decoded.safetensors.
    """

    name: ClassVar[str] = "cinic10"
    suggests: ClassVar[dict[str, Any]] = SUGGESTS
    published: ClassVar[Published] = Published(
        name,
        layouts=({f"{FOLDER}/{split}": None for split in SPLITS},),
        downloads=(
            Download(
                "CINIC-10.tar.gz",
                "6ee4d0c996905fe93221de577967a372",
                ("https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",),
                most=270_000 * 4608,  # an image: its pixels, and what PNG and tar add
                unpack=FOLDER,
            ),
        ),
    )

    def __init__(self, progress: Progress = unseen) -> None:
        self.progress = progress

    def load(self, settings: DataSettings) -> Dataset:
        places = list(self.published.open(settings.root()).values())
        listed = [image_files(place, CIFAR_CLASSES) for place in places]
        pixels = self._pixels([files for files, _ in listed], settings.root() / FOLDER / CACHE)
        train, test = (
            labelled(array, labels, 10, place, SHAPE)
            for array, (_, labels), place in zip(pixels, listed, places, strict=True)
        )
        return Dataset(self.name, train, test, 10, IMAGENET_MEAN, IMAGENET_STD, CIFAR_CLASSES)

    def _pixels(self, splits: Sequence[Sequence[Path]], cache: Path) -> list[Array]:
        """The pixels of each split: from the cache if it belongs to these files, otherwise decoded and cached."""
        key = _key(splits)
        kept = _kept(cache, key)
        if kept is not None:
            return kept
        files = [file for split in splits for file in split]
        log.warning("decoding %s images in %r; this is done once", f"{len(files):,}", str(cache.parent))
        pixels = decode(files, SHAPE, self.progress)
        decoded = np.split(pixels, np.cumsum([len(split) for split in splits])[:-1])
        _keep(decoded, cache, key)
        return decoded


def _key(splits: Sequence[Sequence[Path]]) -> str:
    """Identifies a list of files. Nobody edits the images of a published data set, so names are enough."""
    digest = hashlib.sha256()
    for split in splits:
        digest.update("\n".join([str(len(split)), *(path.name for path in split)]).encode())
    return digest.hexdigest()


def _kept(cache: Path, key: str) -> list[Array] | None:
    """What was decoded earlier; None if there is no cache, or it is damaged or belongs to other files."""
    try:
        with safe_open(cache, framework="numpy") as file:
            if (file.metadata() or {}).get("files") != key:
                return None
            return [file.get_tensor(split) for split in SPLITS]
    except (OSError, SafetensorError):
        return None


def _keep(decoded: Sequence[Array], cache: Path, key: str) -> None:
    """Write to another name and rename, so that a crash leaves no partial file. A read-only folder only costs time."""
    temporary = cache.with_name(f".{cache.name}.{os.getpid()}")
    try:
        save_file(dict(zip(SPLITS, decoded, strict=True)), temporary, metadata={"files": key})
        temporary.replace(cache)
    except (OSError, SafetensorError) as error:
        log.warning(
            "the decoded images could not be kept in %r (%s): they are decoded again next time", str(cache), error
        )
    finally:
        temporary.unlink(missing_ok=True)
