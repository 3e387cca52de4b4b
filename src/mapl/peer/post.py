"""The transport of a peer: it holds one client, and the others are processes somewhere else."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mapl.network import Inbox, Letter, LetterError, Mail, Rounds, Schema, decode, encode
from mapl.peer.outbox import NONE, Outbox
from mapl.peer.settings import WaitSection
from mapl.peer.wire import Wire

SLOWER = 5.0
"""With patience 'auto', a round waits this many times as long as the slowest of the last complete ones."""
SHORTEST = 2.0
"""The shortest patience that 'auto' chooses, in seconds."""
RETRY = 0.1
"""Seconds between looks at who is a member, and between requests to one that cannot be reached."""
OF_THE_ROUND = ("names", "shape", "dtype", "range")
"""What may be right in one round and wrong in another. A late letter was made for its own round."""
_ROUND = re.compile(rb" round=([0-9]{12}) ")
ASYNC_PATIENCE = 10.0
"""Seconds until a request for the newest letter is given up. Nobody waits for it."""


class Stopped(Exception):
    """The peer was asked to stop while it waited for letters. The round is played again when it goes on."""


class Patience:
    """How long a round waits for letters."""

    def __init__(self, wait: WaitSection) -> None:
        self.wait = wait
        self._needed: deque[float] = deque(maxlen=10)
        self._first = True

    def seconds(self) -> float:
        """The deadline of the next exchange, in seconds from its start."""
        if self.wait.mode == "async":
            return 0.0
        if self._first:
            return self.wait.first
        if self.wait.patience != "auto":
            return self.wait.patience
        if not self._needed:
            return self.wait.first
        # With a limit: a member that always answers just in time would make it several times as long every round.
        return min(max(SHORTEST, SLOWER * max(self._needed)), SLOWER * self.wait.first)

    def note(self, waited: float, usual: bool) -> None:
        """An exchange is over. How long it waited counts only if it was as usual: complete, and nobody came or went."""
        self._first = False
        if usual:
            self._needed.append(waited)


@dataclass
class Exchanged:
    """What one exchange was like, for the peer's status."""

    asked: int = 0
    read: int = 0
    stale: int = 0
    """How many of those read were letters of earlier rounds."""
    missing: list[str] = field(default_factory=list)
    waited: float = 0.0


