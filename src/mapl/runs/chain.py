"""A history that shows when it was changed: every line ends with a hash over itself and the line before it.

The first line also says what the run is: the version of the folder, the fingerprint of the recipe and a digest of
clients.json. Each line has a digest of W in its round (see `graph`). Lines of times.jsonl and checkpoints name the hash
of the history line before theirs. So a line that was edited, removed, repeated or moved is noticed, and so is a file
from another run.

This protects against accidents and careless edits. It is no signature: somebody who wants to deceive can compute all
hashes anew.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError
from pydantic_core import to_json

from mapl.errors import MaplError
from mapl.measures import Measure, Metric, worst_tenth
from mapl.network.refused import Counts
from mapl.runs.files import write_aside

VERSION = 1
"""The version of run folders that this mapl writes and reads."""

_END = re.compile(rb'(.+),"chain":"([0-9a-f]{16})"}', re.DOTALL)
_CHECKED = ("run", "graph", "chain")
"""What a line has in addition to the fields of `Round`."""


Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Round:
    """One line of the history."""

    round: int
    losses: dict[str, list[FiniteFloat | None]]
    """By term, then by client; None for a client that did not take part. Empty if none of the clients did."""
    accuracy: list[Share] | None
    """By client; None in a round without a test."""
    messages: Count
    bytes: Count
    all_images: list[Share] | None = None
    """Accuracy by client on all test images of its classes; None if not asked for."""
    ways: dict[str, list[Share]] | None = None
    """Accuracy by client of the other ways to answer (`Method.ways`), on all test images if they are asked for."""
    measures: dict[Measure, list[Share]] | None = None
    """What else is measured by client (`mapl.measures`); None without a test, and in runs from before it was."""
    released: list[Count] | None = None
    """By client, how many noisy letters it released in this round; None without `network.noise`."""
    refused: Counts | None = None
    """How many letters were left out because they failed a check, by sender, then by reason; None if none were."""

    def line(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for optional in ("all_images", "ways", "measures", "released", "refused"):
            if values[optional] is None:
                del values[optional]
        return to_json(values).decode() + "\n"

    @property
    def mean_losses(self) -> dict[str, float]:
        """By term: the mean over the clients that took part."""
        trained = {term: [v for v in values if v is not None] for term, values in self.losses.items()}
        return {term: fmean(values) for term, values in trained.items() if values}

    def value(self, metric: Metric) -> float | None:
        """The network's number at this round's test; None without a test, or if it was not measured."""
        if self.accuracy is None:
            return None
        if metric == "accuracy":
            return fmean(self.accuracy)
        if metric == "worst_tenth":
            return worst_tenth(self.accuracy)
        values = (self.measures or {}).get(metric)
        return fmean(values) if values else None

    @staticmethod
    def of_line(line: str | Bytes) -> Round:
        values = {key: value for key, value in json.loads(line).items() if key not in _CHECKED}
        return _ROUND.validate_python(values)


Bytes = bytes  # `Round` has a field of that name


_ROUND = TypeAdapter(Round)


@dataclass(frozen=True)
class Header:
    """What a run is, as its first line says."""

    version: int
    recipe: str
    """The recipe's fingerprint."""
    clients: str
    """A digest of clients.json, which has the digests of the data."""

    @staticmethod
    def of(fingerprint: str, clients: bytes) -> Header:
        return Header(VERSION, fingerprint, digest(clients))

    @property
    def start(self) -> str:
        """The hash before the first line."""
        return linked("", json.dumps(asdict(self), sort_keys=True).encode())


@dataclass(frozen=True)
class Entry:
    """A line of the history that follows from the line before it."""

    round: Round
    graph: str
    """The digest of W; empty if there is no graph yet."""
    before: str
    """The hash of the line before."""
    chain: str
    """Its own hash."""
    begin: int
    end: int
    """Where it is in the file."""


@dataclass(frozen=True)
class History:
    """The intact lines of a history, from its first on."""

    header: Header | None
    entries: list[Entry]
    problem: str
    """What is wrong with the first line that is not intact, with file and line; empty if nothing is."""
    torn: bool
    """Whether the file ends inside a line, as after a crash."""

    @property
    def start(self) -> str:
        return self.header.start if self.header else ""

    @property
    def last(self) -> str:
        """The hash that the next line follows from."""
        return self.entries[-1].chain if self.entries else self.start

    def before(self, rounds: int) -> str:
        """The hash that the last of the first `rounds` lines follows from."""
        return self.entries[rounds - 1].before


