"""Files that are never half-written, and folders with one writer at a time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mapl.errors import Busy, MaplError

if sys.platform != "win32":
    import fcntl


CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
USUAL = 0o666
"""Who may read and write a new file, before the umask takes rights away."""


def write_aside(path: Path, data: bytes | memoryview, mode: int = USUAL, flush: bool = True) -> None:
    """Write a temporary file and rename it, so that `path` is either the old file or the whole new one.

    With `flush` that holds after a power cut, too, and takes some milliseconds; without it, after kill -9.
    """
    write_parts(path.with_name(f".{path.name}.{os.getpid()}"), [data], lambda: path, mode, flush)


def write_parts(
    aside: Path,
    parts: Iterable[bytes | memoryview],
    path: Callable[[], Path],
    mode: int = USUAL,
    flush: bool = True,
) -> Path:
    """The same for a file that comes in parts and whose name is known only at the end. Returns its path."""
    try:
        aside.unlink(missing_ok=True)  # what a crash left; or a link, which would be written through
        # Made with its mode: a secret is never readable for others, not even for an instant.
        with os.fdopen(os.open(aside, CREATE, mode), "wb") as file:
            for part in parts:
                file.write(part)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        whole = path()
        aside.replace(whole)
    finally:
        aside.unlink(missing_ok=True)
    return whole


def check_entries(folder: Path, files: Iterable[str], folders: Iterable[str]) -> None:
    """Refuse a run's folder with links in it, or with something else under the name of a file or a folder of a run.

    To write to a link would be to write to whatever it points to.
    """
    for path in (
        *folder.glob("*"),
        *folder.glob(".*"),
        *(entry for name in folders for entry in folder.glob(f"{name}/*")),
    ):
        if path.is_symlink():
            raise MaplError(
                f"{str(path)!r} is a link, and a run's folder has none: copy what it points to, or remove it"
            )
    for name, is_right, kind in (
        *((n, Path.is_file, "file") for n in files),
        *((n, Path.is_dir, "folder") for n in folders),
    ):
        if (folder / name).exists() and not is_right(folder / name):
            raise MaplError(f"{str(folder / name)!r} is not a {kind}: remove it")


def sync(paths: Iterable[Path]) -> None:
    """Flush these files to disk, where they exist."""
    for path in paths:
        if path.exists():
            with path.open("rb") as file:
                os.fsync(file.fileno())


@contextmanager
def only_writer(folder: Path, what: str = "run") -> Iterator[None]:
    """Lock a folder against other writers; raise `Busy` if another process holds it. `what` names it in the error.

    It is a kernel lock on the folder itself: it leaves no file behind and ends with the process, even after kill -9.
    """
    if sys.platform == "win32" or not folder.is_dir():
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy(f"somebody else is writing {what} {str(folder)!r}; wait for it, or end it") from error
        except OSError:
            pass  # the file system has no locks: continue without one
        yield
    finally:
        os.close(descriptor)
