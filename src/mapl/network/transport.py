"""How letters travel: the protocol of every transport.

A process holds all clients, a shard of them, or one. In every exchange it passes its transport the letters and the
requests of its clients, and gets an inbox for each reader. Only the transport knows where the other clients are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor

from mapl.network.inbox import Inbox
from mapl.network.letter import Letter, Schema
from mapl.network.refused import Refused

Leg = Literal["letters", "replies", "opening", "answers"]
"""The exchange of a round. Peers have one, "letters". With a server, clients write "letters" to it and it writes
"replies". A method that opens has an "opening" and "answers" before that, once."""


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


class Transport(Protocol):
    """Carries letters between the clients of a network."""

    def exchange(self, mail: Mail) -> dict[int, Inbox]:
        """Send the letters and return an inbox for each reader in `mail.requests`.

        What a transport promises:

        - Every letter in an inbox was asked for, with at most one per sender (`Inbox.of` handles order and
          duplicates). A letter of an earlier round may replace one that did not arrive in time, if it
          fits this round's schema in everything but its round.
        - A missing letter is left out. That is never an error: methods continue without it.
        - A letter from outside this process is checked against `mail.expects(reader)` before a tensor is made of it
          (`decode`). One that fails is left out and counted in `mail.refused`, by sender and reason. It never raises.
          Whatever the transport, `mapl.network.inspection` then checks the contents of all inboxes.
        - Inboxes hold copies: they do not change when senders change their tensors after the exchange.
        - It returns in bounded time, with the letters that have arrived.
        """
        ...
