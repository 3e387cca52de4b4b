"""The ledger: how many letters the clients of this process have received, and their size.

Formulas for messages and bytes are checked against it, never the other way round.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mapl.network.inbox import Inbox
from mapl.network.refused import Refused


@dataclass
class Ledger:
    """Letters delivered so far, and their bytes on the wire."""

    messages: int = 0
    bytes: int = 0

    def record(self, inboxes: Iterable[Inbox], refused: Refused | None = None) -> None:
        """Count the letters of one exchange that arrived, whether or not they pass all checks."""
        for inbox in inboxes:
            self.messages += len(inbox)
            self.bytes += inbox.bytes
        if refused is not None:
            self.messages += len(refused.unread)
            self.bytes += sum(refused.unread)
