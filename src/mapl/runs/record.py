"""A run in memory: its recipe, its clients, and what happened in every round."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mapl.errors import MaplError, unknown
from mapl.measures import METRICS, TITLES, Measure, Metric
from mapl.network import epsilon
from mapl.network.refused import Counts, added
from mapl.recipe import Recipe
from mapl.runs import shown
from mapl.runs.chain import History, Round, digest
from mapl.runs.graph import Graph, fill

if TYPE_CHECKING:
    import pandas as pd

PROFILE = "profile.json"


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
    data: str = ""
    """A digest of the data that its images come from (`mapl.runs.client_data.digests`)."""


@dataclass(frozen=True)
class Record:
    """A run read from its folder."""

    folder: Path
    recipe: Recipe
    clients: list[ClientCard]
    rounds: list[Round]
    times: list[dict[str, float]]
    """The rounds whose times are known, in order: seconds, and the seconds of each part."""
    history: History | None = None
    """The same rounds with their hashes; None for a record that was not read from a folder."""
    remarks: tuple[str, ...] = ()
    """What a reader should know, such as lines of times.jsonl that are missing or damaged."""

    def __repr__(self) -> str:
        return shown.in_a_line(self)

    def _repr_html_(self) -> str:
        """What a notebook shows: the same with the accuracy by round."""
        return shown.as_html(self)

    def to_pandas(self) -> pd.DataFrame:
        """A data frame of pandas, which must be installed: a row for each client in each round.

        Columns: `round` (from 0), `client`, `cluster`, `backbone`, `accuracy` (0 to 1; NaN in a round without a test),
        `loss_…` for each term of the loss, and where the run has them `macro_f1`, `balanced_accuracy` and
        `calibration_error`, `all_images`, `accuracy_…` for each other way to answer, and `released`. What is known of
        the network alone, such as messages, is in `rounds`.
        """
        return shown.as_frame(self)

    @property
    def held(self) -> list[int]:
        """The clients of the network that the run has, by number: all of them, unless it is a part."""
        return [card.id for card in self.clients]

    @property
    def whole(self) -> bool:
        """Whether it has every client of the network. The folder of a part has those that its process held."""
        return len(self.clients) == self.recipe.clients

    @property
    def data(self) -> str:
        """A digest of the data: equal for equal images and labels."""
        return combined({card.id: card.data for card in self.clients})

    @property
    def identity(self) -> str:
        """16 hex digits, equal for runs of the same settings (`Recipe.settings`) on the same data."""
        return digest(f"{self.recipe.fingerprint()} {self.data}".encode())

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
    def measures(self) -> dict[Measure, Tensor]:
        """What else is measured (`mapl.measures`), by client (M,) at the last test; empty for a run from before."""
        last = self.tested[-1].measures if self.tested else None
        return {name: torch.tensor(values, dtype=torch.float64) for name, values in (last or {}).items()}

    def value(self, metric: Metric = "accuracy") -> float:
        """The network's number at the last test: of accuracy and of each measure the mean over clients, or
        "worst_tenth", the mean accuracy of the tenth of the clients, rounded up, that have the lowest."""
        if metric not in METRICS:
            raise unknown("metric", metric, METRICS)
        self.accuracy  # noqa: B018 - says so if there was no test
        value = self.tested[-1].value(metric)
        if value is None:
            raise MaplError(f"run {str(self.folder)!r} is from before {TITLES[metric]} was measured; run it again")
        return value

    @property
    def worst_tenth(self) -> float:
        """Mean accuracy of the tenth of the clients, rounded up, that have the lowest, at the last test."""
        return self.value("worst_tenth")

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
    def refused(self) -> Counts:
        """How many letters were left out because they failed a check, by sender, then by reason."""
        return functools.reduce(added, (r.refused for r in self.rounds), {})

    @property
    def seconds(self) -> float:
        return sum(t["seconds"] for t in self.times)

    @cached_property
    def profile(self) -> dict[str, Any] | None:
        """Where the time of the last profiled part of the run went; None if nothing was profiled."""
        path = self.folder / PROFILE
        try:
            contents: dict[str, Any] | None = json.loads(path.read_bytes()) if path.exists() else None
        except (OSError, ValueError) as error:
            raise MaplError(f"{str(path)!r} is damaged: {error}") from error
        return contents

    def epsilons(self, round: int = -1) -> list[float] | None:
        """By client, the ε at `network.noise.delta` that its letters have spent by the end of a round.

        None if letters travel as they were written, without clipping or noise.
        """
        noise = self.recipe.network.noise
        if noise.clip is None:
            return None
        played = self.rounds[: range(len(self.rounds))[round] + 1] if self.rounds else []
        letters = [sum(line.released[place] for line in played if line.released) for place in range(len(self.clients))]
        return [epsilon(noise, number) for number in letters]

    @property
    def graph(self) -> Graph:
        """W of every round, sparse."""
        digests = [entry.graph for entry in self.history.entries] if self.history else None
        return Graph(self.folder, [client.id for client in self.clients], digests)

    def weights(self, round: int = -1) -> Tensor:
        """The mixing matrix W (M, M) at the end of a round; a client that never mixed has its row of the identity.

        So has a client that the run does not have, because it is a part.
        """
        matrix = torch.eye(self.recipe.clients, dtype=torch.float64)
        if self.rounds:
            fill(matrix, self.graph.rows(self._number(round)))
        return matrix

    def _number(self, round: int) -> int:
        """The number of a round, which may be counted from the end."""
        played = len(self.rounds)
        if not -played <= round < played:
            raise MaplError(f"run {str(self.folder)!r} has no round {round}; it has rounds 0 to {played - 1}")
        return round % played

    def among(self, round: int = -1) -> Tensor:
        """The rows and columns of W that belong to clients of the run (k, k): all of W, unless it is a part."""
        matrix, held = self.weights(round), torch.tensor(self.held)
        return matrix if self.whole else matrix[held][:, held]

    def graphs(self) -> Iterator[tuple[Round, Tensor]]:
        """Every round with W (M, M) at its end; the matrix is one object, changed in place."""
        return zip(self.rounds, self.graph.matrices(len(self.rounds), self.recipe.clients), strict=True)


def combined(digests: Mapping[int, str]) -> str:
    """One digest of the data of several clients. If all have the same, it is that one."""
    if len(set(digests.values())) == 1:
        return next(iter(digests.values()))
    return digest("".join(f"{client}:{data}\n" for client, data in sorted(digests.items())).encode())


def part_of(folder: Path, recipe: Recipe, cards: Sequence[ClientCard]) -> str:
    """Says that a run is a part of a network; empty if it has all clients."""
    if len(cards) == recipe.clients:
        return ""
    who = share_of_network([card.id for card in cards], recipe.clients)
    return f"run {str(folder)!r} is a part of a network: it has {who}"


def share_of_network(held: Sequence[int], clients: int) -> str:
    """Which clients of a network a part holds: client 3 of 4; clients 0, 1 and 3 of 4."""
    names = [str(client) for client in held[:6]]
    if len(held) > len(names):
        names.append(f"{len(held) - len(names)} more")
    first, last = ", ".join(names[:-1]), names[-1]
    return f"clients {first} and {last} of {clients}" if first else f"client {last} of {clients}"
