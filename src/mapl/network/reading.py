"""Reading a letter from its wire format: every check that a letter from somebody else has to pass.

Nothing is ever unpickled: a letter is JSON and raw numbers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from mapl.network.letter import (
    DTYPES,
    HEADER,
    HEX,
    NO_ARCHITECTURE,
    VERSION,
    WIDTHS,
    Letter,
    LetterError,
    Reason,
    Schema,
    Spec,
    Structure,
    canonical_header,
    checksum,
    checksum_place,
    expected,
    header_size,
    payload_size,
)

_NUMBER = re.compile(r"-?[0-9]+", re.ASCII)
_SIGN_ALONE = {2: (torch.int16, -(2**15)), 4: (torch.int32, -(2**31)), 8: (torch.int64, -(2**63))}
"""By the bytes of a float: the bits of -0, as an integer."""


def decode(data: bytes, schema: Schema) -> Letter:
    """The letter in `data`, or a `LetterError` that says what is wrong with it.

    Cheap checks come first (size, header, checksum, structure), so no tensor is created from a letter that does not
    belong.
    """
    who = "a letter" if schema.sender is None else f"the letter of sender {schema.sender}"
    if len(data) > schema.limit:
        raise LetterError("size", f"{who} has {len(data)} bytes, but at most {schema.limit} are read")
    header = _read_header(data, schema, who)
    fields = _read_fields(header.pop("__metadata__", None), who)
    if fields["checksum"] != (checksum(data) if checksum_place(data) >= 0 else ""):
        raise LetterError("checksum", f"{who} is damaged: its checksum does not match its contents")
    letter = _checked_fields(fields, schema, who)
    who = f"the letter of sender {letter.sender}"
    if schema.instead and header.keys() == schema.instead.keys():
        schema = replace(schema, tensors=schema.instead)
    structure = _checked_structure(header, schema, letter.architecture, who)
    payload = len(data) - 8 - int.from_bytes(data[:8], "little")
    if payload != payload_size(structure):
        raise LetterError("format", f"{who} is damaged: its tensors do not fill its {payload} bytes of payload")
    if not data.startswith(canonical_header(letter, structure, fields["checksum"])):
        raise LetterError("format", f"{who} is not encoded as it should be: its header has another form")
    try:
        tensors = load(data)
    except (SafetensorError, ValueError) as error:
        raise LetterError("format", f"{who} is damaged: {_short(error)}") from error
    for name, spec in schema.tensors.items():
        _check_values(name, tensors[name], spec, who)
    # In the order of the schema, not in the order in the file.
    return replace(letter, tensors={name: tensors[name] for name in schema.tensors})


def _read_header(data: bytes, schema: Schema, who: str) -> dict[str, Any]:
    """The JSON before the payload. Its claimed length is not trusted: it is bounded before anything is parsed."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise LetterError(
            "format", f"{who} is cut short or not safetensors: {len(data)} bytes do not hold the header they announce"
        )
    # Generous, so that the error for a letter with other tensors can name them.
    most = 4 * max(header_size(expected(tensors)) for tensors in (schema.tensors, schema.instead or {}))
    if length > most:
        raise LetterError("format", f"{who} has a header of {length} bytes, but at most {most} are expected")
    try:
        header = json.loads(data[8 : 8 + length].decode(), object_pairs_hook=_once_each)
    except (ValueError, RecursionError) as error:
        raise LetterError("format", f"{who} is not safetensors: its header is not JSON ({_short(error)})") from error
    if not isinstance(header, dict):
        raise LetterError("format", f"{who} is not safetensors: its header is not a JSON object")
    return header


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse duplicate keys: two readers might otherwise use different ones."""
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("a key is given twice")
    return unique


def _read_fields(metadata: Any, who: str) -> dict[str, str]:
    """The line of fields: every field once, in order, with its fixed width."""
    line = metadata.get(HEADER) if isinstance(metadata, dict) and len(metadata) == 1 else None
    pairs = [pair.partition("=") for pair in line.split(" ")] if isinstance(line, str) else []
    fields = {name: value for name, _, value in pairs}
    if not pairs or fields.get("version", "").lstrip("0") != str(VERSION):
        version = _short(fields["version"]) if "version" in fields else "missing"
        raise LetterError("version", f"{who} has a version that is {version}, but {VERSION} is expected")
    if [name for name, _, _ in pairs] != list(WIDTHS):
        raise LetterError(
            "format", f"{who} has the header fields {_short(list(fields))}, but {', '.join(WIDTHS)} are expected"
        )
    for field, width in WIDTHS.items():
        if len(fields[field]) != width:
            raise LetterError(
                "format", f"{who} has {field} {_short(fields[field])}, but {width} characters are expected"
            )
    return fields


def _checked_fields(fields: Mapping[str, str], schema: Schema, who: str) -> Letter:
    """A letter without contents, checked against the schema."""
    run, architecture = fields["run"], fields["architecture"]
    sender, round, samples = (_number(field, fields[field], who) for field in ("sender", "round", "samples"))
    if run != schema.run:
        raise LetterError("run", f"{who} belongs to run {_short(run)}, but {schema.run!r} is expected")
    if schema.sender not in (None, sender):
        raise LetterError("sender", f"{who} says that its sender is {sender}, but {schema.sender} is expected")
    if schema.round not in (None, round):
        raise LetterError("round", f"{who} is of round {round}, but round {schema.round} is expected")
    if samples < schema.fewest:
        raise LetterError("samples", f"{who} has samples {samples}, but {schema.fewest} or more is expected")
    if architecture == NO_ARCHITECTURE:
        architecture = ""
    elif not HEX.fullmatch(architecture):
        raise LetterError(
            "format", f"{who} has architecture {_short(architecture)}, but 16 hexadecimal digits are expected"
        )
    return Letter(run, sender, round, samples, architecture, {})


def _number(field: str, text: str, who: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise LetterError("format", f"{who} has {field} {_short(text)}, but a whole number is expected")
    if int(text) < 0:
        reason: Reason = "samples" if field == "samples" else "format"
        raise LetterError(reason, f"{who} has {field} {int(text)}, but 0 or more is expected")
    return int(text)


def _checked_structure(header: Mapping[str, Any], schema: Schema, architecture: str, who: str) -> Structure:
    """The names, shapes and dtypes in the header, checked against the schema."""
    for names, what in (
        (header.keys() - schema.tensors.keys(), "unknown"),
        (schema.tensors.keys() - header, "missing"),
    ):
        if names:
            raise LetterError(
                "names", f"{who}: {what} tensor {_short(min(names))}; expected: {', '.join(schema.tensors)}"
            )
    structure = []
    for name, spec in schema.tensors.items():
        entry = header[name] if isinstance(header[name], dict) else {}
        shape, announced = _shape(entry.get("shape"), schema.limit), entry.get("dtype")
        if shape is None or not schema.fits(spec, shape, architecture):
            raise LetterError(
                "shape", f"{who}: {name!r} has shape {_short(entry.get('shape'))}, but {list(spec.shape)} is expected"
            )
        if not isinstance(announced, str) or DTYPES.get(announced) != spec.dtype:
            raise LetterError("dtype", f"{who}: {name!r} has dtype {_short(announced)}, but {spec.dtype} is expected")
        structure.append((name, shape, spec.dtype))
    return tuple(structure)


def _shape(given: Any, limit: int) -> tuple[int, ...] | None:
    """A shape from untrusted JSON, where `true` would pass for 1. None if no tensor of `limit` bytes can have it."""
    if not isinstance(given, list) or any(type(length) is not int or length < 0 for length in given):
        return None
    return tuple(given) if math.prod(max(1, length) for length in given) <= limit else None


def _check_values(name: str, tensor: Tensor, spec: Spec, who: str) -> None:
    if tensor.dtype == torch.bool and tensor.view(torch.uint8).gt(1).any():
        raise LetterError("format", f"{who}: {name!r} has bytes that are neither false nor true")
    if tensor.is_floating_point():
        if not tensor.isfinite().all():
            raise LetterError("finite", f"{who}: {name!r} has values that are not finite")
        integer, bits = _SIGN_ALONE[tensor.element_size()]
        if (tensor.view(integer) == bits).any():
            raise LetterError("format", f"{who}: {name!r} has a zero with a minus sign")
    if spec.has_range and tensor.numel():
        smallest, largest = tensor.min().item(), tensor.max().item()
        if not spec.allows(smallest, largest):
            raise LetterError("range", f"{who}: {name!r} has values from {smallest} to {largest}, {range_text(spec)}")


def range_text(spec: Spec) -> str:
    """What a schema says about values, for the end of a sentence."""
    low = "" if spec.low is None else f"at least {spec.low}"
    high = "" if spec.high is None else f"at most {spec.high}"
    return f"but {' and '.join(filter(None, (low, high)))} is expected"


def _short(thing: object) -> str:
    """Untrusted text, made safe to print: escaped and cut."""
    text = ascii(str(thing)) if isinstance(thing, Exception) else ascii(thing)
    return text if len(text) <= 60 else f"{text[:57]}..."
