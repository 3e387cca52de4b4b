"""How letters travel between shards: each asks the others for what its clients want, and gets one bundle of each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mapl.cluster.packed import Packed, pack, unpack
from mapl.network import THIS_ROUND, Inbox, Letter, Mail, Transport
from mapl.network.transport import Leg

Ids = NDArray[np.int64]


class Interrupted(Exception):
    """The round cannot be completed: another shard was lost, or could not train."""


@dataclass(frozen=True)
class Request:
    """What one shard asks of another in an exchange. It asks every other shard, though it may want nothing of it."""

    shard: int
    """Who asks."""
    attempt: int
    """Which attempt at the round it is, counted over the whole run."""
    leg: Leg
    senders: Ids
    """The senders whose letters its readers want, sorted."""
    readers: Ids
    """Its readers, who may have letters of their own from a server there."""


class Slip(NamedTuple):
    """What is known of a letter beside what it says."""

    sender: int
    """The node that posted it."""
    reader: int | None
    """If it is for one reader alone."""
    names: tuple[str, ...]
    """Of its tensors, in order."""


@dataclass(frozen=True)
class Bundle:
    """Letters of one shard for another: their headers, and all their tensors in one array for each dtype."""

    letters: tuple[tuple[Slip, Letter], ...]
    """Each without its tensors."""
    tensors: Packed


Ask = Callable[[Request], Callable[[Callable[[], None]], Bundle]]
"""Sends a request. What it returns waits for the answer, and calls a function about once a second meanwhile. Both may
raise `Interrupted`: there will be no answer."""


@dataclass
class ShardPost:
    """The transport of a shard. It passes the letters from elsewhere to `local`, as if they had been written here.

    A letter stays in its writer's memory until another shard asks for it. A shard goes on only when all others have
    asked, so what it writes next reaches no letter of this round.
    """

    number: int
    homes: Ids
    """The shard of every node: of the clients, then of the server."""
    local: Transport
    device: torch.device
    asks: Mapping[int, Ask] = field(default_factory=dict)
    """How to ask each other shard."""
    keep: Callable[[Bundle], Any] = lambda bundle: bundle
    """Puts a bundle where other shards find it, and returns what they need to find it."""
    attempt: int = 0
    rounds = THIS_ROUND

    def __post_init__(self) -> None:
        self._change = threading.Condition()
        self._mail: Mail | None = None
        self._served: set[int] = set()
        self._made: dict[bytes, Any] = {}
        self._given_up = 0

    def exchange(self, mail: Mail) -> dict[int, Inbox]:
        """An inbox for every reader; see `Transport.exchange`."""
        with self._change:
            self._mail, self._served, self._made = mail, set(), {}
            self._change.notify_all()
        readers = np.array(sorted(mail.requests), dtype=np.int64)
        wanted = np.unique(np.concatenate([np.empty(0, np.int64), *(ids.numpy() for ids in mail.requests.values())]))
        waiting = []
        for number, ask in self.asks.items():
            senders = wanted[self.homes[wanted] == number]
            waiting.append(ask(Request(self.number, self.attempt, mail.leg, senders, readers)))
        letters, personal = dict(mail.letters), dict(mail.personal)
        for answer in waiting:
            for slip, letter in _opened(answer(self._go_on), self.device):
                if slip.reader is None:
                    letters[slip.sender] = letter
                else:
                    personal[slip.reader] = letter
        with self._change:
            self._wait(self.attempt, lambda: len(self._served) == len(self.asks))
            self._mail, self._made = None, {}
        return self.local.exchange(replace(mail, letters=letters, personal=personal))

    def serve(self, request: Request) -> Any:
        """Answer another shard, once the letters that it asks for are written. Returns what `keep` made of them."""
        with self._change:
            self._wait(request.attempt, lambda: self._is_for(request))
            assert self._mail is not None
            mail = self._mail
            # Shards that want the same letters get the same object; personal ones are for one of them.
            key = request.senders.tobytes() + (request.readers.tobytes() if mail.personal else b"")
            if key not in self._made:
                self._made[key] = self.keep(_bundle(mail, request))
            self._served.add(request.shard)
            self._change.notify_all()
            return self._made[key]

    def give_up(self, attempt: int) -> None:
        """End all waiting of this attempt and of those before it."""
        with self._change:
            self._given_up = max(self._given_up, attempt)
            self._mail = None
            self._change.notify_all()

    def _go_on(self) -> None:
        if self._given_up >= self.attempt:
            raise Interrupted

    def _is_for(self, request: Request) -> bool:
        return self.attempt == request.attempt and self._mail is not None and self._mail.leg == request.leg

    def _wait(self, attempt: int, done: Callable[[], bool]) -> None:
        self._change.wait_for(lambda: self._given_up >= attempt or done())
        if self._given_up >= attempt:
            raise Interrupted


def _bundle(mail: Mail, request: Request) -> Bundle:
    """The letters that were asked for and written, in the order of their senders."""
    wanted, readers = set(request.senders.tolist()), set(request.readers.tolist())
    chosen = [
        (Slip(sender, None, tuple(letter.tensors)), letter)
        for sender, letter in sorted(mail.letters.items())
        if sender in wanted
    ]
    chosen += [
        (Slip(letter.sender, reader, tuple(letter.tensors)), letter)
        for reader, letter in sorted(mail.personal.items())
        if reader in readers and letter.sender in wanted
    ]
    tensors = {f"{place} {name}": t for place, (_, letter) in enumerate(chosen) for name, t in letter.tensors.items()}
    return Bundle(tuple((slip, replace(letter, tensors={})) for slip, letter in chosen), pack(tensors))


def _opened(bundle: Bundle, device: torch.device) -> Iterator[tuple[Slip, Letter]]:
    tensors = unpack(bundle.tensors, device)
    for place, (slip, letter) in enumerate(bundle.letters):
        yield slip, replace(letter, tensors={name: tensors[f"{place} {name}"] for name in slip.names})
