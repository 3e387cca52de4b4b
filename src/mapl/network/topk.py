"""Letters that carry only what changed most, and what their readers believe meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mapl.network.codecs import batches, largest_gaps, rows, share
from mapl.network.compressor import (
    BUILDS_ON,
    NOWHERE,
    POSITIONS,
    VALUES,
    Compressor,
    count_damaged,
    float_names,
    places,
    with_contents,
)
from mapl.network.inbox import Inbox, Pile, pile
from mapl.network.letter import MOST, Letter, Schema, Spec, size, specs
from mapl.network.transport import Leg, Mail

Stream = tuple[Leg, int, int]
"""Letters that build on each other: the leg, their sender, and their reader (EVERYONE if they are not personal)."""
EVERYONE = -1
ONCE: tuple[Leg, ...] = ("opening", "answers")
"""Legs with one letter per sender in a run. It is full, and nothing builds on it."""
FULL = -1
"""What a full letter builds on."""

Step = Literal["follows", "unknown", "damaged"]
"""Whether a replica can be brought to a letter: it can, the letter before it is unknown, or it does not fit."""

Ids = NDArray[np.int64]


@dataclass
class Replica:
    """What the readers of a stream believe who have read its letter of `round`."""

    round: int
    increments: int
    """How many letters it got since the last full one."""
    tensors: dict[str, Tensor]


@dataclass
class Held:
    """Of which round is the replica that each reader holds of each sender."""

    pairs: Ids = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """reader · 2³² + sender, ascending."""
    rounds: Ids = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def of(self, pairs: Ids) -> Ids:
        """The round for each of these pairs, -2 if the reader holds nothing of the sender."""
        if not len(self.pairs):
            return np.full(len(pairs), -2)
        at = np.searchsorted(self.pairs, pairs).clip(max=len(self.pairs) - 1)
        return np.where(self.pairs[at] == pairs, self.rounds[at], -2)

    def note(self, pairs: Ids, round: int) -> None:
        """These readers now hold the replica of that round."""
        new = pairs[self.of(pairs) == -2]
        if len(new):
            order = np.argsort(together := np.concatenate([self.pairs, new]))
            self.pairs = together[order]
            self.rounds = np.concatenate([self.rounds, np.full(len(new), round)])[order]
        self.rounds[np.searchsorted(self.pairs, pairs)] = round


class TopK(Compressor):
    """Every letter carries the numbers that differ most from what its readers believe, and where they stand.

    Sender and readers keep a replica of each tensor. What a letter does not carry stays in the difference between
    tensor and replica, and is sent later: that is the error feedback. A letter carries the tensor's own numbers, which
    replace those of the replica. Sums of differences would be the same up to rounding, and rounding would add up.

    One in `refresh` letters is full. So are a sender's first letter, one that would be no smaller otherwise, and the
    openings and answers of a method with a server, which are written once. A letter is full, too, if readers may be new
    since the last one (`Mail.anew`): the topology was redrawn, or the method asks other peers than before.

    Any other letter names the letter that it builds on. A reader that did not read that one, in its own round, leaves
    out this one and all that follow, until the next full one. A full letter that comes late is read, but nothing builds
    on it.

    A process keeps one replica per stream, whoever of its clients reads it: of its own senders' letters, and of
    letters from elsewhere. Of each reader it keeps only the round of the replica that it holds. With personal replies
    each reader has a stream of its own.
    """

    def __init__(self, keep: float, refresh: int, personal: bool = False) -> None:
        self.keep = keep
        self.refresh = refresh
        self.personal = personal
        """Whether the server writes a separate reply to each client."""
        self.replicas: dict[Stream, Replica] = {}
        self.held: dict[Leg, Held] = {}

    # Writing

    @torch.no_grad()
    def outgoing(self, mail: Mail) -> Mail:
        if mail.leg in ONCE:
            return mail
        streams: list[Stream] = [(mail.leg, sender, EVERYONE) for sender in mail.letters]
        streams += [(mail.leg, letter.sender, reader) for reader, letter in mail.personal.items()]
        letters = [*mail.letters.values(), *mail.personal.values()]
        increments = []
        for number, (stream, letter) in enumerate(zip(streams, letters, strict=True)):
            if names := float_names(letter):
                if self._is_full(stream, letter, mail.anew):
                    copies = {name: letter.tensors[name].detach().clone() for name in names}
                    self.replicas[stream] = Replica(mail.round, 0, copies)
                else:
                    increments.append(number)
        self._shorten(letters, streams, increments, mail.round)

        def expects(reader: int) -> Schema:
            schema = mail.expects(reader)
            return replace(schema, instead=self._increment(schema.tensors))

        return replace(with_contents(mail, letters), expects=expects)

    def largest(self, letter: Letter) -> Letter:
        float_names(letter)  # raises for names that cannot be compressed
        return letter

    def _is_full(self, stream: Stream, letter: Letter, anew: int) -> bool:
        replica = self.replicas.get(stream)
        if replica is None or not anew <= replica.round < letter.round:
            return True
        if replica.increments + 1 >= self.refresh:
            return True
        shapes = {name: letter.tensors[name].shape for name in float_names(letter)}
        if shapes != {name: tensor.shape for name, tensor in replica.tensors.items()}:
            return True
        return size(self._increment(specs(letter.tensors))) >= size(specs(letter.tensors))

    def _increment(self, tensors: Mapping[str, Spec]) -> dict[str, Spec]:
        """The structure of an increment of a letter with these tensors."""
        result = {name: spec for name, spec in tensors.items() if spec.dtype != torch.float32}
        for name, spec in tensors.items():
            if spec.dtype == torch.float32:
                count = share(self.keep, torch.Size(spec.shape).numel())
                result[name + VALUES] = spec._replace(shape=(count,))
                result[name + POSITIONS] = spec._replace(shape=(count,), dtype=torch.int32, low=0, high=None)
        return {**result, BUILDS_ON: Spec((1,), torch.int64, low=0, high=MOST)}

    def _shorten(self, letters: list[Letter], streams: Sequence[Stream], which: Sequence[int], round: int) -> None:
        """Replace these letters by increments, and bring their replicas up to date."""
        contents: dict[int, dict[str, Tensor]] = {number: {} for number in which}
        for (name, shape), numbers in places((number, letters[number]) for number in which).items():
            tensors = [letters[number].tensors[name] for number in numbers]
            replicas = [self.replicas[streams[number]].tensors for number in numbers]
            for some in batches(len(tensors), tensors[0]):
                written = rows(tensors[some])
                believed = rows([replica[name].to(written.device) for replica in replicas[some]])
                positions = largest_gaps(written, believed, share(self.keep, written.shape[1]))
                values = written.gather(1, positions)
                believed = believed.scatter(1, positions, values)
                for row, number in enumerate(numbers[some]):
                    contents[number] |= {name + VALUES: values[row], name + POSITIONS: positions[row].int()}
                    self.replicas[streams[number]].tensors[name] = believed[row].view(shape)
        for number, tensors_sent in contents.items():
            letter, replica = letters[number], self.replicas[streams[number]]
            same = {name: tensor for name, tensor in letter.tensors.items() if tensor.dtype != torch.float32}
            base = {BUILDS_ON: torch.tensor([replica.round])}
            letters[number] = replace(letter, tensors={**same, **tensors_sent, **base})
            replica.round = round
            replica.increments += 1

    # Reading

    @torch.no_grad()
    def incoming(self, mail: Mail, inboxes: Mapping[int, Inbox]) -> dict[int, Inbox]:
        if mail.leg in ONCE:
            return dict(inboxes)
        deliveries: dict[int, list[int]] = {}
        for reader, inbox in inboxes.items():
            if len(inbox):
                deliveries.setdefault(id(inbox.pile), []).append(reader)
        result = dict(inboxes)
        for readers in deliveries.values():
            result |= self._read(mail, {reader: inboxes[reader] for reader in readers})
        return result

    def _read(self, mail: Mail, inboxes: Mapping[int, Inbox]) -> dict[int, Inbox]:
        """The inboxes of one delivery."""
        delivery = next(iter(inboxes.values())).pile
        letters = _letters(delivery)
        streams = self._streams(mail.leg, letters, inboxes)
        bases = _bases(delivery)
        steps = [self._follow(*each, mail.round) for each in zip(streams, letters, bases, strict=True)]
        count_damaged(mail, inboxes, torch.tensor([step == "damaged" for step in steps]))
        usable = np.array([step == "follows" for step in steps])
        if max(bases) > FULL:
            letters = [self._restored(*each) for each in zip(streams, letters, bases, usable.tolist(), strict=True)]
            stacked = replace(pile(letters), sizes=delivery.sizes)
            shelves = {n: replace(shelf, addresses=[NOWHERE] * len(letters)) for n, shelf in stacked.shelves.items()}
            stacked = replace(stacked, shelves=shelves)
        else:
            stacked = delivery
        fits = self._fits(mail, delivery, inboxes, np.array(bases), usable)
        return {reader: Inbox(stacked, inbox.positions[fits[reader]]) for reader, inbox in inboxes.items()}

    def _streams(self, leg: Leg, letters: Sequence[Letter], inboxes: Mapping[int, Inbox]) -> list[Stream]:
        reader_of = [EVERYONE] * len(letters)
        if self.personal and leg == "replies":
            for reader, inbox in inboxes.items():
                for position in inbox.positions.tolist():
                    reader_of[position] = reader
        return [(leg, letter.sender, to) for letter, to in zip(letters, reader_of, strict=True)]

    def _follow(self, stream: Stream, letter: Letter, base: int, round: int) -> Step:
        """Bring the replica of a stream to this letter, if it is not there yet."""
        replica = self.replicas.get(stream)
        if base == FULL:
            if letter.round == round and (replica is None or replica.round != round):
                copies = {name: letter.tensors[name].clone() for name in float_names(letter)}
                self.replicas[stream] = Replica(round, 0, copies)
            return "follows"
        if letter.round != round or replica is None or replica.round not in (base, round):
            return "unknown"
        if replica.round == round:  # its sender lives here, or another client has read it
            return "follows"
        if not _apply(letter, replica):
            return "damaged"
        replica.round = round
        replica.increments += 1
        return "follows"

    def _restored(self, stream: Stream, letter: Letter, base: int, usable: bool) -> Letter:
        """The letter with the tensors that it stands for; without any if it cannot be read."""
        if not usable:
            return replace(letter, tensors={})
        if base == FULL:
            return letter
        same = {n: t for n, t in letter.tensors.items() if not n.endswith((VALUES, POSITIONS)) and n != BUILDS_ON}
        return replace(letter, tensors={**same, **self.replicas[stream].tensors})

    def _fits(
        self, mail: Mail, delivery: Pile, inboxes: Mapping[int, Inbox], bases: Ids, usable: NDArray[np.bool_]
    ) -> dict[int, Tensor]:
        """For each reader, which letters of its inbox build on a replica that it holds. It then holds the new ones."""
        held = self.held.setdefault(mail.leg, Held())
        counts = [len(inbox) for inbox in inboxes.values()]
        at = torch.cat([inbox.positions for inbox in inboxes.values()]).numpy()
        pairs = np.repeat(np.array(list(inboxes)), counts) * 2**32 + delivery.senders.numpy()[at]
        fits = usable[at] & ((bases[at] == FULL) | (held.of(pairs) == bases[at]))
        held.note(pairs[fits & (delivery.rounds.numpy()[at] == mail.round)], mail.round)
        return dict(zip(inboxes, torch.split(torch.from_numpy(fits), counts), strict=True))

    # Checkpoints

    def state(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for (leg, sender, to), replica in self.replicas.items():
            place = f"{leg}.{sender}.{to}"
            tensors[f"rounds.{place}"] = torch.tensor([replica.round, replica.increments])
            tensors |= {f"replica.{place}.{name}": tensor for name, tensor in replica.tensors.items()}
        for leg, held in self.held.items():
            tensors |= {f"held.{leg}.pairs": torch.from_numpy(held.pairs)}
            tensors |= {f"held.{leg}.rounds": torch.from_numpy(held.rounds)}
        return tensors

    def load_state(self, saved: Mapping[str, Tensor]) -> None:
        self.replicas, self.held = {}, {}
        for key, value in saved.items():
            kind, name_of_leg, rest = key.split(".", 2)
            leg = cast(Leg, name_of_leg)
            if kind == "held":
                setattr(self.held.setdefault(leg, Held()), rest, value.numpy().copy())
                continue
            sender, to, *name = rest.split(".", 2)
            replica = self.replicas.setdefault((leg, int(sender), int(to)), Replica(0, 0, {}))
            if kind == "rounds":
                replica.round, replica.increments = value.tolist()
            else:
                replica.tensors[name[0]] = value


def _bases(delivery: Pile) -> list[int]:
    """What each letter of a pile builds on."""
    bases = torch.full((len(delivery.senders),), FULL)
    if (shelf := delivery.shelves.get(BUILDS_ON)) is not None:
        bases[shelf.stack_of == 0] = shelf.stacks[0].flatten().cpu()  # one stack: all have one shape
    return bases.tolist()


def _letters(delivery: Pile) -> list[Letter]:
    """The letters of a pile, as views of its stacks."""
    contents: list[dict[str, Tensor]] = [{} for _ in delivery.architectures]
    for name, shelf in delivery.shelves.items():
        stacks = [stack.unbind() for stack in shelf.stacks]
        for tensors, number, row in zip(contents, shelf.stack_of.tolist(), shelf.row_of.tolist(), strict=True):
            if number >= 0:
                tensors[name] = stacks[number][row]
    return [replace(letter, tensors=tensors) for letter, tensors in zip(delivery.letters, contents, strict=True)]


def _apply(letter: Letter, replica: Replica) -> bool:
    """Write an increment from outside into a replica, unless it does not belong there."""
    changed = {}
    for name, tensor in replica.tensors.items():
        values, positions = letter.tensors.get(name + VALUES), letter.tensors.get(name + POSITIONS)
        if values is None or positions is None or not _belongs(values, positions, tensor.numel()):
            return False
        flat = tensor.to(values.device).reshape(-1)
        changed[name] = flat.scatter(0, positions.long(), values).view(tensor.shape)
    replica.tensors = changed
    return True


def _belongs(values: Tensor, positions: Tensor, length: int) -> bool:
    """Whether there is one value for each position, and positions ascend within the tensor."""
    if values.shape != positions.shape:
        return False
    inside = (positions >= 0) & (positions < length)
    return bool(inside.all() & (positions.diff() > 0).all())
