"""How letters travel: the protocol that every transport keeps.

A process holds some clients: all of them, a shard, or one. In every exchange it hands its transport the letters that
its clients wrote and the requests that they made. It gets an inbox for each of its readers. Only the transport knows
where the other clients are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor

from mapl.network.inbox import Inbox
from mapl.network.letter import Letter, Schema

Leg = Literal["letters", "replies", "opening", "answers"]
"""Which exchange of a round it is. Peers have one, "letters". Where there is a server, clients write "letters" to it
and it writes "replies"; a method that opens has an "opening" and its "answers" before that, once."""


@dataclass(frozen=True)
class Mail:
    """What a process hands to its transport in one exchange."""

    round: int
    leg: Leg
    letters: Mapping[int, Letter]
    """The letters written here, by sender, each for whoever asks for it."""
    requests: Mapping[int, Tensor]
    """For each reader here, the senders whose letters it asks for: sorted ids, without its own."""
    expects: Callable[[int], Schema]
    """What a reader's letters must look like. A transport checks with it whatever comes from outside this process."""
    personal: Mapping[int, Letter] = field(default_factory=dict)
    """Letters written here for one reader alone, by that reader. They go before the sender's other letter."""


class Transport(Protocol):
    """Carries letters between the clients of a network."""

    def exchange(self, mail: Mail) -> dict[int, Inbox]:
        """Send the letters and return an inbox for every reader in `mail.requests`, and for nobody else.

        What a transport promises:

        - Every letter in an inbox was asked for, and each sender has at most one (`Inbox.of` sees to both order and
          duplicates). A letter of an earlier round may stand in for one that did not arrive in time.
        - A letter that is missing is left out. That is an ordinary event and never an error: methods go on without it.
        - A letter from outside this process is checked against `mail.expects(reader)` before anybody reads it.
        - The inboxes hold copies: what senders do to their tensors after the exchange does not reach them.
        - It returns in bounded time, with what it has.
        """
        ...
