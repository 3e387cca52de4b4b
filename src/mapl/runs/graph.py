"""The collaboration graph on disk: a sparse W for every round, append-only and readable without replay.

Two files in a run's folder, both little-endian:

    graph.rows     rows of W, one after another: n, then n ids (int64), then n weights (float64), zeros left out
    graph.index    one record per round (int64): where graph.rows ended, then the offset of each client's row

A row is appended when it changes. A record points to every client's current row, so reading W of any round takes one
record and one row per client. A client that has not mixed yet has -1 in the index and, in W, its row of the identity.

The history has a digest of each round's record and rows. Whoever reads a round checks it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mapl.client import Peers
from mapl.errors import MaplError

ROWS, INDEX = "graph.rows", "graph.index"
NEVER = -1
"""In the index: the client has no row yet."""


class Row(NamedTuple):
    """Whom a client listens to, and how much."""

    ids: NDArray[np.int64]
    weights: NDArray[np.float64]


class GraphWriter:
    """Appends W to a run's folder, round by round."""

    def __init__(self, folder: Path, clients: Sequence[int]) -> None:
        self._rows, self._index = folder / ROWS, folder / INDEX
        self._clients = list(clients)
        self._offsets = np.full(len(clients), NEVER, dtype="<i8")
        self._digests: dict[int, bytes] = {}
        """Of the row of each place of the index."""
        self._end = 0
        self._rounds = 0

    def cut(self, rounds: int) -> None:
        """Continue after the first `rounds` rounds: drop what was written later."""
        self._rounds = rounds
        graph = Graph(self._rows.parent, self._clients)
        if not rounds or not self._index.exists():
            self._rows.unlink(missing_ok=True)
            self._index.unlink(missing_ok=True)
            return
        record = graph.record(rounds - 1)
        self._end, self._offsets = int(record[0]), record[1:].copy()
        size = self._rows.stat().st_size if self._rows.exists() else 0
        if size < self._end:
            raise MaplError(f"{str(self._rows)!r} is damaged: it has {size} bytes, but {self._end} were written")
        with self._rows.open("r+b") as rows, self._index.open("r+b") as index:
            rows.truncate(self._end)
            index.truncate(rounds * record.nbytes)
        rows_of = graph.rows(rounds - 1)
        places = enumerate(self._clients)
        self._digests = {place: _digest(_encoded(*rows_of[client])) for place, client in places if client in rows_of}

    def append(self, rows: Mapping[int, Peers | Row]) -> str:
        """Append a round's W: the rows of all clients that have one. Returns its digest, empty without a graph.

        A row that did not change may be left out.
        """
        self._rounds += 1
        if not rows and not self._index.exists():
            return ""  # no graph, or not yet
        new: list[bytes] = []
        # A graph that begins later has empty records for the rounds before it.
        before = 0 if self._index.exists() else self._rounds - 1
        nothing = np.array([0] + [NEVER] * len(self._clients), dtype="<i8").tobytes()
        for place, client in enumerate(self._clients):
            if client not in rows:
                continue
            data = _encoded(rows[client].ids, rows[client].weights)
            if (digest := _digest(data)) != self._digests.get(place):
                self._digests[place], self._offsets[place] = digest, self._end
                self._end += len(data)
                new.append(data)
        record = np.concatenate([[self._end], self._offsets]).astype("<i8")
        with self._rows.open("ab") as file:
            file.write(b"".join(new))
        with self._index.open("ab") as file:
            file.write(before * nothing + record.tobytes())
        return _round_digest(record, self._digests)


