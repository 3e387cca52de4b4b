"""The letter: a few named tensors and their sender, what a reader expects of it, and how it is written on the wire.

On the wire a letter is a safetensors file whose metadata is one line of `field=value` pairs. Every value has a fixed
width, so the size of a letter depends only on its structure (names, shapes, dtypes). It is one line because the library
writes several metadata entries in any order, while equal letters should be equal bytes.

A letter has one encoding: zeros have no sign, and a reader refuses a header that it would not write itself
(`mapl.network.reading`). The last field is a checksum of all other bytes. It detects damage, but does not prove who
wrote the letter.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor

from mapl.errors import MaplError

VERSION = 2
"""The version of the wire format. A reader refuses any other."""

Structure = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]

MOST = 10**12 - 1
"""The largest whole number that a field of the header holds. Schemas use it for counts, too."""
WIDTHS = {"version": 4, "run": 16, "sender": 12, "round": 12, "samples": 12, "architecture": 16, "checksum": 16}
"""The fields of the header in their order, and how many characters each has."""
HEADER = "letter"
NO_ARCHITECTURE = "-" * 16
HEX = re.compile(r"[0-9a-f]{16}")
_NAME = re.compile(r"[A-Za-z0-9._/-]{1,200}")
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


Reason = Literal[
    "size", "format", "version", "checksum", "run", "sender", "round", "names", "shape", "dtype", "samples", "finite",
    "range", "norm", "compression",
]  # fmt: skip
"""Why a letter is left out, in a word."""


class LetterError(MaplError):
    """A letter that cannot be written or must not be read, and why."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


@dataclass(frozen=True, eq=False)
class Letter:
    """What one client is willing to share in one round.

    The tensors are detached. They may still be views of what the writer trains, so a letter must be posted or encoded
    before its writer continues training.
    """

    run: str
    """The run's fingerprint, 16 hexadecimal digits."""
    sender: int
    """The node that wrote it, 0 or more."""
    round: int
    """The round that it was written in, 0 or more."""
    samples: int
    """The sender's number of training samples."""
    architecture: str
    """The fingerprint of the sender's backbone, 16 hexadecimal digits, or "" if it does not matter."""
    tensors: Mapping[str, Tensor]
    """Its contents, by name."""


