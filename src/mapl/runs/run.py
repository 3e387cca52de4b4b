"""The run: a recipe, a loop over rounds, and the files it writes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import torch

from mapl.clock import Clock
from mapl.engine.settings import EngineSettings
from mapl.errors import MaplError
from mapl.model import Backbone
from mapl.recipe import Recipe, flat, to_toml
from mapl.runs import checkpoint
from mapl.runs.files import only_writer, write_aside
from mapl.runs.graph import INDEX, ROWS, GraphWriter
from mapl.runs.history import (
    CLIENTS,
    HISTORY,
    PROFILE,
    RECIPE,
    TIMES,
    OlderRun,
    Record,
    Round,
    cut_history,
    load,
    load_recipe,
)
from mapl.runs.part import Data, Part, build_part, cards, given_in_python, lasting
from mapl.runs.round import budget_is_spent, graph, is_tested, play_round
from mapl.runs.saving import restore, saved_state

Observer = Callable[[Recipe, Round, dict[str, float]], None]
"""Called after every round with the recipe, the line of the history, and the seconds of each part of the round."""


def run(
    recipe: Recipe,
    folder: str | Path | None = None,
    *,
    data: Data | None = None,
    backbones: Mapping[str, Backbone] | None = None,
    observers: Sequence[Observer] = (),
    stop: Callable[[], bool] = lambda: False,
    overwrite: bool = False,
    profile: bool = False,
) -> Record:
    """Carry out a recipe from its first round and return the record.

    `data` and `backbones` replace what the recipe names, for data and models that live in Python. `stop` is called
    after every round; if it returns true, the run saves and returns early. `folder` defaults to runs/<title>. With
    `profile`, the record says where the time went (`record.profile`).
    """
    clock = Clock(profile)
    recipe = given_in_python(recipe, data, backbones)
    folder = Path(folder or Path("runs") / recipe.title())
    _check_place(folder, recipe, overwrite)
    part = build_part(recipe, data, backbones)
    with _writing(folder):
        if folder.exists():
            with only_writer(folder):
                shutil.rmtree(folder)
        folder.mkdir(parents=True)
        write_aside(folder / CLIENTS, json.dumps([asdict(c) for c in cards(part)], indent=1).encode())
        # Last, because it makes the folder a run, which can be resumed from then on.
        write_aside(folder / RECIPE, to_toml(recipe).encode())
    with only_writer(folder):
        return _loop(part, folder, observers, stop, clock)


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    data: Data | None = None,
    backbones: Mapping[str, Backbone] | None = None,
    observers: Sequence[Observer] = (),
    stop: Callable[[], bool] = lambda: False,
    warn: Callable[[str], None] = lambda message: None,
    profile: bool = False,
) -> Record:
    """Resume a run from its newest whole checkpoint, to its last round or to `rounds`."""
    clock, folder = Clock(profile), Path(folder)
    recipe = load_recipe(folder)
    if rounds is not None:
        if rounds < recipe.rounds:
            raise MaplError(f"rounds: got {rounds}, but {str(folder)!r} is a run of {recipe.rounds}; give more")
        recipe = recipe.model_copy(update={"rounds": rounds})
    with only_writer(folder):
        part = build_part(recipe, data, backbones)
        saved = checkpoint.latest(folder, warn)
        if saved is not None:
            try:
                restore(part, saved)
            except OlderRun as error:
                raise MaplError(f"run {str(folder)!r} cannot be resumed: {error}") from error
            checkpoint.forget_newer(folder, saved.rounds)
        _cut_to(folder, part)
        return _loop(part, folder, observers, stop, clock)


def restored_part(folder: str | Path, warn: Callable[[str], None] = lambda message: None) -> Part | None:
    """A run at its newest whole checkpoint, to look at its models; None if there is no checkpoint."""
    saved = checkpoint.latest(Path(folder), warn)
    if saved is None:
        return None
    # On the CPU: looking at models needs no engine that is ready to train.
    recipe = load(folder).recipe
    evaluate = recipe.evaluate.model_copy(update={"all_images": False})
    part = build_part(recipe.model_copy(update={"engine": EngineSettings(device="cpu"), "evaluate": evaluate}))
    restore(part, saved)
    return part


def _loop(part: Part, folder: Path, observers: Sequence[Observer], stop: Callable[[], bool], clock: Clock) -> Record:
    recipe, first = part.recipe, part.round
    graph_writer = GraphWriter(folder, [client.id for client in part.clients])
    graph_writer.cut(first)
    torch.set_num_threads(recipe.train.threads)
    part.engine.warm_up(part.clients)
    writer = checkpoint.Writer(folder, recipe.checkpoint.keep, [folder / name for name in (HISTORY, ROWS, INDEX)])
    with clock.running(part.engine.device), lasting(), writer as checkpoints:
        for t in range(first, recipe.rounds):
            if budget_is_spent(part):
                break
            line, seconds = play_round(part, t, clock)
            last = t + 1 == recipe.rounds or budget_is_spent(part)
            stopping = not last and stop()
            with _writing(folder):
                graph_writer.append(graph(part))
                _append(folder / HISTORY, line.line())
                if last or stopping or (t + 1) % recipe.checkpoint.every == 0:
                    with clock.part("checkpoint"):
                        checkpoints.save(t + 1, saved_state(part))
                        if last or stopping:
                            checkpoints.wait()
                _append(folder / TIMES, json.dumps({"round": t, "seconds": sum(seconds.values()), **seconds}) + "\n")
            for observe in observers:
                observe(recipe, line, seconds)
            if stopping:
                break
    if clock.profiling and part.round > first:
        with _writing(folder):
            write_aside(folder / PROFILE, json.dumps(clock.profile(part.round - first), indent=1).encode())
    return load(folder)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn an OSError, such as a full disk, into an error that says what to do next."""
    try:
        yield
    except OSError as error:
        resumable = (folder / RECIPE).is_file()
        remedy = f"nothing before its last checkpoint is lost: make room, then mapl resume {folder}"
        raise MaplError(
            f"run {str(folder)!r} could not be written ({error}); {remedy if resumable else 'choose another folder'}"
        ) from error


