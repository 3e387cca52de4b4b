"""The ledger: what was sent, counted by round and by edge.

Formulas for messages and bytes are checked against it, never the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

Numbers = NDArray[np.int64]

_ENTRIES = 1 << 16
_PAGES = 256
"""What may wait to be merged, so that many small rounds are merged together."""


@dataclass
class _Page:
    """Entries with the edge that each is of. An edge may stand on a page, or on several, more than once."""

    senders: Numbers
    receivers: Numbers
    messages: Numbers
    bytes: Numbers

    def __len__(self) -> int:
        return len(self.senders)

    def same_edges(self, senders: Numbers, receivers: Numbers) -> bool:
        return np.array_equal(self.senders, senders) and np.array_equal(self.receivers, receivers)


class Ledger:
    """Messages and bytes by round and by edge (sender → receiver).

    A round whose edges are those of the round before is added to that round's page, entry by entry. Other rounds start
    a page, and pages are merged once there is more on them than in the table: a round then costs in proportion to its
    own letters, not to all edges ever used.
    """

    def __init__(self) -> None:
        self.by_round: list[tuple[int, int]] = []
        """(messages, bytes) of each round, in order."""
        self._table = _page([], [], [], [])
        self._pages: list[_Page] = []

    def record(self, senders: ArrayLike, receivers: ArrayLike, nbytes: ArrayLike, *, same_round: bool = False) -> None:
        """Count the letters of a round: who sent each, who received it, and its size (one for all, or one a letter).

        Called once a round, even when nothing was sent. `same_round` adds to the round before instead of beginning
        one: the answer of a server belongs to the round of the letters that it answers.
        """
        sent, received = _numbers(senders), _numbers(receivers)
        sizes = np.broadcast_to(_numbers(nbytes), sent.shape)
        if sent.ndim != 1 or sent.shape != received.shape:
            raise ValueError(f"senders {sent.shape} and receivers {received.shape} are not one list of letters each")
        before = self.by_round.pop() if same_round and self.by_round else (0, 0)
        self.by_round.append((before[0] + len(sent), before[1] + int(sizes.sum())))
        if not len(sent):
            return
        if self._pages and self._pages[-1].same_edges(sent, received):
            self._pages[-1].messages += 1
            self._pages[-1].bytes += sizes
            return
        # Copies, because a caller may go on to change what it passed.
        self._pages.append(_Page(sent.copy(), received.copy(), np.ones_like(sent), sizes.copy()))
        waiting = sum(map(len, self._pages[:-1]))
        if waiting > max(len(self._table), _ENTRIES) or len(self._pages) > _PAGES:
            self._merge(keep=1)

    @property
    def messages(self) -> int:
        """Letters sent so far."""
        return sum(messages for messages, _ in self.by_round)

    @property
    def bytes(self) -> int:
        """Bytes sent so far."""
        return sum(size for _, size in self.by_round)

    def edges(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """(senders, receivers, messages, bytes) of every edge that was used, sorted by (sender, receiver)."""
        self._merge()
        table = self._table
        return table.senders.copy(), table.receivers.copy(), table.messages.copy(), table.bytes.copy()

    def state(self) -> dict[str, Tensor]:
        """Everything there is to know, for a checkpoint."""
        names = ("senders", "receivers", "messages", "bytes")
        state = {name: torch.from_numpy(column) for name, column in zip(names, self.edges(), strict=True)}
        state["rounds"] = torch.tensor(self.by_round, dtype=torch.int64).reshape(-1, 2)
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Ledger:
        """The ledger that `state` was taken of."""
        ledger = cls()
        ledger.by_round = [(messages, size) for messages, size in state["rounds"].tolist()]
        ledger._table = _page(*(state[name] for name in ("senders", "receivers", "messages", "bytes")))
        return ledger

    def _merge(self, keep: int = 0) -> None:
        """Bring all pages but the last `keep` into the table, which has each edge once."""
        done = len(self._pages) - keep
        pages, self._pages = [self._table, *self._pages[:done]], self._pages[done:]
        if len(pages) == 1:
            return
        senders = np.concatenate([page.senders for page in pages])
        receivers = np.concatenate([page.receivers for page in pages])
        order = np.lexsort((receivers, senders))
        senders, receivers = senders[order], receivers[order]
        another = (np.diff(senders) != 0) | (np.diff(receivers) != 0)
        starts = np.concatenate(
            [[0], np.flatnonzero(another) + 1]
        )  # of each edge; a page is never empty, so one exists
        messages = np.add.reduceat(np.concatenate([page.messages for page in pages])[order], starts)
        sizes = np.add.reduceat(np.concatenate([page.bytes for page in pages])[order], starts)
        self._table = _Page(senders[starts], receivers[starts], messages, sizes)


def _numbers(values: ArrayLike) -> Numbers:
    return np.asarray(values.cpu() if isinstance(values, Tensor) else values, dtype=np.int64)


def _page(senders: ArrayLike, receivers: ArrayLike, messages: ArrayLike, sizes: ArrayLike) -> _Page:
    return _Page(*(_numbers(column).copy() for column in (senders, receivers, messages, sizes)))
