"""What a run writes down, and how it is read again.

A run's folder:

    recipe.toml      the whole recipe
    clients.json     who the clients are: backbone, classes, number of images
    history.jsonl    one line a round; equal runs have equal bytes
    times.jsonl      how long each round took, kept apart because no two runs agree on it
    checkpoints/     everything needed to go on
    profile.json     where the seconds went, if that was asked for
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic_core import to_json
from torch import Tensor

from mapl.errors import MaplError
from mapl.recipe import Recipe, read, validated

RECIPE, CLIENTS, HISTORY, TIMES = "recipe.toml", "clients.json", "history.jsonl", "times.jsonl"
PROFILE = "profile.json"


@dataclass(frozen=True)
class Round:
    """One line of the history."""

    round: int
    losses: dict[str, list[float]]
    """By term, then by client."""
    accuracy: list[float] | None
    """By client; None in a round without a test."""
    messages: int
    bytes: int
    rows: dict[int, dict[str, list[Any]]] = field(default_factory=dict)
    """The rows of W that changed in this round, sparse: client → {"to": ids, "weights": values}."""
    all_images: list[float] | None = None
    """Accuracy by client with all test images of its classes; None where that was not asked for."""

    def line(self) -> str:
        return self._line

    @cached_property
    def _line(self) -> str:
        # Kept, because every checkpoint has all lines: to encode them anew each time would be quadratic over a run.
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.all_images is None:
            del values["all_images"]
        # Eight times as fast as Python's own: the rows of a thousand clients are a million numbers.
        return to_json(values).decode() + "\n"

    @staticmethod
    def of_line(line: str) -> Round:
        values = json.loads(line)
        values["rows"] = {int(client): row for client, row in values["rows"].items()}
        return Round(**values)


@dataclass(frozen=True)
class ClientCard:
    """Who a client is, for reports."""

    id: int
    cluster: int
    classes: list[int]
    samples: int
    tests: int
    backbone: str
    parameters: int


def sparse_row(row: Tensor) -> dict[str, list[Any]]:
    """A row of W without its zeros."""
    to = torch.nonzero(row).flatten()
    return {"to": to.tolist(), "weights": row[to].tolist()}


def write_row(matrix: Tensor, client: int, row: dict[str, list[Any]]) -> None:
    """Put a sparse row back into W (M, M), in place."""
    matrix[client] = 0
    matrix[client, row["to"]] = torch.tensor(row["weights"], dtype=matrix.dtype)


@dataclass(frozen=True)
class Record:
    """A run read from its folder."""

    folder: Path
    recipe: Recipe
    clients: list[ClientCard]
    rounds: list[Round]
    times: list[dict[str, float]]

    @cached_property
    def tested(self) -> list[Round]:
        """The rounds that were tested."""
        return [r for r in self.rounds if r.accuracy is not None]

    @property
    def accuracy(self) -> Tensor:
        """Accuracy by client (M,) at the last test: the number that is reported, never the best one."""
        if not self.tested:
            raise MaplError(f"run {str(self.folder)!r} has not been tested yet")
        return torch.tensor(self.tested[-1].accuracy, dtype=torch.float64)

    @property
    def all_images(self) -> Tensor | None:
        """The same with all test images of each client's classes; None where the recipe does not ask for it."""
        last = self.tested[-1].all_images if self.tested else None
        return None if last is None else torch.tensor(last, dtype=torch.float64)

    @property
    def mean(self) -> float:
        """Mean accuracy over clients at the last test."""
        return float(self.accuracy.mean())

    @property
    def std(self) -> float:
        """Population standard deviation over clients, as the paper prints."""
        return float(self.accuracy.std(correction=0))

    @property
    def finished(self) -> bool:
        budget = self.recipe.network.message_budget
        return len(self.rounds) >= self.recipe.rounds or (budget is not None and self.messages >= budget)

    @property
    def messages(self) -> int:
        return sum(r.messages for r in self.rounds)

    @property
    def bytes(self) -> int:
        return sum(r.bytes for r in self.rounds)

    @property
    def seconds(self) -> float:
        return sum(t["seconds"] for t in self.times)

    @cached_property
    def profile(self) -> dict[str, Any] | None:
        """Where the seconds of the last profiled part of the run went; None if none was profiled."""
        path = self.folder / PROFILE
        found: dict[str, Any] | None = json.loads(path.read_bytes()) if path.exists() else None
        return found

    def weights(self, round: int = -1) -> Tensor:
        """The mixing matrix W (M, M) at the end of a round; a client that never mixed has its row of the identity."""
        if not self.rounds:
            return torch.eye(len(self.clients), dtype=torch.float64)
        last = range(len(self.rounds))[round]
        return next(matrix for line, matrix in self.graphs() if line is self.rounds[last])

    def graphs(self) -> Iterator[tuple[Round, Tensor]]:
        """Every round with W (M, M) at its end; the matrix is one object, changed in place."""
        matrix = torch.eye(len(self.clients), dtype=torch.float64)
        for line in self.rounds:
            for client, row in line.rows.items():
                write_row(matrix, client, row)
            yield line, matrix


def encode_all(rounds: Iterable[Round]) -> bytes:
    return "".join(r.line() for r in rounds).encode()


def decode_all(data: bytes) -> list[Round]:
    """The rounds of a history; a last line that was cut off (a crash) is left out."""
    return [Round.of_line(line) for line in data.decode().split("\n")[:-1] if line]


def load(folder: str | Path) -> Record:
    """Read a run: what it was, who took part, and what happened in every round."""
    folder = Path(folder)
    recipe = load_recipe(folder)
    try:
        cards = [ClientCard(**card) for card in json.loads((folder / CLIENTS).read_text())]
        rounds = decode_all(_bytes(folder / HISTORY))
        times = [json.loads(line) for line in _bytes(folder / TIMES).split(b"\n")[:-1] if line]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise MaplError(f"run {str(folder)!r} cannot be read: {error}") from error
    return Record(folder, recipe, cards, rounds, times)


def load_recipe(folder: Path) -> Recipe:
    """The recipe of a run."""
    if not (folder / RECIPE).is_file():
        raise MaplError(f"{str(folder)!r} is not the folder of a run: it has no {RECIPE}")
    return validated(read(folder / RECIPE), str(folder / RECIPE))


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
