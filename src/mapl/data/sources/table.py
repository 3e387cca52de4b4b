"""Your own table, as a file."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mapl.data.columns import Columns, columns_of_rows, found_in_columns
from mapl.data.dataset import Dataset, DataSettings
from mapl.data.files import unchanged
from mapl.data.found import Pair, dataset_of
from mapl.errors import MaplError

__all__ = ["Table"]

DELIMITERS = {".csv": ",;\t|", ".tsv": "\t"}
GAPS = {"", "na", "n/a", "nan", "null", "none", "?"}
"""What people write into a cell that has no value."""


class Table:
    """Your own table: a .csv, .tsv or .parquet file with a column of labels and columns of numbers.

    `data.folder` is that file, and `data.label` the column with the labels; by default the one called label, class,
    target or y, or the only one with text, or the last. A column without a name, or named as pandas names its index, is
    left out. A Parquet file can also hold images or lists of token ids, as data sets of Hugging Face do; it needs
    pyarrow. A fifth of each class become test samples, the same each time.
    """

    name: ClassVar[str] = "table"
    suggests: ClassVar[dict[str, Any]] = {}
    own: ClassVar[bool] = True
    alike: ClassVar[str] = "mlp"

    def load(self, settings: DataSettings) -> Dataset:
        return dataset_of(self.name, repr(str(settings.own())), *self.found(settings))

    def found(self, settings: DataSettings) -> Pair:
        """What is in the file."""
        path = settings.own()
        with unchanged(path):
            columns = parquet(path) if path.suffix.lower() == ".parquet" else text(path)
            return found_in_columns(columns, repr(str(path)), settings.label, size=settings.size), None


def parquet(path: Path) -> Columns:
    """The columns of a Parquet file."""
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        raise MaplError(f"{str(path)!r}: Parquet needs pyarrow, which is not installed: pip install pyarrow") from None
    try:
        table = pyarrow.parquet.read_table(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise MaplError(f"{str(path)!r} is not a Parquet file, or is cut off: {reason}") from error
    simple = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    return {
        field.name: column.to_numpy() if any(is_(field.type) for is_ in simple) else columns_of_rows(column.to_pylist())
        for field, column in zip(table.schema, table.columns, strict=True)
        if not _is_index(field.name)
    }


def text(path: Path) -> Columns:
    """The columns of a file of text: with names in the first line, or numbered from 0."""
    rows = _rows(path)
    header = not any(_is_number(cell) for cell in rows[0])
    names = [name.strip() for name in rows[0]] if header else [str(i) for i in range(len(rows[0]))]
    rows = rows[1:] if header else rows
    if twice := next((name for name in names if name and names.count(name) > 1), ""):
        raise MaplError(f"{str(path)!r} has two columns named {twice!r}")
    for number, row in enumerate(rows):
        if len(row) != len(names):
            raise MaplError(
                f"{str(path)!r} has {len(row)} cells in row {number + 1}{' below the names' if header else ''}, but "
                f"{len(names)} columns"
            )
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    return {name: _column(cells) for name, cells in zip(names, columns, strict=True) if not _is_index(name)}


def _rows(path: Path) -> list[list[str]]:
    """The cells of all lines that are not blank."""
    try:
        content = path.read_text(encoding="utf-8-sig")
        first = content.partition("\n")[0]
        delimiter = max(DELIMITERS.get(path.suffix.lower(), ","), key=first.count)
        lines = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True)
        rows = [[cell.strip() for cell in row] for row in lines if any(map(str.strip, row))]
    except UnicodeDecodeError as error:
        raise MaplError(f"{str(path)!r} is not a text file in UTF-8: save it as such ({error.reason})") from error
    except (OSError, csv.Error) as error:
        raise MaplError(f"{str(path)!r} is not a table that can be read: {error}") from error
    if not rows:
        raise MaplError(f"{str(path)!r} is empty")
    if delimiter == ";":  # as programs write it where the comma is the decimal point
        rows = [[_with_point(cell) for cell in row] for row in rows]
    return rows


def _column(cells: Sequence[str]) -> NDArray[Any]:
    """Numbers, whole ones if all are; or else texts."""
    try:
        values = np.array([math.nan if cell.lower() in GAPS else float(cell) for cell in cells])
    except ValueError:
        return np.array(cells, str)
    return values.astype(np.int64) if len(cells) and all(cell.lstrip("+-").isdigit() for cell in cells) else values


def _with_point(cell: str) -> str:
    """1,5 as 1.5; anything else as it is."""
    changed = cell.replace(",", ".")
    return changed if _is_number(changed) else cell


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _is_index(name: str) -> bool:
    """Whether a column is an index that pandas wrote."""
    return name in ("", "Unnamed: 0", "__index_level_0__")
