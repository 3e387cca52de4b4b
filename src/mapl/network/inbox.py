"""The letters that a client reads in a round.

The letters of one delivery live in one stacked tensor per name and shape. An inbox is a list of positions in it, so
even a thousand inboxes use no more memory than the letters themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mapl.errors import MaplError
from mapl.network.letter import Letter, nbytes


@dataclass(frozen=True)
class Shelf:
    """All tensors of one name: a stack per shape, and the stack and row of each letter's tensor."""

    stacks: list[Tensor]
    stack_of: Tensor
    """(n,) the stack of letter i's tensor; -1 if the letter has none."""
    addresses: list[int]
    """(n,) where the tensor that its writer put into the letter lies in memory, 0 where the letter has none."""
    row_of: Tensor
    """(n,) its row in that stack."""


@dataclass(frozen=True)
class Pile:
    """The letters of one delivery."""

    senders: Tensor
    rounds: Tensor
    """(n,) the round that each letter was written in."""
    samples: Tensor
    sizes: Tensor
    """(n,) bytes of each letter on the wire."""
    architectures: list[str]
    shelves: dict[str, Shelf]
    letters: Sequence[Letter] = ()
    """The letters themselves. While they are kept, no other tensor can get the address of one of theirs."""


class Inbox:
    """The letters that one client reads in a round, in ascending order of their senders.

    The order is fixed so that sums over an inbox do not depend on who wrote first. Inboxes of a round share memory:
    treat what `tensor` returns as read-only.
    """

    def __init__(self, pile: Pile, positions: Tensor) -> None:
        self.pile = pile
        """The letters of the whole delivery, of which it holds some."""
        self.positions = positions
        """(n,) which ones, ascending."""

    @classmethod
    def of(cls, letters: Sequence[Letter]) -> Inbox:
        """An inbox of letters in any order. Of several letters from one sender, it keeps the first of the newest."""
        newest: dict[int, Letter] = {}
        for letter in letters:
            known = newest.get(letter.sender)
            if known is None or letter.round > known.round:
                newest[letter.sender] = letter
        return cls(pile([newest[sender] for sender in sorted(newest)]), torch.arange(len(newest)))

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def senders(self) -> Tensor:
        """(n,) who wrote them, ascending."""
        return self.pile.senders[self.positions]

    @property
    def samples(self) -> Tensor:
        """(n,) the number of training samples of each sender."""
        return self.pile.samples[self.positions]

    @property
    def bytes(self) -> int:
        """The size of all letters on the wire."""
        return int(self.pile.sizes[self.positions].sum())

    @property
    def architectures(self) -> list[str]:
        """The fingerprint of each sender's backbone, or ""."""
        return [self.pile.architectures[position] for position in self.positions.tolist()]

    def tensor(self, name: str) -> Tensor:
        """(n, …) the tensors of that name, one row per letter. For an empty inbox, which knows no shapes, (0,).

        A view if the rows are contiguous in the stack, otherwise a copy.
        """
        if not len(self):
            return torch.empty(0)
        stack, rows = self.rows(name)
        first, last = int(rows[0]), int(rows[-1])
        if last - first + 1 == len(rows):  # rows ascend, so this means contiguous
            return stack[first : last + 1]
        return stack.index_select(0, rows.to(stack.device))

    def rows(self, name: str) -> tuple[Tensor, Tensor]:
        """The round's whole stack of that name, and which of its rows are in this inbox. The inbox must not be empty.

        For reading many inboxes at once: the stack is the same tensor for all of them.
        """
        shelf = self.pile.shelves.get(name)
        stacks = shelf.stack_of[self.positions] if shelf else torch.full((len(self),), -1)
        if shelf is None or not len(stacks) or stacks.min() < 0:
            lacking = self.positions[stacks < 0]
            if not len(lacking):
                raise MaplError(f"an empty inbox has no tensor {name!r}")
            sender, there = int(self.pile.senders[lacking[0]]), ", ".join(self._names(int(lacking[0])))
            raise MaplError(f"the letter of client {sender} has no tensor {name!r}; it has {there or 'none'}")
        if stacks.min() != stacks.max():
            kinds = ", ".join(_kind(shelf.stacks[number]) for number in sorted(set(stacks.tolist())))
            raise MaplError(f"the tensors {name!r} of this inbox differ ({kinds}): select letters of one kind first")
        return shelf.stacks[int(stacks[0])], shelf.row_of[self.positions]

    def _names(self, position: int) -> list[str]:
        """The names of the tensors of one letter of the delivery."""
        return [name for name, shelf in self.pile.shelves.items() if shelf.stack_of[position] >= 0]

    @classmethod
    def join(cls, inboxes: Sequence[Inbox]) -> Inbox:
        """Inboxes of one delivery, concatenated; only `senders`, `samples` and `rows` make sense on the result."""
        if any(inbox.pile is not inboxes[0].pile for inbox in inboxes):
            raise MaplError("only inboxes of one delivery can be joined")
        return cls(inboxes[0].pile, torch.cat([inbox.positions for inbox in inboxes]))

    def delivered_with(self, other: Inbox) -> bool:
        """Whether both come from the same delivery, and so share memory."""
        return self.pile is other.pile

    def own_rows(self, name: str, ids: Tensor, own: Sequence[Tensor]) -> Tensor:
        """The rows that these clients' `own` tensors have in the stack of `rows(name)`, -1 if there is none.

        A client that put its tensor unchanged into a letter of this delivery can read it there, without a copy. The
        letter must have held that very tensor, at the same address: not a decoded, compressed or noisy version of it.
        """
        stack, _ = self.rows(name)
        pile, shelf = self.pile, self.pile.shelves[name]
        positions = torch.searchsorted(pile.senders, ids).clamp(max=len(pile.senders) - 1)
        number = next(i for i, one in enumerate(shelf.stacks) if one is stack)
        same = [shelf.addresses[at] == mine.data_ptr() for at, mine in zip(positions.tolist(), own, strict=True)]
        there = (pile.senders[positions] == ids) & (shelf.stack_of[positions] == number) & torch.tensor(same)
        return shelf.row_of[positions].where(there, torch.tensor(-1))

    def select(self, which: Tensor) -> Inbox:
        """An inbox of some of these letters: those of a mask (n,), or of positions in this inbox."""
        if which.dtype == torch.bool:
            if which.shape != (len(self),):
                raise MaplError(f"a mask of shape {tuple(which.shape)} does not fit an inbox of {len(self)} letters")
            return Inbox(self.pile, self.positions[which.cpu()])
        # Sorted and unique, as an inbox must be; positions may come in any order.
        chosen = np.unique(self.positions[which.cpu().long()].numpy())
        return Inbox(self.pile, torch.from_numpy(chosen))


