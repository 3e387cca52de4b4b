"""Checkpoints: everything a run needs to go on, as one safetensors file that is whole or is not used.

The file's name carries the beginning of its SHA-256, so that one rename makes it appear complete and a damaged one is
recognised. Nothing is unpickled, ever.

A run waits for a copy of its tensors, where they are, and for nothing else: another thread brings those of a GPU over,
hashes and writes them, a part at a time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from mapl.errors import MaplError
from mapl.runs.files import sync, write_parts

FOLDER = "checkpoints"
_NAME = re.compile(r"(\d{6,})-([0-9a-f]{16})\.safetensors")
_ASIDE = re.compile(r"\.\d{6,}(-[0-9a-f]{16})?\.safetensors\.\d+")

PART = 16 * 2**20
"""Bytes, about, that are put together before they are hashed and written."""

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


Copies = dict[tuple[int, int], Tensor]
"""Copies of storages, by the address and the bytes of each."""


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

    Exit waits for pending writes. `after` names the files that must be on the disk before a checkpoint counts.
    """

    def __init__(self, run: Path, keep: int, after: Sequence[Path] = ()):
        self.run = run
        self.keep = keep
        self.after = after
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[Path] | None = None
        self._stream: torch.cuda.Stream | None = None

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def save(self, rounds: int, tensors: Mapping[str, Tensor]) -> None:
        """Begin to write the checkpoint after `rounds` rounds; once this returns, the tensors may change.

        Waits for the checkpoint before it, and raises what that one met.
        """
        self.wait()
        # Views of our own, which nobody points elsewhere.
        tensors = {name: tensor.detach().resolve_conj().resolve_neg() for name, tensor in tensors.items()}
        copies, made = _storages_of(tensors), None
        if any(tensor.is_cuda for tensor in tensors.values()):
            self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
            made = torch.cuda.current_stream().record_event()
        self._writing = self._thread.submit(self._write, rounds, tensors, copies, made)

    def wait(self) -> Path | None:
        """Wait until what was saved is on the disk: its path. Raises what its thread met."""
        writing, self._writing = self._writing, None
        return writing.result() if writing else None

    def _write(
        self,
        rounds: int,
        tensors: Mapping[str, Tensor],
        copies: Copies,
        made: torch.cuda.Event | None,
    ) -> Path:
        self._bring(copies, made)
        sync(self.after)
        path = self._write_parts(rounds, {name: _copy_of(tensor, copies) for name, tensor in tensors.items()})
        for old in _newest_first(self.run)[self.keep :]:
            old.unlink(missing_ok=True)
        for left in path.parent.glob(".*"):  # by a process that was killed while it wrote
            if _ASIDE.fullmatch(left.name):
                left.unlink(missing_ok=True)
        return path

    def _bring(self, copies: Copies, made: torch.cuda.Event | None) -> None:
        """To the host, once they are `made`: copied beside the run, with no kernel that would wait for its kernels."""
        if made is None or self._stream is None:
            return
        self._stream.wait_event(made)
        with torch.cuda.stream(self._stream):
            for place in copies:
                copies[place] = copies[place].cpu()

    def _write_parts(self, rounds: int, tensors: Mapping[str, Tensor]) -> Path:
        folder = self.run / FOLDER
        folder.mkdir(exist_ok=True)
        digest = hashlib.sha256()

        def hashed() -> Generator[memoryview]:
            with ThreadPoolExecutor(1, "digest") as beside:
                for part in _parts(tensors):
                    hashing = beside.submit(digest.update, part)  # while it is written
                    yield part
                    hashing.result()

        with closing(hashed()) as parts:
            return write_parts(
                folder / f".{rounds:06d}.safetensors.{os.getpid()}",
                parts,
                lambda: folder / f"{rounds:06d}-{_beginning(digest)}.safetensors",
            )


def _storages_of(tensors: Mapping[str, Tensor]) -> Copies:
    """Copies of what the tensors are views of, as bytes: thousands of them are views of a few."""
    # An engine may still move models that wait on the host, in a stream of its own.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    storages = {_place(tensor): tensor for tensor in tensors.values()}
    beside = _room_for(sum(size for (_, size), tensor in storages.items() if tensor.is_cuda))
    copies = {}
    for place, tensor in storages.items():
        bytes_ = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        copies[place] = bytes_.clone() if beside or not tensor.is_cuda else bytes_.cpu()
    return copies


def _place(tensor: Tensor) -> tuple[int, int]:
    """Address and bytes of a storage: two that are not one may begin at one address."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _room_for(size: int) -> bool:
    """Whether the GPU has room for copies of that size, and a tenth of its memory besides."""
    if not size:
        return True
    free, whole = torch.cuda.mem_get_info()
    unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return size + whole // 10 <= free + unused


def _copy_of(tensor: Tensor, copies: Copies) -> Tensor:
    """The tensor as it was when its storage was copied."""
    storage = copies[_place(tensor)].untyped_storage()
    return torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


@torch.no_grad()
def _parts(tensors: Mapping[str, Tensor]) -> Iterator[memoryview]:
    """The bytes of a safetensors file, part by part.

    The library's own `save` would hold all of them at once, and up all other threads meanwhile.
    """
    groups = _groups(tensors)
    yield memoryview(_header(tensors, groups))
    for names in groups.values():
        for some in _some_at_a_time([tensors[name] for name in names]):
            yield torch.cat([tensor.reshape(-1) for tensor in some]).view(torch.uint8).numpy().data


def _some_at_a_time(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one dtype that are written together, about PART bytes."""
    some: list[Tensor] = []
    size = 0
    for tensor in tensors:
        some.append(tensor)
        size += tensor.nbytes
        if size >= PART:
            yield some
            some, size = [], 0
    if some:
        yield some


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


def _header(tensors: Mapping[str, Tensor], groups: Mapping[torch.dtype, list[str]]) -> bytes:
    """What a safetensors file of these begins with."""
    entries: dict[str, dict[str, Any]] = {}
    end = 0
    for dtype, names in groups.items():
        for name in names:
            begin, end = end, end + tensors[name].numel() * dtype.itemsize
            shape = list(tensors[name].shape)
            entries[name] = {"dtype": _DTYPES[dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


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
    if _beginning(hashlib.sha256(data)) != match[2]:
        raise MaplError(f"checkpoint {str(path)!r} is damaged (its contents do not match its name)")
    try:
        return Checkpoint(int(match[1]), safetensors.torch.load(data))
    except (SafetensorError, ValueError) as error:
        raise MaplError(f"checkpoint {str(path)!r} is damaged ({error})") from error


def _newest_first(run: Path) -> list[Path]:
    found = {path: match for path in (run / FOLDER).glob("*") if (match := _NAME.fullmatch(path.name))}
    return sorted(found, key=lambda path: (int(found[path][1]), path.name), reverse=True)


def _beginning(digest: hashlib._Hash) -> str:
    return digest.hexdigest()[:16]
