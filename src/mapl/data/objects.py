"""Data that live in Python, arrays, frames and data sets of other libraries, as data sets of this one.

Other libraries' objects are recognised by what they can do, so none of these libraries has to be installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import IterableDataset

from mapl.data.columns import columns_of_rows, found_in_columns, stacked, table_of
from mapl.data.dataset import Dataset, DataSettings
from mapl.data.found import Found, Pair, datasets_of
from mapl.data.loading import GIVEN_IN_PYTHON, read_own
from mapl.data.naming import LABELS, found_in, is_named
from mapl.data.own import located
from mapl.data.pictures import Size, of_image, read_pictures
from mapl.data.samples import Kind
from mapl.errors import MaplError

Array = NDArray[Any]
Data = Dataset | Mapping[int, Dataset]
"""One data set to divide among the clients, or one per client."""

TRAIN, TEST = ("train", "training"), ("test", "testing", "validation", "valid", "val")
"""Names of the splits of a data set; the first that is there is taken."""
TAKES = (
    "give samples and labels (X, y), a frame, a data set of torch or of Hugging Face, arrays by name, or a path; or a "
    "list or a dict of these, with one for each client"
)


@dataclass(frozen=True)
class _Options:
    """How data are read."""

    label: str | None = None
    kind: Kind | None = None
    size: Size = None


def dataset(
    data: Any,
    *,
    test: Any = None,
    label: str | None = None,
    kind: Kind | None = None,
    size: Size = None,
    name: str = GIVEN_IN_PYTHON,
) -> Dataset:
    """A data set of what you have.

    `data` is one of these; `test` is another one with the test samples, or else a fifth of each class is drawn:

    - samples and labels `(X, y)`, as arrays, tensors or lists; or `((X, y), (X_test, y_test))`
    - a frame with a column of labels (pandas, polars)
    - a data set of torch whose items are (sample, label) pairs, or a list of such pairs
    - a data set of Hugging Face, also one with several splits
    - arrays by name, as in an .npz file: `{"images": …, "labels": …}`, or what scikit-learn's `load_…` return
    - the path of a folder or a file, as for `mapl run --data`

    Labels are numbers or names. `label` is the column with the labels; by default the one called label, class, target
    or y, or the only one with text, or the last. `kind` says what the samples are, "images", "features" or "tokens"; by
    default their type and shape say it (`mapl.data.found.kind_of_array`). `size` is that of pictures: pixels of a side,
    or height and width.
    """
    options = _Options(label, kind, size)
    pair = _pair(data, "data", options)
    if test is not None:
        pair = pair[0], _pair(test, "test", options)[0]
    return datasets_of([name], ["data"], [pair])[0]


def datasets(
    sites: Mapping[Any, Any] | Sequence[Any],
    *,
    label: str | None = None,
    kind: Kind | None = None,
    size: Size = None,
) -> dict[int, Dataset]:
    """One data set for each client, by its number: `sites` is a list, or a dict by number or by name of the site.

    Each is anything that `dataset` takes. They can have any sizes, and lack classes. They get in common what clients
    must agree on: the numbers of the classes, mean and std (those of all training samples), and the vocabulary.
    """
    by_name = sites if isinstance(sites, Mapping) else {f"site {i}": site for i, site in enumerate(sites)}
    if not by_name:
        raise MaplError("data: got no sites; give one or more")
    options = _Options(label, kind, size)
    names = [str(name) for name in by_name]
    places = [f"data of {name!r}" for name in names]
    pairs = [_pair(site, place, options) for site, place in zip(by_name.values(), places, strict=True)]
    return dict(zip(_numbers(by_name), datasets_of(names, places, pairs), strict=True))


def as_data(data: Any) -> Data:
    """What was given as `data=`: one data set, or one for each client by its number."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, Mapping) and data and all(isinstance(one, Dataset) for one in data.values()):
        return dict(zip(_numbers(data), data.values(), strict=True))
    if isinstance(data, list) and data and all(isinstance(one, Dataset) for one in data):
        return dict(enumerate(data))
    return datasets(data) if _are_sites(data) else dataset(data)


def _numbers(sites: Mapping[Any, Any]) -> list[int]:
    """The number of each client: its key, or its place if keys are names."""
    return list(range(len(sites)) if any(isinstance(name, str) for name in sites) else sites)


def _are_sites(data: Any) -> bool:
    """Whether these are the data of several clients."""
    if isinstance(data, Mapping):
        return not (_splits(data) or is_named([str(key) for key in data]))
    return isinstance(data, list) and bool(data) and not _is_sample(data[0])


def _is_sample(item: Any) -> bool:
    """Whether it is one sample with its label: a pair, or a row with names."""
    if isinstance(item, Mapping):
        labels = [value for name, value in item.items() if str(name).lower() in LABELS]
        return bool(labels) and np.ndim(_plain(labels[0])) == 0
    return isinstance(item, tuple) and len(item) == 2 and np.ndim(_plain(item[1])) == 0


def _splits(data: Mapping[Any, Any]) -> tuple[Any, Any] | None:
    """The training and test data of something with several splits."""
    train, test = (next((data[name] for name in names if name in data), None) for names in (TRAIN, TEST))
    return None if train is None else (train, test)


