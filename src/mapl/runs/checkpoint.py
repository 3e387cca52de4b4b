"""Checkpoints: everything a run needs to resume, in one safetensors file that is either whole or not used.

The file name carries the first digits of the file's SHA-256. One rename makes the complete file appear, and a damaged
file is recognised. Nothing is ever unpickled.

The run waits only for a copy of its tensors on their own device. Another thread moves GPU tensors to the host, then
hashes and writes them, part by part.
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
from threading import Event
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from mapl.errors import MaplError, warn
from mapl.runs.files import sync, write_parts

FOLDER = "checkpoints"
_NAME = re.compile(r"(\d{6,})-([0-9a-f]{16})\.safetensors")
_ASIDE = re.compile(r"\.\d{6,}(-[0-9a-f]{16})?\.safetensors\.\d+")

PART = 16 * 2**20
"""About how many bytes are hashed and written at a time."""

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
"""The safetensors name of each dtype, in its layout order: wide dtypes first, which keeps every tensor aligned."""


Copies = dict[tuple[int, int], Tensor]
"""Copies of storages, by address and size in bytes."""


@dataclass(frozen=True)
class Checkpoint:
    """The state after `rounds` rounds, as named tensors."""

    rounds: int
    tensors: dict[str, Tensor]

    def section(self, name: str) -> dict[str, Tensor]:
        """The tensors whose names start with `name.`, with that prefix removed."""
        # Sorted names keep a section together, so it is found by bisection: a run has one or two sections per client.
        begin, end = (bisect_left(self._names, f"{name}{after}") for after in (".", chr(ord(".") + 1)))
        return {key.removeprefix(f"{name}."): self.tensors[key] for key in self._names[begin:end]}

    @cached_property
    def _names(self) -> list[str]:
        return sorted(self.tensors)


class Writer:
    """Writes a run's checkpoints in a separate thread, one at a time, and keeps the newest `keep`.

    Exit waits for pending writes. `after` names the files that must be on disk before a checkpoint counts.
    """

    def __init__(self, run: Path, keep: int, after: Sequence[Path] = ()):
        self.run = run
        (run / FOLDER).mkdir(parents=True, exist_ok=True)
        self.keep = keep
        self.after = after
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[Path] | None = None
        self._written = Event()
        self._written.set()
        self._stream: torch.cuda.Stream | None = None

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def save(self, rounds: int, tensors: Mapping[str, Tensor]) -> None:
        """Start writing the checkpoint after `rounds` rounds. Once this returns, the tensors may change.

        Waits for the previous checkpoint, and raises its error if it failed.
        """
        self.wait()
        # Our own views: nobody else can point them at another storage.
        tensors = {name: tensor.detach().resolve_conj().resolve_neg() for name, tensor in tensors.items()}
        copies, copied = _storages_of(tensors), None
        if any(tensor.is_cuda for tensor in tensors.values()):
            self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
            copied = torch.cuda.current_stream().record_event()
        self._written = Event()
        self._writing = self._thread.submit(self._write, rounds, tensors, copies, copied, self._written)

    def wait_for_file(self) -> None:
        """Wait until the pending checkpoint is complete for whoever reads it, as after kill -9.

        It may not be flushed to the disk yet. Raises its error if it failed.
        """
        self._written.wait()
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> Path | None:
        """Wait until the pending checkpoint is on disk and return its path. Raises its error if it failed."""
        writing, self._writing = self._writing, None
        return writing.result() if writing else None

    def _write(
        self,
        rounds: int,
        tensors: Mapping[str, Tensor],
        copies: Copies,
        copied: torch.cuda.Event | None,
        written: Event,
    ) -> Path:
        try:
            self._bring(copies, copied)
            path = self._write_parts(rounds, {name: _copy_of(tensor, copies) for name, tensor in tensors.items()})
        finally:
            written.set()
        # After a power cut the file may be damaged; its digest shows it, and the one before is still there.
        sync([*self.after, path])
        for old in _newest_first(self.run)[self.keep :]:
            old.unlink(missing_ok=True)
        for left in path.parent.glob(".*"):  # by a process that was killed while writing
            if _ASIDE.fullmatch(left.name):
                left.unlink(missing_ok=True)
        return path

    def _bring(self, copies: Copies, copied: torch.cuda.Event | None) -> None:
        """Move GPU copies to the host after the event `copied`, on a separate stream.

        It launches no kernel, because a kernel would wait for the run's kernels.
        """
        if copied is None or self._stream is None:
            return
        self._stream.wait_event(copied)
        with torch.cuda.stream(self._stream):
            for place in copies:
                copies[place] = copies[place].cpu()

    def _write_parts(self, rounds: int, tensors: Mapping[str, Tensor]) -> Path:
        folder = self.run / FOLDER
        folder.mkdir(exist_ok=True)
        digest = hashlib.sha256()

        def hashed() -> Generator[memoryview]:
            with ThreadPoolExecutor(1, "digest") as hasher:
                for part in _parts(tensors):
                    hashing = hasher.submit(digest.update, part)  # while the caller writes it
                    yield part
                    hashing.result()

        with closing(hashed()) as parts:
            return write_parts(
                folder / f".{rounds:06d}.safetensors.{os.getpid()}",
                parts,
                lambda: folder / f"{rounds:06d}-{_beginning(digest)}.safetensors",
                flush=False,
            )


def _storages_of(tensors: Mapping[str, Tensor]) -> Copies:
    """Copies, as bytes, of the storages behind the tensors. Thousands of tensors are views of a few storages."""
    # An engine may still be moving models that wait on the host, on its own stream.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    storages = {_place(tensor): tensor for tensor in tensors.values()}
    has_room = _room_for(sum(size for (_, size), tensor in storages.items() if tensor.is_cuda))
    copies = {}
    for place, tensor in storages.items():
        bytes_ = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        copies[place] = bytes_.clone() if has_room or not tensor.is_cuda else bytes_.cpu()
    return copies


def _place(tensor: Tensor) -> tuple[int, int]:
    """Address and size of a storage. The address alone is not enough: two storages may start at the same one."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _room_for(size: int) -> bool:
    """Whether the GPU can hold copies of that size and keep a tenth of its memory free."""
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

    The library's own `save` would hold the whole file in memory, and block all other threads meanwhile.
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
    """Write the checkpoint after `rounds` rounds, then delete all but the newest `keep`. Returns when done."""
    with Writer(run, keep) as writer:
        writer.save(rounds, tensors)
        path = writer.wait()
    assert path is not None
    return path


