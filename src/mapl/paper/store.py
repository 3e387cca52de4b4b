"""The results store: one append-only JSON-lines file per table, one line per finished run.

A line has all that tables and figures need, so the folder of the run can go.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mapl.analysis.control import control_of
from mapl.errors import MaplError, warn
from mapl.plugins import looking
from mapl.recipe import Recipe, has_letters, validated
from mapl.trees import Tree

NO_SHARE = -1.0
"""What a line has for a share that does not exist."""

_TABLE = re.compile(r"[a-z0-9_]+")

RUNS = "runs"
"""The folder, inside the store's, of runs in progress."""


@dataclass(frozen=True)
class StoredRun:
    """One finished run."""

    key: str
    """Recipes that are the same run have the same key (`key_of`)."""
    table: str
    """The table or figure that it was run for. Others may use it, too."""
    cell: str
    """The name of the cell, or the figure's name for the run."""
    control: bool
    """Whether it is the cell's control: the same run without letters."""
    scale: str
    """What differs from the paper's protocol; empty if nothing does."""
    seed: int
    rounds: int
    form: str | None
    """MAPL's form; None for other methods."""
    recipe: Tree
    """The whole recipe."""
    accuracy: list[float]
    """By client at the last test, on the recipe's test images (the paper's: 15 per class)."""
    all_images: list[float] | None
    """The same models on all test images of each client's classes."""
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
    `edges` (weights to others above 0), `inside` (as `inside_curve`, with `NO_SHARE` for None)."""
    weights: dict[str, list[dict[str, list[Any]]]]
    """W at some rounds, always including the last: round → one sparse row per client. Empty if nobody ever mixed."""
    seconds: float
    """All rounds, tests and checkpoints included."""
    setup_seconds: float
    device: str
    precision: str
    versions: dict[str, str]
    date: str
    extra: dict[str, Any] = field(default_factory=dict)
    """What figures need of its models."""
    data: str = ""
    """The digest of its data (`Record.data`), if they are not a published data set; empty fits any data."""

    @cached_property
    @looking()
    def parsed_recipe(self) -> Recipe:
        return validated(self.recipe, f"run {self.cell} of the store")

    @property
    def inside_curve(self) -> list[float | None]:
        """By tested round: share of the weight given to others that stays inside the true clusters."""
        return [None if share == NO_SHARE else share for share in self.curve.get("inside", ())]

    def matrix(self, round: int | None = None) -> Tensor:
        """W (M, M) at a stored round, by default the last."""
        matrix = torch.eye(len(self.clusters), dtype=torch.float64)
        if round is None:
            round = max(map(int, self.weights), default=None)
        for client, row in enumerate(self.weights[str(round)] if round is not None else ()):
            matrix[client] = 0
            matrix[client, row["to"]] = torch.tensor(row["weights"], dtype=matrix.dtype)
        return matrix

    def line(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"), allow_nan=False) + "\n"


def key_of(recipe: Recipe) -> str:
    """The recipe's fingerprint and its length; without letters, those of the control that most runs share."""
    plain = recipe if has_letters(recipe) else control_of(recipe)
    return f"{plain.fingerprint()}-{recipe.rounds}"


def sparse(weights: Tensor) -> list[dict[str, list[Any]]]:
    """W (M, M) as sparse rows, weights to six digits."""
    rows = []
    for row in weights:
        to = torch.nonzero(row).flatten()
        rows.append({"to": to.tolist(), "weights": [round(w, 6) for w in row[to].tolist()]})
    return rows


class Store:
    """The runs of a folder, by key. A run that several tables use is kept once, under the table it was run for."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.runs: dict[str, StoredRun] = {}
        for path in sorted(folder.glob("*.jsonl")):
            for run in _read(path):
                try:
                    self.runs.setdefault(_key_today(run), run)
                except MaplError as error:  # a setting or method that no longer exists
                    warn(f"results store {str(path)!r}: {run.cell} is left out ({error})", once=True)

    def __contains__(self, key: str) -> bool:
        return key in self.runs

    def get(self, key: str) -> StoredRun | None:
        return self.runs.get(key)

    def running(self, key: str) -> Path:
        """The folder of a run until it is in the store."""
        return self.folder / RUNS / key

    def begun(self) -> list[Path]:
        """The folders of runs that were begun."""
        return list((self.folder / RUNS).glob("*"))

    def add(self, run: StoredRun) -> None:
        """Append a run to its table's file. It is on disk when this returns."""
        if not _TABLE.fullmatch(run.table):  # it names a file, and may come from a store that somebody sent
            raise MaplError(f"results store: {run.table!r} is not the name of a table or figure")
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{run.table}.jsonl"
        _drop_torn_line(path)
        with path.open("ab") as file:
            file.write(run.line().encode())
            file.flush()
            os.fsync(file.fileno())
        self.runs[_key_today(run)] = run


def _key_today(run: StoredRun) -> str:
    """The key by today's recipe: a setting added since then has its default, which is how the run was made."""
    return key_of(run.parsed_recipe)


def _read(path: Path) -> Iterator[StoredRun]:
    """The runs of a file, without a last line that a crash cut off."""
    known = {f.name for f in fields(StoredRun)}
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            values = json.loads(line)
            yield StoredRun(**{k: v for k, v in values.items() if k in known})
        except (ValueError, TypeError, AttributeError) as error:
            raise MaplError(f"results store {str(path)!r}, line {number}, is not a run: {error}") from error


def _drop_torn_line(path: Path) -> None:
    """Remove what a crash left after the last whole line."""
    if not path.exists():
        return
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)
