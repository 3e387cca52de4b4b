"""Your own images, one per file."""

from __future__ import annotations

from typing import Any, ClassVar

from mapl.data.arrays import labelled, mean_and_std
from mapl.data.dataset import Dataset, DataSettings, Progress, unseen
from mapl.data.imagefiles import class_names, decode, image_files

__all__ = ["Folder"]


class Folder:
    """Your own images: a folder with train/<class>/*.png and test/<class>/*.png (or jpg), all of one size.

    `data.folder` is that folder. Classes are numbered in the order of their names. Images are grey or RGB, and are
    normalised with the mean and standard deviation of the training images.
    """

    name: ClassVar[str] = "folder"
    suggests: ClassVar[dict[str, Any]] = {}
    own: ClassVar[bool] = True

    def __init__(self, progress: Progress = unseen) -> None:
        self.progress = progress

    def load(self, settings: DataSettings) -> Dataset:
        root = settings.own()
        names = class_names(root / "train")
        listed = {split: image_files(root / split, names) for split in ("train", "test")}
        files = [file for found, _ in listed.values() for file in found]
        pixels = decode(files, progress=self.progress)
        count = len(listed["train"][0])
        train = labelled(pixels[:count], listed["train"][1], len(names), root / "train")
        test = labelled(pixels[count:], listed["test"][1], len(names), root / "test")
        return Dataset(self.name, train, test, len(names), *mean_and_std(train.pixels), tuple(names))