@torch.no_grad()
def pile(letters: Sequence[Letter]) -> Pile:
    """Stack the tensors of all letters, one stack per name and shape."""
    places: dict[str, dict[tuple[torch.Size, torch.dtype], list[int]]] = {}
    for position, letter in enumerate(letters):
        for name, tensor in letter.tensors.items():
            places.setdefault(name, {}).setdefault((tensor.shape, tensor.dtype), []).append(position)
    shelves = {}
    for name, kinds in places.items():
        addresses = [letter.tensors[name].data_ptr() if name in letter.tensors else 0 for letter in letters]
        shelf = Shelf([], torch.full((len(letters),), -1), addresses, torch.zeros(len(letters), dtype=torch.long))
        for number, positions in enumerate(kinds.values()):
            shelf.stacks.append(torch.stack([letters[position].tensors[name] for position in positions]))
            shelf.stack_of[positions] = number
            shelf.row_of[positions] = torch.arange(len(positions))
        shelves[name] = shelf
    return Pile(
        senders=torch.tensor([letter.sender for letter in letters], dtype=torch.long),
        rounds=torch.tensor([letter.round for letter in letters], dtype=torch.long),
        samples=torch.tensor([letter.samples for letter in letters], dtype=torch.long),
        sizes=torch.tensor([nbytes(letter) for letter in letters], dtype=torch.long),
        architectures=[letter.architecture for letter in letters],
        shelves=shelves,
        letters=letters,
    )


def _kind(stack: Tensor) -> str:
    return f"{list(stack.shape[1:])} {str(stack.dtype).removeprefix('torch.')}"
