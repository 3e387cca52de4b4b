"""Writers, one per file. Each is constructed with a run's folder and called after every round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mapl.runs.writers
from mapl.errors import MaplError, warn
from mapl.plugins import find
from mapl.recipe import Recipe
from mapl.runs.chain import Round
from mapl.runs.run import Observer


def open_writers(names: Sequence[str], folder: str | Path) -> list[Observer]:
    """The writers with these names or import paths, for the run in `folder`. One that is named twice is opened once.

    Nothing is written before the first round: until then the folder may hold another run that is about to be replaced.
    A writer that fails later is dropped with a warning. It must not end a run of many hours.
    """
    return [_Droppable(name, _open(name, Path(folder))) for name in dict.fromkeys(names)]


class _Droppable:
    """A writer until it fails, and then nothing."""

    def __init__(self, name: str, writer: Observer):
        self.name = name
        self.writer: Observer | None = writer

    def __call__(self, recipe: Recipe, line: Round, seconds: dict[str, float]) -> None:
        if self.writer is None:
            return
        try:
            self.writer(recipe, line, seconds)
        except Exception as error:
            self.writer = None
            what = str(error) if isinstance(error, MaplError) else f"{type(error).__name__}: {error}"
            warn(f"writer {self.name!r} failed in round {line.round} and is dropped ({what})")


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
