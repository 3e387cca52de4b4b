"""The collaboration graph on disk: a sparse W for every round, append-only and readable without replay.

Two files in a run's folder, both little-endian:

    graph.rows     rows of W, one after another: n, then n ids (int64), then n weights (float64), zeros left out
    graph.index    one record per round (int64): where graph.rows ended, then the offset of each client's row

A row is appended when it changes. A record points to every client's current row, so reading W of any round takes one
record and one row per client. A client that has not mixed yet has -1 in the index and, in W, its row of the identity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mapl.client import Peers
from mapl.errors import MaplError

ROWS, INDEX = "graph.rows", "graph.index"
NEVER = -1
"""In the index: the client has no row yet."""

Row = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Whom a client listens to, and how much."""


class GraphWriter:
    """Appends W to a run's folder, round by round."""

    def __init__(self, folder: Path, clients: Sequence[int]) -> None:
        self._rows, self._index = folder / ROWS, folder / INDEX
        self._clients = list(clients)
        self._offsets = np.full(len(clients), NEVER, dtype="<i8")
        self._last: dict[int, bytes] = {}
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
        self._last = {c: _encoded(*row) for c, row in graph.rows(rounds - 1).items()}

    def append(self, rows: dict[int, Peers]) -> None:
        """Append a round's W: the rows of all clients that have one."""
        self._rounds += 1
        if not rows and not self._index.exists():
            return  # no graph, or not yet
        new: list[bytes] = []
        # A graph that begins later has empty records for the rounds before it.
        before = 0 if self._index.exists() else self._rounds - 1
        nothing = np.array([0] + [NEVER] * len(self._clients), dtype="<i8").tobytes()
        for place, client in enumerate(self._clients):
            if client not in rows:
                continue
            data = _encoded(rows[client].ids, rows[client].weights)
            if data != self._last.get(client):
                self._last[client], self._offsets[place] = data, self._end
                self._end += len(data)
                new.append(data)
        with self._rows.open("ab") as file:
            file.write(b"".join(new))
        with self._index.open("ab") as file:
            file.write(before * nothing + np.concatenate([[self._end], self._offsets]).astype("<i8").tobytes())


@dataclass(frozen=True)
class Graph:
    """W of every round of a run, read from its folder."""

    folder: Path
    clients: Sequence[int]
    """The clients that the run's process held, in the order of the index."""

    @property
    def exists(self) -> bool:
        """Whether the run's method has a graph and a round has been played."""
        return (self.folder / INDEX).exists()

    def record(self, round: int) -> NDArray[np.int64]:
        """A round's record of the index."""
        size = 8 * (1 + len(self.clients))
        with (self.folder / INDEX).open("rb") as file:
            file.seek(round * size)
            data = file.read(size)
        if len(data) < size:
            raise MaplError(f"{str(self.folder / INDEX)!r} has no record of round {round}: it was cut or damaged")
        return np.frombuffer(data, "<i8")

    def rows(self, round: int, known: NDArray[np.int64] | None = None) -> dict[int, Row]:
        """The rows of W at the end of a round, by client. With `known` offsets, only rows whose offset changed."""
        if not self.exists:
            return {}
        offsets = self.record(round)[1:]
        wanted = np.flatnonzero((offsets != NEVER) & (offsets != known if known is not None else True))
        if not len(wanted):
            return {}
        if not (self.folder / ROWS).exists() or not (self.folder / ROWS).stat().st_size:
            raise MaplError(f"{str(self.folder / ROWS)!r} is missing or empty, but {INDEX} points into it")
        data = np.memmap(self.folder / ROWS, np.uint8, "r")
        return {self.clients[place]: _decoded(data, int(offsets[place])) for place in wanted.tolist()}

    def matrices(self, rounds: int, clients: int) -> Iterator[Tensor]:
        """W (M, M) at the end of each round; the matrix is one object, changed in place."""
        matrix = torch.eye(clients, dtype=torch.float64)
        known = np.full(len(self.clients), NEVER)
        for round in range(rounds):
            fill(matrix, self.rows(round, known))
            if self.exists:
                known = self.record(round)[1:]
            yield matrix


def fill(matrix: Tensor, rows: dict[int, Row]) -> None:
    """Put sparse rows into W (M, M), in place."""
    for client, (ids, weights) in rows.items():
        matrix[client] = 0
        matrix[client, torch.from_numpy(ids)] = torch.from_numpy(weights)


def _encoded(ids: NDArray[np.int64], weights: NDArray[np.float64]) -> bytes:
    nonzero = weights != 0
    if not nonzero.all():
        ids, weights = ids[nonzero], weights[nonzero]
    return len(ids).to_bytes(8, "little") + ids.astype("<i8").tobytes() + weights.astype("<f8").tobytes()


def _decoded(data: NDArray[np.uint8], offset: int) -> Row:
    if not 0 <= offset <= len(data) - 8:
        raise MaplError(f"{ROWS} is damaged: it has no row at byte {offset}")
    count = int(data[offset : offset + 8].view("<i8")[0])
    start, middle, end = offset + 8, offset + 8 + 8 * count, offset + 8 + 16 * count
    if count < 0 or end > len(data):
        raise MaplError(f"{ROWS} is damaged: the row at byte {offset} does not fit")
    # Copies, so that keeping a row does not keep the file open.
    return np.array(data[start:middle]).view("<i8"), np.array(data[middle:end]).view("<f8")
