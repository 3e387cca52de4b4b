"""Images in files, with one folder per class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mapl.data.dataset import Progress, unseen
from mapl.errors import MaplError

SUFFIXES = (".png", ".jpg", ".jpeg")
CHANNELS = {"L": 1, "RGB": 3}
"""Channels by Pillow's mode; images of other modes are refused or converted."""


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


def decode(
    files: Sequence[Path],
    shape: tuple[int, int, int] | None = None,
    convert: bool = False,
    progress: Progress = unseen,
) -> NDArray[np.uint8]:
    """The pixels (N, C, H, W) of image files that all have this shape (C, H, W), or else the shape of the first.

    With `convert`, every image is converted to RGB. Otherwise images that are neither grey nor RGB are refused.
    """
    first = _pixels(files[0], convert)
    pixels = np.empty((len(files), *(shape or first.shape)), np.uint8)
    for number, path in enumerate(files):
        image = _pixels(path, convert)
        if image.shape != pixels.shape[1:]:
            as_first = "" if shape else f", as {str(files[0])!r} has"
            raise MaplError(
                f"{str(path)!r} is an image of {_size(image.shape)}; it should have {_size(pixels.shape[1:])}{as_first}"
            )
        pixels[number] = image
        progress(number + 1, len(files))
    return pixels


def _pixels(path: Path, convert: bool) -> NDArray[np.uint8]:
    """One image (C, H, W)."""
    try:
        with Image.open(path) as image:
            mode = image.mode
            values = np.asarray(image.convert("RGB") if convert and mode != "RGB" else image)
    except Exception as error:  # Pillow's decoders raise many kinds of errors
        raise MaplError(f"{str(path)!r} is not an image that can be read: {error}") from error
    if not convert and mode not in CHANNELS:
        raise MaplError(f"{str(path)!r} is an image of mode {mode!r}; save it as grey (L) or RGB, 8 bits per channel")
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)


def _size(shape: Sequence[int]) -> str:
    return f"{shape[2]}×{shape[1]} pixels and {shape[0]} channel{'s' if shape[0] > 1 else ''}"
