"""Own data that cannot be used: one sentence that says what and where, exit status 2, and nothing is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

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
    "labels that are fractions": (rows("1,2,0.5"), "the label 0.5 (sample 12, counted from 0); labels are classes"),
    "a missing label": (rows("1,2,"), "has no label for sample 12"),
    "a missing name": (npz(x=FLOATS, labels=np.array(["a", "b", ""] * 4)), "has no label for sample 2"),
    "labels below 0": (rows("1,2,-1"), "the label -1 (sample 12, counted from 0); classes are numbered from 0"),
    "too few labels": (npz(x=FLOATS, labels=np.arange(9)), "has 12 samples, but labels of type int64 and shape (9,)"),
    "one class": (write("a,label\n1,cat\n2,cat\n"), "has one class only ('cat'): there is nothing to tell apart"),
    "one sample a class": (write("a,label\n1,cat\n2,dog\n"), "has one sample per class"),
    "a gap": (rows("1,,0", "1,,1"), "column 'b' is empty in row 13, and 1 more rows: fill it in"),
    "an infinite feature": (rows("1,inf,0"), "column 'b' has the value inf in row 13"),
    "an infinite number": (npz(x=ONE_BAD), "has the value inf in sample 2, place 1, counted from 0"),
    "a column of text": (rows("Bern,2,0"), "column 'a' holds no numbers (row 1: '0'), and 'label' has the labels"),
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
    with pytest.raises(MaplError, match=r"own.csv' changed while it was read: wait until it is written"):
        Table().load(DataSettings(name="table", folder=path))


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MaplError, match="Parquet needs pyarrow, which is not installed: pip install pyarrow"):
        Table().load(DataSettings(name="table", folder=content("own.parquet", b"")(tmp_path)))
