"""The in-memory transport: every client lives in this process, and letters are passed as tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from mapl.errors import MaplError
from mapl.network.inbox import Inbox, pile
from mapl.network.letter import Letter, LetterError, check_writable
from mapl.network.transport import THIS_ROUND, Mail

Ids = NDArray[np.int64]


class MemoryPost:
    """A transport for clients that all live in this process. It copies a letter once, however many clients read it."""

    rounds = THIS_ROUND

    def exchange(self, mail: Mail) -> dict[int, Inbox]:
        """An inbox for every reader; see `Transport.exchange`."""
        mail = _without_unwritable(mail)
        if mail.personal:
            return _personal(mail)
        readers = np.array(sorted(mail.requests), dtype=np.int64)
        asked = [mail.requests[reader].numpy() for reader in readers.tolist()]
        counts = np.array([len(ids) for ids in asked], dtype=np.int64)
        wanted = np.concatenate([np.empty(0, dtype=np.int64), *asked])
        order = _asked_for(np.array(sorted(mail.letters), dtype=np.int64), wanted)
        letters = pile([mail.letters[sender] for sender in order.tolist()])
        to = np.repeat(readers, counts)
        positions, to = _positions(order, wanted, to)
        starts = np.searchsorted(to, readers)
        ends = np.searchsorted(to, readers, side="right")
        places = torch.from_numpy(positions)
        return {
            reader: Inbox(letters, places[start:end])
            for reader, start, end in zip(readers.tolist(), starts.tolist(), ends.tolist(), strict=True)
        }


def _without_unwritable(mail: Mail) -> Mail:
    """The mail without letters that have no encoding, or another sender than the client that posted them.

    Each reader that asked for such a letter counts it.
    """
    wrong = {sender: error for sender, letter in mail.letters.items() if (error := _mistake(letter, sender))}
    broken = {reader: error for reader, letter in mail.personal.items() if (error := _mistake(letter, letter.sender))}
    if not wrong and not broken:
        return mail
    requests = dict(mail.requests)
    for reader, asked in mail.requests.items():
        mine = mail.personal.get(reader)
        errors = {s: wrong[s] for s in asked.tolist() if s in wrong and (mine is None or mine.sender != s)}
        if mine is not None and reader in broken and mine.sender in asked:
            errors[mine.sender] = broken[reader]
        for sender, error in errors.items():
            mail.refused.add_error(sender, error)
        if errors:
            requests[reader] = asked[~torch.isin(asked, torch.tensor(list(errors)))]
    letters = {sender: letter for sender, letter in mail.letters.items() if sender not in wrong}
    personal = {reader: letter for reader, letter in mail.personal.items() if reader not in broken}
    return replace(mail, letters=letters, personal=personal, requests=requests)


def _mistake(letter: Letter, sender: int) -> LetterError | None:
    if letter.sender != sender:
        words = f"the letter posted by client {sender} says that its sender is {letter.sender}"
        return LetterError("sender", words)
    try:
        check_writable(letter)
    except LetterError as error:
        return error
    return None


def _asked_for(writers: Ids, wanted: Ids) -> Ids:
    """The writers (sorted) that somebody asks for. Millions of requests are marked, not sorted."""
    marks = np.zeros(len(writers) + 1, dtype=bool)
    marks[np.searchsorted(writers, wanted)] = True  # a request that nobody wrote for marks the next writer: no harm
    return writers[marks[:-1]]


def _positions(order: Ids, wanted: Ids, to: Ids) -> tuple[Ids, Ids]:
    """The positions in the pile of all letters that were asked for and written, ascending per reader, and the readers.

    `order` has the senders in the pile, sorted. `to` has the reader of each request, sorted.
    """
    if (wanted == to).any():
        raise MaplError(f"client {to[int(np.argmax(wanted == to))]} asks for its own letter")
    positions = np.searchsorted(order, wanted)
    # A position past the end means no letter. An empty pile has no positions at all.
    written = order.take(positions, mode="clip") == wanted if len(order) else np.zeros(len(wanted), dtype=bool)
    if not written.all():
        positions, to = positions[written], to[written]
    same = to[1:] == to[:-1]
    if (same & (positions[1:] <= positions[:-1])).any():  # most requests are sorted already
        positions = positions[np.lexsort((positions, to))]
    twice = same & (positions[1:] == positions[:-1])
    if twice.any():
        place = int(np.argmax(twice))
        raise MaplError(f"client {to[place]} asks twice for the letter of client {order[positions[place]]}")
    return positions, to


def _personal(mail: Mail) -> dict[int, Inbox]:
    """Inboxes where a sender writes a separate letter to each reader. All letters still share one pile."""
    letters: list[Letter] = []
    places: dict[int, list[int]] = {}
    common: dict[int, int] = {}
    for reader in sorted(mail.requests):
        places[reader] = []
        for sender in sorted(mail.requests[reader].tolist()):
            own = mail.personal.get(reader)
            if own is not None and own.sender == sender:
                places[reader].append(len(letters))
                letters.append(own)
            elif sender in mail.letters:
                if sender not in common:
                    common[sender] = len(letters)
                    letters.append(mail.letters[sender])
                places[reader].append(common[sender])
    stacked = pile(letters)
    return {reader: Inbox(stacked, torch.tensor(at, dtype=torch.long)) for reader, at in places.items()}
