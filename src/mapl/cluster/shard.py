"""A shard: a process that holds some clients and plays their rounds when it is told to."""

from __future__ import annotations

import hashlib
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, TypeVar

import numpy as np
import torch

from mapl.client import Peers
from mapl.cluster.costs import Measured, measure
from mapl.cluster.packed import Packed, PackedData, pack, unpack, unpack_data
from mapl.cluster.post import Ask, Bundle, Interrupted, Request, ShardPost
from mapl.data.objects import Data
from mapl.engine.workers import torch_threads
from mapl.errors import MaplError, NotFinite
from mapl.model import Backbone
from mapl.recipe import Recipe
from mapl.runs.chain import Round
from mapl.runs.checkpoint import Checkpoint
from mapl.runs.graph import Row
from mapl.runs.part import Part, build_part, cards
from mapl.runs.record import ClientCard
from mapl.runs.refusals import Architecture, architectures
from mapl.runs.round import graph, play_round
from mapl.runs.saving import restore, saved_state

T = TypeVar("T")


@dataclass(frozen=True)
class Order:
    """What a shard is told to hold."""

    number: int
    held: tuple[tuple[int, ...], ...]
    """The clients of every shard. The first shard has the server of a centralised method."""
    recipe: Recipe
    backbones: Mapping[str, Backbone]


PackedFor = PackedData | Mapping[int, PackedData]
"""One data set for all clients, or one for each client of a shard."""


@dataclass(frozen=True)
class Process:
    """Where a shard runs, and with what."""

    node: str
    host: str
    pid: int
    versions: tuple[tuple[str, str], ...]
    """Of what decides about results, by name."""


@dataclass(frozen=True)
class Built:
    """What a shard tells when it is built."""

    cards: list[ClientCard]
    architectures: list[Architecture]
    warned: tuple[str, ...]


@dataclass(frozen=True)
class Played:
    """What a shard tells of a round."""

    line: Round
    seconds: dict[str, float]
    messages: int
    """Since the beginning of the run, or since the shard was restored."""
    bytes: int
    rows: dict[int, Row]
    """The rows of W that changed since it last told them."""
    warned: tuple[str, ...]


@dataclass(frozen=True)
class Failed:
    """An error that a person is meant to read, as it crosses to another process."""

    message: str
    shell: str
    finite: bool

    @staticmethod
    def of(error: MaplError) -> Failed:
        return Failed(str(error), error.shell, not isinstance(error, NotFinite))

    def error(self) -> MaplError:
        return (MaplError if self.finite else NotFinite)(self.message, self.shell)


Answers = list[tuple[Played, Any]]
"""Of a round: what each shard tells, and what fetches its state afterwards."""


class Lost(Exception):
    """Processes of these shards died, or their machines; maybe none did, and only an object was lost."""

    def __init__(self, numbers: Iterable[int], why: BaseException | None = None) -> None:
        super().__init__((str(why).strip().splitlines() or [type(why).__name__])[-1] if why else "")
        self.numbers = sorted(numbers)


def versions() -> tuple[tuple[str, str], ...]:
    """What shards have to agree on, for their results to be those of one process."""
    names = ("mapl", "torch", "numpy")
    return (("Python", platform.python_version()), *((name, metadata.version(name)) for name in names))


