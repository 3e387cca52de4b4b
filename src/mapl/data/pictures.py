"""Pictures as people have them, of any format, mode and size, as one array of pixels."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from mapl.data.dataset import Progress, unseen
from mapl.data.files import changed, stamp
from mapl.errors import MaplError

Array = NDArray[Any]
Size = int | tuple[int, int] | None
"""Pixels of a side, or height and width; None: as the pictures are, if they are small and of one size."""

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif", ".webp")
DEEP = ("I;16", "I;16L", "I;16B", "I")
"""Pillow's modes of grey pixels with 16 bits."""
GREY = ("1", "L", "LA", *DEEP)
LARGEST_KEPT = 128
"""Pictures of one size keep it up to this many pixels a side."""
SIDE = 64
"""Otherwise they become squares of this side, or of a smaller one if they are smaller themselves."""
ORIENTATION = 0x0112
"""Where EXIF says how a camera was held."""
TURNED = (5, 6, 7, 8)
"""Its values for a quarter turn."""


@dataclass(frozen=True)
class Picture:
    """One picture that is not decoded yet."""

    name: str
    """For sentences."""
    open: Callable[[], Image.Image]
    path: Path | None = None


def of_file(path: Path) -> Picture:
    return Picture(repr(str(path)), lambda: Image.open(path), path)


def of_bytes(content: bytes, name: str) -> Picture:
    return Picture(name, lambda: Image.open(io.BytesIO(content)))


def of_image(image: Image.Image, name: str) -> Picture:
    return Picture(name, image.copy)


def read_pictures(
    pictures: Sequence[Picture], size: Size = None, progress: Progress = unseen
) -> tuple[Array, tuple[str, ...]]:
    """Pixels (N, H, W, C), and what was converted in sentences.

    All become grey if all are grey, and otherwise RGB, without transparency. Of 16-bit pictures all become floats in
    [0, 1]. A picture of another size is scaled, and cut off where its shape differs.
    """
    stamps = [stamp(picture.path) for picture in pictures]
    looks = [_look(picture) for picture in pictures]
    channels = 1 if all(look.mode in GREY for look in looks) else 3
    deep = any(look.mode in DEEP for look in looks)
    sides = _sides(looks, size)
    pixels = np.empty((len(pictures), *sides, channels), np.float32 if deep else np.uint8)
    for number, picture in enumerate(pictures):
        pixels[number] = _pixels(picture, channels, sides, deep)
        if stamp(picture.path) != stamps[number]:
            raise changed(picture.name)
        progress(number + 1, len(pictures))
    return pixels, tuple(_notes(looks, channels, sides, deep))


@dataclass(frozen=True)
class _Look:
    """What a picture says of itself before it is decoded."""

    mode: str
    sides: tuple[int, int]
    """Height and width, as one sees it."""
    pages: int


def _look(picture: Picture) -> _Look:
    with _opened(picture) as image:
        width, height = image.size
        turned = image.getexif().get(ORIENTATION) in TURNED
        mode = "RGBA" if image.mode == "P" and "transparency" in image.info else image.mode
        return _Look(mode, (width, height) if turned else (height, width), getattr(image, "n_frames", 1))


@contextmanager
def _opened(picture: Picture) -> Iterator[Image.Image]:
    try:
        with picture.open() as image:
            yield image
    except MaplError as error:
        raise MaplError(f"{picture.name} cannot be used: {error}") from error
    except Exception as error:  # Pillow's decoders raise many kinds of errors
        raise MaplError(f"{picture.name} is not an image that can be read: {error}") from error


def _sides(looks: Sequence[_Look], size: Size) -> tuple[int, int]:
    """Height and width of all."""
    if size is not None:
        return (size, size) if isinstance(size, int) else size
    first = looks[0].sides
    if all(look.sides == first for look in looks) and max(first) <= LARGEST_KEPT:
        return first
    shorter = sorted(min(look.sides) for look in looks)
    side = min(SIDE, shorter[len(shorter) // 2])
    return side, side


def _pixels(picture: Picture, channels: int, sides: tuple[int, int], deep: bool) -> Array:
    """One picture (H, W, C)."""
    with _opened(picture) as image:
        upright = ImageOps.exif_transpose(image)
        if upright.mode in DEEP:
            shown, scale = upright.convert("F"), 1 / 65535
        else:
            shown, scale = _plain(upright, "L" if channels == 1 else "RGB"), 1 / 255
        height, width = sides
        if shown.size != (width, height):
            shown = ImageOps.fit(shown, (width, height), Image.Resampling.BILINEAR)
        values = np.asarray(shown)
    if shown.mode == "F" and (values.min() < 0 or values.max() > 65535):
        raise MaplError(f"{picture.name} has pixels from {values.min():g} to {values.max():g}; save it with 16 bits")
    if deep:
        values = values.astype(np.float32) * np.float32(scale)
    return np.broadcast_to(values[:, :, None] if values.ndim == 2 else values, (*sides, channels))


def _plain(image: Image.Image, mode: str) -> Image.Image:
    """Of one mode, with white where it is transparent."""
    if image.mode == "F":
        raise MaplError("its pixels are floats; save it with 8 or 16 bits")
    if image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image if image.mode == mode else image.convert(mode)


def _notes(looks: Sequence[_Look], channels: int, sides: tuple[int, int], deep: bool) -> Iterator[str]:
    mode, total = "L" if channels == 1 else "RGB", len(looks)
    others = Counter(look.mode for look in looks if look.mode != mode and not (channels == 1 and look.mode in DEEP))
    height, width = sides
    parts: list[str] = []
    if others:
        listed = ", ".join(f"{count:,} {name}" for name, count in others.most_common())
        parts.append(f"{others.total():,} to {'grey' if channels == 1 else 'RGB'} (they were {listed})")
    if deep:
        parts.append(f"{sum(look.mode in DEEP for look in looks):,} of 16 bits to numbers from 0 to 1")
    if resized := sum(look.sides != sides for look in looks):
        parts.append(f"{resized:,} to {width}×{height} pixels, cut off where the shape differs (data.size: another)")
    if parts:
        yield f"of {total:,} images were converted: {'; '.join(parts)}"
    if pages := sum(look.pages > 1 for look in looks):
        yield f"{pages:,} images have several pages or frames: the first is taken"


def files_below(folder: Path) -> list[Path]:
    """All pictures in a folder and in its folders, by name."""
    found: list[Path] = []
    try:
        for place, folders, files in os.walk(folder, onerror=_fail):
            folders[:] = sorted(name for name in folders if is_seen(name))
            found += [Path(place, name) for name in files if is_seen(name) and name.lower().endswith(SUFFIXES)]
    except OSError as error:
        where = str(error.filename or folder)
        raise MaplError(f"{where!r} is not a folder that can be read: {error.strerror}") from error
    return sorted(found)


def _fail(error: OSError) -> None:
    raise error


def is_seen(name: str) -> bool:
    """Whether a file or folder is the user's: no hidden one, and none that a system puts beside them."""
    return not name.startswith((".", "__MACOSX"))
