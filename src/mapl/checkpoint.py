"""Checkpoints: everything a run needs to go on, as one safetensors file that is whole or is not used.

The file's name carries the beginning of its SHA-256, so that one rename makes it appear complete and a damaged one is
recognised. Nothing is unpickled, ever.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from mapl.errors import MaplError
from mapl.files import write_aside

FOLDER = "checkpoints"
_NAME = re.compile(r"(\d{6,})-([0-9a-f]{16})\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """The state after `rounds` rounds, as named tensors."""

    rounds: int
    tensors: dict[str, Tensor]

    def section(self, name: str) -> dict[str, Tensor]:
        """The tensors whose names begin with `name.`, without that."""
        return {
            key.removeprefix(f"{name}."): value for key, value in self.tensors.items() if key.startswith(f"{name}.")
        }


def save(run: Path, rounds: int, tensors: Mapping[str, Tensor], keep: int) -> Path:
    """Write the checkpoint after `rounds` rounds, then drop all but the newest `keep`."""
    folder = run / FOLDER
    folder.mkdir(exist_ok=True)
    # safetensors refuses tensors that share memory; every entry is its own.
    data = safetensors.torch.save({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()})
    path = folder / f"{rounds:06d}-{_digest(data)}.safetensors"
    write_aside(path, data)
    for old in _newest_first(run)[keep:]:
        old.unlink(missing_ok=True)
    return path


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


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
