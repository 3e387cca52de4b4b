"""What a run writes to disk, and how it is read.

A run's folder:

    recipe.toml      the whole recipe
    clients.json     who the clients are: backbone, classes, number of images
    history.jsonl    one line per round; equal runs have equal bytes
    graph.rows       who listens to whom, where the method has a graph; graph.index points into it (see `graph`)
    times.jsonl      how long each round took; separate because it differs even between equal runs
    checkpoints/     everything needed to resume
    profile.json     where the time went, if the run was profiled
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from pydantic_core import to_json
from torch import Tensor

from mapl.errors import MaplError
from mapl.recipe import Recipe, read, validated
from mapl.runs.files import write_aside
from mapl.runs.graph import Graph, fill

RECIPE, CLIENTS, HISTORY, TIMES = "recipe.toml", "clients.json", "history.jsonl", "times.jsonl"
PROFILE = "profile.json"

Bytes = bytes  # `Round` has a field of that name


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
    all_images: list[float] | None = None
    """Accuracy by client on all test images of its classes; None if not asked for."""
    ways: dict[str, list[float]] | None = None
    """Accuracy by client of the other ways to answer (`Method.ways`), on all test images if they are asked for."""

    def line(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for optional in ("all_images", "ways"):
            if values[optional] is None:
                del values[optional]
        return to_json(values).decode() + "\n"

    @staticmethod
    def of_line(line: str | Bytes) -> Round:
        values = json.loads(line)
        if "rows" in values:
            raise OlderRun
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
        """Accuracy by client (M,) at the last test. This is the number to report, never the best one."""
        if not self.tested:
            raise MaplError(f"run {str(self.folder)!r} has not been tested yet")
        return torch.tensor(self.tested[-1].accuracy, dtype=torch.float64)

    @property
    def all_images(self) -> Tensor | None:
        """The same on all test images of each client's classes; None if the recipe does not ask for it."""
        last = self.tested[-1].all_images if self.tested else None
        return None if last is None else torch.tensor(last, dtype=torch.float64)

    @property
    def ways(self) -> dict[str, float]:
        """Mean accuracy over clients of the other ways to answer, at the last test (`Method.ways`)."""
        last = self.tested[-1].ways if self.tested else None
        return {way: fmean(accuracy) for way, accuracy in (last or {}).items()}

    @property
    def mean(self) -> float:
        """Mean accuracy over clients at the last test."""
        return float(self.accuracy.mean())

    @property
    def std(self) -> float:
        """Population standard deviation over clients, as in the paper."""
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
        """Where the time of the last profiled part of the run went; None if nothing was profiled."""
        path = self.folder / PROFILE
        contents: dict[str, Any] | None = json.loads(path.read_bytes()) if path.exists() else None
        return contents

    @property
    def graph(self) -> Graph:
        """W of every round, sparse."""
        return Graph(self.folder, [client.id for client in self.clients])

    def weights(self, round: int = -1) -> Tensor:
        """The mixing matrix W (M, M) at the end of a round; a client that never mixed has its row of the identity."""
        matrix = torch.eye(self.recipe.clients, dtype=torch.float64)
        if self.rounds:
            fill(matrix, self.graph.rows(range(len(self.rounds))[round]))
        return matrix

    def graphs(self) -> Iterator[tuple[Round, Tensor]]:
        """Every round with W (M, M) at its end; the matrix is one object, changed in place."""
        return zip(self.rounds, self.graph.matrices(len(self.rounds), self.recipe.clients), strict=True)


class OlderRun(MaplError):
    """The run's folder was written by an older version."""

    def __init__(self) -> None:
        super().__init__("it was written by an older version of mapl, which this version cannot read; run it again")


def decode_all(data: bytes) -> list[Round]:
    """The rounds of a history, without a last line that a crash cut off."""
    return [Round.of_line(line) for line in data.split(b"\n")[:-1] if line]


def cut_history(path: Path, rounds: int, change: Callable[[Round], Round]) -> None:
    """Cut a history after `rounds` rounds and change its last line."""
    if not rounds:
        path.unlink(missing_ok=True)
        return
    if not path.exists():
        raise MaplError(f"{str(path)!r} is missing, but the run's checkpoint has {rounds} rounds")
    with path.open("r+b") as file:
        start, line = 0, b""
        for number in range(rounds):
            start, line = start + len(line), file.readline()
            if not line.endswith(b"\n"):
                raise MaplError(f"{str(path)!r} has {number} rounds, but its checkpoint has {rounds}")
        file.truncate(start + len(line))
        changed = change(_last_line(path, line)).line().encode()
        if changed == line:
            return
        file.seek(0)
        before = file.read(start)
    write_aside(path, before + changed)


def _last_line(path: Path, line: Bytes) -> Round:
    try:
        return Round.of_line(line)
    except (ValueError, TypeError) as error:
        raise MaplError(f"the last line of {str(path)!r} is damaged: {error}") from error


def load(folder: str | Path) -> Record:
    """Read a run: its recipe, its clients, and what happened in every round."""
    folder = Path(folder)
    recipe = load_recipe(folder)
    try:
        cards = [ClientCard(**card) for card in json.loads((folder / CLIENTS).read_text())]
        rounds = decode_all(_bytes(folder / HISTORY))
        times = [json.loads(line) for line in _bytes(folder / TIMES).split(b"\n")[:-1] if line]
    except (OSError, ValueError, TypeError, KeyError, OlderRun) as error:
        raise MaplError(f"run {str(folder)!r} cannot be read: {error}") from error
    return Record(folder, recipe, cards, rounds, times)


def load_recipe(folder: Path) -> Recipe:
    """The recipe of a run."""
    if not (folder / RECIPE).is_file():
        raise MaplError(f"{str(folder)!r} is not the folder of a run: it has no {RECIPE}")
    return validated(read(folder / RECIPE), str(folder / RECIPE))


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