def _append(path: Path, line: str) -> None:
    with path.open("ab") as file:
        file.write(line.encode())


def _check_place(folder: Path, recipe: Recipe, overwrite: bool) -> None:
    """Overwrite nothing but another run, and only if asked."""
    if folder.exists() and not folder.is_dir():
        raise MaplError(f"{str(folder)!r} is a file; choose another --name or --out")
    inside = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if inside and not overwrite:
        other = _another_recipe(folder, recipe) if RECIPE in inside else ""
        problem = f"is a run of another recipe ({other});" if other else "exists already; resume it,"
        raise MaplError(f"{str(folder)!r} {problem} choose another --name, or give --overwrite")
    # A run killed before it had a recipe has only its clients, or a temporary file.
    if RECIPE not in inside and any(CLIENTS not in name and RECIPE not in name for name in inside):
        raise MaplError(f"{str(folder)!r} is not the folder of a run, so it is not overwritten; choose another --name")


def _another_recipe(folder: Path, recipe: Recipe) -> str:
    """How the recipe of a run differs from this one; empty if resuming that run carries out this recipe."""
    existing = load_recipe(folder)
    if existing.fingerprint() == recipe.fingerprint():
        return ""
    old, new = (flat(either.model_dump(mode="json")) for either in (existing, recipe))
    keys = [key for key in old.keys() | new.keys() if old.get(key) != new.get(key) and key != "name"]
    return f"differs in {', '.join(sorted(keys)[:3])}{', …' if len(keys) > 3 else ''}"


def _cut_to(folder: Path, part: Part) -> None:
    """Cut the files after the restored part's last round: later rounds will be played again."""

    def last(line: Round) -> Round:
        # The last round of a shorter run was tested only because it was the last.
        keeps_test = budget_is_spent(part) or is_tested(part.recipe, line.round)
        return line if keeps_test else replace(line, accuracy=None, all_images=None, ways=None)

    with _writing(folder):
        write_aside(folder / RECIPE, to_toml(part.recipe).encode())
        cut_history(folder / HISTORY, part.round, last)
        _cut_times(folder / TIMES, part.round)


def _cut_times(path: Path, rounds: int) -> None:
    """Keep the times of the first `rounds` rounds. A line that is damaged is dropped: a run does not need its times."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    write_aside(path, b"".join(line + b"\n" for line in lines if _is_of(line, rounds)))


def _is_of(line: bytes, rounds: int) -> bool:
    try:
        return bool(json.loads(line)["round"] < rounds)
    except (ValueError, TypeError, KeyError):
        return False
