"""The many forms in which people hold the same data: what each is taken for."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits, load_iris

import mapl
from mapl.data.dataset import DataSettings
from mapl.data.found import kind_of_array
from mapl.data.sources.table import Table

N = 24
LABELS = np.arange(N) % 2
ROWS = np.random.default_rng(0).normal(size=(N, 3))
PICTURE = Image.new("L", (4, 4), 7)


class Items(torch.utils.data.Dataset[Any]):
    """Any list as a data set of torch."""

    def __init__(self, items: list[Any], classes: list[str] | None = None):
        self.items = items
        if classes:
            self.classes = classes

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class Hub:
    """A data set of Hugging Face whose columns are tensors, as with `set_format("torch")`."""

    column_names, features = ("x", "label"), None

    def __getitem__(self, name: str) -> list[torch.Tensor]:
        return list(torch.from_numpy(ROWS if name == "x" else LABELS))


FORMS: dict[str, tuple[Any, tuple[str, tuple[int, ...], int]]] = {
    "arrays": ((ROWS, LABELS), ("features", (3,), N)),
    "tensors": ((torch.from_numpy(ROWS), torch.from_numpy(LABELS)), ("features", (3,), N)),
    "tensors of bfloat16": ((torch.from_numpy(ROWS).bfloat16(), LABELS), ("features", (3,), N)),
    "lists": ((ROWS.tolist(), ["ab"[k] for k in LABELS]), ("features", (3,), N)),
    "one number each": ((ROWS[:, 0], LABELS), ("features", (1,), N)),
    "labels as bytes": ((ROWS, np.array([b"x", b"y"])[LABELS]), ("features", (3,), N)),
    "labels as a column": ((ROWS, LABELS[:, None]), ("features", (3,), N)),
    "labels that are true or false": ((ROWS, LABELS == 1), ("features", (3,), N)),
    "labels of -1 and 1": ((ROWS, 2 * LABELS - 1), ("features", (3,), N)),
    "labels with a gap": ((ROWS, 10 * LABELS + 5), ("features", (3,), N)),
    "labels of names and numbers": ((ROWS, [[7, "x"][k] for k in LABELS]), ("features", (3,), N)),
    "whole floats as labels": ((ROWS, LABELS * 1.0), ("features", (3,), N)),
    "train and test arrays": (((ROWS, LABELS), (ROWS[:4], LABELS[:4])), ("features", (3,), N + 4)),
    "train and test by name": ({"train": (ROWS, LABELS), "test": (ROWS[:4], LABELS[:4])}, ("features", (3,), N + 4)),
    "validation for tests": ({"train": (ROWS, LABELS), "validation": (ROWS[:4], LABELS[:4])}, ("features", (3,), N + 4)),
    "arrays by name": ({"data": ROWS, "target": LABELS}, ("features", (3,), N)),
    "arrays by name, split": (
        {"x_train": ROWS, "y_train": LABELS, "x_test": ROWS, "y_test": LABELS},
        ("features", (3,), 2 * N),
    ),
    "pairs": ([(row, k) for row, k in zip(torch.from_numpy(ROWS), LABELS, strict=True)], ("features", (3,), N)),
    "rows with names": ([{"a": a, "b": b, "label": int(k)} for (a, b, _), k in zip(ROWS, LABELS, strict=True)], ("features", (2,), N)),
    "a data set of tensors": (
        torch.utils.data.TensorDataset(torch.from_numpy(ROWS), torch.from_numpy(LABELS)),
        ("features", (3,), N),
    ),
    "two data sets of torch": (
        (Items([(row, 1) for row in ROWS]), Items([(row, 0) for row in ROWS])),
        ("features", (3,), 2 * N),
    ),
    "a data set of pictures": (Items([(PICTURE, int(k)) for k in LABELS], ["cat", "dog"]), ("images", (1, 4, 4), N)),
    "a data set of rows": (Items([{"pixels": torch.rand(5), "label": torch.tensor(k)} for k in LABELS]), ("features", (5,), N)),
    "a data set of texts": (Items([(torch.arange(1, 3 + i % 4), int(k)) for i, k in enumerate(LABELS)]), ("tokens", (5,), N)),
    "a hub's tensors": (Hub(), ("features", (3,), N)),
    "texts of several lengths": (([[1] * (1 + i % 5) for i in range(N)], LABELS), ("tokens", (5,), N)),
    "token ids": ((np.arange(N * 4).reshape(N, 4), LABELS), ("tokens", (4,), N)),
    "images, channels last": ((np.zeros((N, 4, 5, 3), np.uint8), LABELS), ("images", (3, 4, 5), N)),
    "images, channels first": ((np.zeros((N, 3, 4, 5), np.uint8), LABELS), ("images", (3, 4, 5), N)),
    "images of 16 bits": ((np.full((N, 4, 5), 40_000, np.uint16), LABELS), ("images", (1, 4, 5), N)),
    "images as whole floats": ((np.full((N, 4, 5), 200.0), LABELS), ("images", (1, 4, 5), N)),
    "images as floats": ((torch.rand(N, 1, 4, 5), LABELS), ("images", (1, 4, 5), N)),
    "normalised images": ((torch.randn(N, 3, 4, 5), LABELS), ("features", (3, 4, 5), N)),
    "black and white": ({"images": np.zeros((N, 4, 5), bool), "labels": LABELS}, ("images", (1, 4, 5), N)),
    "breast cancer of scikit-learn": (load_breast_cancer(), ("features", (30,), 569)),
    "digits of scikit-learn": (load_digits(), ("images", (1, 8, 8), 1797)),
    "iris of scikit-learn": (load_iris(return_X_y=True), ("features", (4,), 150)),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_what_a_form_is_taken_for(form: str) -> None:
    data, (kind, shape, count) = FORMS[form]
    made = mapl.dataset(data)
    assert (made.kind, made.shape, len(made.train) + len(made.test)) == (kind, shape, count)
    assert made.digest() == mapl.dataset(data).digest()
    assert made.classes == len({*made.train.labels.tolist(), *made.test.labels.tolist()})


def test_frames_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS, columns=list("abc"))
    named = frame.assign(label=pandas.array(["xy"[k] for k in LABELS], "string"), whole=pandas.array(LABELS, "Int64"))
    assert mapl.dataset(named).train.columns == ("a", "b", "c", "whole")
    assert mapl.dataset((frame, pandas.Series(LABELS))).train.columns == ("a", "b", "c")
    assert len(mapl.dataset((frame, pandas.DataFrame({"k": LABELS}))).train) == 20
    assert len(mapl.dataset((named, named)).test) == N
    twice = pandas.concat([frame, frame], axis=1)
    with pytest.raises(mapl.MaplError, match="two columns of one name"):
        mapl.dataset(twice)
    named.loc[3, "whole"] = pandas.NA
    with pytest.raises(mapl.MaplError, match="column 'whole' is empty in row 4"):
        mapl.dataset(named)


@pytest.mark.parametrize(
    ("text", "columns", "labels"),
    [
        ("a,b,label\n1,2,x\n3,4,y\n", ("a", "b"), ("x", "y")),
        ("a;b;label\n1,5;2;x\n3;4,25;y\n", ("a", "b"), ("x", "y")),
        ("1,2,x\n3,4,y\n", ("0", "1"), ("x", "y")),
        (",a,b,Class\n0,1,2,x\n1,3,4,y\n", ("a", "b"), ("x", "y")),
        ('"a, long",b,target\n1,2,"x, 1"\n3,4,y\n\n', ("a, long", "b"), ("x, 1", "y")),
        ("\ufeffa\tb\tlabel\r\n1\t2\tx\r\n3\t4\ty\r\n", ("a", "b"), ("x", "y")),
        ("city,a,b\nBern,1,2\nZug,3,4\n", ("a", "b"), ("Bern", "Zug")),
        ("a,b,k\n1,2,3\n3,4,7\n", ("a", "b"), ("3", "7")),
        ("x,y,species\n1,2.5,ape\n3,4.5,cow\n", ("x", "y"), ("ape", "cow")),
    ],
)
def test_tables_as_text(text: str, columns: tuple[str, ...], labels: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text(text + text[text.index("\n") + 1 :] * 4 if text[0] != "1" else text * 5)
    made = Table().load(DataSettings(name="table", folder=tmp_path / "own.csv"))
    assert (made.train.columns, made.class_names) == (columns, labels)


def test_a_table_of_parquet_with_images_and_with_an_index(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    content = io.BytesIO()
    PICTURE.save(content, "png")
    rows = [{"image": {"bytes": content.getvalue(), "path": None}, "label": int(k), "__index_level_0__": i} for i, k in enumerate(LABELS)]  # fmt: skip
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "own.parquet")
    made = Table().load(DataSettings(name="table", folder=tmp_path / "own.parquet"))
    assert (made.kind, made.shape, made.found[0]) == ("images", (1, 4, 4), "labels: column 'label'")


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.zeros((2, 3), np.uint8), "features"),
        (np.zeros((2, 3), np.int64) - 1, "features"),
        (np.full((2, 4, 5), 300), "features"),
        (np.zeros((2, 4, 5, 7), np.uint8), "features"),
        (np.full((2, 3, 4, 5), np.nan), "features"),
        (np.zeros((2, 3, 4, 5, 6)), "features"),
    ],
)
def test_what_is_neither_image_nor_text(array: np.ndarray[Any, Any], kind: str) -> None:
    assert kind_of_array(array) == kind


def test_paths_are_data_too(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=ROWS, y=LABELS)
    np.savez(tmp_path / "b.npz", x=ROWS + 1, y=LABELS)
    assert mapl.dataset(tmp_path / "a.npz").shape == (3,)
    sites = mapl.datasets({"a": str(tmp_path / "a.npz"), "b": tmp_path / "b.npz"})
    assert [one.name for one in sites.values()] == ["a", "b"]
    assert sites[0].mean == sites[1].mean
    assert mapl.Recipe.of(data=tmp_path / "a.npz").data.folder == tmp_path / "a.npz"


def test_a_recipe_file_with_data_from_python(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('clients = 3\n[method]\nname = "courier"\n')
    recipe = mapl.Recipe.read(tmp_path / "mine.toml", data=(ROWS, LABELS), rounds=4)
    assert (recipe.data.name, recipe.clients, recipe.rounds, recipe.method.name) == ("python", 3, 4, "courier")
    assert recipe.model.backbones == ("mlp",)


def test_numbers_of_sites_are_those_of_the_clients() -> None:
    sites = mapl.datasets({1: (ROWS, LABELS), 0: (ROWS[:10], LABELS[:10])})
    assert len(sites[0].train) < len(sites[1].train)


@pytest.mark.parametrize(("data", "backbone"), [((ROWS, LABELS), "mlp"), (load_digits(), "cnn")])
def test_a_method_that_needs_one_architecture_gets_one(data: Any, backbone: str) -> None:
    assert mapl.Recipe.of(data=data, method="fedavg").model.backbones == (backbone,)