def _pair(data: Any, where: str, options: _Options) -> Pair:
    """Training samples and, if it has them apart, test samples."""
    if isinstance(data, str | Path):
        settings = DataSettings.model_validate({**located(str(data)), "size": options.size, "label": options.label})
        return read_own(settings)
    if isinstance(data, Dataset):
        raise MaplError(f"{where}: got a mapl.Dataset beside something else; make all of them with mapl.dataset")
    if isinstance(data, Mapping) and (splits := _splits(data)):
        train, test = splits
        return _found(train, where, options), None if test is None else _found(test, f"{where}, test", options)
    if isinstance(data, Mapping) and is_named([str(key) for key in data]):
        found, tests = found_in([str(key) for key in data], lambda name: _plain(data[name]), where)
        return _kind(found, options), None if tests is None else _kind(tests, options)
    if isinstance(data, tuple) and len(data) == 2 and not _are_samples_and_labels(data):
        return _found(data[0], where, options), _found(data[1], f"{where}, test", options)
    return _found(data, where, options), None


def _are_samples_and_labels(data: Any) -> bool:
    """Whether it is (X, y), and not (training data, test data)."""
    if not (isinstance(data, tuple) and len(data) == 2 and _is_array(data[0])):
        return False
    return len(getattr(data[1], "columns", "y")) == 1  # two frames are two splits, unless one has the labels alone


def _kind(found: Found, options: _Options) -> Found:
    return replace(found, kind=options.kind or found.kind)


def _found(data: Any, where: str, options: _Options) -> Found:
    """The samples of one split."""
    if _are_samples_and_labels(data):
        return _of_arrays(data[0], data[1], where, options)
    if hasattr(data, "column_names") and hasattr(data, "features"):  # Hugging Face
        return _of_hugging_face(data, where, options)
    if hasattr(data, "columns") and hasattr(data, "dtypes"):  # pandas, polars
        return _kind(found_in_columns(_columns(data, where), where, options.label, size=options.size), options)
    by_number = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, IterableDataset)
    if by_number and not _is_array(data) and not isinstance(data, Mapping | str | tuple):
        return _of_items(data, where, options)
    raise MaplError(f"{where}: got {_called(data)}; {TAKES}")


def _called(data: Any) -> str:
    """What something is, for a sentence."""
    called = f"something of type {type(data).__name__}"
    if isinstance(data, tuple):
        return f"{called} with {len(data)} parts"
    if isinstance(data, IterableDataset):
        return f"{called}, whose items have no numbers"
    return f"{called} without labels" if _is_array(data) else called


def _is_array(data: Any) -> bool:
    """Whether something is samples without labels: an array, a tensor, a frame beside its labels, lists of numbers."""
    if isinstance(data, list):
        return bool(data) and not _is_sample(data[0])
    return isinstance(data, np.ndarray | torch.Tensor) or hasattr(data, "to_numpy")


def _plain(values: Any) -> Array:
    """Anything like an array, as one."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    try:
        return np.asarray(values)
    except ValueError:  # lists of several lengths
        made = np.empty(len(values), object)
        made[:] = values
        return made


def _of_arrays(samples: Any, labels: Any, where: str, options: _Options) -> Found:
    if hasattr(samples, "columns") and hasattr(samples, "dtypes"):
        columns = _columns(samples, where)
        return Found(table_of(columns, where, "y"), _plain(labels), options.kind or "features", tuple(columns))
    values = _plain(samples)
    if values.dtype.kind == "O" and values.ndim == 1:
        values, tokens = stacked([np.asarray(row) for row in values], where, ids=options.kind == "tokens")
        return Found(values, _plain(labels), "tokens" if tokens else options.kind)
    return Found(values, _plain(labels), options.kind)


def _columns(frame: Any, where: str) -> dict[str, Array]:
    names = list(frame.columns)
    if len(set(map(str, names))) < len(names):
        raise MaplError(f"{where} has two columns of one name")
    return {str(name): np.asarray(frame[name].to_numpy()) for name in names}


def _of_hugging_face(data: Any, where: str, options: _Options) -> Found:
    """Columns, with the names of classes where the data set says them."""
    columns = {name: columns_of_rows([_value(value) for value in data[name]]) for name in data.column_names}
    found = found_in_columns(columns, where, options.label, size=options.size)
    features = data.features or {}
    names = next((f.names for n, f in features.items() if getattr(f, "names", None) and n == found.label), ())
    return _kind(replace(found, names=tuple(names)), options)


def _of_items(data: Any, where: str, options: _Options) -> Found:
    """A data set of torch: (sample, label) pairs, or rows with names, by number."""
    items = [data[i] for i in range(len(data))]
    if not items:
        raise MaplError(f"{where} has no samples")
    if all(isinstance(item, Mapping) for item in items):
        columns = {str(key): columns_of_rows([_value(item[key]) for item in items]) for key in items[0]}
        return _kind(found_in_columns(columns, where, options.label, size=options.size), options)
    if not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        raise MaplError(f"{where}: its items are {type(items[0]).__name__}s; they should be pairs (sample, label)")
    labels = _plain([_value(label) for _, label in items])
    names = getattr(data, "classes", None)
    names = tuple(names) if isinstance(names, list | tuple) and all(isinstance(n, str) for n in names) else ()
    if isinstance(items[0][0], Image.Image):
        pictures = [of_image(image, f"{where}, item {i}") for i, (image, _) in enumerate(items)]
        pixels, notes = read_pictures(pictures, options.size)
        return Found(pixels, labels, "images", names=names, notes=notes)
    values, tokens = stacked([_plain(sample) for sample, _ in items], where, ids=options.kind == "tokens")
    return Found(values, labels, "tokens" if tokens else options.kind, names=names)


def _value(value: Any) -> Any:
    """A label as Python's own number or text; other things as they are."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.item() if value.ndim == 0 else _plain(value)
    return value
