"""Files of your own that are read: whether they are there, and whether they stay as they are meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mapl.errors import MaplError

Stamp = tuple[int, int]


def stamp(path: Path | None) -> Stamp | None:
    """What changes when a file is written; None if there is no file."""
    try:
        found = path.stat() if path else None
    except OSError:
        return None
    return (found.st_size, found.st_mtime_ns) if found else None


def changed(name: str) -> MaplError:
    return MaplError(f"{name} changed while it was read: wait until it is written, then start again")


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    """Inside, a file is read. It must be there, and the same at the end, even if what was read seems broken."""
    before = stamp(path)
    if before is None:
        raise MaplError(f"there is no file {str(path)!r}")
    try:
        yield
    except MaplError as error:
        if stamp(path) != before:
            raise changed(repr(str(path))) from error
        raise
    if stamp(path) != before:
        raise changed(repr(str(path)))
