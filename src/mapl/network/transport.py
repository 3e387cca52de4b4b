"""How letters travel: the protocol of every transport.

A process holds all clients, a shard of them, or one. In every exchange it passes its transport the letters and the
requests of its clients, and gets an inbox for each reader. Only the transport knows where the other clients are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from torch import Tensor

from mapl.network.inbox import Inbox
from mapl.network.letter import Letter, Schema
from mapl.network.refused import Refused

Leg = Literal["letters", "replies", "opening", "answers"]
"""The exchange of a round. Peers have one, "letters". With a server, clients write "letters" to it and it writes
"replies". A method that opens has an "opening" and "answers" before that, once."""
LastRead = dict[int, dict[int, int]]
"""By reader, then by sender: the round of the last letter that was read."""


class Rounds(NamedTuple):
    """Of which rounds letters are read, relative to the round that their reader plays."""

    late: int | None = None
    """How many rounds old a letter may be. None: any that is newer than what its reader has read of its sender."""
    early: int = 0
    """How many rounds ahead a letter may be. It is 0 where all clients play a round together."""


THIS_ROUND = Rounds(late=0)
UNTIL_NOW = Rounds()


@dataclass(frozen=True)
class Mail:
    """What a process passes to its transport in one exchange."""

    round: int
    leg: Leg
    letters: Mapping[int, Letter]
    """The letters written here, by sender, for anyone who asks."""
    requests: Mapping[int, Tensor]
    """For each reader here, the senders whose letters it asks for: sorted ids, without its own."""
    expects: Callable[[int], Schema]
    """What a reader's letters must look like. Every letter is checked against it before a method sees it."""
    personal: Mapping[int, Letter] = field(default_factory=dict)
    """Letters written here for one reader, by that reader. They take precedence over the sender's common letter."""
    anew: int = 0
    """The last round in which readers could ask for letters of senders whose previous letter they did not read. No
    letter builds on one from before that round."""
    refused: Refused = field(default_factory=Refused)
    """Where letters are counted that fail a check."""
    rounds: Rounds = UNTIL_NOW
    """Of which rounds letters are read. The transport says it."""
    read: LastRead = field(default_factory=dict)
    """What the readers here have read in this leg. None reads a letter twice, or one that is older than another that
    it has read. Nothing is kept if letters can only be of this round."""

    @property
    def oldest(self) -> int:
        """The first round of which letters are read."""
        return 0 if self.rounds.late is None else max(0, self.round - self.rounds.late)

    @property
    def newest(self) -> int:
        """The last round of which letters are read."""
        return self.round + self.rounds.early

    def note(self, inboxes: Mapping[int, Inbox]) -> None:
        """Remember which letters were read, if letters of other rounds than this one could be."""
        for reader, inbox in inboxes.items() if self.rounds != THIS_ROUND else ():
            rounds = inbox.pile.rounds[inbox.positions]
            self.read.setdefault(reader, {}).update(zip(inbox.senders.tolist(), rounds.tolist(), strict=True))


class Transport(Protocol):
    """Carries letters between the clients of a network.

    It may say in an attribute `rounds` of which rounds its letters can be. A transport within one process has
    `rounds = THIS_ROUND`. One over a network has, for example, `rounds = Rounds(late=3)`, or `Rounds(late=3, early=1)`
    if its clients do not wait for each other. Without the attribute, letters of any earlier round are read.
    """

    def exchange(self, mail: Mail) -> dict[int, Inbox]:
        """Send the letters and return an inbox for each reader in `mail.requests`.

        What a transport promises:

        - Every letter in an inbox was asked for, with at most one per sender (`Inbox.of` handles order and
          duplicates). A letter of another round may replace one that did not arrive in time, if it fits this round's
          schema in everything but its round (`decode` with `round=None`). Its round is from `mail.oldest` to
          `mail.newest`, and newer than what its reader has read of its sender. The inspection refuses any other.
        - A missing letter is left out. That is never an error: methods continue without it.
        - A letter from outside this process is checked against `mail.expects(reader)` before a tensor is made of it
          (`decode`). One that fails is left out and counted in `mail.refused`, by sender and reason. It never raises.
          Whatever the transport, `mapl.network.inspection` then checks the contents of all inboxes.
        - Inboxes hold copies: they do not change when senders change their tensors after the exchange.
        - It returns in bounded time, with the letters that have arrived.
        """
        ...
