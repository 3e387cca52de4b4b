"""A sweep: many recipes at once, each with its control arm, every run in a folder of its own.

A run that is already in the parent folder is taken from there, whatever its folder is called. So a sweep that was
killed, or is asked for again with more seeds or methods, repeats nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mapl.analysis.control import control_of
from mapl.data.loading import keeping_data
from mapl.errors import MaplError
from mapl.names import folder_name
from mapl.recipe import Recipe, has_letters
from mapl.runs.chain import digest
from mapl.runs.client_data import all_digests, default_name, own_data
from mapl.runs.folder import JOINED, RECIPE, load_recipe, read_cards, runs_below
from mapl.runs.jobs import Job
from mapl.runs.part import with_digests
from mapl.runs.record import combined


@dataclass(frozen=True)
class Point:
    """One recipe of a sweep."""

    recipe: Recipe
    settings: tuple[str, ...] = ()
    """The settings that the sweep varies, as key=value, for the name of the folder."""


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep."""

    jobs: list[Job]
    arms: int
    """Recipes apart from their seed."""
    controls: int
    """Of these, those that are only there as the control of another."""
    seeds: list[int]
    out: Path
    """The parent folder of the runs."""


@dataclass
class _Folders:
    """Which run is where, and what is still free."""

    out: Path
    taken: set[Path] = field(default_factory=set)
    runs: dict[str, Path] = field(default_factory=dict)
    """By what a run is (`_identity`)."""

    def of(self, recipe: Recipe, name: str) -> Path:
        """The folder of a run: where it is already, or the one of this name, or of a longer name if that is taken."""
        identity = _identity(recipe)
        if identity not in self.runs:
            folder = self.out / name
            if folder in self.taken or (folder / RECIPE).exists():
                folder = self.out / f"{name}-{digest(identity.encode())[:6]}"
            self.runs[identity] = folder
            self.taken.add(folder)
        return self.runs[identity]


def plan(points: Sequence[Point], out: Path, controls: bool = True) -> Sweep:
    """The runs of a sweep: each point once, and its control arm unless `controls` is false, seed by seed."""
    with keeping_data():
        wanted = [Point(with_digests(point.recipe), point.settings) for point in points]
        needed = _controls(wanted) if controls else []
        folders, jobs, seen = _found(out), [], set()
        for point in sorted([*wanted, *needed], key=lambda point: point.recipe.seed):
            identity = _identity(point.recipe)
            if identity not in seen:
                seen.add(identity)
                folder = folders.of(point.recipe, _name(point))
                jobs.append(Job(folder.name, point.recipe.model_dump(mode="json") | {"name": folder.name}, folder))
    arms = {_apart_from_seed(point.recipe) for point in wanted}
    extra = {_apart_from_seed(point.recipe) for point in needed} - arms
    return Sweep(jobs, len(arms | extra), len(extra), sorted({point.recipe.seed for point in wanted}), out)


def _controls(points: Sequence[Point]) -> list[Point]:
    """The control of every point with letters. Varied settings that it does not depend on are left out of its name."""
    found = [(point, control_of(point.recipe)) for point in points if has_letters(point.recipe)]
    forms: dict[str, set[str]] = {}
    for _, control in found:
        forms.setdefault(_name(Point(control)), set()).add(control.fingerprint())
    varied = {name for name, fingerprints in forms.items() if len(fingerprints) > 1}
    return [Point(control, point.settings if _name(Point(control)) in varied else ()) for point, control in found]


def _name(point: Point) -> str:
    """What its folder is called: what the run is, after the name that the recipe has for all of them."""
    own = [point.recipe.name] if point.recipe.name else []
    title = default_name(point.recipe.model_copy(update={"name": ""}))
    return "-".join([*own, title, *map(folder_name, point.settings)])


def _identity(recipe: Recipe) -> str:
    """What a run is, with its length, and its data if they are the user's own."""
    data = combined(all_digests(recipe, None)) if own_data(recipe) else ""
    return f"{recipe.fingerprint()} {recipe.rounds} {data}"


def _apart_from_seed(recipe: Recipe) -> str:
    return recipe.model_copy(update={"seed": 0}).fingerprint()


def _found(out: Path) -> _Folders:
    """The runs that are in a folder already. What cannot be read, or is only a part of a network, is passed over."""
    if (out / RECIPE).exists():
        raise MaplError(f"{str(out)!r} is the folder of a run, so no runs go into it: choose another folder")
    folders = _Folders(out)
    for folder in runs_below(out):
        folders.taken.add(folder)
        try:
            recipe = load_recipe(folder)
            cards, _ = read_cards(folder)
        except MaplError:
            continue
        if len(cards) == recipe.clients and not (folder / JOINED).exists():
            data = combined({card.id: card.data for card in cards}) if own_data(recipe) else ""
            folders.runs.setdefault(f"{recipe.fingerprint()} {recipe.rounds} {data}", folder)
    return folders
