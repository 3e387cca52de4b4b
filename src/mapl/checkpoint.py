"""Checkpoints: everything a run needs to go on, as one safetensors file that is whole or is not used.

The file's name carries the beginning of its SHA-256, so that one rename makes it appear complete and a damaged one is
recognised. Nothing is unpickled, ever.

A run waits for a copy of its tensors and for nothing else: they are copied into memory that is laid out as the file is,
and another thread hashes and writes that.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from mapl.errors import MaplError
from mapl.files import write_aside

FOLDER = "checkpoints"
_NAME = re.compile(r"(\d{6,})-([0-9a-f]{16})\.safetensors")
_ASIDE = re.compile(rf"\.{_NAME.pattern}\.\d+")

BATCH = 256 * 2**20
"""Bytes of a GPU that are put together before they are copied to the host."""

_DTYPES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What safetensors calls each dtype, in the order in which it lays tensors out: wide ones first, so all are aligned."""


@dataclass(frozen=True)
class Checkpoint:
    """The state after `rounds` rounds, as named tensors."""

    rounds: int
    tensors: dict[str, Tensor]

    def section(self, name: str) -> dict[str, Tensor]:
        """The tensors whose names begin with `name.`, without that."""
        # In order, they stand together: a run has a section or two for each of its clients.
        begin, end = (bisect_left(self._names, f"{name}{after}") for after in (".", chr(ord(".") + 1)))
        return {key.removeprefix(f"{name}."): self.tensors[key] for key in self._names[begin:end]}

    @cached_property
    def _names(self) -> list[str]:
        return sorted(self.tensors)


