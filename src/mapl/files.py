"""Files that are never half-written."""

from __future__ import annotations

import os
from pathlib import Path


def write_aside(path: Path, data: bytes) -> None:
    """Write a file aside and rename it, so that `path` is either the old file or the whole new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
