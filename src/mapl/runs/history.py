"""What a run writes to disk, and how it is read.

A run's folder:

    recipe.toml      the whole recipe; its last line is a digest of the lines above
    clients.json     who the clients are: backbone, classes, number of images, digest of the data
    history.jsonl    one line per round, each bound to the line before it (see `chain`); equal runs have equal bytes
    graph.rows       who listens to whom, where the method has a graph; graph.index points into it (see `graph`)
    times.jsonl      how long each round took; separate because it differs even between equal runs
    checkpoints/     everything needed to resume
    profile.json     where the time went, if the run was profiled
    joined.json      the parts that it was joined from, if it was (see `join`)

A process that holds some of the clients writes the same files for those alone. clients.json says which they are.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from mapl.errors import MaplError, unknown
from mapl.measures import METRICS, TITLES, Measure, Metric
from mapl.network import epsilon
from mapl.network.refused import Counts, added
from mapl.plugins import looking
from mapl.recipe import Recipe, read, to_toml, validated
from mapl.runs import checkpoint, shown
from mapl.runs.chain import Header, History, closed, digest, follows, read_history
from mapl.runs.chain import Round as Round  # the one that everybody else imports from here
from mapl.runs.files import check_entries, write_aside
from mapl.runs.graph import INDEX, ROWS, Graph, fill

if TYPE_CHECKING:
    import pandas as pd

RECIPE, CLIENTS, HISTORY, TIMES = "recipe.toml", "clients.json", "history.jsonl", "times.jsonl"
PROFILE, JOINED = "profile.json", "joined.json"


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
    """A digest of the data that its images come from (`mapl.runs.part.digests`)."""


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
            fill(matrix, self.graph.rows(range(len(self.rounds))[round]))
        return matrix

    def among(self, round: int = -1) -> Tensor:
        """The rows and columns of W that belong to clients of the run (k, k): all of W, unless it is a part."""
        matrix, held = self.weights(round), torch.tensor(self.held)
        return matrix if self.whole else matrix[held][:, held]

    def graphs(self) -> Iterator[tuple[Round, Tensor]]:
        """Every round with W (M, M) at its end; the matrix is one object, changed in place."""
        return zip(self.rounds, self.graph.matrices(len(self.rounds), self.recipe.clients), strict=True)


class OlderRun(MaplError):
    """The run's folder was written by an older version."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"run {str(folder)!r} was written by an older version of mapl, which this version cannot read; run it again"
        )


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


# The recipe and the clients


_DIGEST = "# digest of the lines above: "


def write_recipe(folder: Path, recipe: Recipe) -> None:
    """Write a run's recipe. Its last line is a digest of the others."""
    text = to_toml(recipe)
    write_aside(folder / RECIPE, f"{text}{_DIGEST}{digest(text.encode())}\n".encode())


@looking()
def load_recipe(folder: Path) -> Recipe:
    """The recipe of a run, which may have been edited since. It imports nothing that only the folder names."""
    if not (folder / RECIPE).is_file():
        why = f"it has no {RECIPE}" if folder.exists() else "there is no such folder"
        raise MaplError(f"{str(folder)!r} is not the folder of a run: {why}")
    check_entries(folder, (RECIPE, CLIENTS, HISTORY, TIMES, PROFILE, JOINED, ROWS, INDEX), ("checkpoints",))
    return validated(read(folder / RECIPE), str(folder / RECIPE))


def is_as_written(folder: Path) -> bool:
    """Whether the recipe's last line fits the others."""
    data = (folder / RECIPE).read_bytes()
    text, _, rest = data.rpartition(_DIGEST.encode())
    return rest == f"{digest(text)}\n".encode()


def clients_file(cards: Sequence[ClientCard]) -> bytes:
    """The contents of clients.json."""
    return json.dumps([asdict(card) for card in cards], indent=1).encode()


_CARDS = TypeAdapter(list[ClientCard])


def read_cards(folder: Path) -> tuple[list[ClientCard], bytes]:
    """The cards of clients.json, and its bytes."""
    path = folder / CLIENTS
    try:
        data = path.read_bytes()
        return _CARDS.validate_json(data, strict=True), data
    except OSError as error:
        raise MaplError(f"run {str(folder)!r} cannot be read: {error}") from error
    except ValidationError as error:
        what = error.errors()[0]
        place = ".".join(map(str, what["loc"]))
        raise MaplError(f"{str(path)!r} is damaged{f' at {place}' if place else ''}: {what['msg']}") from error


# The times


def times_line(round: int, seconds: Mapping[str, float], before: str) -> bytes:
    """A line of times.jsonl, bound to the line of the history before its own."""
    values = {"round": round, "seconds": sum(seconds.values()), **seconds}
    return closed(json.dumps(values).encode()[:-1], before)[0]


def read_times(folder: Path) -> list[bytes]:
    """The lines of times.jsonl, without one that a crash cut off."""
    try:
        data = (folder / TIMES).read_bytes() if (folder / TIMES).exists() else b""
    except OSError as error:
        raise MaplError(f"{str(folder / TIMES)!r} cannot be read ({error.strerror})") from error
    return data.split(b"\n")[:-1]


def intact_times(lines: Sequence[bytes], history: History) -> tuple[dict[int, bytes], list[int]]:
    """The lines that belong to rounds of the history, by round, and the numbers of all others.

    A line after the last round is among the first if it was written there: then the history has lost its end.
    """
    before = [entry.before for entry in history.entries] + [history.last]
    intact: dict[int, bytes] = {}
    others = []
    for number, line in enumerate(lines, 1):
        round = _round_of(line)
        if round in intact or not 0 <= round < len(before) or not follows(line, before[round]):
            others.append(number)
        else:
            intact[round] = line
    return dict(sorted(intact.items())), others