class Spec(NamedTuple):
    """What one tensor of a letter looks like."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    by_architecture: bool = False
    """Whether the shape depends on the sender's backbone. Then it applies to senders with the reader's architecture;
    tensors of other senders only need the same number of dimensions."""
    low: float | None = None
    """The smallest value that an element may have."""
    high: float | None = None
    """The largest one. The norm of a float tensor with a range is not compared with that of other letters."""

    @property
    def has_range(self) -> bool:
        """Whether it limits the values of elements."""
        return self.low is not None or self.high is not None

    def allows(self, smallest: float, largest: float) -> bool:
        """Whether a tensor with these smallest and largest elements is in range. NaN never is."""
        return (self.low is None or smallest >= self.low) and (self.high is None or largest <= self.high)


@dataclass(frozen=True)
class Schema:
    """What a reader expects of a letter. `None` for the sender or the round accepts any."""

    run: str
    limit: int
    """The largest letter that is read, in bytes."""
    tensors: Mapping[str, Spec]
    sender: int | None = None
    round: int | None = None
    architecture: str = ""
    """The fingerprint of the reader's own backbone."""
    instead: Mapping[str, Spec] | None = None
    """Other tensors that a letter may have in place of `tensors`."""
    fewest: int = 1
    """The smallest number of samples that a sender may report. It is 0 for letters of a server, which has none."""

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for schemas that accept the same letters."""
        tensors = (*self.tensors.items(), None, *(self.instead or {}).items())
        return self.run, self.limit, self.sender, self.round, self.architecture, self.fewest, *tensors

    def fits(self, spec: Spec, shape: Sequence[int], architecture: str) -> bool:
        """Whether a tensor of that shape, from a sender with that architecture, is what the reader expects."""
        if spec.by_architecture and architecture != self.architecture:
            return len(shape) == len(spec.shape)
        return tuple(shape) == spec.shape


def specs(tensors: Mapping[str, Tensor]) -> dict[str, Spec]:
    """The schema of letters with tensors like these."""
    return {name: Spec(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def fingerprint(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """16 hexadecimal digits, equal for architectures whose tensors have the same names and shapes."""
    text = json.dumps(sorted((name, list(shape)) for name, shape in shapes.items()))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


# Writing


def encode(letter: Letter) -> bytes:
    """The letter in its wire format. The same letter is always the same bytes."""
    check_writable(letter)
    # Copies: the library refuses tensors that share memory, and a letter may hold several views of one tensor.
    tensors = {
        name: unsigned_zeros(tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format))
        for name, tensor in letter.tensors.items()
    }
    return sealed(save(tensors, metadata={HEADER: header_line(letter)}))


def sealed(data: bytes) -> bytes:
    """An encoded letter with its checksum filled in."""
    place = checksum_place(data)
    return b"".join([data[:place], checksum(data).encode(), data[place + WIDTHS["checksum"] :]])


def checksum_place(data: bytes) -> int:
    """Where the checksum stands in an encoded letter, -1 if there is none. Names of tensors have no `=`."""
    mark = b" checksum="
    place = data.find(mark, 0, 8 + int.from_bytes(data[:8], "little"))
    return place + len(mark) if place >= 0 else -1


def checksum(data: bytes) -> str:
    """The checksum of an encoded letter: of all its bytes but the checksum itself."""
    place, width = checksum_place(data), WIDTHS["checksum"]
    view = memoryview(data)
    digest = hashlib.blake2b(view[:place], digest_size=width // 2)
    digest.update(view[place + width :])
    return digest.hexdigest()


def unsigned_zeros(tensor: Tensor) -> Tensor:
    """Turn every -0 into 0, in place."""
    return tensor.add_(0.0) if tensor.is_floating_point() else tensor


def check_writable(letter: Letter) -> None:
    """Refuse a letter that has no encoding."""
    for field, text in (("run", letter.run), ("architecture", letter.architecture or "0" * 16)):
        if not HEX.fullmatch(text):
            raise LetterError("format", f"a letter's {field} is {text!r}, but should be 16 hexadecimal digits")
    numbers: tuple[tuple[Reason, int], ...] = (
        ("sender", letter.sender), ("round", letter.round), ("samples", letter.samples)
    )  # fmt: skip
    for name, number in numbers:
        if not 0 <= number <= MOST:
            raise LetterError(
                name, f"a letter's {name} is {number}, but should be 0 or more, with at most {WIDTHS[name]} digits"
            )
    _frame(_structure(letter))  # raises for names and dtypes that cannot be encoded


def nbytes(letter: Letter) -> int:
    """`len(encode(letter))`, without encoding it or reading its values, so without waiting for a GPU."""
    return _size(_structure(letter))


def size(tensors: Mapping[str, Spec]) -> int:
    """`nbytes` of a letter with such tensors."""
    return _size(expected(tensors))


def header_bytes(letter: Letter) -> int:
    """The part of `nbytes` that is not payload."""
    return header_size(_structure(letter))


def header_size(structure: Structure) -> int:
    """`header_bytes` of letters with this structure."""
    before, after = _frame(structure)
    return len(before) + _LINE + len(after)


def canonical_header(letter: Letter, structure: Structure, checksum: str) -> bytes:
    """All bytes before the payload, as `encode` writes them."""
    before, after = _frame(structure)
    return b"".join([before, header_line(letter, checksum).encode(), after])


def payload_size(structure: Structure) -> int:
    """The bytes of the tensors."""
    return sum(math.prod(shape) * dtype.itemsize for _, shape, dtype in structure)


def expected(tensors: Mapping[str, Spec]) -> Structure:
    """The structure of a letter with such tensors."""
    return tuple((name, spec.shape, spec.dtype) for name, spec in tensors.items())


def _structure(letter: Letter) -> Structure:
    return tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in letter.tensors.items())


@functools.lru_cache(maxsize=1024)
def _size(structure: Structure) -> int:
    return header_size(structure) + payload_size(structure)


@functools.lru_cache(maxsize=1024)
def _frame(structure: Structure) -> tuple[bytes, bytes]:
    """What stands before and after the line of fields in the header.

    It is taken from a letter of zeros, once per structure, rather than derived from how the library writes JSON.
    """
    for name, _, dtype in structure:
        if not _NAME.fullmatch(name) or name == "__metadata__":
            raise LetterError("names", f"a letter's tensor cannot be named {name!r}: letters, digits and . _ / - only")
        if dtype not in DTYPES.values():
            raise LetterError(
                "dtype",
                f"a letter's tensor {name!r} cannot be {dtype}: only {', '.join(map(str, DTYPES.values()))}",
            )
    tensors = {name: torch.zeros(shape, dtype=dtype) for name, shape, dtype in structure}
    line = "#" * _LINE  # as long as any other
    data = save(tensors, metadata={HEADER: line})
    before, after = data[: len(data) - payload_size(structure)].split(line.encode())
    return before, after


def header_line(letter: Letter, checksum: str = "") -> str:
    """The line of fields, each padded to its fixed width."""
    values: dict[str, str | int] = {
        "version": VERSION,
        "run": letter.run,
        "sender": letter.sender,
        "round": letter.round,
        "samples": letter.samples,
        "architecture": letter.architecture or NO_ARCHITECTURE,
        "checksum": checksum,
    }
    return " ".join(f"{field}={str(values[field]).zfill(width)}" for field, width in WIDTHS.items())


_LINE = len(header_line(Letter("0" * 16, 0, 0, 0, "", {})))
