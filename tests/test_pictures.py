"""Pictures of one's own, as cameras and people make them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import line_with
from mapl import Dataset, MaplError
from mapl.data.dataset import DataSettings
from mapl.data.pictures import ORIENTATION
from mapl.data.sources.folder import Folder


def save(path: Path, image: Image.Image | None = None, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    (image or Image.new("L", (6, 4), len(str(path)))).save(path, **options)


def load(root: Path, **settings: Any) -> Dataset:
    return Folder().load(DataSettings(name="folder", folder=root, **settings))


def one(root: Path, image: Image.Image, name: str = "a.png", **options: Any) -> torch.Tensor:
    """The pixels of one image, beside others of another class."""
    save(root / "train/a" / name, image, **options)
    save(root / "test/a" / name, image, **options)
    save(root / "train/b/b.png", Image.new(image.mode if image.mode in ("L", "RGB") else "RGB", image.size))
    return load(root).train.inputs[0]


def test_a_camera_that_was_held_upright(tmp_path: Path) -> None:
    image = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(4, 6) * 10)
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    save(tmp_path / "train/a/a.png", image, exif=exif)
    save(tmp_path / "train/b/b.png", image.transpose(Image.Transpose.ROTATE_270))
    save(tmp_path / "test/b/b.png", Image.new("L", (4, 6)))
    pixels = load(tmp_path).train.inputs
    assert pixels.shape == (2, 1, 6, 4)
    assert torch.equal(pixels[0], pixels[1])


def test_what_is_transparent_becomes_white(tmp_path: Path) -> None:
    image = Image.new("RGBA", (6, 4), (200, 0, 0, 0))
    image.putpixel((1, 0), (200, 0, 0, 255))
    pixels = one(tmp_path, image)
    assert pixels[:, 0, 0].tolist() == [255, 255, 255]
    assert pixels[:, 0, 1].tolist() == [200, 0, 0]


def test_16_bits_are_kept(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.uint16).reshape(4, 6) + 1000
    for name in ("train/a/a.png", "train/b/b.tif", "test/a/a.png"):
        save(tmp_path / name, Image.fromarray(values))
    pixels = load(tmp_path).train.inputs
    assert pixels.dtype == torch.float32
    torch.testing.assert_close(pixels[0, 0] * 65535, torch.from_numpy(values.astype(np.float32)), atol=0.01, rtol=0)
    assert torch.equal(pixels[0], pixels[1])


@pytest.mark.parametrize(
    ("sizes", "asked", "shape"),
    [
        ([(6, 4), (6, 4)], None, (4, 6)),
        ([(6, 4), (8, 5)], None, (5, 5)),
        ([(100, 90), (70, 80)], None, (64, 64)),
        ([(200, 150)] * 2, None, (64, 64)),
        ([(128, 20)] * 2, None, (20, 128)),
        ([(6, 4), (8, 5)], 3, (3, 3)),
        ([(6, 4), (6, 4)], (5, 7), (5, 7)),
    ],
)
def test_sizes(sizes: list[tuple[int, int]], asked: Any, shape: tuple[int, int], tmp_path: Path) -> None:
    for name, size in zip("ab", sizes, strict=True):
        save(tmp_path / "train" / name / "x.png", Image.new("L", size))
    save(tmp_path / "test/b/x.png", Image.new("L", sizes[1]))
    dataset = load(tmp_path, size=asked)
    assert dataset.shape[1:] == shape
    other = sum((height, width) != shape for width, height in [*sizes, sizes[1]])
    assert dataset.found == (
        (f"of 3 images were converted: {other} to {shape[1]}×{shape[0]} pixels, cut off where the shape differs "
        "(data.size: another)",) if other else ()
    )  # fmt: skip


@pytest.mark.parametrize(
    ("paths", "split", "said"),
    [
        (["cat/1.png", "cat/2.png", "dog/1.png", "dog/x/y/2.png"], (2, 2), "a fifth of each class was drawn"),
        (["train/cat/1.png", "train/dog/1.png", "val/cat/1.png"], (2, 1), ""),
        (["Train/cat/1.png", "Train/dog/1.png", "Test/cat/1.png", "val/cat/1.png"], (2, 1), "left out: val, beside"),
        (["train/cat/1.png", "train/cat/2.png", "train/dog/1.png"], (2, 1), "a fifth of each class"),
        (["photos/cat/1.png", "photos/dog/1.png", "photos/dog/2.png"], (2, 1), "all images are in"),
        (["cat/1.png", "dog/1.png", "dog/2.png", "3.png"], (2, 1), "1 images directly in"),
        (["cat/1.png", "dog/1.png", "dog/2.png", "__MACOSX/3.png", ".cache/4.png", "dog/._5.png"], (2, 1), ""),
    ],
)
def test_folders(paths: list[str], split: tuple[int, int], said: str, tmp_path: Path) -> None:
    for path in paths:
        save(tmp_path / path)
    dataset = load(tmp_path)
    assert (len(dataset.train), len(dataset.test)) == split
    assert dataset.class_names == ("cat", "dog")
    assert said in "; ".join(dataset.found)


def test_several_pages(tmp_path: Path) -> None:
    pages = [Image.new("L", (6, 4), grey) for grey in (50, 90)]
    save(tmp_path / "a/1.tif", pages[0], save_all=True, append_images=pages[1:])
    save(tmp_path / "a/2.png", pages[0])
    save(tmp_path / "b/1.png", pages[1])
    dataset = load(tmp_path)
    assert sorted({*dataset.train.inputs[:, 0, 0, 0].tolist(), *dataset.test.inputs[:, 0, 0, 0].tolist()}) == [50, 90]
    assert any(re.match(line_with("1 images", "pages", "first"), line) for line in dataset.found)


def test_a_tiff_of_more_than_16_bits(tmp_path: Path) -> None:
    for name in ("a/1.tif", "b/1.tif", "b/2.tif"):
        save(tmp_path / name, Image.fromarray(np.full((4, 6), 70_000, np.int32)))
    with pytest.raises(MaplError, match=line_with("1.tif'", "70000", "16 bits")):
        load(tmp_path)
