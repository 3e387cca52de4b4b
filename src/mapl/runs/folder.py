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

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from mapl.errors import MaplError
from mapl.plugins import looking
from mapl.recipe import Recipe, read, to_toml, validated
from mapl.runs import checkpoint
from mapl.runs.chain import Header, History, closed, digest, follows, read_history
from mapl.runs.files import check_entries, write_aside
from mapl.runs.graph import INDEX, ROWS, Graph
from mapl.runs.record import PROFILE, ClientCard, Record

RECIPE, CLIENTS, HISTORY, TIMES, JOINED = "recipe.toml", "clients.json", "history.jsonl", "times.jsonl", "joined.json"


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


class OlderRun(MaplError):
    """The run's folder was written by an older version."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"run {str(folder)!r} was written by an older version of mapl, which this version cannot read; run it again"
        )


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
