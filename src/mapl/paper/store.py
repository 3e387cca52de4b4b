"""The results store: one JSON-lines file a table, append-only, a line a finished run.

A row says all that a table or a figure needs, so that neither reads the folder of a run, which may be gone or
elsewhere.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mapl.analysis.control import control_of, is_control
from mapl.errors import MaplError
from mapl.recipe import Recipe, Tree, validated


@dataclass(frozen=True)
class Row:
    """One finished run."""

    key: str
    """What was run: recipes that are the same run have the same key (`key_of`)."""
    table: str
    """The table or figure that it was run for. Others may read it, too."""
    cell: str
    """The cell's name, or the figure's own name for it."""
    control: bool
    """Whether it is the cell's twin without letters."""
    scale: str
    """Empty for the paper's protocol; else the name of what shrank it."""
    seed: int
    rounds: int
    form: str | None
    """MAPL's form; None for other methods."""
    recipe: Tree
    """The whole recipe."""
    accuracy: list[float]
    """By client at the last test, with the test images of the recipe (the paper's: 15 a class)."""
    all_images: list[float] | None
    """The same models with all test images of each client's classes."""
    clusters: list[int]
    """The true cluster of each client."""
    classes: list[list[int]]
    """The classes of each client."""
    samples: list[int]
    """The training images of each client."""
    backbones: list[str]
    messages: int
    bytes: int
    curve: dict[str, list[float]]
    """By tested round: `round`, `accuracy` and `all_images` (means over clients), `messages` and `bytes` so far,
    `edges` (weights to others above 0), `inside` (share of the weight given to others that stays in true clusters; −1:
    none)."""
    weights: dict[str, list[dict[str, list[Any]]]]
    """W at chosen rounds, the last one always: round → a sparse row a client."""
    seconds: float
    """All rounds, tests and checkpoints included."""
    setup_seconds: float
    device: str
    precision: str
    versions: dict[str, str]
    date: str
    extra: dict[str, Any] = field(default_factory=dict)
    """What a figure needs beyond that."""

    @cached_property
    def made(self) -> Recipe:
        """The recipe as it was run."""
        return validated(self.recipe, f"row {self.cell} of the store")

    def matrix(self, round: int | None = None) -> Tensor:
        """W (M, M) at a stored round; the last one unless it is named."""
        rows = self.weights[str(round)] if round is not None else self.weights[max(self.weights, key=int)]
        matrix = torch.zeros(len(rows), len(rows), dtype=torch.float64)
        for client, row in enumerate(rows):
            matrix[client] = 0
            matrix[client, row["to"]] = torch.tensor(row["weights"], dtype=matrix.dtype)
        return matrix

    def line(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"), allow_nan=False) + "\n"


def key_of(recipe: Recipe) -> str:
    """What tells runs apart: the recipe's fingerprint and its length, however often it is tested on the way.

    Where no letters are written, all networks are the same, and so are settings that only letters have to do with.
    """
    plain = control_of(recipe) if is_control(recipe) else recipe
    tested = {"evaluate": recipe.evaluate.model_copy(update={"every": 1})}
    return f"{plain.model_copy(update=tested).fingerprint()}-{recipe.rounds}"


def sparse(weights: Tensor) -> list[dict[str, list[Any]]]:
    """W (M, M) as sparse rows, its weights to six digits."""
    rows = [_sparse(row) for row in weights]
    return [{"to": row["to"], "weights": [round(w, 6) for w in row["weights"]]} for row in rows]


class Store:
    """The rows of a folder, by key. A run that stands in several tables is kept once, with the table it was run for."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.rows: dict[str, Row] = {}
        for path in sorted(folder.glob("*.jsonl")):
            for row in _read(path):
                try:
                    self.rows.setdefault(_key_today(row), row)
                except MaplError as error:  # of a setting or a method that is no more
                    warnings.warn(f"results store {str(path)!r}: {row.cell} is left out ({error})", stacklevel=2)

    def __contains__(self, key: str) -> bool:
        return key in self.rows

    def get(self, key: str) -> Row | None:
        return self.rows.get(key)

    def add(self, row: Row) -> None:
        """Append a row to its table's file; it is on the disk when this returns."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{row.table}.jsonl"
        _drop_torn_line(path)
        with path.open("ab") as file:
            file.write(row.line().encode())
            file.flush()
            os.fsync(file.fileno())
        self.rows[_key_today(row)] = row


def _key_today(row: Row) -> str:
    """The key that its recipe has by now: a setting that was added since has its default, which is how it was run."""
    return key_of(row.made)


def _read(path: Path) -> Iterator[Row]:
    """The rows of a file; a last line that was cut off (a crash) is left out."""
    known = {f.name for f in fields(Row)}
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            values = json.loads(line)
            yield Row(**{k: v for k, v in values.items() if k in known})
        except (ValueError, TypeError, AttributeError) as error:
            raise MaplError(f"results store {str(path)!r}, line {number}, is no row: {error}") from error


def _drop_torn_line(path: Path) -> None:
    """Cut off what a crash left after the last whole line."""
    if not path.exists():
        return
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)


def _sparse(row: Tensor) -> dict[str, list[Any]]:
    """A row of W without its zeros."""
    to = torch.nonzero(row).flatten()
    return {"to": to.tolist(), "weights": row[to].tolist()}
