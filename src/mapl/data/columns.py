"""Named columns, as in a table or a frame: which holds the labels, and what the others are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mapl.data.found import Found, padded
from mapl.data.pictures import Picture, Size, of_bytes, of_image, read_pictures
from mapl.errors import MaplError, unknown

Array = NDArray[Any]
Columns = Mapping[str, Array]
"""Each (N,): numbers, texts, or objects such as lists, images and None."""

LABELS = ("label", "labels", "class", "target", "y", "category", "species", "diagnosis")
IDS, MASK = ("input_ids", "tokens", "token_ids"), "attention_mask"
FEWEST_EACH = 4
"""Samples of a class, on average: in a column that is only taken for the labels, fewer mean that it holds none."""

PROSE = 40
"""A column with longer texts than this is prose, not names."""

IsIn = Callable[[Any], bool]


def found_in_columns(columns: Columns, where: str, label: str | None = None, size: Size = None) -> Found:
    """Labelled samples. `label`: the column with the labels; None: the one that looks like it."""
    columns = {name: _simple(values) for name, values in columns.items()}
    if not columns or not len(next(iter(columns.values()))):
        raise MaplError(f"{where} has no rows")
    chosen, note = _label(columns, where, label)
    labels, rest = columns[chosen], {name: values for name, values in columns.items() if name != chosen}
    notes = (note,) if note else ()
    if not rest:
        raise MaplError(f"{where} has no column besides its labels, {chosen!r}")
    if pictures := _first(rest, lambda value: isinstance(value, Image.Image) or _is_encoded(value)):
        made = [_picture(value, f"{where}, row {i + 1}") for i, value in enumerate(rest[pictures])]
        pixels, converted = read_pictures(made, size)
        return Found(pixels, labels, "images", label=chosen, notes=(*notes, *converted, *_left(rest, pictures)))
    if lists := _lists(rest):
        values, tokens = _of_lists(rest, lists, where)
        left = _left(rest, lists, MASK)
        return Found(values, labels, "tokens" if tokens else None, label=chosen, notes=(*notes, *left))
    table = table_of(rest, where, chosen)
    return Found(table, labels, "features", tuple(rest), label=chosen, notes=notes)


def columns_of_rows(values: Sequence[Any]) -> Array:
    """A column of any objects; numpy would make a matrix of lists."""
    made = np.empty(len(values), object)
    for i, value in enumerate(values):
        made[i] = value
    return made


def _simple(values: Array) -> Array:
    """A column as numbers, if objects or texts in it are numbers and gaps."""
    if values.dtype.kind not in "OUST":
        return values
    items = values.tolist()
    if values.dtype.kind == "O" and any(not isinstance(v, int | float | np.number) and not _is_gap(v) for v in items):
        return np.array(items, str) if all(isinstance(v, str) for v in items) else values
    if values.dtype.kind in "UST":
        return values.astype(str)
    return np.array([math.nan if _is_gap(v) else v for v in items])


def _is_gap(value: Any) -> bool:
    """Whether there is no value: None, NaN, or what pandas writes for it."""
    return value is None or str(value) in ("<NA>", "NaT") or (isinstance(value, float) and np.isnan(value))


def _label(columns: Columns, where: str, asked: str | None) -> tuple[str, str]:
    """The column with the labels, and what is to be said of it."""
    if asked is not None:
        if asked not in columns:
            raise unknown(f"column of {where}:", asked, columns)
        return asked, ""
    by_name = {name.strip().lower(): name for name in columns}
    if named := [by_name[name] for name in LABELS if name in by_name]:
        likely = [name for name in named if not _has_fractions(columns[name])] or named  # y may be a coordinate
        return likely[0], f"labels: column {likely[0]!r}"
    texts = [name for name, values in columns.items() if _is_text(values)]
    chosen, why = (texts[0], "the only one with text") if len(texts) == 1 else (list(columns)[-1], "the last one")
    values = columns[chosen]
    if values.dtype.kind != "O" and len(np.unique(values)) * FEWEST_EACH > max(len(values), 4 * FEWEST_EACH):
        remedy = f"none of {', '.join(map(repr, list(columns)[:6]))} is called label: say which one has the labels"
        raise MaplError(f"{where}: {remedy}, with label=…", shell=f"{where}: {remedy}, with --set data.label=NAME")
    return chosen, f"labels: column {chosen!r}, {why} (data.label: another)"


def _has_fractions(values: Array) -> bool:
    return values.dtype.kind == "f" and bool((values != np.floor(values)).any())


def _is_text(values: Array) -> bool:
    return values.dtype.kind == "U" or (values.dtype.kind == "O" and any(isinstance(v, str) for v in values.tolist()))


def _first(columns: Columns, is_in: IsIn) -> str:
    """The first column whose first value is such a thing."""
    return next((name for name, values in columns.items() if values.dtype.kind == "O" and is_in(values[0])), "")


def _lists(columns: Columns) -> str:
    """The column with a list or an array in each row; one with token ids before others."""
    lists = [
        name
        for name, values in columns.items()
        if values.dtype.kind == "O" and isinstance(values[0], list | tuple | np.ndarray)
    ]
    return next((name for name in IDS if name in lists), next((name for name in lists if name != MASK), ""))


def _left(columns: Columns, *taken: str) -> tuple[str, ...]:
    others = [name for name in columns if name not in taken]
    return (f"columns left out: {', '.join(others)}",) if others else ()


def _is_encoded(value: Any) -> bool:
    """An image as its file, as data sets of Hugging Face have it in Parquet."""
    return isinstance(value, bytes) or (isinstance(value, dict) and isinstance(value.get("bytes"), bytes))


def _picture(value: Any, name: str) -> Picture:
    if isinstance(value, Image.Image):
        return of_image(value, name)
    if not _is_encoded(value):
        raise MaplError(f"{name} has no image, but a {type(value).__name__}")
    return of_bytes(value if isinstance(value, bytes) else value["bytes"], name)


def _of_lists(columns: Columns, name: str, where: str) -> tuple[Array, bool]:
    """Rows of equal shape as one array, or token ids padded with 0; and whether they are token ids."""
    rows: list[Array] = []
    for i, value in enumerate(columns[name].tolist()):
        row = np.asarray(value)
        if row.dtype.kind not in "biuf":
            raise MaplError(f"{where}: column {name!r} should have numbers in each row, and row {i + 1} has not")
        rows.append(row)
    if name in IDS and MASK in columns:  # what is masked is no part of the text
        rows = [row * np.asarray(mask) for row, mask in zip(rows, columns[MASK].tolist(), strict=True)]
    return stacked(rows, f"{where}, column {name!r}", ids=name in IDS)


def stacked(rows: Sequence[Array], where: str, ids: bool = False) -> tuple[Array, bool]:
    """Rows as one array. Whole numbers in rows of several lengths are token ids, and padded with 0."""
    shapes = {row.shape for row in rows}
    whole = all(row.dtype.kind in "iu" or not row.size for row in rows) and all(row.ndim == 1 for row in rows)
    if whole and (ids or len(shapes) > 1):
        return padded(rows), True
    if len(shapes) > 1:
        a, b = sorted(shapes)[:2]
        raise MaplError(f"{where} has samples of shape {a} and of shape {b}; bring them to one shape")
    return np.stack(rows), False


def _is_number(value: object) -> bool:
    """Whether this does not make its column one of texts; what is empty does not."""
    try:
        float(str(value) or "nan")
    except ValueError:
        return False
    return True


def table_of(columns: Columns, where: str, label: str) -> Array:
    """Numbers (N, F), all of them finite."""
    if texts := [name for name, values in columns.items() if values.dtype.kind not in "biuf"]:
        values = columns[texts[0]]
        more = f" (and {len(texts) - 1} other columns)" if len(texts) > 1 else ""
        prose = max(len(str(value)) for value in values.tolist()) > PROSE
        numbers = "token ids, as lists in a column input_ids" if prose else "a column of 0 and 1 for each of its values"
        row = next((row for row, value in enumerate(values.tolist()) if not _is_number(value)), 0)
        raise MaplError(
            f"{where}: column {texts[0]!r}{more} holds no numbers (row {row + 1}: {str(values[row])[:PROSE]!r}), and "
            f"{label!r} has the labels: leave it out, or turn it into numbers, such as {numbers}"
        )
    for name, values in columns.items():
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            has = "is empty" if np.isnan(values[bad[0]]) else f"has the value {values[bad[0]]:g}"
            more = f", and {len(bad) - 1} more rows" if len(bad) > 1 else ""
            raise MaplError(
                f"{where}: column {name!r} {has} in row {bad[0] + 1}{more}: fill it in, or leave the rows or the "
                "column out"
            )
    return np.column_stack([values.astype(np.float64) for values in columns.values()])