class PeerPost:
    """`Transport` of a process that holds one client. `wire` carries bytes; checks and waiting are here.

    A letter is used if it is of this round or, in its absence, a late one of at most `staleness` rounds ago. A sender
    that is ahead answers with the oldest letter that it still has, which is used too. No letter is read twice, and a
    sender never goes back: a letter from before the last one that was read is a replay, and is refused.
    """

    def __init__(
        self,
        outbox: Outbox,
        numbers: Callable[[], Mapping[int, str]],
        wait: WaitSection,
        length: int,
        silent_rounds: int = 3,
        device: torch.device | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.outbox = outbox
        self.numbers = numbers
        """The names of the members by number, as they are known now."""
        self.wait = wait
        self.length = length
        """The number of rounds of the run."""
        self.rounds = Rounds(late=wait.staleness, early=length)
        self.silent_rounds = silent_rounds
        self.device = device or torch.device("cpu")
        self.stop = stop
        self.patience = Patience(wait)
        self.last = Exchanged()
        self.wire: Wire | None = None
        self.silent = 0
        """In how many rounds in a row nobody answered."""
        self._arrived: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._kept: dict[str, Letter] = {}
        """Letters that passed their checks and are not read yet."""
        self._read: dict[str, int] = {}
        """The round of the last letter that was read, by sender."""
        self._absent: set[str] = set()
        """Who missed the last deadline. They are asked, but not waited for, until they are heard of again."""
        self._alive: frozenset[str] = frozenset()
        self._moved = False
        """Whether a member came or went in this exchange."""

    def reachable(self, own: int) -> Tensor:
        """The sorted ids of the members that are known now, without those who missed the last deadline and are gone."""
        gone = self._absent - self._wired().alive()
        return torch.tensor([i for i, name in sorted(self.numbers().items()) if i != own and name not in gone])

    def on_letter(self, sender: str, data: bytes) -> None:
        """A letter arrived. Called from another thread."""
        with self._changed:
            self._arrived[sender] = data
            self._changed.notify_all()

    def exchange(self, mail: Mail) -> dict[int, Inbox]:
        """An inbox for the client held here; see `Transport.exchange`."""
        wire = self._wired()
        silent = self.silent >= self.silent_rounds
        wire.maintain(silent)
        self.silent = 0 if silent else self.silent  # the new connection gets as many rounds
        for reader in mail.requests:
            letter = mail.letters.get(reader)
            self.outbox.put(mail.round, NONE if letter is None else encode(letter))
        wire.written()
        return {reader: Inbox.of(self._gather(mail, reader)) for reader in mail.requests}

    def _gather(self, mail: Mail, reader: int) -> list[Letter]:
        """The letters for a reader, once all have arrived or the deadline has passed."""
        started = time.monotonic()
        self._moved = False
        until = started + self.patience.seconds()
        round = _Gathering(mail.round, mail.requests[reader].tolist(), replace(mail.expects(reader), round=None))
        look = started
        while True:
            if time.monotonic() >= look:  # not at every letter: it reads the files of the members
                self._maintain()
                round.meet(self.numbers())
                look = time.monotonic() + RETRY
            self._take(mail, round)
            self._ask(round, until)
            left = until - time.monotonic()
            if left <= 0 or not round.open.keys() - self._absent:
                break
            with self._changed:
                if not self._arrived:
                    self._changed.wait(min(left, RETRY))
            if self.stop():
                raise Stopped
        self._take(mail, round)  # a busy machine may have noticed the deadline before the last letters
        return self._settled(round, time.monotonic() - started)

    def _ask(self, round: _Gathering, until: float) -> None:
        """Ask everybody whose letter is missing and of whom no request is open, at least once a round."""
        wire = self._wired()
        left = until - time.monotonic()
        for name in round.open:
            if self.wait.mode == "async" and name not in round.tried:
                wire.ask(name, None, ASYNC_PATIENCE)
            elif self.wait.mode == "sync" and (left > 0 or name not in round.tried) and not self._is_asked(name):
                wire.ask(name, round.number, max(0.0, left))
            round.tried.add(name)

    def _is_asked(self, name: str) -> bool:
        """Whether a request is open, or its answer has arrived. In this order: an answer arrives before its end."""
        if self._wired().asked(name):
            return True
        with self._changed:
            return name in self._arrived

    def _take(self, mail: Mail, round: _Gathering) -> None:
        """Check what has arrived. Letters that pass are kept until a newer one comes."""
        with self._changed:
            arrived, self._arrived = self._arrived, {}
        for name, data in arrived.items():
            self._absent.discard(name)
            if name not in round.asked:
                continue
            round.heard = True
            if data == NONE:  # it wrote no letter this round
                round.open.pop(name, None)
                continue
            claimed: int | None = None
            try:
                claimed = self._check_round(data, name)
                letter = decode(data, replace(round.schema, sender=round.asked[name]))
            except LetterError as error:
                late = self._is_late(claimed, round)
                if not (late and error.reason in OF_THE_ROUND):
                    mail.refused.add_error(round.asked[name], error)
                if error.reason == "round" or not late:
                    round.open.pop(name, None)
                continue
            if letter.round > self._read.get(name, -1):
                self._kept[name] = letter
            if not self._is_late(letter.round, round):
                round.open.pop(name, None)

    def _is_late(self, claimed: int | None, round: _Gathering) -> bool:
        """Whether a letter of that round leaves the one that was asked for still to come."""
        return self.wait.mode == "sync" and claimed is not None and claimed < round.number

    def _check_round(self, data: bytes, name: str) -> int | None:
        """The round that a letter claims; None if it claims none. Refuses replays, and rounds that the run has not."""
        found = _ROUND.search(data, 0, 4096)
        if found is None:
            return None
        claimed, known = int(found[1]), self._read.get(name, -1)
        if claimed < known:
            raise LetterError("round", f"{name} sent its letter of round {claimed} after that of round {known}")
        if claimed >= self.length:
            raise LetterError("round", f"{name} sent a letter of round {claimed}; the run has {self.length}")
        return claimed

    def _settled(self, round: _Gathering, waited: float) -> list[Letter]:
        """The letters that are read: of this round, or in their absence late ones."""
        oldest = round.number - self.wait.staleness
        letters = {name: self._kept.pop(name) for name in round.asked if name in self._kept}
        letters = {name: letter for name, letter in letters.items() if letter.round >= oldest}
        self._read |= {name: letter.round for name, letter in letters.items()}
        missing = [name for name in round.asked if name in round.open]
        self._absent.update(missing if self.wait.mode == "sync" else ())
        self.patience.note(waited, usual=not missing and not self._moved)
        self.silent = 0 if letters or round.heard or not round.asked else self.silent + 1
        late = sum(letter.round < round.number for letter in letters.values())
        self.last = Exchanged(len(round.asked), len(letters), late, missing, waited)
        return [_on(letter, self.device) for letter in letters.values()]

    def _maintain(self) -> None:
        """Members that come back are waited for again; a connection that fell silent is opened anew."""
        wire = self._wired()
        now = wire.alive()
        self._absent -= now - self._alive
        self._moved |= now != self._alive
        self._alive = now
        wire.maintain()

    def _wired(self) -> Wire:
        if self.wire is None:
            raise RuntimeError("the post has no wire yet")
        return self.wire


@dataclass
class _Gathering:
    """The letters of one round that a client asks for."""

    number: int
    wanted: list[int]
    schema: Schema
    asked: dict[str, int] = field(default_factory=dict)
    """By name: the members among those that are wanted."""
    open: dict[str, int] = field(default_factory=dict)
    """Those whose letter of this round has not arrived."""
    tried: set[str] = field(default_factory=set)
    heard: bool = False
    """Whether anybody answered, if only with a letter that has been read or is not used."""

    def meet(self, names: Mapping[int, str]) -> None:
        """Include members that were admitted meanwhile, and leave out those that were revoked."""
        for name, number in list(self.asked.items()):
            if names.get(number) != name:
                del self.asked[name]
                self.open.pop(name, None)
        for number in self.wanted:
            if number in names and names[number] not in self.asked:
                self.asked[names[number]] = self.open[names[number]] = number


def _on(letter: Letter, device: torch.device) -> Letter:
    return replace(letter, tensors={name: tensor.to(device) for name, tensor in letter.tensors.items()})