@dataclass
class Shard:
    """Holds some clients. Its work is done in one thread; letters are served in others meanwhile."""

    _told: dict[int, bytes] = field(default_factory=dict)
    """Of every row of W that was told, a digest."""

    def __post_init__(self) -> None:
        self._work = ThreadPoolExecutor(1, "shard")
        self._part: Part | None = None
        self._post: ShardPost | None = None

    def build(self, order: Order, data: PackedFor) -> Built | Failed:
        """Build the clients as they are before the first round. Whatever it held is gone."""

        def work() -> Built:
            if self._post is not None:
                self._post.give_up(sys.maxsize)  # whoever still waits for its letters
            self._part = None
            recipe, held = order.recipe, order.held[order.number]
            homes = np.zeros(recipe.clients + 1, dtype=np.int64)  # the server, the last node, lives in the first shard
            for number, clients in enumerate(order.held):
                homes[list(clients)] = number
            with torch_threads(recipe.train.threads):
                given, serves = _unpacked(data), order.number == 0
                part = build_part(recipe, given, order.backbones, holds=held, serves=serves, compares=False)
            self._post = ShardPost(order.number, homes, part.transport, part.home, keep=self.keep)
            part.transport = self._post
            self._part = part
            self._told.clear()
            return Built(cards(part), architectures(part), self.warned())

        return self._done(work)

    def measure(
        self, recipe: Recipe, data: PackedFor, backbones: Mapping[str, Backbone], clients: Sequence[int]
    ) -> Measured | Failed:
        """What a round of these clients costs here."""

        def work() -> Measured:
            with torch_threads(recipe.train.threads):
                return measure(recipe, _unpacked(data), backbones, clients)

        return self._done(work)

    def connect(self, asks: Mapping[int, Ask]) -> None:
        """Learn how to ask the other shards."""
        self.post.asks = asks

    def warm_up(self) -> Failed | None:
        """Prepare what can be prepared before the first round."""
        return self._done(lambda: self.part.engine.warm_up(self.part.clients))

    def play(self, t: int, attempt: int, keep: bool) -> tuple[Played | Failed | None, Packed | None]:
        """Play a round. Returns what it tells, None if it was interrupted; and the state afterwards, if it is kept."""

        def work() -> tuple[Played | None, Packed | None]:
            self.post.attempt = attempt
            try:
                line, seconds = play_round(self.part, t)
            except Interrupted:
                return None, None
            start, state = time.perf_counter(), None
            if keep:
                state = pack(saved_state(self.part))
                seconds["state"] = time.perf_counter() - start
            ledger = self.part.ledger
            rows = self._changed_rows()
            return Played(line, seconds, ledger.messages, ledger.bytes, rows, self.warned()), state

        answer = self._done(work)
        return (answer, None) if isinstance(answer, Failed) else answer

    def state(self) -> tuple[Packed, tuple[int, int]]:
        """The state after the last round, and the messages and bytes that were counted."""

        def work() -> tuple[Packed, tuple[int, int]]:
            return pack(saved_state(self.part)), (self.part.ledger.messages, self.part.ledger.bytes)

        return self._work.submit(work).result()

    def restore(self, rounds: int, state: Packed) -> Failed | None:
        """Go back, or forward, to a state after so many rounds."""

        def work() -> None:
            restore(self.part, Checkpoint(rounds, {name: tensor.clone() for name, tensor in unpack(state).items()}))
            self._told.clear()

        return self._done(work)

    def serve(self, request: Request) -> Any:
        """Answer another shard."""
        return self.post.serve(request)

    def give_up(self, attempt: int) -> None:
        """Stop waiting for others in this attempt at a round."""
        if self._post is not None:
            self._post.give_up(attempt)

    def keep(self, bundle: Bundle) -> Any:
        """Put letters where other shards find them."""
        return bundle

    def warned(self) -> tuple[str, ...]:
        """The warnings since it was last asked."""
        return ()

    @property
    def part(self) -> Part:
        assert self._part is not None, "the shard is not built"
        return self._part

    @property
    def post(self) -> ShardPost:
        assert self._post is not None, "the shard is not built"
        return self._post

    def _done(self, work: Callable[[], T]) -> T | Failed:
        """The result of some work in the shard's own thread, or the error that a person is meant to read."""

        def in_thread() -> T:
            threads = self._part.recipe.train.threads if self._part is not None else torch.get_num_threads()
            with torch_threads(threads):
                return work()

        try:
            return self._work.submit(in_thread).result()
        except MaplError as error:
            return Failed.of(error)

    def _changed_rows(self) -> dict[int, Row]:
        changed = {}
        for client, peers in graph(self.part).items():
            digest = _digest(peers)
            if self._told.get(client) != digest:
                self._told[client], changed[client] = digest, Row(peers.ids.copy(), peers.weights.copy())
        return changed


def _digest(peers: Peers) -> bytes:
    return hashlib.blake2b(peers.ids.tobytes() + peers.weights.tobytes(), digest_size=16).digest()


def _unpacked(data: PackedFor) -> Data:
    return unpack_data(data) if isinstance(data, PackedData) else {i: unpack_data(one) for i, one in data.items()}
