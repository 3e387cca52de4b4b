"""Ways to bring data of one's own: files and objects as people have them. Each runs with nothing set but the data."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits, load_iris
from typer.testing import CliRunner

from conftest import line_with
from mapl import MaplError, Recipe, Record, dataset, datasets, resume, run
from mapl.cli.app import app
from mapl.runs.export import export_run

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
    assert re.search(line_with("images", "8×8", "1 channel", "10 classes"), said)
    assert "a fifth of each class" in said
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
    assert re.search(line_with("90 training", "30 test", "8×8", "3 channels"), said)
    modes = "14 L, 13 RGBA, 13 1, 13 P, 13 CMYK, 13 LA"
    assert re.search(
        line_with("120 images", "converted", "79 to RGB", modes, "12 to 8×8", "cut off", "data.size"), said
    )


def test_pictures_of_16_bits() -> None:
    for i in range(FIRST):
        save(digit(i, 16), f"scans/{DIGITS.target[i]}/{i}.{'tif' if i % 2 else 'png'}")
    said = run_files("scans")
    assert re.search(line_with("images", "8×8", "1 channel", "10 classes"), said)
    assert re.search(line_with("120 images", "converted", "120 of 16 bits"), said)


def test_arrays_of_images_in_a_file() -> None:
    images, labels = (DIGITS.images * 15).astype(np.uint8), DIGITS.target
    np.savez("digits.npz", x_train=images[:90], y_train=labels[:90], x_test=images[90:120], y_test=labels[90:120])
    said = run_files("digits.npz")
    assert re.search(line_with("found ", "90 training", "30 test", "8×8", "1 channel", "10 classes"), said)


def test_signals_in_a_file() -> None:
    labels = np.arange(FIRST) % 3
    signals = np.random.default_rng(0).normal(size=(FIRST, 2, 12)) + labels[:, None, None]
    np.savez("signals.npz", X=signals, y=np.array(["walking", "sitting", "cycling"])[labels])
    said = run_files("signals.npz")
    assert re.search(line_with("96 training", "24 test", "2×12 numbers", "3 classes"), said)
    assert "cycling 40, sitting 40, walking 40" in said


def test_token_ids_in_a_file() -> None:
    labels = np.arange(FIRST) % 2
    tokens = np.random.default_rng(0).integers(1, 20, (FIRST, 9)) + 20 * labels[:, None]
    np.savez("texts.npz", tokens=tokens, labels=labels)
    said = run_files("texts.npz")
    assert re.search(line_with("96 training", "24 test texts", "9 tokens", "40", "2 classes"), said)


IRIS_FACTS = line_with("120 training", "30 test rows", "4 numbers", "3 classes")


def test_a_table_with_names_as_labels() -> None:
    lines = ["sepal length,sepal width,petal length,petal width,kind"]
    lines += [
        f"{','.join(map(str, row))},{IRIS.target_names[k]}" for row, k in zip(IRIS.data, IRIS.target, strict=True)
    ]
    Path("iris.csv").write_text("\n".join(lines))
    said = run_files("iris.csv")
    assert re.search(IRIS_FACTS, said)
    assert "setosa 50, versicolor 50, virginica 50" in said
    assert "labels: column 'kind', the only one with text" in said


def test_a_table_in_parquet() -> None:
    pytest.importorskip("pyarrow")
    import pandas

    frame = pandas.DataFrame(IRIS.data, columns=IRIS.feature_names).assign(target=IRIS.target_names[IRIS.target])
    frame.to_parquet("iris.parquet")
    assert re.search(IRIS_FACTS, run_files("iris.parquet"))


def run_object(data: Any) -> Record:
    """The run on nothing but this object. That it is resumed to the byte and exported is checked."""
    first = run(folder="runs/whole", data=data)
    whole = run(Recipe.of(data=data, rounds=2), "runs/two", data=data)
    run(Recipe.of(data=data, rounds=1), "runs/half", data=data)
    resume("runs/half", rounds=2, data=data)
    assert Path("runs/half/history.jsonl").read_bytes() == Path("runs/two/history.jsonl").read_bytes()
    assert len(export_run("runs/half", "models", data=data)) == len(whole.clients)
    with pytest.raises(MaplError, match="given in Python: pass it again"):
        resume("runs/half", rounds=3)
    return first


class Letters(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """A data set of torch, as people write them."""

    def __len__(self) -> int:
        return FIRST

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(DIGITS.images[index] / 16).float()[None], int(DIGITS.target[index])


class Rows:
    """What this package needs of a data set of Hugging Face."""

    def __init__(self, columns: dict[str, list[Any]], names: dict[str, list[str]] | None = None):
        self.columns_, self.column_names = columns, list(columns)
        self.features = {name: SimpleNamespace(names=(names or {}).get(name)) for name in columns}

    def __len__(self) -> int:
        return len(self.columns_[self.column_names[0]])

    def __getitem__(self, key: str) -> list[Any]:
        return self.columns_[key]


def test_numpy_arrays() -> None:
    record = run_object((IRIS.data, IRIS.target_names[IRIS.target]))
    assert record.mean > 0.8
    assert record.recipe.model.backbones == ("mlp",)
    others = IRIS.data.copy()
    others[0] += 1
    with pytest.raises(MaplError, match="the data are not those of run"):
        resume("runs/half", rounds=3, data=(others, IRIS.target_names[IRIS.target]))


def test_a_data_set_of_torch() -> None:
    record = run_object(Letters())
    assert record.mean > 0.4


def test_a_data_set_of_hugging_face() -> None:
    labels = [i % 2 for i in range(FIRST)]
    draw = np.random.default_rng(0)
    texts = [(draw.integers(1, 20, draw.integers(3, 9)) + 20 * k).tolist() for k in labels]
    texts = [[*ids, *[0] * (9 - len(ids))] for ids in texts]
    masks = [[int(i > 0) for i in ids] for ids in texts]
    columns = {"input_ids": texts, "attention_mask": masks, "label": labels}
    data = Rows(columns, {"label": ["bad", "good"]})
    made = dataset(data)
    assert (made.kind, made.class_names, made.shape.facts) == ("tokens", ("bad", "good"), ((9,), 40))
    assert run_object({"train": data}).recipe.model.backbones == ("transformer",)


def test_a_data_set_of_hugging_face_itself() -> None:
    datasets_ = pytest.importorskip("datasets")
    features = datasets_.Features({"image": datasets_.Image(), "label": datasets_.ClassLabel(names=list("abcdefghij"))})
    rows = {"image": [digit(i) for i in range(FIRST)], "label": DIGITS.target[:FIRST].tolist()}
    data = datasets_.Dataset.from_dict(rows, features=features).train_test_split(0.25, seed=0)
    made = dataset(data)
    assert (made.shape, made.class_names, len(made.test)) == ((1, 8, 8), tuple("abcdefghij"), 30)
    run_object(data)


def test_a_frame_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(IRIS.data, columns=IRIS.feature_names)
    frame["species"] = pandas.Categorical(IRIS.target_names[IRIS.target])
    made = dataset(frame)
    assert (made.class_names, made.train.columns) == (("setosa", "versicolor", "virginica"), tuple(IRIS.feature_names))
    run_object(frame)


def test_one_data_set_a_client() -> None:
    """Five sites of several sizes. The last two lack a class each."""
    order = np.random.default_rng(0).permutation(150)
    parts = np.split(order, [50, 90, 110, 130])
    parts[3] = parts[3][IRIS.target[parts[3]] != 0]
    parts[4] = parts[4][IRIS.target[parts[4]] != 2]
    names = ("Aarau", "Basel", "Bern", "Genf", "Zug")
    sites = {
        name: (IRIS.data[part], IRIS.target_names[IRIS.target[part]]) for name, part in zip(names, parts, strict=True)
    }
    made = datasets(sites)
    assert [(one.name, one.classes) for one in made.values()] == [(name, 3) for name in names]
    assert made[3].train.counts(3)[0] == made[4].train.counts(3)[2] == 0
    assert len({one.mean for one in made.values()}) == 1
    record = run_object(sites)
    assert [len(card.classes) for card in record.clients] == [3, 3, 3, 2, 2]
    assert record.clients[0].samples > 2 * record.clients[2].samples
    assert run(data=list(sites.values()), folder="runs/again").mean == record.mean


@pytest.mark.slow
def test_the_page_about_ones_own_data(tmp_path: Path) -> None:
    """Every command and every line of Python of docs/own-data.md, with the files and names that it takes for given."""
    pandas = pytest.importorskip("pandas")
    page = (Path(__file__).parents[1] / "docs/own-data.md").read_text(encoding="utf-8")
    for i in range(FIRST):
        save(digit(i), f"photos/{DIGITS.target[i]}/{i}.png")
    images, labels = (DIGITS.images[:FIRST] * 15).astype(np.uint8), DIGITS.target[:FIRST]
    np.savez("digits.npz", images=images, labels=labels)
    frame = pandas.DataFrame(IRIS.data, columns=IRIS.feature_names).assign(kind=IRIS.target_names[IRIS.target])
    for name in ("patients.csv", "basel.csv"):
        frame.to_csv(name)
    X, y, kinds = IRIS.data, IRIS.target, IRIS.target_names[IRIS.target]
    given = {
        "X": X, "y": y, "X_test": X[::3], "y_test": y[::3], "tokens": np.arange(600).reshape(150, 4), "frame": frame,
        "images": images, "digits": labels, "bern": frame, "X_zug": X[:50], "y_zug": kinds[:50],
        "torch_dataset": Letters(), "hugging_face": Rows({"x": X[:, 0].tolist(), "z": X[:, 1].tolist(), "label": y.tolist()}),
    }  # fmt: skip
    commands = [line.split("#")[0].split() for line in page.splitlines() if line.startswith("mapl ")]
    assert len(commands) >= 4
    for command in commands:
        mapl(*command[1:], *(["--rounds", "1"] if command[1] == "run" else []))
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 4
    exec("\n".join(blocks), given)
    assert "3 classes" in repr(given["data"][0])
