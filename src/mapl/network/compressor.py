"""Between a method and a transport: letters that travel in a smaller form, and are read as they were written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mapl.errors import MaplError
from mapl.network.codecs import batches, blocks, from_int8, rows, to_bfloat16, to_int8
from mapl.network.inbox import Inbox, Pile, Shelf
from mapl.network.letter import Letter, Schema, Spec
from mapl.network.transport import Mail

MARKS = BFLOAT16, INT8, SCALES, VALUES, POSITIONS = "/bfloat16", "/int8", "/scales", "/values", "/positions"
"""How the names of compressed tensors end. A compressed letter says by itself how it is read."""
BUILDS_ON = "builds-on"
"""The tensor of an increment that names the round of the letter before it."""


class Compressor(ABC):
    """What a letter's float32 tensors become on their way. All other tensors travel unchanged.

    A client's own tensors are never compressed: it mixes what it has, not what its readers get.
    """

    @abstractmethod
    def outgoing(self, mail: Mail) -> Mail:
        """The mail as it travels: compressed letters, and schemas that describe them."""

    @abstractmethod
    def incoming(self, mail: Mail, inboxes: Mapping[int, Inbox]) -> dict[int, Inbox]:
        """The inboxes as the method reads them: names, shapes and dtypes are those that were written.

        A letter that cannot be read is left out, as if it had not arrived.
        """

    @abstractmethod
    def largest(self, letter: Letter) -> Letter:
        """The largest form in which such a letter travels."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must keep, as named tensors."""

    @abstractmethod
    def load_state(self, saved: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""


def float_names(letter: Letter) -> list[str]:
    """The tensors of a letter that can be compressed."""
    for name in letter.tensors:
        if name.endswith(MARKS) or name == BUILDS_ON:
            raise MaplError(f"a letter's tensor cannot be named {name!r} if letters are compressed (network.compress)")
    return [name for name, tensor in letter.tensors.items() if tensor.dtype == torch.float32]


Places = dict[tuple[str, torch.Size], list[int]]
"""By name and shape, which of some letters have such a tensor."""


def places(letters: Iterable[tuple[int, Letter]]) -> Places:
    """The float32 tensors of these letters, which have numbers."""
    found: Places = {}
    for number, letter in letters:
        for name in float_names(letter):
            found.setdefault((name, letter.tensors[name].shape), []).append(number)
    return found


def with_contents(mail: Mail, letters: Sequence[Letter]) -> Mail:
    """The mail with these letters: first those for everyone, then the personal ones, both in the mail's order."""
    common = len(mail.letters)
    personal = dict(zip(mail.personal, letters[common:], strict=True))
    return replace(mail, letters=dict(zip(mail.letters, letters[:common], strict=True)), personal=personal)


@dataclass(frozen=True)
class Rounded(Compressor):
    """Every number is rounded: to bfloat16, or to int8 with one scale per block. It keeps nothing between rounds."""

    mark: str
    """BFLOAT16 or INT8."""

    @torch.no_grad()
    def outgoing(self, mail: Mail) -> Mail:
        written = [*mail.letters.values(), *mail.personal.values()]

        def expects(reader: int) -> Schema:
            return self._schema(mail.expects(reader))

        return replace(with_contents(mail, self._encoded(written)), expects=expects)

    def largest(self, letter: Letter) -> Letter:
        return self._encoded([letter])[0]

    @torch.no_grad()
    def incoming(self, mail: Mail, inboxes: Mapping[int, Inbox]) -> dict[int, Inbox]:
        piles = {id(inbox.pile): inbox.pile for inbox in inboxes.values()}
        decoded = {key: self._decoded(pile) for key, pile in piles.items()}  # once, however many read it
        for reader, inbox in inboxes.items():
            count_damaged(mail, {reader: inbox}, ~decoded[id(inbox.pile)][1])
        return {reader: _readable(inbox, *decoded[id(inbox.pile)]) for reader, inbox in inboxes.items()}

    def state(self) -> dict[str, Tensor]:
        return {}

    def load_state(self, saved: Mapping[str, Tensor]) -> None:
        pass

    def _encoded(self, letters: Sequence[Letter]) -> list[Letter]:
        contents: list[dict[str, Tensor]] = [{} for _ in letters]
        for (name, shape), numbers in places(enumerate(letters)).items():
            tensors = [letters[number].tensors[name] for number in numbers]
            for some in batches(len(tensors), tensors[0]):
                encoded = self._encoded_rows(rows(tensors[some]), shape)
                for row, number in enumerate(numbers[some]):
                    contents[number] |= {f"{name}{mark}": stack[row] for mark, stack in encoded.items()}
        return [
            replace(letter, tensors={**_unchanged(letter), **compressed})
            for letter, compressed in zip(letters, contents, strict=True)
        ]

    def _encoded_rows(self, numbers: Tensor, shape: torch.Size) -> dict[str, Tensor]:
        if self.mark == BFLOAT16:
            return {BFLOAT16: to_bfloat16(numbers).view(len(numbers), *shape)}
        values, scales = to_int8(numbers)
        return {INT8: values.reshape(len(numbers), *shape), SCALES: scales}

    def _schema(self, schema: Schema) -> Schema:
        tensors: dict[str, Spec] = {}
        for name, spec in schema.tensors.items():
            free = spec._replace(low=None, high=None)  # ranges hold for the decoded numbers
            if spec.dtype != torch.float32:
                tensors[name] = spec
            elif self.mark == BFLOAT16:
                tensors[name + BFLOAT16] = free._replace(dtype=torch.bfloat16)
            else:
                tensors[name + INT8] = free._replace(dtype=torch.int8)
                tensors[name + SCALES] = free._replace(shape=(blocks(torch.Size(spec.shape).numel()),), low=0.0)
        return replace(schema, tensors=tensors)

    def _decoded(self, pile: Pile) -> tuple[Pile, Tensor]:
        """The pile with float32 tensors, and which of its letters (n,) can be read."""
        intact = torch.ones(len(pile.senders), dtype=torch.bool)
        shelves = {name: shelf for name, shelf in pile.shelves.items() if not name.endswith((self.mark, SCALES))}
        for name, shelf in pile.shelves.items():
            if name.endswith(self.mark):
                written = name.removesuffix(self.mark)
                if self.mark == BFLOAT16:
                    stacks = [stack.float() for stack in shelf.stacks]
                else:
                    stacks = _from_int8(shelf, pile.shelves[written + SCALES], intact)
                shelves[written] = replace(shelf, stacks=stacks, addresses=[NOWHERE] * len(intact))
        return replace(pile, shelves=shelves), intact


NOWHERE = -1
"""The address of a decoded tensor: it is nobody's own, so `Inbox.own_rows` never finds it."""


def _from_int8(shelf: Shelf, scales: Shelf, intact: Tensor) -> list[Tensor]:
    """The float32 stacks of a shelf. A letter with another number of scales than its numbers need is not intact."""
    stacks = []
    for number, stack in enumerate(shelf.stacks):
        letters = torch.nonzero(shelf.stack_of == number).flatten()
        needed = blocks(stack[0].numel())
        fitting = next((i for i, one in enumerate(scales.stacks) if one.shape[1:] == (needed,)), NOWHERE)
        fits = (scales.stack_of[letters] == fitting) & (scales.stack_of[letters] >= 0)
        intact[letters[~fits]] = False
        if fits.any():
            chosen = scales.stacks[fitting].index_select(0, (scales.row_of[letters] * fits).to(stack.device))
        else:
            chosen = torch.zeros(len(stack), needed, device=stack.device)
        stacks.append(from_int8(stack.reshape(len(stack), stack[0].numel()), chosen).view(stack.shape))
    return stacks


def _readable(inbox: Inbox, pile: Pile, intact: Tensor) -> Inbox:
    return Inbox(pile, inbox.positions[intact[inbox.positions]])


def count_damaged(mail: Mail, inboxes: Mapping[int, Inbox], damaged: Tensor) -> None:
    """Count letters of one delivery that cannot be decompressed; `damaged` (n,) says which they are."""
    if not damaged.any():
        return
    for inbox in inboxes.values():
        for sender in inbox.select(damaged[inbox.positions]).senders.tolist():
            sentence = f"the letter of sender {sender} cannot be decompressed: its parts do not fit together"
            mail.refused.add(sender, "compression", sentence)


def _unchanged(letter: Letter) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in letter.tensors.items() if tensor.dtype != torch.float32}
