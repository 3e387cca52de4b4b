"""Files of a peer: whole or not there, secrets for their owner alone, one writer at a time."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from mapl.names import printable
from mapl.peer.errors import IdentityError
from mapl.runs.files import write_aside

if sys.platform != "win32":
    import fcntl

VERSION = 1
"""The version of every format of this room."""
SECRET = 0o600
PUBLIC = 0o644
MEMBERS = "members"

Kind = TypeVar("Kind", bound="Written")


class Written(BaseModel):
    """Something that a file or a message contains. A key too many or of another type is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def text(self) -> bytes:
        """As JSON, for people as well."""
        return self.model_dump_json(indent=1).encode() + b"\n"


def parsed(kind: type[Kind], data: bytes, what: str) -> Kind:
    """The contents of JSON from anywhere, or one sentence about the first thing that is wrong."""
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        said = printable(f"{place}: {first['msg']}" if place else first["msg"])
        raise IdentityError("format", f"{what} is not what it should be: {said[:200]}") from None


def canonical(tree: dict[str, Any]) -> bytes:
    """JSON in the one form that is signed: sorted keys, no spaces, ASCII."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()


def read(path: Path, limit: int) -> bytes:
    """The bytes of a file, at most so many."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise IdentityError("files", f"{str(path)!r} cannot be read: {error.strerror or error}") from error
    if len(data) > limit:
        raise IdentityError("format", f"{str(path)!r} is too large: it should have at most {limit:,} bytes")
    return data


def write(path: Path, data: bytes, mode: int = PUBLIC, flush: bool = True) -> None:
    """Write a whole file, or leave what was there."""
    try:
        write_aside(path, data, mode, flush)
    except OSError as error:
        raise IdentityError("files", f"{str(path)!r} cannot be written: {error.strerror or error}") from error


def made(folder: Path) -> Path:
    """A folder, made if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise IdentityError("files", f"{str(folder)!r} cannot be made: {error.strerror or error}") from error
    return folder


def check_secret(path: Path) -> None:
    """Refuse a secret that others on this machine may read or change."""
    if sys.platform == "win32":
        return
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise IdentityError("files", f"{str(path)!r} cannot be read: {error.strerror or error}") from error
    if mode & 0o077:
        raise IdentityError(
            "permissions",
            f"{str(path)!r} may be read by others (mode {mode & 0o777:03o}): chmod 600 it",
        )


@contextmanager
def made_aside(folder: Path) -> Iterator[Path]:
    """An empty folder, for its owner alone, that becomes `folder` at the end. After an error nothing is left of it."""
    if folder.exists() or folder.is_symlink():
        raise IdentityError("files", f"{str(folder)!r} exists already: choose another folder with --out")
    aside = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))  # with mode 0700
        yield aside
        aside.rename(folder)
    except OSError as error:
        raise IdentityError("files", f"{str(folder)!r} cannot be made: {error.strerror or error}") from error
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Inside, no other thread or process that asks for it changes this identity. It waits for its turn.

    The lock is on the folder of members. A run that lives in the same place may lock the folder itself.
    """
    if sys.platform == "win32":
        yield
        return
    try:
        descriptor = os.open(folder / MEMBERS, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise IdentityError("files", f"{str(folder / MEMBERS)!r} cannot be read: {error.strerror or error}") from error
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
