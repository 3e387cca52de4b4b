"""Own data that cannot be used: one sentence that says what and where, exit status 2, and nothing is written."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import mapl
from conftest import line_with
from mapl import MaplError
from mapl.cli.app import app
from mapl.data.dataset import DataSettings
from mapl.data.sources import table
from mapl.data.sources.folder import Folder
from mapl.data.sources.table import Table

ROWS = [(i, 10 - i, i % 2) for i in range(12)]


def write(text: str) -> Callable[[Path], Path]:
    def made(at: Path) -> Path:
        (at / "own.csv").write_text(text)
        return at / "own.csv"

    return made


def rows(*more: str, header: str = "a,b,label") -> Callable[[Path], Path]:
    """A table with good rows, and then these."""
    return write("\n".join([header, *(",".join(map(str, row)) for row in ROWS), *more]))


def npz(**arrays: Any) -> Callable[[Path], Path]:
    def made(at: Path) -> Path:
        np.savez(at / "own.npz", **{"labels": np.arange(12) % 2, **arrays})
        return at / "own.npz"

    return made


def content(name: str, data: bytes) -> Callable[[Path], Path]:
    def made(at: Path) -> Path:
        (at / name).write_bytes(data)
        return at / name

    return made


def pictures(*paths: str, mode: str = "L") -> Callable[[Path], Path]:
    def made(at: Path) -> Path:
        (at / "own").mkdir()
        for path in paths:
            (at / "own" / path).parent.mkdir(parents=True, exist_ok=True)
            Image.new(mode, (8, 8)).save(at / "own" / path)
        return at / "own"

    return made


FLOATS = np.linspace(0, 1, 48).reshape(12, 4)
ONE_BAD = np.where(np.arange(48).reshape(12, 4) == 9, np.inf, FLOATS)

BAD = {
    "labels that are fractions": (rows("1,2,0.5"), "own.csv', column 'label', has the label 0.5 (sample 12, counted from 0); labels are classes"),
    "a missing label": (rows("1,2,"), "has no label for sample 12"),
    "a missing name": (npz(x=FLOATS, labels=np.array(["a", "b", ""] * 4)), "has no label for sample 2"),
    "labels below 0": (rows("1,2,-1"), "the label -1 (sample 12, counted from 0); classes are numbered from 0"),
    "too few labels": (npz(x=FLOATS, labels=np.arange(9)), "has 12 samples, but labels of type int64 and shape (9,)"),
    "one class": (write("a,label\n1,cat\n2,cat\n"), "has one class only ('cat'): there is nothing to tell apart"),
    "one sample a class": (write("a,label\n1,cat\n2,dog\n"), "has one sample per class"),
    "a gap": (rows("1,,0", "1,,1"), "column 'b' is empty in row 13, and 1 more rows: fill it in"),
    "an infinite feature": (rows("1,inf,0"), "column 'b' has the value inf in row 13"),
    "an infinite number": (npz(x=ONE_BAD), "has the value inf in sample 2, place 1, counted from 0"),
    "a column of text": (rows("Bern,2,0"), "column 'a' holds no numbers (row 13: 'Bern'), and 'label' has the labels"),
    "prose": (rows("a text of many words that say this and that,2,0"), "such as token ids, as lists in a column input_ids"),
    "no column but labels": (write("label\n0\n1\n"), "has no column besides its labels, 'label'"),
    "no labels": (write("a,b\n" + "\n".join(f"{i},{i / 7}" for i in range(40))), "none of 'a', 'b' is called label"),
    "a row too short": (rows("1,2"), "has 2 cells in row 13 below the names, but 3 columns"),
    "a column twice": (write("a,a,label\n1,2,0\n"), "has two columns named 'a'"),
    "a table without rows": (write("a,b,label\n"), "has no rows"),
    "an empty table": (write(""), "is empty"),
    "a table in another encoding": (content("own.csv", b"a,label\nZ\xfcrich,1\n"), "is not a text file in UTF-8"),
    "a damaged Parquet file": (content("own.parquet", b"PAR1 and no more"), "is not a Parquet file, or is cut off"),
    "an unknown kind of file": (content("own.xlsx", b"PK"), "neither a folder of images nor a file that ends in"),
    "an empty folder": (pictures(), "is an empty folder"),
    "pictures in no folder": (pictures("a.png", "b.png"), "has 2 images, but no folders: it should have one per class"),
    "pictures of one class": (pictures("cat/a.png", "cat/b.png"), "there is nothing to tell apart"),
    "floating-point pictures": (pictures("a/a.tif", "b/b.tif", mode="F"), "a.tif' cannot be used: its pixels are floats"),
    "a token beyond the vocabulary": (
        npz(tokens=np.arange(36).reshape(12, 3), vocabulary=30),
        "has the token id 30 in sample 10, place 0, counted from 0; with a vocabulary of 30 ids run from 0 to 29",
    ),
    "tokens that are too large": (npz(x=np.arange(36).reshape(12, 3) * 10**9), "too large for token ids; if they are no"),
    "tokens below 0": (npz(tokens=np.arange(36).reshape(12, 3) - 1), "has the token id -1 in sample 0, place 0"),
    "pixels out of range": (npz(images=np.full((12, 4, 4), 300.0)), "pixels from 300 to 300; they should be from 0 to 1"),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_bad_data_are_refused_with_a_sentence(bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if bad == "a damaged Parquet file":
        pytest.importorskip("pyarrow")
    make, sentence = BAD[bad]
    path = make(tmp_path)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["run", "--data", str(path)])
    assert isinstance(result.exception, MaplError), result.output
    assert sentence in str(result.exception)
    assert (result.exception.status, "\n" in str(result.exception)) == (2, False)
    assert not (tmp_path / "runs").exists()


def test_labels_in_a_column_that_is_asked_for(tmp_path: Path) -> None:
    path = write("kind,a,b\n" + "\n".join(f"{i % 3},{i},{i}" for i in range(12)))(tmp_path)
    dataset = Table().load(DataSettings(name="table", folder=path, label="kind"))
    assert (dataset.classes, dataset.shape) == (3, (2,))
    with pytest.raises(MaplError, match=r"unknown column of .*: 'd'; known: a, b, kind"):
        Table().load(DataSettings(name="table", folder=path, label="d"))


def test_a_picture_that_changes_while_it_is_read(tmp_path: Path) -> None:
    root = pictures("a/a.png", "a/b.png", "b/c.png", "b/d.png")(tmp_path)
    last = root / "b/d.png"
    source = Folder(progress=lambda done, total: Image.new("L", (8, 8), done).save(last))
    with pytest.raises(MaplError, match=r"b/d.png' changed while it was read"):
        source.load(DataSettings(name="folder", folder=root))


@pytest.mark.parametrize("cut_off", [False, True])
def test_a_table_that_changes_while_it_is_read(cut_off: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = rows()(tmp_path)
    read = table.text

    def slow(at: Path) -> Any:
        columns = read(at)
        os.utime(at, ns=(0, 0))
        if cut_off:
            raise MaplError("half of it makes no sense")
        return columns

    monkeypatch.setattr(table, "text", slow)
    with pytest.raises(MaplError, match=line_with("own.csv'", "changed")):
        Table().load(DataSettings(name="table", folder=path))


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MaplError, match=line_with("Parquet", "pip install pyarrow")):
        Table().load(DataSettings(name="table", folder=content("own.parquet", b"")(tmp_path)))


GOOD = (FLOATS, np.arange(12) % 2)

BAD_OBJECTS: dict[str, tuple[Any, str]] = {
    "something else": (5, "data: got something of type int; give samples and labels (X, y)"),
    "samples alone": (FLOATS, "something of type ndarray without labels"),
    "three things": ((1, 2, 3), "something of type tuple with 3 parts"),
    "items of three things": (
        torch.utils.data.TensorDataset(torch.rand(9, 2), torch.arange(9) % 2, torch.zeros(9)),
        "its items are tuples; they should be pairs (sample, label)",
    ),
    "samples of two shapes": (
        [(torch.rand(3, 5), 0), (torch.rand(3, 6), 1)],
        "data has samples of shape (3, 5) and of shape (3, 6); bring them to one shape",
    ),
    "a missing label": ((FLOATS, [None, *range(11)]), "data has no label for sample 0"),
    "a label that is a list": ((FLOATS, [[0, 1, 2]] * 12), "labels of type int64 and shape (12, 3)"),
    "no number": ((ONE_BAD, GOOD[1]), "data has the value inf in sample 2, place 1"),
    "no sites": ([], "data has no samples"),
    "sites without names": ({}, "data: got no sites"),
    "sites of two shapes": (
        {"Bern": GOOD, "Basel": (FLOATS[:, :2], GOOD[1])},
        "data of 'Bern' has samples of shape (4,), but data of 'Basel' (2,)",
    ),
    "sites of two kinds": ([GOOD, (np.zeros((12, 4, 4), np.uint8), GOOD[1])], "has features, but data of 'site 1' has images"),
    "a site without tests": ([GOOD, (FLOATS[:2], [0, 1])], "data of 'site 1' has one sample per class"),
    "a site with nothing": ([GOOD, (FLOATS[:0], [])], "data of 'site 1' has no samples"),
    "one class at all sites": ([(FLOATS, ["a"] * 12)] * 2, "has one class only ('a')"),
    "a name": ("digits", "'digits' is not the path of a folder or a file of your own"),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD_OBJECTS)
def test_bad_objects_are_refused_with_a_sentence(bad: str, tmp_path: Path) -> None:
    data, sentence = BAD_OBJECTS[bad]
    with pytest.raises(MaplError) as error:
        mapl.run(data=data, folder=tmp_path / "run")
    assert sentence in str(error.value)
    assert not (tmp_path / "run").exists()


def small(shape: Any, embedding: int) -> nn.Module:
    """A network that needs images of 12 pixels or more."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 5), nn.MaxPool2d(2), nn.Conv2d(4, 4, 4), nn.Flatten(), nn.Linear(4, embedding)
    )


def strict(shape: Any, embedding: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4 * (shape[1] - 9), embedding), nn.ReLU())


@pytest.mark.parametrize("backbone", [small, strict])
def test_images_too_small_for_a_backbone(backbone: Any, tmp_path: Path) -> None:
    data = np.zeros((12, 8, 8), np.uint8), GOOD[1]
    with pytest.raises(MaplError, match=line_with("'own'", "cannot take", "8×8", "1 channel")):
        mapl.run(data=data, backbones={"own": backbone}, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_mapl_data_set_says_what_it_is() -> None:
    said = repr(mapl.dataset(GOOD))
    counts = line_with("10 training", "2 test", "4 numbers", "2 classes", "a fifth of each class")
    assert re.fullmatch(f"<mapl.Dataset 'python': {counts}.*>", said)
