"""Checkpoints: everything a run needs to go on, as one safetensors file that is whole or is not used.

The file's name carries the beginning of its SHA-256, so that one rename makes it appear complete and a damaged one is
recognised. Nothing is unpickled, ever.

A run waits for a copy of its tensors and for nothing else: they are copied into memory that is laid out as the file is,
and another thread hashes and writes that. Those of a GPU are copied there, and brought over by that thread.
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
        data, copies = self._copied(tensors)
        self._writing = self._thread.submit(self._write, rounds, data, copies)

    def wait(self) -> Path | None:
        """Wait until what was saved is on the disk: its path. Raises what its thread met."""
        writing, self._writing = self._writing, None
        return writing.result() if writing else None

    @torch.no_grad()
    def _copied(self, tensors: Mapping[str, Tensor]) -> tuple[memoryview, _FromGpu]:
        """The tensors as the bytes of a safetensors file, in memory that serves one checkpoint after the other.

        What is on a GPU is not in it yet, but cannot change any more either.
        """
        groups = _groups(tensors)
        header, size = _header(tensors, groups)
        # An engine may still move models that wait on the host, in a stream of its own.
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        on_gpu = any(tensor.is_cuda for tensor in tensors.values())
        if size > len(self._memory):  # with room for the history, which grows
            self._memory = torch.empty(size + size // 4, dtype=torch.uint8, pin_memory=on_gpu)
        self._memory.numpy()[: len(header)] = memoryview(header)
        end, copies = len(header), _FromGpu()
        for dtype, names in groups.items():
            counts = [tensors[name].numel() for name in names]
            begin, end = end, end + sum(counts) * dtype.itemsize
            places = torch.split(self._memory[begin:end].view(dtype), counts)
            for name, place in zip(names, places, strict=True):
                if tensors[name].is_cuda:
                    copies.add(tensors[name], place)
                else:
                    place.view(tensors[name].shape).copy_(tensors[name])
        return self._memory.numpy().data[:size], copies

    def _write(self, rounds: int, data: memoryview, copies: _FromGpu) -> Path:
        copies.bring()
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


class _FromGpu:
    """Copies of tensors that another thread brings to the host.

    They are made a storage at a time: the thousands of tensors of a run's models are views of a few.
    """

    def __init__(self) -> None:
        self._storages: dict[int, Tensor] = {}
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._made: torch.cuda.Event | None = None

    def add(self, tensor: Tensor, place: Tensor) -> None:
        """What the tensor is now will be brought to `place` (n,), which stands right behind the one before it."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._storages:
            bytes_ = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            self._storages[storage.data_ptr()] = bytes_.clone()
            self._made = torch.cuda.current_stream(tensor.device).record_event()
        copy = self._storages[storage.data_ptr()].view(tensor.dtype)
        self._pairs.append((copy.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()), place))

    @torch.no_grad()
    def bring(self) -> None:
        """Copy everything over, many tensors at a time, since each copy costs a call."""
        if self._made is None:
            return
        stream = torch.cuda.Stream(self._pairs[0][0].device)  # type: ignore[no-untyped-call]
        stream.wait_event(self._made)
        with torch.cuda.stream(stream):
            _copy(self._pairs)
        stream.synchronize()
        self._storages.clear()
        self._pairs.clear()


def _copy(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copy tensors to their places."""
    for first, last in _batches(pairs):
        tensors, places = zip(*pairs[first:last], strict=True)
        whole = places[0].as_strided((sum(map(len, places)),), (1,))
        whole.copy_(torch.cat([tensor.reshape(-1) for tensor in tensors]), non_blocking=True)


def _batches(pairs: Sequence[tuple[Tensor, Tensor]]) -> Iterator[tuple[int, int]]:
    """Which are copied together: some of one dtype whose places follow one another, up to BATCH bytes."""
    first, size = 0, 0
    for i, (tensor, place) in enumerate(pairs):
        size += tensor.nbytes
        following = pairs[i + 1][1] if i + 1 < len(pairs) else None
        apart = following is None or following.dtype != place.dtype or following.data_ptr() != _end(place)
        if apart or size > BATCH:
            yield first, i + 1
            first, size = i + 1, 0


def _end(place: Tensor) -> int:
    return place.data_ptr() + place.nbytes


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