def _groups(tensors: Mapping[str, Tensor]) -> dict[torch.dtype, list[str]]:
    """The names of the tensors by dtype, in layout order."""
    groups: dict[torch.dtype, list[str]] = {dtype: [] for dtype in _DTYPES}
    for name in sorted(tensors):
        if (dtype := tensors[name].dtype) not in groups:
            raise MaplError(f"{name!r} cannot be saved in a checkpoint: it is {dtype}")
        groups[dtype].append(name)
    return groups


def _header(tensors: Mapping[str, Tensor], groups: Mapping[torch.dtype, list[str]]) -> bytes:
    """The header of a safetensors file with these tensors."""
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


def latest(run: Path, unfit: Callable[[Checkpoint], str] = lambda saved: "") -> Checkpoint | None:
    """The newest whole checkpoint. A warning names a damaged one, and the one before it is tried.

    So is one that does not fit the run's other files: `unfit` says why, or nothing.
    """
    paths = _newest_first(run)
    problem = ""
    for path in paths:
        try:
            saved = load(path)
            if why := unfit(saved):
                raise MaplError(f"checkpoint {str(path)!r} cannot be used: {why}")
            return saved
        except MaplError as error:
            problem = str(error)
            warn(f"{problem}; trying the one before it")
    if paths:
        none = f"no checkpoint in {str(run / FOLDER)!r} is whole and fits the run's other files ({problem});"
        raise MaplError(
            f"{none} start the run again with overwrite=True", shell=f"{none} start the run again with --overwrite"
        )
    return None


def kept(run: Path) -> dict[int, Path]:
    """The checkpoints of a run by their rounds, as their names say, the newest first."""
    return {int(path.name.split("-")[0]): path for path in _newest_first(run)}


def newest(run: Path) -> int:
    """The rounds of the newest checkpoint, by its name; 0 if there is none."""
    return max(kept(run), default=0)


def forget_newer(run: Path, rounds: int) -> None:
    """Delete the checkpoints after that of `rounds`: they are damaged, and the run resumes before them.

    They would count among the newest and push out whole ones.
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
    matches = {path: match for path in (run / FOLDER).glob("*") if (match := _NAME.fullmatch(path.name))}
    return sorted(matches, key=lambda path: (int(matches[path][1]), path.name), reverse=True)


def _beginning(digest: hashlib._Hash) -> str:
    return digest.hexdigest()[:16]
