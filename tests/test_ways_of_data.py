"""Ways to bring data of one's own: files and objects as people have them. Each runs with nothing set but the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits, load_iris
from typer.testing import CliRunner

from mapl.cli.app import app

DIGITS = load_digits()
IRIS = load_iris()
FIRST = 120
"""So many digits are enough here."""


@pytest.fixture(autouse=True)
def _in_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run_files(path: str) -> str:
    """What `mapl run --data PATH` says first. That it trains, is resumed to the byte and exported is checked."""
    said = mapl("run", "--data", path, "--rounds", "2", "--name", "whole")
    mapl("run", "--data", path, "--rounds", "1", "--name", "half")
    mapl("resume", "runs/half", "--rounds", "2")
    assert Path("runs/half/history.jsonl").read_bytes() == Path("runs/whole/history.jsonl").read_bytes()
    mapl("export", "runs/half", "--to", "models")
    assert len(list(Path("models").glob("*.safetensors"))) >= 2
    return said


def mapl(*words: str) -> str:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, f"{result.output}{result.exception!r}"
    return result.stdout


def digit(number: int, depth: int = 8) -> Image.Image:
    """A handwritten digit of 8×8 pixels, with 8 or 16 bits."""
    pixels = DIGITS.images[number] * ((1 << depth) - 1) / 16
    return Image.fromarray(pixels.astype(np.uint16 if depth == 16 else np.uint8))


def save(image: Image.Image, path: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def test_pictures_in_a_folder_a_class() -> None:
    for i in range(FIRST):
        save(digit(i), f"photos/{DIGITS.target[i]}/{i}.png")
    said = run_files("photos")
    assert "images of 8×8 pixels and 1 channel in 10 classes" in said
    assert "nothing says which are for tests: a fifth of each class was drawn" in said
    assert "converted" not in said


def test_pictures_of_all_formats_modes_and_sizes_in_folders_within_folders() -> None:
    forms = [
        ("L", "jpg"), ("RGB", "jpeg"), ("RGB", "bmp"), ("RGB", "tiff"), ("RGBA", "png"), ("LA", "png"), ("P", "png"),
        ("1", "png"), ("CMYK", "tif"),
    ]  # fmt: skip
    for i in range(FIRST):
        mode, ending = forms[i % len(forms)]
        image = digit(i).convert("RGB" if mode == "CMYK" else mode).convert(mode)
        if i % 10 == 3:
            image = image.resize((20, 14))
        folder = "2024/spring" if i % 2 else "2025"
        save(image, f"photos/{'test' if i % 4 == 0 else 'train'}/{DIGITS.target[i]}/{folder}/{i}.{ending}")
    said = run_files("photos")
    assert "90 training and 30 test images of 8×8 pixels and 3 channels" in said
    assert "of 120 images were converted: 79 to RGB (they were 14 L, 13 RGBA, 13 1, 13 P, 13 CMYK, 13 LA)" in said
    assert "; 12 to 8×8 pixels, cut off where the shape differs (data.size: another)" in said


def test_pictures_of_16_bits() -> None:
    for i in range(FIRST):
        save(digit(i, 16), f"scans/{DIGITS.target[i]}/{i}.{'tif' if i % 2 else 'png'}")
    said = run_files("scans")
    assert "images of 8×8 pixels and 1 channel in 10 classes" in said
    assert "of 120 images were converted: 120 of 16 bits to numbers from 0 to 1" in said


def test_arrays_of_images_in_a_file() -> None:
    images, labels = (DIGITS.images * 15).astype(np.uint8), DIGITS.target
    np.savez("digits.npz", x_train=images[:90], y_train=labels[:90], x_test=images[90:120], y_test=labels[90:120])
    assert "found     90 training and 30 test images of 8×8 pixels and 1 channel in 10 cl" in run_files("digits.npz")


def test_signals_in_a_file() -> None:
    labels = np.arange(FIRST) % 3
    signals = np.random.default_rng(0).normal(size=(FIRST, 2, 12)) + labels[:, None, None]
    np.savez("signals.npz", X=signals, y=np.array(["walking", "sitting", "cycling"])[labels])
    said = run_files("signals.npz")
    assert "96 training and 24 test samples of 2×12 numbers in 3 classes" in said
    assert "cycling 40, sitting 40, walking 40" in said


def test_token_ids_in_a_file() -> None:
    labels = np.arange(FIRST) % 2
    tokens = np.random.default_rng(0).integers(1, 20, (FIRST, 9)) + 20 * labels[:, None]
    np.savez("texts.npz", tokens=tokens, labels=labels)
    assert "96 training and 24 test texts of 9 tokens out of 40 in 2 classes" in run_files("texts.npz")


def test_a_table_with_names_as_labels() -> None:
    lines = ["sepal length,sepal width,petal length,petal width,kind"]
    lines += [
        f"{','.join(map(str, row))},{IRIS.target_names[k]}" for row, k in zip(IRIS.data, IRIS.target, strict=True)
    ]
    Path("iris.csv").write_text("\n".join(lines))
    said = run_files("iris.csv")
    assert "120 training and 30 test rows of 4 numbers in 3 classes" in said
    assert "setosa 50, versicolor 50, virginica 50" in said
    assert "labels: column 'kind', the only one with text" in said


def test_a_table_in_parquet() -> None:
    pytest.importorskip("pyarrow")
    import pandas

    frame = pandas.DataFrame(IRIS.data, columns=IRIS.feature_names).assign(target=IRIS.target_names[IRIS.target])
    frame.to_parquet("iris.parquet")
    assert "120 training and 30 test rows of 4 numbers in 3 classes" in run_files("iris.parquet")
