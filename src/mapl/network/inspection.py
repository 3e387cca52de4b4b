"""The checks that every letter passes before a method reads it, whichever transport carried it.

Letters of one delivery are stacked, so they are checked stack by stack: one reduction per stack, and one small copy
from the GPU per delivery. What a reader leaves out depends on its own inbox alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.linalg import vector_norm

from mapl.network.inbox import Inbox, Pile, Shelf
from mapl.network.letter import Letter, Reason, Schema, Spec
from mapl.network.reading import range_text
from mapl.network.transport import Mail

FACTOR = 30.0
"""How many times larger than the median of the reader's letters the norm of a tensor may be.

In honest runs of all methods on digits, with four backbones, Dirichlet shards and rings, from the first round on, the
largest ratio was 1.9 (the prototypes of FedProto)."""
ENOUGH = 3
"""With fewer letters than this, the reader's own tensor counts as one more. If it has none, only norms above `LARGEST`
are refused: of two letters, nobody can say which one is wrong."""

LARGEST = 1e18
"""Norms above this are refused whatever else arrived. Their squares come close to overflowing float32."""
Numbers = NDArray[np.float64]
Stack = tuple[str, int]
"""A name of tensors, and the number of a stack on its shelf."""
Fault = tuple[Reason, str]
"""Why a letter is left out, and a sentence about it."""


def inspect(mail: Mail, inboxes: Mapping[int, Inbox], own: Mapping[int, Letter] | None) -> dict[int, Inbox]:
    """The inboxes without letters that fail a check. Those are counted in `mail.refused`.

    A letter has to be of a round that is read, and newer than what its reader has read of its sender. It has to fit its
    reader's schema: names, shapes, dtypes, the number of samples, finite values, ranges. If `own` is given, the norms
    of its float tensors are compared, too. `own` has the letter that each reader itself wrote this round, if it wrote
    one.
    """
    result = dict(inboxes)
    deliveries: dict[int, list[int]] = {}
    for reader, inbox in inboxes.items():
        if len(inbox):
            deliveries.setdefault(id(inbox.pile), []).append(reader)
    for readers in deliveries.values():
        delivered = {reader: inboxes[reader] for reader in readers}
        result |= _Inspector(delivered, mail).kept(own)
    return result


class _Inspector:
    """The inboxes of one delivery, and what is known of its letters."""

    def __init__(self, inboxes: Mapping[int, Inbox], mail: Mail) -> None:
        self.inboxes = dict(inboxes)
        self.pile = next(iter(inboxes.values())).pile
        self.mail = mail
        self.schemas: dict[tuple[object, ...], Schema] = {}
        self.schema_of: dict[int, tuple[object, ...]] = {}
        for reader in inboxes:
            schema = mail.expects(reader)
            self.schema_of[reader] = key = schema.key
            self.schemas[key] = schema
        self.facts = measured(self.pile, self.schemas.values())

    def kept(self, own: Mapping[int, Letter] | None) -> dict[int, Inbox]:
        """The inboxes without letters that fail a check."""
        rounds = self.mail.oldest, self.mail.newest
        faults = {key: faults_of(self.pile, schema, self.facts, rounds) for key, schema in self.schemas.items()}
        for reader, key in self.schema_of.items():
            self._leave_out(reader, faults[key] | self._read_before(reader))
        # All norms are judged before a letter is left out, so that the order of tensors does not matter.
        large: dict[int, dict[int, Fault]] = {}
        for stack, norms in self.facts.norms.items() if own is not None else ():
            for reader, found in self._large(stack, norms, own or {}).items():
                large[reader] = found | large.get(reader, {})
        for reader, found in large.items():
            self._leave_out(reader, found)
        return self.inboxes

    def _read_before(self, reader: int) -> dict[int, Fault]:
        """By position, letters that are no newer than what this reader has read of their senders."""
        result: dict[int, Fault] = {}
        if known := self.mail.read.get(reader):
            pile = self.pile
            for position in self.inboxes[reader].positions.tolist():
                sender, round = int(pile.senders[position]), int(pile.rounds[position])
                if round <= known.get(sender, -1):
                    words = f"is of round {round}, but one of round {known[sender]} has been read"
                    result[position] = "round", f"the letter of sender {sender} {words}"
        return result

    def _leave_out(self, reader: int, faults: Mapping[int, Fault]) -> None:
        """Remove letters, given by their positions in the pile, from an inbox. They are counted."""
        if not faults:
            return
        inbox, positions = self.inboxes[reader], self.inboxes[reader].positions
        wrong = [position for position in positions.tolist() if position in faults]
        for position in wrong:
            self.mail.refused.add(int(self.pile.senders[position]), *faults[position])
        if wrong:
            self.inboxes[reader] = Inbox(inbox.pile, positions[~torch.isin(positions, torch.tensor(wrong))])

    def _large(self, stack: Stack, norms: Numbers, own: Mapping[int, Letter]) -> dict[int, dict[int, Fault]]:
        """By reader and position, letters whose norm in this stack is far larger than that of its other letters."""
        name, number = stack
        inside = self.pile.shelves[name].stack_of.numpy() == number
        everywhere = bool(inside.all())
        if everywhere:
            few = [reader for reader, inbox in self.inboxes.items() if 0 < len(inbox) < ENOUGH]
        else:
            few = [r for r, inbox in self.inboxes.items() if 0 < inside[inbox.positions.numpy()].sum() < ENOUGH]
        mine = self._own_norms(stack, few, own)
        everyone = np.concatenate([norms[inside & ~np.isnan(norms)], list(mine.values())])
        positive = everyone[everyone > 0]
        if not len(positive) or positive.max() <= min(FACTOR * positive.min(), LARGEST):
            return {}  # whoever reads which of them
        words = f"has a norm of {name!r} that is far above the median of what its reader knows"
        result = {}
        for reader, inbox in self.inboxes.items():
            at = inbox.positions.numpy()
            at = at if everywhere else at[inside[at]]
            large = at[too_large(norms[at], mine.get(reader))].tolist()
            if large:
                senders = self.pile.senders[large].tolist()
                faults: list[Fault] = [("norm", f"the letter of sender {sender} {words}") for sender in senders]
                result[reader] = dict(zip(large, faults, strict=True))
        return result

    @torch.no_grad()
    def _own_norms(self, stack: Stack, readers: Sequence[int], own: Mapping[int, Letter]) -> dict[int, float]:
        """The norms of these readers' own tensors, where a reader wrote one of that name and shape."""
        name, number = stack
        like = self.pile.shelves[name].stacks[number]
        tensors = {
            reader: own[reader].tensors[name].detach()
            for reader in readers
            if reader in own and name in own[reader].tensors and own[reader].tensors[name].shape == like.shape[1:]
        }
        if not tensors:
            return {}
        norms = torch.stack(torch._foreach_norm(list(tensors.values())))
        return {r: norm for r, norm in zip(tensors, norms.double().tolist(), strict=True) if np.isfinite(norm)}


