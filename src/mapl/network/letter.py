"""The letter: a few named tensors and their sender, and its format on the wire.

On the wire a letter is a safetensors file whose metadata is one line of `field=value` pairs. Every value has a fixed
width, so the size of a letter depends only on its structure (names, shapes, dtypes). It is one line because the library
writes several metadata entries in any order, while equal letters should be equal bytes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from mapl.errors import MaplError

VERSION = 1
"""The version of the wire format. A reader refuses any other."""

Structure = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]

_WIDTHS = {"version": 4, "run": 16, "sender": 12, "round": 12, "samples": 12, "architecture": 16}
_HEADER = "letter"
_NO_ARCHITECTURE = "-" * 16
_HEX = re.compile(r"[0-9a-f]{16}")
_NUMBER = re.compile(r"-?[0-9]+")
_NAME = re.compile(r"[A-Za-z0-9._/-]{1,200}")
_DTYPES = {
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

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for schemas that accept the same letters."""
        tensors = (*self.tensors.items(), None, *(self.instead or {}).items())
        return self.run, self.limit, self.sender, self.round, self.architecture, *tensors

    def fits(self, name: str, shape: Sequence[int], architecture: str) -> bool:
        """Whether a tensor of that shape, from a sender with that architecture, is what the reader expects."""
        spec = self.tensors[name]
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
    # Copies: the library refuses tensors that share memory, and a letter may hold several views of one tensor.
    tensors = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in letter.tensors.items()
    }
    header = _header(letter)
    _header_size(_structure(letter))  # raises for names and dtypes that cannot be encoded
    return save(tensors, metadata={_HEADER: header})


def nbytes(letter: Letter) -> int:
    """`len(encode(letter))`, without encoding it or reading its values, so without waiting for a GPU."""
    return _size(_structure(letter))


def size(tensors: Mapping[str, Spec]) -> int:
    """`nbytes` of a letter with such tensors."""
    return _size(_expected(tensors))


def header_bytes(letter: Letter) -> int:
    """The part of `nbytes` that is not payload."""
    return _header_size(_structure(letter))


def _structure(letter: Letter) -> Structure:
    return tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in letter.tensors.items())


def _expected(tensors: Mapping[str, Spec]) -> Structure:
    return tuple((name, spec.shape, spec.dtype) for name, spec in tensors.items())


@functools.lru_cache(maxsize=1024)
def _size(structure: Structure) -> int:
    return _header_size(structure) + _payload_size(structure)


def _payload_size(structure: Structure) -> int:
    return sum(math.prod(shape) * dtype.itemsize for _, shape, dtype in structure)


@functools.lru_cache(maxsize=1024)
def _header_size(structure: Structure) -> int:
    """Measured on a letter of zeros, once per structure, rather than derived from how the library writes JSON."""
    for name, _, dtype in structure:
        if not _NAME.fullmatch(name) or name == "__metadata__":
            raise MaplError(f"a letter's tensor cannot be named {name!r}: letters, digits and . _ / - only")
        if dtype not in _DTYPES.values():
            raise MaplError(
                f"a letter's tensor {name!r} cannot be {dtype}: only {', '.join(map(str, _DTYPES.values()))}"
            )
    tensors = {name: torch.zeros(shape, dtype=dtype) for name, shape, dtype in structure}
    header = _header(Letter(run="0" * 16, sender=0, round=0, samples=0, architecture="", tensors={}))
    return len(save(tensors, metadata={_HEADER: header})) - _payload_size(structure)


def _header(letter: Letter) -> str:
    """The line of fields, each padded to its fixed width."""
    for field, text in (("run", letter.run), ("architecture", letter.architecture or "0" * 16)):
        if not _HEX.fullmatch(text):
            raise MaplError(f"a letter's {field} is {text!r}, but should be 16 hexadecimal digits")
    for field, number in (("sender", letter.sender), ("round", letter.round), ("samples", letter.samples)):
        if not 0 <= number < 10 ** _WIDTHS[field]:
            raise MaplError(
                f"a letter's {field} is {number}, but should be 0 or more, with at most {_WIDTHS[field]} digits"
            )
    values: dict[str, str | int] = {
        "version": VERSION,
        "run": letter.run,
        "sender": letter.sender,
        "round": letter.round,
        "samples": letter.samples,
        "architecture": letter.architecture or _NO_ARCHITECTURE,
    }
    return " ".join(f"{field}={str(values[field]).zfill(width)}" for field, width in _WIDTHS.items())


# Reading


def decode(data: bytes, schema: Schema) -> Letter:
    """The letter in `data`, or a `MaplError` that says what is wrong with it.

    A letter comes from somebody else, so nothing is ever unpickled: it is JSON and raw numbers. Cheap checks come first
    (size, header, structure, payload), so no tensor is created from a letter that does not belong.
    """
    who = "a letter" if schema.sender is None else f"the letter of sender {schema.sender}"
    if len(data) > schema.limit:
        raise MaplError(f"{who} has {len(data)} bytes, but at most {schema.limit} are read")
    header = _read_header(data, schema, who)
    letter = _read_fields(header.pop("__metadata__", None), schema, who)
    who = f"the letter of sender {letter.sender}"
    if schema.instead and header.keys() == schema.instead.keys():
        schema = replace(schema, tensors=schema.instead)
    _check_structure(header, schema, letter.architecture, who)
    try:
        tensors = load(data)
    except (SafetensorError, ValueError) as error:
        raise MaplError(f"{who} is damaged: {error}") from error
    for name, tensor in tensors.items():
        _check_values(name, tensor, who)
    # In the order of the schema, not in the order in the file.
    contents = {name: tensors[name] for name in schema.tensors}
    return Letter(letter.run, letter.sender, letter.round, letter.samples, letter.architecture, contents)