LONGEST = 1e12
"""Seconds that a round can take; also keeps out infinities and NaN."""


def _round_of(line: bytes) -> int:
    """The round of a line of times.jsonl; -1 if the line has anything but rounds and seconds."""
    try:
        values = json.loads(line)
        round = values["round"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return -1
    times = (value for key, value in values.items() if key != "chain")
    numbers = all(type(value) in (int, float) and 0 <= value <= LONGEST for value in times)
    return round if type(round) is int and numbers and "seconds" in values else -1


# A whole folder


def runs_below(folder: Path) -> list[Path]:
    """The folder if it is that of a run, or else the folders of runs below it, by name."""
    if (folder / RECIPE).exists() or not folder.is_dir():
        return [folder] if (folder / RECIPE).exists() else []
    return sorted(path.parent for path in folder.rglob(RECIPE) if (path.parent / CLIENTS).is_file())


def load(folder: str | Path) -> Record:
    """Read a run: its recipe, its clients, and what happened in every round.

    Whatever was changed since the run wrote it is an error with file and line. Only times may be missing or damaged:
    they are left out, and `Record.remarks` says so.
    """
    folder = Path(folder)
    recipe = load_recipe(folder)
    cards, clients = read_cards(folder)
    # Before the history, which is written first: even while the run goes on, it must contain every round they mention.
    times, saved, graphs = read_times(folder), checkpoint.newest(folder), Graph.written(folder, len(cards))
    history = read_history(folder / HISTORY)
    if history.problem:
        raise OlderRun(folder) if _is_older(folder) else MaplError(history.problem)
    _check_header(folder, history, recipe, clients)
    if not is_as_written(folder):
        edited = f"{str(folder / RECIPE)!r} was edited after the run wrote it;"
        raise MaplError(
            f"{edited} mapl.resume({str(folder)!r}) takes over what may change",
            shell=f"{edited} mapl resume takes over what may change",
        )
    _check_clients(folder, recipe, cards, history)
    intact, damaged = intact_times(times, history)
    _check_end(folder, history, intact, saved, graphs)
    rounds = [entry.round for entry in history.entries]
    remarks = _remarks(folder, len(rounds), intact, damaged)
    return Record(folder, recipe, cards, rounds, [seconds_of(line) for line in intact.values()], history, remarks)


def _is_older(folder: Path) -> bool:
    """Whether the folder is from before lines had hashes."""
    return b'"chain"' not in (folder / HISTORY).read_bytes() and _DIGEST.encode() not in (folder / RECIPE).read_bytes()


def _check_header(folder: Path, history: History, recipe: Recipe, clients: bytes) -> None:
    """Recipe, clients and history have to be those of one run."""
    header = history.header
    if header is None:
        return
    check_recipe(folder, header, recipe)
    if header.clients != digest(clients):
        changed = f"{str(folder / CLIENTS)!r} was changed, or is from another run, according to line 1 of {HISTORY};"
        raise MaplError(
            f"{changed} mapl.resume({str(folder)!r}) can write it again",
            shell=f"{changed} mapl resume can write it again",
        )


def _check_clients(folder: Path, recipe: Recipe, cards: Sequence[ClientCard], history: History) -> None:
    """The clients are some of the network's, and every line of the history has one value for each of them."""
    held = [-1, *(card.id for card in cards), recipe.clients]
    if not cards or not all(one < other for one, other in pairwise(held)):
        raise MaplError(
            f"{str(folder / CLIENTS)!r} does not list clients of this run: they should be some of 0 to "
            f"{recipe.clients - 1}, in order"
        )
    for number, line in enumerate((entry.round for entry in history.entries), 1):
        by_name = (line.losses, line.ways or {}, line.measures or {})
        lists = [line.accuracy, line.all_images, line.released, *(v for values in by_name for v in values.values())]
        lengths = {len(values) for values in lists if values is not None}
        if lengths - {len(cards)}:
            raise MaplError(
                f"{str(folder / HISTORY)!r}, line {number}, has {max(lengths - {len(cards)})} values for "
                f"{len(cards)} clients"
            )


def check_recipe(folder: Path, header: Header, recipe: Recipe) -> None:
    """Refuse a recipe that is not the one that a run began with."""
    if header.recipe != recipe.fingerprint():
        raise MaplError(
            f"{str(folder / RECIPE)!r} is not the recipe that this run began with, according to line 1 of {HISTORY}: "
            "change it back, or start a new run (name, rounds, engine, tests and checkpoints may change)"
        )


def _check_end(folder: Path, history: History, times: Mapping[int, bytes], saved: int, graphs: int) -> None:
    """A history whose last lines are gone is intact in itself, but other files know of later rounds."""
    played = len(history.entries)
    witness = ""
    if played in times:
        witness = f"{TIMES} has round {played + 1}"
    elif saved > played:
        witness = f"there is a checkpoint after round {saved}"
    elif graphs > played + 1:  # the graph of a round is written before its line
        witness = f"{INDEX} has {graphs} rounds"
    if witness:
        raise MaplError(f"{str(folder / HISTORY)!r} ends after line {played}, but {witness}: its last lines are gone")


def _remarks(folder: Path, rounds: int, times: Mapping[int, bytes], damaged: Sequence[int]) -> tuple[str, ...]:
    remarks = [f"{str(folder / TIMES)!r}, line {number}, is damaged and left out" for number in damaged]
    missing = rounds - len(times)
    if missing:
        remarks.append(f"{str(folder / TIMES)!r} lacks {missing} of {rounds} rounds, so the seconds are too few")
    return tuple(remarks)


def seconds_of(line: bytes) -> dict[str, float]:
    return {key: value for key, value in json.loads(line).items() if key != "chain"}
