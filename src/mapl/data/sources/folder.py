"""Your own images, one per file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from mapl.data.arrays import labelled, mean_and_std
from mapl.data.dataset import Dataset, DataSettings, Images, Progress, unseen
from mapl.data.imagefiles import class_names, decode, image_files
from mapl.data.partition import DRAWN, divided

__all__ = ["Folder"]


class Folder:
    """Your own images: a folder with train/<class>/*.png and test/<class>/*.png (or jpg), all of one size.

    `data.folder` is that folder. Classes are numbered in the order of their names. Images are grey or RGB, and are
    normalised with the mean and standard deviation of the training images. A folder with <class>/*.png alone is taken,
    too: of each class, a fifth become test images, the same each time.
    """

    name: ClassVar[str] = "folder"
    suggests: ClassVar[dict[str, Any]] = {}
    own: ClassVar[bool] = True
    alike: ClassVar[str] = "cnn"

    def __init__(self, progress: Progress = unseen) -> None:
        self.progress = progress

    def load(self, settings: DataSettings) -> Dataset:
        root = settings.own()
        names = class_names(root / "train" if is_split(root) else root)
        drawn = not is_split(root)
        train, test = self._undivided(root, names) if drawn else self._split(root, names)
        found = (DRAWN,) if drawn else ()
        return Dataset(self.name, train, test, len(names), *mean_and_std(train.pixels), tuple(names), found)

    def _split(self, root: Path, names: list[str]) -> tuple[Images, Images]:
        listed = {split: image_files(root / split, names) for split in ("train", "test")}
        files = [file for found, _ in listed.values() for file in found]
        pixels = decode(files, progress=self.progress)
        count = len(listed["train"][0])
        train = labelled(pixels[:count], listed["train"][1], len(names), root / "train")
        return train, labelled(pixels[count:], listed["test"][1], len(names), root / "test")

    def _undivided(self, root: Path, names: list[str]) -> tuple[Images, Images]:
        files, labels = image_files(root, names)
        return divided(labelled(decode(files, progress=self.progress), labels, len(names), root), root)


def is_split(root: Path) -> bool:
    """Whether a folder says which are test images: then it has a folder train or test."""
    return any((root / split).is_dir() for split in ("train", "test"))
