"""Your own images, one per file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mapl.data.dataset import Dataset, DataSettings, Progress, unseen
from mapl.data.found import Found, Pair, dataset_of
from mapl.data.pictures import SUFFIXES, files_below, is_seen, of_file, read_pictures
from mapl.errors import MaplError

__all__ = ["Folder"]

TRAIN = ("train", "training")
TEST = ("test", "testing", "val", "valid", "validation")
"""Names of the folders that say which images are for what; the first that is there is taken."""


class Folder:
    """Your own images: a folder with a folder for each class, or with train/<class> and test/<class>.

    `data.folder` is that folder. Images are PNG, JPEG, BMP, TIFF, GIF or WebP files, also in folders below that of
    their class. Classes are numbered in the order of their names. Images of several modes or sizes are converted to
    one, and a line says so; `data.size` is the size. They are normalised with the mean and standard deviation of the
    training images. Without test images, a fifth of each class become test images, the same each time.
    """

    name: ClassVar[str] = "folder"
    suggests: ClassVar[dict[str, Any]] = {}
    own: ClassVar[bool] = True
    alike: ClassVar[str] = "cnn"

    def __init__(self, progress: Progress = unseen) -> None:
        self.progress = progress

    def load(self, settings: DataSettings) -> Dataset:
        return dataset_of(self.name, repr(str(settings.own())), *self.found(settings))

    def found(self, settings: DataSettings) -> Pair:
        """What is in the folder."""
        root = settings.own()
        train, test, notes = find_splits(root)
        names = _class_names(train)
        splits = [_split(folder, names) for folder in (train, test) if folder is not None]
        pictures = [of_file(path) for split in splits for path in split.files]
        pixels, converted = read_pictures(pictures, settings.size, self.progress)
        notes = (*notes, *converted, *(note for split in splits for note in split.notes))
        count = len(splits[0].files)
        parts = [
            Found(values, np.array(split.labels), "images", names=names, notes=notes)
            for split, values in zip(splits, np.split(pixels, [count]), strict=False)
        ]
        return parts[0], parts[1] if len(parts) > 1 else None


@dataclass(frozen=True)
class _Split:
    """The images of one split, class by class."""

    files: list[Path]
    labels: list[str]
    notes: tuple[str, ...]


def find_splits(root: Path) -> tuple[Path, Path | None, tuple[str, ...]]:
    """The folders with training and test images, and what is to be said of them; None: test images are to be drawn."""
    inside = _folders(root)
    train, test = (_first(inside, names) for names in (TRAIN, TEST))
    if train is None and test is None:
        only = _only(root, inside)
        if only == root:
            return root, None, ()
        below, beside, notes = find_splits(only)
        return below, beside, (f"all images are in {str(only)!r}", *notes)
    if train is None:
        raise MaplError(f"{str(root)!r} has the folder {test!r}, but none named 'train' with training images")
    others = [name for name in inside if name not in (train, test)]
    notes = (f"left out: {', '.join(others)}, beside the folder {train}",) if others else ()
    return root / train, None if test is None else root / test, notes


def _first(inside: list[str], names: tuple[str, ...]) -> str | None:
    """The folder that has one of these names."""
    by_name = {name.lower(): name for name in reversed(inside)}
    return next((by_name[name] for name in names if name in by_name), None)


def _only(root: Path, inside: list[str]) -> Path:
    """The folder with the classes: a folder that has just one folder, with folders in it, is only around it."""
    if len(inside) == 1 and len(_folders(root / inside[0])) > 1 and not any(_loose(root)):
        return root / inside[0]
    return root


def _folders(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and is_seen(entry.name))
    except OSError as error:
        raise MaplError(f"{str(folder)!r} is not a folder that can be read: {error.strerror}") from error


def _loose(folder: Path) -> Iterator[Path]:
    """Images directly in a folder."""
    return (path for path in folder.iterdir() if path.name.lower().endswith(SUFFIXES) and is_seen(path.name))


def _class_names(split: Path) -> tuple[str, ...]:
    """The folders of a split, in the order of their names."""
    names = tuple(_folders(split))
    if not names:
        loose = sum(1 for _ in _loose(split))
        has = f"has {loose:,} images, but no folders" if loose else "has no folders"
        raise MaplError(f"{str(split)!r} {has}: it should have one per class, with the images of that class")
    return names


def _split(split: Path, names: tuple[str, ...]) -> _Split:
    strangers = sorted(set(_folders(split)) - set(names))
    if strangers:
        raise MaplError(
            f"{str(split / strangers[0])!r} is not a class of this data set; its classes: {', '.join(names)}"
        )
    files: list[Path] = []
    labels: list[str] = []
    for name in names:
        found = files_below(split / name) if (split / name).is_dir() else []  # no test images: no folder
        files += found
        labels += [name] * len(found)
    if not files:
        raise MaplError(f"{str(split)!r} has no images ({', '.join(SUFFIXES)}) in the folders of its classes")
    loose = sum(1 for _ in _loose(split))
    notes = (f"{loose:,} images directly in {str(split)!r}, in no folder of a class, were left out",) if loose else ()
    return _Split(files, labels, notes)