class Writer:
    """Writes a run's checkpoints from a thread of its own, one at a time, and keeps the newest `keep`.

    It is left, by whatever way, when nothing is being written any more.
    """

    def __init__(self, run: Path, keep: int):
        self.run = run
        self.keep = keep
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[Path] | None = None
        self._memory = torch.empty(0, dtype=torch.uint8)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def save(self, rounds: int, tensors: Mapping[str, Tensor]) -> None:
        """Begin to write the checkpoint after `rounds` rounds; once this returns, the tensors may change.

        Waits for the checkpoint before it, and raises what that one met.
        """
        self.wait()
        self._writing = self._thread.submit(self._write, rounds, self._copied(tensors))

    def wait(self) -> Path | None:
        """Wait until what was saved is on the disk: its path. Raises what its thread met."""
        writing, self._writing = self._writing, None
        return writing.result() if writing else None

    @torch.no_grad()
    def _copied(self, tensors: Mapping[str, Tensor]) -> memoryview:
        """The tensors as the bytes of a safetensors file, in memory that serves one checkpoint after the other."""
        groups = _groups(tensors)
        header, size = _header(tensors, groups)
        # An engine may still move models that wait on the host, in a stream of its own.
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        on_gpu = any(tensor.is_cuda for tensor in tensors.values())
        if size > len(self._memory):  # with room for the history, which grows
            self._memory = torch.empty(size + size // 4, dtype=torch.uint8, pin_memory=on_gpu)
        self._memory.numpy()[: len(header)] = memoryview(header)
        end = len(header)
        for dtype, names in groups.items():
            counts = [tensors[name].numel() for name in names]
            begin, end = end, end + sum(counts) * dtype.itemsize
            places = torch.split(self._memory[begin:end].view(dtype), counts)
            for first, last in _batches([tensors[name] for name in names]):
                _copy([tensors[name] for name in names[first:last]], places[first:last])
        if on_gpu:
            torch.cuda.synchronize()
        return self._memory.numpy().data[:size]

    def _write(self, rounds: int, data: memoryview) -> Path:
        folder = self.run / FOLDER
        folder.mkdir(exist_ok=True)
        path = folder / f"{rounds:06d}-{_digest(data)}.safetensors"
        write_aside(path, data)
        for old in _newest_first(self.run)[self.keep :]:
            old.unlink(missing_ok=True)
        for left in folder.glob(".*"):  # by a process that was killed while it wrote
            if _ASIDE.fullmatch(left.name):
                left.unlink(missing_ok=True)
        return path


def _batches(tensors: Sequence[Tensor]) -> Iterator[tuple[int, int]]:
    """Which tensors are copied together: on the host each by itself, of a GPU many, since each copy costs a call."""
    first, size = 0, 0
    for i, tensor in enumerate(tensors):
        size += tensor.nbytes
        if not tensor.is_cuda or size > BATCH or i + 1 == len(tensors) or not tensors[i + 1].is_cuda:
            yield first, i + 1
            first, size = i + 1, 0


def _copy(tensors: Sequence[Tensor], places: Sequence[Tensor]) -> None:
    """Copy tensors to places (n,) that stand one after another."""
    if len(tensors) == 1:
        places[0].view(tensors[0].shape).copy_(tensors[0], non_blocking=True)
        return
    whole = places[0].as_strided((sum(map(len, places)),), (1,))
    whole.copy_(torch.cat([tensor.reshape(-1) for tensor in tensors]), non_blocking=True)


def save(run: Path, rounds: int, tensors: Mapping[str, Tensor], keep: int) -> Path:
    """Write the checkpoint after `rounds` rounds, then drop all but the newest `keep`; return when that is done."""
    with Writer(run, keep) as writer:
        writer.save(rounds, tensors)
        path = writer.wait()
    assert path is not None
    return path


def _groups(tensors: Mapping[str, Tensor]) -> dict[torch.dtype, list[str]]:
    """The names of the tensors in the order in which they are laid out."""
    groups: dict[torch.dtype, list[str]] = {dtype: [] for dtype in _DTYPES}
    for name in sorted(tensors):
        if (dtype := tensors[name].dtype) not in groups:
            raise MaplError(f"{name!r} cannot be saved in a checkpoint: it is {dtype}")
        groups[dtype].append(name)
    return groups


def _header(tensors: Mapping[str, Tensor], groups: Mapping[torch.dtype, list[str]]) -> tuple[bytes, int]:
    """What a safetensors file of these begins with, and the size of all of it.

    The library's own `save` would copy everything once more, and hold up all other threads meanwhile.
    """
    entries: dict[str, dict[str, Any]] = {}
    end = 0
    for dtype, names in groups.items():
        for name in names:
            begin, end = end, end + tensors[name].numel() * dtype.itemsize
            shape = list(tensors[name].shape)
            entries[name] = {"dtype": _DTYPES[dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, 8 + len(text) + end


def latest(run: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is whole. A damaged one is named to `warn`, and the one before it is tried."""
    paths = _newest_first(run)
    for path in paths:
        try:
            return load(path)
        except MaplError as error:
            warn(f"{error}; trying the one before it")
    if paths:
        raise MaplError(f"no checkpoint in {str(run / FOLDER)!r} is whole; start the run anew with --overwrite")
    return None


def forget_newer(run: Path, rounds: int) -> None:
    """Drop checkpoints after that of `rounds`, which a run that goes on from there found damaged.

    They would count among the newest, and push out whole ones.
    """
    for path in _newest_first(run):
        if int(path.name.split("-")[0]) > rounds:
            path.unlink(missing_ok=True)


def load(path: Path) -> Checkpoint:
    """Read one checkpoint and check it against the digest in its name."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise MaplError(f"{str(path)!r} is not the name of a checkpoint")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MaplError(f"checkpoint {str(path)!r} cannot be read ({error.strerror})") from error
    if _digest(data) != match[2]:
        raise MaplError(f"checkpoint {str(path)!r} is damaged (its contents do not match its name)")
    try:
        return Checkpoint(int(match[1]), safetensors.torch.load(data))
    except (SafetensorError, ValueError) as error:
        raise MaplError(f"checkpoint {str(path)!r} is damaged ({error})") from error


def _newest_first(run: Path) -> list[Path]:
    found = {path: match for path in (run / FOLDER).glob("*") if (match := _NAME.fullmatch(path.name))}
    return sorted(found, key=lambda path: (int(found[path][1]), path.name), reverse=True)


def _digest(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