@dataclass(frozen=True)
class Graph:
    """W of every round of a run, read from its folder."""

    folder: Path
    clients: Sequence[int]
    """The clients that the run's process held, in the order of the index."""
    digests: Sequence[str] | None = None
    """By round, as `GraphWriter.append` returned them; None: nothing is checked."""

    @property
    def exists(self) -> bool:
        """Whether the run's method has a graph and a round has been played."""
        return (self.folder / INDEX).exists()

    def record(self, round: int) -> NDArray[np.int64]:
        """A round's record of the index."""
        size = 8 * (1 + len(self.clients))
        try:
            with (self.folder / INDEX).open("rb") as file:
                file.seek(round * size)
                data = file.read(size)
        except OSError as error:
            raise MaplError(f"{str(self.folder / INDEX)!r} cannot be read ({error.strerror})") from error
        if len(data) < size:
            raise MaplError(f"{str(self.folder / INDEX)!r} has no record of round {round + 1}: it was cut or damaged")
        return np.frombuffer(data, "<i8")

    @staticmethod
    def written(folder: Path, clients: int) -> int:
        """The number of rounds that the index of a folder has."""
        path = folder / INDEX
        return path.stat().st_size // (8 * (1 + clients)) if path.is_file() else 0

    def rows(self, round: int) -> dict[int, Row]:
        """The rows of W at the end of a round, by client."""
        return self._changed(round, np.full(len(self.clients), NEVER), {})[0]

    def matrices(self, rounds: int, clients: int) -> Iterator[Tensor]:
        """W (M, M) at the end of each round; the matrix is one object, changed in place."""
        matrix = torch.eye(clients, dtype=torch.float64)
        for changed in self.changes(rounds):
            fill(matrix, changed)
            yield matrix

    def problem(self, rounds: int) -> tuple[int, str]:
        """How many of the first rounds are intact, and what is wrong with the next; reads the whole files."""
        intact = 0
        try:
            for _ in self.changes(rounds):
                intact += 1
        except MaplError as error:
            return intact, str(error)
        return intact, ""

    def changes(self, rounds: int) -> Iterator[dict[int, Row]]:
        """Round by round: the rows that changed."""
        known, digests = np.full(len(self.clients), NEVER), dict[int, bytes]()
        for round in range(rounds):
            changed, known = self._changed(round, known, digests)
            yield changed

    def _changed(
        self, round: int, known: NDArray[np.int64], digests: dict[int, bytes]
    ) -> tuple[dict[int, Row], NDArray[np.int64]]:
        """The rows of a round that are not at their `known` offsets, whose digests these are; and all offsets."""
        if not self.exists:
            if self.digests and self.digests[round]:
                raise MaplError(f"{str(self.folder / INDEX)!r} is missing, but round {round + 1} had a graph")
            return {}, known
        record = self.record(round)
        offsets = record[1:]
        changed = {}
        for place in np.flatnonzero(offsets != known).tolist():
            digests.pop(place, None)
            if offsets[place] != NEVER:
                row, digests[place] = self._row(int(offsets[place]))
                changed[self.clients[place]] = row
        self._check(round, record, digests)
        return changed, offsets

    def _check(self, round: int, record: NDArray[np.int64], digests: Mapping[int, bytes]) -> None:
        if self.digests is None:
            return
        # The rounds before a graph begins have empty records, which are written with its first.
        given = _round_digest(record, digests) if self.digests[round] or digests else ""
        if given != self.digests[round]:
            raise MaplError(
                f"{str(self.folder / INDEX)!r} or {ROWS} was changed, or is from another run: round {round + 1} is not "
                "as it was written"
            )

    @cached_property
    def _data(self) -> NDArray[np.uint8]:
        path = self.folder / ROWS
        try:
            if path.exists() and path.stat().st_size:
                return np.memmap(path, np.uint8, "r")
        except OSError as error:
            raise MaplError(f"{str(path)!r} cannot be read ({error.strerror})") from error
        raise MaplError(f"{str(path)!r} is missing or empty, but {INDEX} points into it")

    def _row(self, offset: int) -> tuple[Row, bytes]:
        """The row at an offset, and its digest."""
        data = self._data
        if not 0 <= offset <= len(data) - 8:
            raise MaplError(f"{str(self.folder / ROWS)!r} is damaged: it has no row at byte {offset}")
        count = int(data[offset : offset + 8].view("<i8")[0])
        start, middle, end = offset + 8, offset + 8 + 8 * count, offset + 8 + 16 * count
        if count < 0 or end > len(data):
            raise MaplError(f"{str(self.folder / ROWS)!r} is damaged: the row at byte {offset} does not fit")
        # Copies, so that keeping a row does not keep the file open.
        row = Row(np.array(data[start:middle]).view("<i8"), np.array(data[middle:end]).view("<f8"))
        return row, _digest(data[offset:end].tobytes())


def fill(matrix: Tensor, rows: dict[int, Row]) -> None:
    """Put sparse rows into W (M, M), in place."""
    for client, (ids, weights) in rows.items():
        if len(ids) and not 0 <= ids.min() <= ids.max() < len(matrix):
            raise MaplError(f"{ROWS}: the row of client {client} has weights for clients that the run does not have")
        matrix[client] = 0
        matrix[client, torch.from_numpy(ids)] = torch.from_numpy(weights)


def _encoded(ids: NDArray[np.int64], weights: NDArray[np.float64]) -> bytes:
    nonzero = weights != 0
    if not nonzero.all():
        ids, weights = ids[nonzero], weights[nonzero]
    return len(ids).to_bytes(8, "little") + ids.astype("<i8").tobytes() + weights.astype("<f8").tobytes()


def _digest(row: bytes) -> bytes:
    return hashlib.sha256(row).digest()


def _round_digest(record: NDArray[np.int64], rows: Mapping[int, bytes]) -> str:
    """16 hex digits of a round's record and of the rows that it points to."""
    return hashlib.sha256(record.tobytes() + b"".join(rows[place] for place in sorted(rows))).hexdigest()[:16]
