"""Letters that were left out, by sender and reason."""

from __future__ import annotations

from dataclasses import dataclass, field

from mapl.errors import warn
from mapl.network.letter import LetterError, Reason

Counts = dict[int, dict[str, int]]
"""How many letters were left out, by sender, then by reason. A letter that three clients refuse counts three times."""


@dataclass
class Refused:
    """The letters of one exchange that failed a check. They are left out as if they had not arrived."""

    by_sender: Counts = field(default_factory=dict)
    unread: list[int] = field(default_factory=list)
    """The bytes of each letter that was carried and could not be decoded, so that it is in no inbox."""
    _explained: set[str] = field(default_factory=set)

    def add(self, sender: int, reason: Reason, sentence: str) -> None:
        """Count a letter. The first one for each reason is explained in a warning."""
        reasons = self.by_sender.setdefault(sender, {})
        reasons[reason] = reasons.get(reason, 0) + 1
        if reason not in self._explained:
            self._explained.add(reason)
            warn(f"a letter is left out: {sentence}", once=True)

    def add_error(self, sender: int, error: LetterError) -> None:
        """Count a letter that could not be written or read."""
        self.add(sender, error.reason, str(error))


def total(counts: Counts | None) -> int:
    """How many letters these are."""
    return sum(number for reasons in (counts or {}).values() for number in reasons.values())


def added(one: Counts, other: Counts | None) -> Counts:
    """Both together, sorted by sender and reason."""
    result = {sender: dict(reasons) for sender, reasons in one.items()}
    for sender, reasons in (other or {}).items():
        mine = result.setdefault(sender, {})
        for reason, number in reasons.items():
            mine[reason] = mine.get(reason, 0) + number
    return {sender: dict(sorted(result[sender].items())) for sender in sorted(result)}


NAMED = 5
"""How many senders a sentence names."""


def in_words(counts: Counts) -> str:
    """The senders with the most such letters, each with its reasons."""
    ranking = sorted(counts, key=lambda sender: -sum(counts[sender].values()))
    texts = [f"{s} ({', '.join(f'{r}: {n:,}' for r, n in counts[s].items())})" for s in ranking[:NAMED]]
    more = f" and {len(ranking) - NAMED:,} more" if len(ranking) > NAMED else ""
    return f"those of sender {', '.join(texts)}{more}"