class Writer:
    """Appends lines to a history."""

    def __init__(self, path: Path, header: Header, last: str = ""):
        self.path, self.header = path, header
        self.before = ""
        """The hash that the newest line follows from."""
        self.last = last or header.start
        self._first = not last

    def append(self, line: Round, graph: str) -> None:
        self.before = self.last
        data, self.last = sealed(line, graph, self.before, self.header if self._first else None)
        self._first = False
        append(self.path, data)


def append(path: Path, line: bytes) -> None:
    with path.open("ab") as file:
        file.write(line)


def sealed(line: Round, graph: str, before: str, header: Header | None = None) -> tuple[bytes, str]:
    """A line as it is in the file, and its hash."""
    body = line.line().rstrip()[:-1]
    if header is not None:
        body += f',"run":{json.dumps(asdict(header), separators=(",", ":"))}'
    if graph:
        body += f',"graph":"{graph}"'
    return closed(body.encode(), before)


def closed(body: bytes, before: str) -> tuple[bytes, str]:
    """A JSON object without its last brace, as a line with its hash; and the hash."""
    chain = linked(before, body)
    return body + f',"chain":"{chain}"}}\n'.encode(), chain


def follows(line: bytes, before: str) -> bool:
    """Whether a line, without its newline, is one that was written after `before`."""
    match = _END.fullmatch(line)
    return match is not None and linked(before, match[1]) == match[2].decode()


def linked(before: str, body: bytes) -> str:
    return digest(before.encode() + body)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def read_history(path: Path) -> History:
    """The lines of a history up to the first that is not intact."""
    try:
        data = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise MaplError(f"{str(path)!r} cannot be read ({error.strerror})") from error
    *lines, rest = data.split(b"\n")
    header = _header(path, lines[0]) if lines else None
    history = History(header, [], "", bool(rest))
    before, begin = history.start, 0
    for number, line in enumerate(lines, 1):
        if header is None or not follows(line, before):
            return History(header, history.entries, _problem(path, number, line), bool(rest))
        values = json.loads(line)
        chain, end = values["chain"], begin + len(line) + 1
        try:
            round = Round.of_line(line)
        except ValidationError:
            problem = f"{str(path)!r}, line {number}, has values that no run writes"
            return History(header, history.entries, problem, bool(rest))
        history.entries.append(Entry(round, values.get("graph", ""), before, chain, begin, end))
        before, begin = chain, end
    return history


def _header(path: Path, line: bytes) -> Header | None:
    """What the first line says about the run; None if it is damaged."""
    values = _parsed(line)
    run = values.get("run")
    version = run.get("version") if isinstance(run, dict) else None
    if type(version) is int and version > VERSION and _END.fullmatch(line):
        raise MaplError(
            f"{str(path)!r} was written by a newer mapl: the folder has version {version}, and this mapl reads "
            f"version {VERSION}"
        )
    try:
        header = Header(**run) if isinstance(run, dict) else None
    except TypeError:
        return None
    return header if header is not None and follows(line, header.start) else None


def _problem(path: Path, number: int, line: bytes) -> str:
    where = f"{str(path)!r}, line {number},"
    values = _parsed(line)
    if not values:
        return f"{where} is damaged: it is not JSON"
    if values.get("round") != number - 1:
        return f"{where} is not that of round {number}: lines were removed, repeated or moved"
    return f"{where} was changed, or is from another run: its hash does not fit"


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def cut_history(path: Path, history: History, rounds: int, change: Callable[[Round], Round]) -> str:
    """Cut a history after `rounds` rounds and change its last line. Returns the hash of its last line."""
    if not rounds:
        path.unlink(missing_ok=True)
        return ""
    last = history.entries[rounds - 1]
    with path.open("r+b") as file:
        if path.stat().st_size > last.end:
            file.truncate(last.end)
        changed = change(last.round)
        if changed == last.round:
            return last.chain
        before = file.read(last.begin)
    line, chain = sealed(changed, last.graph, last.before, history.header if rounds == 1 else None)
    write_aside(path, before + line)
    return chain
