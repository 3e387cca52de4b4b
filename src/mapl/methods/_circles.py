"""Many clients at once: whom each of them heard, concatenated, and sums over them in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

from mapl.client import Client, Peers
from mapl.collaboration import similarities
from mapl.losses import Form
from mapl.mixing import MixingSettings, robust_mean
from mapl.network import Inbox

MOST = 2**20
"""Members of circles that are processed at a time: some hundred MiB."""
CACHED = 2**18
"""Numbers (1 MiB) that fit into the cache of a core."""

Pair = tuple[Client, Inbox]


def groups(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """Clients with letters to read, grouped by delivery, with at most about `MOST` members per group."""
    group: list[Pair] = []
    members = 0
    for client, inbox in pairs:
        if not len(inbox):
            continue
        if group and (members + len(inbox) >= MOST or not inbox.delivered_with(group[0][1])):
            yield group
            group, members = [], 0
        group.append((client, inbox))
        members += len(inbox) + 1
    if group:
        yield group


class Circles:
    """The circle of each of B clients: itself and those whose letters it reads, in the order of client numbers.

    Circles are concatenated in arrays of P members. That of client b is `starts[b]` to `starts[b + 1]`.
    """

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.clients = [client for client, _ in pairs]
        self.inboxes = [inbox for _, inbox in pairs]
        self.letters = Inbox.join(self.inboxes)
        counts = np.array([len(inbox) for inbox in self.inboxes])
        own = np.array([client.id for client in self.clients])
        self.sizes = counts + 1
        self.starts = np.concatenate([[0], self.sizes.cumsum()])
        senders = self.letters.senders.numpy()
        of = np.repeat(np.arange(len(own)), counts)
        before = senders < own[of]
        self.me: NDArray[np.int64] = np.add.reduceat(before, self.starts[:-1] - np.arange(len(own)), dtype=np.int64)
        """(B,) each client's position in its circle."""
        self._mine = self.starts[:-1] + self.me
        self.is_me = np.zeros(self.starts[-1], dtype=bool)
        """(P,) whether a member is the client itself."""
        self.is_me[self._mine] = True
        self._theirs = np.arange(len(senders)) + of + ~before
        self.ids = self.spread(senders, own)
        """(P,) the client number of each member."""

    def spread(self, theirs: NDArray[np.int64], mine: NDArray[np.int64]) -> NDArray[np.int64]:
        """(P,) from one value per letter, and one per client itself (B,)."""
        result = np.empty(len(theirs) + len(mine), dtype=np.int64)
        result[self._theirs], result[self._mine] = theirs, mine
        return result

    def spans(self) -> Iterator[tuple[Client, int, int]]:
        """Each client, and where its circle starts and ends."""
        return zip(self.clients, self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True)

    @cached_property
    def _places(self) -> NDArray[np.int64]:
        """(P,) each member's position among the peers that the client has met. It has met all who wrote to it."""
        result = np.empty(len(self.ids), dtype=np.int64)
        for client, start, end in self.spans():
            result[start:end] = client.peers.places(self.ids[start:end])
        return result

    def read(self, of: Callable[[Peers], NDArray[Any]]) -> NDArray[np.float64]:
        """(P,) what each client knows about the members of its circle."""
        result = np.empty(len(self.ids))
        for client, start, end in self.spans():
            result[start:end] = of(client.peers)[self._places[start:end]]
        return result

    def write_weights(self, values: NDArray[np.float64]) -> None:
        """Set how much each client listens to the members of its circle."""
        for client, start, end in self.spans():
            client.peers.weights[self._places[start:end]] = values[start:end]

    def table(self, name: str, own: Callable[[Client], Tensor]) -> Table:
        """The letters' tensors of that name, and each client's own, from `own` if it is not among them."""
        stack, rows = self.letters.rows(name)
        ids, tensors = torch.tensor([client.id for client in self.clients]), [own(client) for client in self.clients]
        mine = self.letters.own_rows(name, ids, tensors).numpy()
        silent = np.flatnonzero(mine < 0)  # their own tensor is not in the stack
        if len(silent):
            mine[silent] = len(stack) + np.arange(len(silent))
            stack = torch.cat([stack, torch.stack([tensors[b].detach() for b in silent.tolist()])])
        return Table(stack, rows.numpy(), mine)

    def cosines(
        self,
        name: str,
        own: Callable[[Client], Tensor],
        form: Form,
        of: Callable[[Tensor], Tensor] = lambda stack: stack,
    ) -> NDArray[np.float64]:
        """(P,) the similarity of each client's tensor with that of each member, 1 with itself.

        `of` makes what is compared from all tensors of that name, stacked.
        """
        table = self.table(name, own)
        table = replace(table, stack=of(table.stack))
        starts = self.starts - np.arange(len(self.starts))  # of the letters: a client is not paired with itself
        mine, starts_of, columns = (
            torch.from_numpy(x).to(table.stack.device) for x in (table.mine, starts, table.theirs)
        )
        result = np.ones(len(self.ids))
        result[~self.is_me] = similarities(table.stack, mine, (starts_of, columns), form).cpu().numpy()
        return result

    def widths(self) -> Iterator[Padded]:
        """The circles as rectangles: those of similar size together, padded to the next power of 2.

        That width depends only on a circle's own size, and so does the order of every sum along it.
        """
        width = 2 ** np.ceil(np.log2(self.sizes)).astype(np.int64)
        for wide in np.unique(width):
            yield Padded(self, np.flatnonzero(width == wide), int(wide))

    @torch.no_grad()
    def mix(self, rule: MixingSettings, table: Table, weights: NDArray[np.float64], into: list[Tensor]) -> None:
        """Write the mix of each circle to `into`: Σ_j w_j x_j, or what a robust rule has in its place."""
        if rule.kind == "mean":
            self._mean(table, weights, into)
            return
        index = self.spread(table.theirs, table.mine).astype(np.float64)
        for circles in self.widths():
            mixes = robust_mean(
                rule,
                table.stack.flatten(1),
                circles.rectangle(index).long(),
                circles.rectangle(weights),
                circles.me,
            )
            results = mixes.view(-1, *table.stack.shape[1:]).unbind()
            torch._foreach_copy_([into[b] for b in circles.which.tolist()], list(results))

    def _mean(self, table: Table, weights: NDArray[np.float64], into: list[Tensor]) -> None:
        """Σ_j w_j x_j over each circle, adding one term at a time in the order of client numbers."""
        rows = table.stack.flatten(1)
        device, features = rows.device, rows.shape[1]
        index, starts = (
            torch.from_numpy(array).to(device) for array in (self.spread(table.theirs, table.mine), self.starts)
        )
        share = torch.from_numpy(weights).to(rows)
        # If rows are read many times, slice the features so that they fit into a cache; otherwise slice the clients.
        often = rows.is_cpu and len(index) > 16 * len(rows)
        wide = max(32, CACHED // len(rows)) if often else features
        tall = len(into) if often else max(1, 16 * CACHED // features)
        for first in range(0, len(into), tall):
            some = starts[first : first + tall + 1]
            low, high = int(self.starts[first]), int(self.starts[min(first + tall, len(into))])
            result = rows.new_empty(len(some) - 1, features)
            for column in range(0, features, wide):
                part = slice(column, column + wide)
                result[:, part] = embedding_bag(
                    index[low:high],
                    rows[:, part].contiguous(),
                    some - low,
                    mode="sum",
                    per_sample_weights=share[low:high],
                    include_last_offset=True,
                )
            shape = table.stack.shape[1:]
            torch._foreach_copy_(into[first : first + tall], list(result.view(-1, *shape).unbind()))


@dataclass(frozen=True)
class Table:
    """Tensors of one name: those of the letters, then those of clients that wrote none."""

    stack: Tensor
    theirs: NDArray[np.int64]
    """The row of each letter's tensor."""
    mine: NDArray[np.int64]
    """The row of each client's own tensor."""


class Padded:
    """Some circles as the rows of a rectangle."""

    def __init__(self, circles: Circles, which: NDArray[np.int64], width: int) -> None:
        sizes = circles.sizes[which]
        self.width = width
        self.which = which
        """(b,) the clients, by their position among all."""
        self.me = torch.from_numpy(circles.me[which])
        """(b,) each client's position in its row."""
        column = np.arange(width)
        self.members = torch.from_numpy(column < sizes[:, None])
        """(b, width) booleans, false for padding."""
        self._flat = (circles.starts[which][:, None] + column)[self.members.numpy()]

    def rectangle(self, flat: NDArray[np.float64]) -> Tensor:
        """(b, width) from (P,), padded with zeros."""
        result = np.zeros(self.members.shape)
        result[self.members.numpy()] = flat[self._flat]
        return torch.from_numpy(result)

    def write(self, flat: NDArray[np.float64], rectangle: Tensor) -> None:
        """The inverse: copy a rectangle into `flat` (P,), in place."""
        flat[self._flat] = rectangle.cpu().numpy()[self.members.numpy()]