def too_large(norms: Numbers, own: float | None) -> NDArray[np.bool_]:
    """Which of the norms (n,) that a reader sees are too large. The reader's own counts if there are few."""
    known = np.sort(norms if own is None or len(norms) >= ENOUGH else np.append(norms, own))
    overflows = ~(norms <= LARGEST)
    if len(norms) < ENOUGH and own is None:
        return overflows
    middle = known[(len(known) - 1) // 2]  # of an even number, the lower one
    return overflows | (norms > FACTOR * middle) if middle > 0 else overflows


# What the stacks of a pile tell


@dataclass(frozen=True)
class Facts:
    """What is known of the tensors of a pile, each as (n,) for the n letters. A letter without the tensor has 0."""

    norms: dict[Stack, Numbers]
    """Of float tensors without a range. It is infinite if the norm overflows, NaN if a value is not finite."""
    extremes: dict[Stack, tuple[Numbers, Numbers]]
    """The smallest and the largest element of tensors with a range."""


@torch.no_grad()
def measured(pile: Pile, schemas: Iterable[Schema]) -> Facts:
    """One reduction per stack, and one copy to the host."""
    ranged = {name for schema in schemas for specs in _forms(schema) for name, spec in specs.items() if spec.has_range}
    facts: dict[tuple[str, Stack], Tensor] = {}
    for name, shelf in pile.shelves.items():
        for number, stack in enumerate(shelf.stacks):
            if not stack.numel():
                continue
            rows = stack.reshape(len(stack), -1)
            if name in ranged:
                rows = rows.byte() if rows.dtype == torch.bool else rows
                facts["low", (name, number)], facts["high", (name, number)] = rows.amin(1), rows.amax(1)
            elif stack.is_floating_point():
                facts["norm", (name, number)] = norms_of(rows)
    values = dict(zip(facts, _on_host(list(facts.values())), strict=True))

    def per_letter(what: str, stack: Stack) -> Numbers:
        shelf = pile.shelves[stack[0]]
        inside = shelf.stack_of.numpy() == stack[1]
        result = np.zeros(len(inside))
        result[inside] = values[what, stack][shelf.row_of.numpy()[inside]]
        return result

    norms = {stack: per_letter("norm", stack) for what, stack in facts if what == "norm"}
    for (name, number), known in norms.items():
        _tell_overflow(pile.shelves[name], number, known)
    return Facts(norms, {s: (per_letter("low", s), per_letter("high", s)) for what, s in facts if what == "low"})


def norms_of(rows: Tensor) -> Tensor:
    """The norm of each row, in float32 or float64. It is not finite if a value is not finite, or if it overflows."""
    wide = torch.float64 if rows.dtype == torch.float64 else torch.float32
    norms: Tensor = vector_norm(rows, dim=1, dtype=wide)
    return norms


def _on_host(tensors: Sequence[Tensor]) -> list[Numbers]:
    """The tensors as arrays. All tensors of a device are copied together."""
    result: list[Numbers] = [np.empty(0)] * len(tensors)
    for device in {tensor.device for tensor in tensors}:
        here = [number for number, tensor in enumerate(tensors) if tensor.device == device]
        together = torch.cat([tensors[number].double() for number in here]).cpu().numpy()
        ends = np.cumsum([len(tensors[number]) for number in here])[:-1]
        for number, values in zip(here, np.split(together, ends), strict=True):
            result[number] = values
    return result


def _tell_overflow(shelf: Shelf, number: int, norms: Numbers) -> None:
    """Make a norm NaN if it is not finite because a value is not. It stays infinite if finite values overflow."""
    letters = np.flatnonzero(~np.isfinite(norms))
    if len(letters):
        stack, rows = shelf.stacks[number], shelf.row_of[torch.from_numpy(letters)]
        whole = stack[rows.to(stack.device)].flatten(1).isfinite().all(1).cpu().numpy()
        norms[letters] = np.where(whole, math.inf, math.nan)


def _forms(schema: Schema) -> tuple[Mapping[str, Spec], ...]:
    return (schema.tensors,) if schema.instead is None else (schema.tensors, schema.instead)


# Against a schema

Letters = NDArray[np.bool_]
"""(n,) some letters of a pile."""
Note = Callable[[Letters, Reason, str], None]
"""Notes what is wrong with letters."""


def faults_of(pile: Pile, schema: Schema, facts: Facts, rounds: tuple[int, int]) -> dict[int, Fault]:
    """What is wrong with letters of a pile, by position; empty if all of them fit the schema.

    `rounds`: the first and the last round of which letters are read. The schema's own round, which `decode` looks at,
    is not used. Of several faults, the first counts, in the order in which `decode` looks for them.
    """
    faults: dict[int, Fault] = {}

    def note(wrong: Letters, reason: Reason, words: str) -> None:
        for position in np.flatnonzero(wrong).tolist():
            faults.setdefault(position, (reason, f"the letter of sender {int(pile.senders[position])} {words}"))

    note(_where(pile, lambda letter: letter.run != schema.run), "run", f"is not of run {schema.run!r}")
    first, last = rounds
    words = f"is not of round {first}" if first == last else f"is not of rounds {first} to {last}"
    note((pile.rounds.numpy() < first) | (pile.rounds.numpy() > last), "round", words)
    note(_where(pile, lambda letter: not _whole(letter.samples)), "format", "has samples that are no whole number")
    note(pile.samples.numpy() < schema.fewest, "samples", f"has samples below {schema.fewest}")
    matching = [_with_names(pile, specs) for specs in _forms(schema)]
    note(~np.any(matching, axis=0), "names", f"does not have the expected tensors ({', '.join(schema.tensors)})")
    stacks = [
        (letters & (pile.shelves[name].stack_of.numpy() == number), (name, number), spec)
        for letters, specs in zip(matching, _forms(schema), strict=True)
        if letters.any()
        for name, spec in specs.items()
        for number in range(len(pile.shelves[name].stacks))
    ]
    for letters, stack, spec in stacks:
        _check_structure(letters, stack, spec, schema, pile, note)
    for letters, stack, spec in stacks:
        _check_values(letters, stack, spec, facts, note)
    return faults


def _where(pile: Pile, wrong: Callable[[Letter], bool]) -> Letters:
    """Which letters are wrong, by what their headers say."""
    return np.array([wrong(letter) for letter in pile.letters], dtype=bool)


def _whole(number: object) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def _with_names(pile: Pile, expected: Mapping[str, Spec]) -> Letters:
    """Which letters have these tensors and no others."""
    result = np.ones(len(pile.senders), dtype=bool)
    for name in expected:
        result &= pile.shelves[name].stack_of.numpy() >= 0 if name in pile.shelves else False
    for name, shelf in pile.shelves.items():
        if name not in expected:
            result &= shelf.stack_of.numpy() < 0
    return result


def _check_structure(letters: Letters, stack: Stack, spec: Spec, schema: Schema, pile: Pile, note: Note) -> None:
    name, tensors = stack[0], pile.shelves[stack[0]].stacks[stack[1]]
    shape = tuple(tensors.shape[1:])
    if spec.by_architecture and shape != spec.shape:
        theirs = [pile.architectures[position] for position in np.flatnonzero(letters).tolist()]
        wrong = letters.copy()
        wrong[letters] = [not schema.fits(spec, shape, architecture) for architecture in theirs]
    else:
        wrong = letters & (shape != spec.shape)
    note(wrong, "shape", f"has shape {list(shape)} for {name!r}, but {list(spec.shape)} is expected")
    if tensors.dtype != spec.dtype:
        note(letters, "dtype", f"has dtype {tensors.dtype} for {name!r}, but {spec.dtype} is expected")


def _check_values(letters: Letters, stack: Stack, spec: Spec, facts: Facts, note: Note) -> None:
    name = stack[0]
    if stack in facts.norms:
        note(letters & np.isnan(facts.norms[stack]), "finite", f"has values in {name!r} that are not finite")
    if stack in facts.extremes:
        low, high = facts.extremes[stack]
        note(letters & ~(np.isfinite(low) & np.isfinite(high)), "finite", f"has values in {name!r} that are not finite")
        inside = np.array([spec.allows(*each) for each in zip(low.tolist(), high.tolist(), strict=True)])
        note(letters & ~inside, "range", f"has values in {name!r} out of range, {range_text(spec)}")