def _read_header(data: bytes, schema: Schema, who: str) -> dict[str, Any]:
    """The JSON before the payload. Its claimed length is not trusted: it is bounded before anything is parsed."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise MaplError(
            f"{who} is cut short or not safetensors: {len(data)} bytes do not hold the header they announce"
        )
    # Generous, so that the error for a letter with other tensors can name them.
    most = 4 * max(_header_size(_expected(tensors)) for tensors in (schema.tensors, schema.instead or {}))
    if length > most:
        raise MaplError(f"{who} has a header of {length} bytes, but at most {most} are expected")
    try:
        header = json.loads(data[8 : 8 + length].decode(), object_pairs_hook=_once_each)
    except (ValueError, RecursionError) as error:
        raise MaplError(f"{who} is not safetensors: its header is not JSON ({_short(error)})") from error
    if not isinstance(header, dict):
        raise MaplError(f"{who} is not safetensors: its header is not a JSON object")
    return header


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse duplicate keys: two readers might otherwise use different ones."""
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("a key is given twice")
    return unique


def _read_fields(metadata: Any, schema: Schema, who: str) -> Letter:
    """The line of fields as a letter without contents, checked against the schema."""
    line = metadata.get(_HEADER) if isinstance(metadata, dict) and len(metadata) == 1 else None
    pairs = [pair.partition("=") for pair in line.split(" ")] if isinstance(line, str) else []
    fields = {name: value for name, _, value in pairs}
    if not pairs or fields.get("version", "").lstrip("0") != str(VERSION):
        version = _short(fields["version"]) if "version" in fields else "missing"
        raise MaplError(f"{who} has a version that is {version}, but {VERSION} is expected")
    if [name for name, _, _ in pairs] != list(_WIDTHS):
        raise MaplError(f"{who} has the header fields {_short(list(fields))}, but {', '.join(_WIDTHS)} are expected")
    for field, width in _WIDTHS.items():
        if len(fields[field]) != width:
            raise MaplError(f"{who} has {field} {_short(fields[field])}, but {width} characters are expected")
    sender, round, samples = (_number(field, fields[field], who) for field in ("sender", "round", "samples"))
    _check_expected(fields["run"], sender, round, schema, who)
    architecture = "" if fields["architecture"] == _NO_ARCHITECTURE else fields["architecture"]
    if architecture and not _HEX.fullmatch(architecture):
        raise MaplError(f"{who} has architecture {_short(architecture)}, but 16 hexadecimal digits are expected")
    return Letter(fields["run"], sender, round, samples, architecture, {})


def _number(field: str, text: str, who: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise MaplError(f"{who} has {field} {_short(text)}, but a whole number is expected")
    if int(text) < 0:
        raise MaplError(f"{who} has {field} {int(text)}, but 0 or more is expected")
    return int(text)


def _check_expected(run: str, sender: int, round: int, schema: Schema, who: str) -> None:
    if run != schema.run:
        raise MaplError(f"{who} belongs to run {_short(run)}, but {schema.run!r} is expected")
    if schema.sender not in (None, sender):
        raise MaplError(f"{who} says that its sender is {sender}, but {schema.sender} is expected")
    if schema.round not in (None, round):
        raise MaplError(f"{who} is of round {round}, but round {schema.round} is expected")


def _check_structure(header: Mapping[str, Any], schema: Schema, architecture: str, who: str) -> None:
    """Check names, shapes and dtypes in the header. The library checks that the payload agrees with them."""
    for names, what in (
        (header.keys() - schema.tensors.keys(), "unknown"),
        (schema.tensors.keys() - header, "missing"),
    ):
        if names:
            raise MaplError(f"{who}: {what} tensor {_short(min(names))}; expected: {', '.join(schema.tensors)}")
    for name, spec in schema.tensors.items():
        entry = header[name] if isinstance(header[name], dict) else {}
        shape, announced = entry.get("shape"), entry.get("dtype")
        # Untrusted JSON: `true` would pass for 1.
        if not isinstance(shape, list) or any(type(length) is not int for length in shape):
            shape = [-1]  # a shape that no schema expects
        if not schema.fits(name, shape, architecture):
            raise MaplError(f"{who}: {name!r} has shape {_short(shape)}, but {list(spec.shape)} is expected")
        if not isinstance(announced, str) or _DTYPES.get(announced) != spec.dtype:
            raise MaplError(f"{who}: {name!r} has dtype {_short(announced)}, but {spec.dtype} is expected")


def _check_values(name: str, tensor: Tensor, who: str) -> None:
    if tensor.dtype == torch.bool and tensor.view(torch.uint8).gt(1).any():
        raise MaplError(f"{who}: {name!r} has bytes that are neither false nor true")
    if tensor.is_floating_point() and not tensor.isfinite().all():
        raise MaplError(f"{who}: {name!r} has values that are not finite")


def _short(thing: object) -> str:
    """Untrusted text, made safe to print: escaped and cut."""
    text = ascii(str(thing)) if isinstance(thing, Exception) else ascii(thing)
    return text if len(text) <= 60 else f"{text[:57]}..."
