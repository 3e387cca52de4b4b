"""Images of a published data set in files, with one folder per class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mapl.data.dataset import Progress, unseen
from mapl.errors import MaplError

SUFFIXES = (".png", ".jpg", ".jpeg")


def class_names(split: Path) -> list[str]:
    """The folders of a split, in the order of their names."""
    try:
        names = sorted(entry.name for entry in split.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise MaplError(f"{str(split)!r} is not a folder that can be read: {error.strerror}") from error
    if not names:
        raise MaplError(f"{str(split)!r} has no folders: it should have one per class, with the images of that class")
    return names


def image_files(split: Path, names: Sequence[str]) -> tuple[list[Path], NDArray[np.int64]]:
    """The images of a split, class by class in the order of their names, and the class number of each."""
    strangers = sorted(set(class_names(split)) - set(names))
    if strangers:
        raise MaplError(
            f"{str(split / strangers[0])!r} is not a class of this data set; its classes: {', '.join(names)}"
        )
    files: list[Path] = []
    labels: list[int] = []
    for number, name in enumerate(names):
        found = [path for path in _inside(split / name) if path.name.lower().endswith(SUFFIXES)]
        files += found
        labels += [number] * len(found)
    if not files:
        raise MaplError(f"{str(split)!r} has no images ({', '.join(SUFFIXES)}) in the folders of its classes")
    return files, np.array(labels, np.int64)


def _inside(folder: Path) -> list[Path]:
    """The content of a class's folder, by name. A class without test images needs no folder."""
    try:
        return sorted((path for path in folder.iterdir() if not path.name.startswith(".")), key=lambda path: path.name)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise MaplError(f"{str(folder)!r} is not a folder that can be read: {error.strerror}") from error


def decode(files: Sequence[Path], shape: tuple[int, int, int], progress: Progress = unseen) -> NDArray[np.uint8]:
    """The pixels (N, C, H, W) of image files of this shape (C, H, W), converted to RGB."""
    pixels = np.empty((len(files), *shape), np.uint8)
    for number, path in enumerate(files):
        image = _pixels(path)
        if image.shape != shape:
            raise MaplError(f"{str(path)!r} is an image of {_size(image.shape)}; it should have {_size(shape)}")
        pixels[number] = image
        progress(number + 1, len(files))
    return pixels


def _pixels(path: Path) -> NDArray[np.uint8]:
    """One image (C, H, W)."""
    try:
        with Image.open(path) as image:
            values = np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
    except Exception as error:  # Pillow's decoders raise many kinds of errors
        raise MaplError(f"{str(path)!r} is not an image that can be read: {error}") from error
    return values.transpose(2, 0, 1)


def _size(shape: Sequence[int]) -> str:
    return f"{shape[2]}×{shape[1]} pixels and {shape[0]} channel{'s' if shape[0] > 1 else ''}"
