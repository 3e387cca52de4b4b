"""The runs under a folder: which there are, how far each has come, and which of them is whose control."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from mapl.analysis.control import is_ceiling, is_control, twins
from mapl.errors import MaplError
from mapl.names import printable
from mapl.recipe import Recipe, has_letters
from mapl.runs.folder import CLIENTS, HISTORY, RECIPE, load_recipe, read_cards

DEPTH = 4
"""How many folders deep runs are looked for."""
MOST = 2_000
"""Runs that are shown."""
TAIL = 2**20
"""Bytes at the end of a history that are read for the table of runs."""
PAUSE = 2.0
"""Seconds before the folders are searched again."""
QUIET = 30.0
"""Seconds without a new round after which a run is no longer said to be under way, if its rounds are not slower."""


@dataclass(frozen=True)
class Glance:
    """A run as the table of runs shows it."""

    folder: Path
    recipe: Recipe | None
    """None if it cannot be read; then `problem` says why."""
    problem: str
    data: str
    held: tuple[int, ...]
    rounds: int
    accuracy: float | None
    """Mean over clients at the last test."""
    updated: float
    """When its last round ended, or when it began."""


class Shelf:
    """The runs under a folder, looked at again and again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._found: dict[str, Path] = {}
        self._searched = -PAUSE
        self._known: dict[Path, tuple[tuple[float, ...], Glance]] = {}
        self._controls: dict[tuple[str, str], list[str]] = {}

    def runs(self) -> dict[str, Glance]:
        """By name: the path from the root."""
        if time.monotonic() - self._searched >= PAUSE:
            self._found = {_name(self.root, folder): folder for folder in _search(self.root)}
            self._searched = time.monotonic()
        glances = {name: self._glance(folder) for name, folder in self._found.items()}
        return {name: glance for name, glance in glances.items() if glance is not None}

    def find(self, name: str) -> Path | None:
        """The folder of a run. Only what was found has a name, so no name leads anywhere else."""
        if name not in self._found:
            self.runs()
        return self._found.get(name)

    def _glance(self, folder: Path) -> Glance | None:
        """A look at a run; None if it is gone."""
        marks = _marks(folder)
        if not marks:
            return None
        known = self._known.get(folder)
        if known is None or known[0] != marks:
            known = (marks, glance(folder, max(marks)))
            self._known[folder] = known
        return known[1]

    def control(self, name: str) -> str | None:
        """The run that is the control of this one: the same settings, data, seed and clients, without letters."""
        runs = self.runs()
        own = runs.get(name)
        if own is None or own.recipe is None or not has_letters(own.recipe):
            return None
        key = (name, own.recipe.fingerprint())
        if key not in self._controls:
            self._controls[key] = [twin.fingerprint() for twin in twins(own.recipe)]
        for wanted in self._controls[key]:
            for other, found in runs.items():
                alike = (found.data, found.held) == (own.data, own.held)
                if alike and found.recipe is not None and found.recipe.fingerprint() == wanted:
                    return other
        return None


def table(runs: dict[str, Glance]) -> list[dict[str, Any]]:
    """The table of runs, for JSON: those that changed last come first."""
    order = sorted(runs, key=lambda name: (-runs[name].updated, name))
    return [_row(name, runs[name]) for name in order]


def _row(name: str, found: Glance) -> dict[str, Any]:
    row = {"id": name, "name": printable(name), "problem": found.problem, "rounds": found.rounds}
    recipe = found.recipe
    if recipe is None:
        return row
    return row | {
        "method": printable(recipe.method.name),
        "role": "control" if is_control(recipe) else "ceiling" if is_ceiling(recipe) else "",
        "seed": recipe.seed,
        "planned": recipe.rounds,
        "clients": len(found.held),
        "accuracy": found.accuracy,
        "state": state(found.rounds, recipe.rounds, time.time() - found.updated),
    }


def state(rounds: int, planned: int, age: float, usual: float = 0.0) -> str:
    """Whether a run is over, under way, or was not heard of for so long that it has probably stopped."""
    if rounds >= planned:
        return "finished"
    return "under way" if age < max(QUIET, 3 * usual) else "stopped"


def _search(root: Path) -> list[Path]:
    """The folders of runs, at most `DEPTH` below the root. Links are not followed."""
    found: list[Path] = []
    for path, folders, files in os.walk(root):
        here = Path(path)
        if RECIPE in files and CLIENTS in files:
            found.append(here)
            folders.clear()
        deep = len(here.relative_to(root).parts) >= DEPTH
        folders[:] = [] if deep else sorted(f for f in folders if not f.startswith(".") and f != "checkpoints")
        if len(found) >= MOST:
            break
    return found


def _name(root: Path, folder: Path) -> str:
    path = folder.relative_to(root).as_posix()
    return root.resolve().name if path == "." else path


def _marks(folder: Path) -> tuple[float, ...]:
    """When its files changed; empty if it is gone."""
    try:
        recipe = (folder / RECIPE).stat().st_mtime
        history = folder / HISTORY
        return (recipe, history.stat().st_mtime, history.stat().st_size) if history.exists() else (recipe,)
    except OSError:
        return ()


def glance(folder: Path, updated: float) -> Glance:
    """Read just enough of a run for a line of the table."""
    try:
        recipe = load_recipe(folder)
        cards, _ = read_cards(folder)
    except MaplError as error:
        return Glance(folder, None, str(error), "", (), 0, None, updated)
    rounds, accuracy = 0, None
    for line in _backwards(folder / HISTORY):
        rounds = rounds or line["round"] + 1
        if line["accuracy"]:
            accuracy = fmean(line["accuracy"])
            break
    data = " ".join(sorted({card.data for card in cards}))
    return Glance(folder, recipe, "", data, tuple(card.id for card in cards), rounds, accuracy, updated)


def _backwards(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines at the end of a history, the last one first, as far as they can be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            lines = file.read().split(b"\n")
    except OSError:
        return
    for line in reversed(lines[:-1]):
        try:
            values = json.loads(line)
            yield {"round": int(values["round"]), "accuracy": [float(a) for a in values["accuracy"] or ()]}
        except (ValueError, TypeError, KeyError, RecursionError):
            return
