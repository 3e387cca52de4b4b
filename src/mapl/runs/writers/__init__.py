"""Writers, one per file. Each is constructed with a run's folder and called after every round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mapl.runs.writers
from mapl.errors import MaplError
from mapl.plugins import find
from mapl.runs.run import Observer


def open_writers(names: Sequence[str], folder: str | Path) -> list[Observer]:
    """The writers with these names or import paths, for the run in `folder`. One that is named twice is opened once.

    Nothing is written before the first round: until then the folder may hold another run that is about to be replaced.
    """
    return [_open(name, Path(folder)) for name in dict.fromkeys(names)]


def _open(name: str, folder: Path) -> Observer:
    kind: Any = find("writer", name, mapl.runs.writers)
    writer: Any = kind(folder) if callable(kind) else None
    if not callable(writer):
        raise MaplError(
            f"writer {name!r} is not a writer: it should be a class constructed with the run's folder and called with "
            "(recipe, round, seconds)"
        )
    observer: Observer = writer
    return observer
