"""Labels as people have them, names or numbers, as numbers of classes from 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mapl.errors import MaplError

Array = NDArray[Any]
Numbers = NDArray[np.int64]


def numbered(
    parts: Sequence[Array], names: Sequence[tuple[str, ...]], where: Sequence[str]
) -> tuple[tuple[str, ...], list[Numbers]]:
    """The names of the classes, and each part's labels as numbers from 0.

    Numbers from 0 without a gap stay as they are, and have no names. All others, such as texts or the numbers 10 and
    20, are sorted, and what was written becomes the name of the class. `names`: those that each part knows, where
    labels number them or name them; if parts know others, all names are sorted.
    """
    plain = [_plain(labels, place) for labels, place in zip(parts, where, strict=True)]
    if not any(names):
        plain = _alike(plain)
        distinct = np.unique(np.concatenate(plain))
        _check_several(distinct.tolist(), where)
        if distinct.dtype.kind != "U":
            _check_numbers(distinct, plain, where)
            if distinct[0] == 0 and distinct[-1] == len(distinct) - 1:
                return (), plain
        return tuple(map(str, distinct.tolist())), [np.searchsorted(distinct, each).astype(np.int64) for each in plain]
    written = [_written(each, own, place) for each, own, place in zip(plain, names, where, strict=True)]
    used = set().union(*(each.tolist() for each in written))
    _check_several(sorted(used), where)
    known = names[0] if len(set(names)) == 1 else tuple(sorted(used.union(*names)))
    by_name = {name: number for number, name in enumerate(known)}
    return known, [np.array([by_name[name] for name in each.tolist()], np.int64) for each in written]


def _alike(parts: Sequence[Array]) -> list[Array]:
    """All numbers, or all texts."""
    texts = any(labels.dtype.kind == "U" for labels in parts)
    return [labels.astype(str) if texts else labels for labels in parts]


def _check_several(distinct: Sequence[Any], where: Sequence[str]) -> None:
    if len(distinct) < 2:
        raise MaplError(f"{where[0]} has one class only ({str(distinct[0])!r}): there is nothing to tell apart")


def _written(labels: Array, names: tuple[str, ...], where: str) -> Array:
    """Labels as names."""
    if labels.dtype.kind == "U" or not names:
        strangers = sorted(set(labels.astype(str).tolist()) - set(names)) if names else []
        if strangers:
            raise MaplError(f"{where} has the label {strangers[0]!r}, which is none of its classes: {', '.join(names)}")
        return labels.astype(str)
    bad = np.flatnonzero((labels < 0) | (labels >= len(names)))
    if len(bad):
        raise MaplError(
            f"{where} has the label {labels[bad[0]]} (sample {bad[0]}, counted from 0); with {len(names)} classes "
            f"labels run from 0 to {len(names) - 1}"
        )
    return np.array(names)[labels]


def _plain(labels: Array, where: str) -> Array:
    """Labels as int64, or as texts."""
    if labels.dtype.kind == "O":
        labels = _of_objects(labels, where)
    if labels.dtype.kind in "iu":
        return labels.astype(np.int64)
    if labels.dtype.kind == "b":
        return labels.astype(str)
    if labels.dtype.kind == "f":
        return _whole(labels, where)
    if labels.dtype.kind == "S":
        labels = np.char.decode(labels, "utf-8", "replace")
    if labels.dtype.kind != "U":
        raise MaplError(f"{where} has labels of type {labels.dtype}; they should be names or whole numbers")
    missing = np.flatnonzero(np.char.strip(labels) == "")
    if len(missing):
        raise MaplError(f"{where} has no label for sample {missing[0]}, counted from 0")
    return labels


def _of_objects(labels: Array, where: str) -> Array:
    """Python's own numbers and texts."""
    for place, value in enumerate(labels.tolist()):
        if value is None or value != value or str(value) == "<NA>":
            raise MaplError(f"{where} has no label for sample {place}, counted from 0")
        if not isinstance(value, str | int | float | np.number):
            raise MaplError(f"{where} has a {type(value).__name__} for a label; labels should be names or numbers")
    values = labels.tolist()
    return np.array([str(v) for v in values] if any(isinstance(v, str | bool) for v in values) else values)


def _whole(labels: Array, where: str) -> Numbers:
    """Floats that are whole numbers."""
    odd = np.flatnonzero(~(np.isfinite(labels) & (labels == np.floor(labels))))
    if not len(odd):
        return labels.astype(np.int64)
    place, value = odd[0], labels[odd[0]]
    if np.isnan(value):
        raise MaplError(f"{where} has no label for sample {place}, counted from 0")
    raise MaplError(
        f"{where} has the label {value:g} (sample {place}, counted from 0); labels are classes: names or whole numbers"
    )


def _check_numbers(distinct: Array, plain: Sequence[Array], where: Sequence[str]) -> None:
    """No class has a number below 0, unless there are just the two classes −1 and 1."""
    if distinct[0] >= 0 or distinct.tolist() == [-1, 1]:
        return
    for labels, place in zip(plain, where, strict=True):
        at = np.flatnonzero(labels < 0)
        if len(at):
            raise MaplError(
                f"{place} has the label {labels[at[0]]} (sample {at[0]}, counted from 0); classes are numbered from 0"
            )
