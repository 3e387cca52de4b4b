"""The run: a recipe, a loop over rounds, and the files it writes."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from mapl.clock import Clock
from mapl.engine.settings import EngineSettings
from mapl.engine.workers import torch_threads
from mapl.errors import MaplError
from mapl.model import Backbone
from mapl.plugins import looking
from mapl.recipe import Recipe, flat
from mapl.runs import chain, checkpoint
from mapl.runs.files import only_writer, write_aside
from mapl.runs.graph import INDEX, ROWS, GraphWriter
from mapl.runs.history import (
    CLIENTS,
    HISTORY,
    PROFILE,
    RECIPE,
    TIMES,
    Record,
    Round,
    clients_file,
    load,
    load_recipe,
    read_cards,
    times_line,
    write_recipe,
)
from mapl.runs.mend import check_same_data, cut_to, intact_history, restore_newest, unfit
from mapl.runs.part import (
    Data,
    Part,
    all_digests,
    build_part,
    cards,
    default_name,
    given_in_python,
    keeping_data,
    lasting,
)
from mapl.runs.round import budget_is_spent, graph, play_round
from mapl.runs.saving import bound, restore, saved_state

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
    after every round; if it returns true, the run saves and returns early. `folder` defaults to runs/<title>, with a
    digest of the data if they are your own. With `profile`, the record says where the time went (`record.profile`).
    """
    clock = Clock(profile)
    recipe = given_in_python(recipe, data, backbones)
    with keeping_data():
        folder = Path(folder or Path("runs") / default_name(recipe, data))
        _check_place(folder, recipe, data, overwrite)
        part = build_part(recipe, data, backbones)
    if recipe.clients == 1 and recipe.network.topology.name != "none" and not part.method.silent:
        warnings.warn("there is one client and nobody to write to: it trains alone, without letters", stacklevel=2)
    with _writing(folder):
        if folder.exists():
            with only_writer(folder):
                shutil.rmtree(folder)
        folder.mkdir(parents=True)
        write_aside(folder / CLIENTS, clients_file(cards(part)))
        # Last, because it makes the folder a run, which can be resumed from then on.
        write_recipe(folder, part.recipe)
    with only_writer(folder), torch_threads(recipe.train.threads):
        return _loop(part, folder, "", observers, stop, clock)


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
    trust: bool = False,
) -> Record:
    """Resume a run from its newest whole checkpoint, to its last round or to `rounds`.

    The folder is checked first. What can be repaired is, and `warn` is told. Other data than those of the run, another
    recipe, or damage before the oldest checkpoint are an error. If its recipe names code from outside the package that
    was not named in this process, `trust` must say that this code may run.
    """
    clock, folder = Clock(profile), Path(folder)
    with looking(trust):
        recipe = load_recipe(folder)
        if rounds is not None:
            if rounds < recipe.rounds:
                raise MaplError(f"rounds: got {rounds}, but {str(folder)!r} is a run of {recipe.rounds}; give more")
            recipe = recipe.model_copy(update={"rounds": rounds})
        with only_writer(folder):
            history = intact_history(folder, recipe, warn)  # first: a damaged recipe could ask for a million clients
            part = build_part(recipe, data, backbones)
            with _writing(folder):
                restore_newest(folder, part, history, warn)
                last = cut_to(folder, part, history, warn)
            with torch_threads(recipe.train.threads):
                return _loop(part, folder, last, observers, stop, clock)


def restored_part(
    folder: str | Path, warn: Callable[[str], None] = lambda message: None, trust: bool = False
) -> Part | None:
    """A run at its newest whole checkpoint, to look at its models; None if there is no checkpoint.

    If its recipe names code from outside the package, `trust` must say that this code may run.
    """
    with looking(trust):
        record = load(folder)
        history = record.history
        assert history is not None  # it was read from a folder
        saved = checkpoint.latest(Path(folder), warn, lambda saved: unfit(saved, history, len(history.entries), ""))
        if saved is None:
            return None
        # On the CPU: looking at models needs no engine that is ready to train.
        recipe = record.recipe
        evaluate = recipe.evaluate.model_copy(update={"all_images": False})
        part = build_part(recipe.model_copy(update={"engine": EngineSettings(device="cpu"), "evaluate": evaluate}))
        check_same_data(record.folder, record.clients, part)
        restore(part, saved)
        return part


def _loop(
    part: Part, folder: Path, last_hash: str, observers: Sequence[Observer], stop: Callable[[], bool], clock: Clock
) -> Record:
    """Play the rounds that are left. `last_hash` is that of the history's last line; empty if there is none."""
    recipe, first = part.recipe, part.round
    header = chain.Header.of(recipe.fingerprint(), clients_file(cards(part)))
    history = chain.Writer(folder / HISTORY, header, last_hash)
    graph_writer = GraphWriter(folder, [client.id for client in part.clients])
    graph_writer.cut(first)
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
                history.append(line, graph_writer.append(graph(part)))
                if last or stopping or (t + 1) % recipe.checkpoint.every == 0:
                    with clock.part("checkpoint"):
                        checkpoints.save(t + 1, bound(saved_state(part), history.before))
                        if last or stopping:
                            checkpoints.wait()
                chain.append(folder / TIMES, times_line(t, seconds, history.before))
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


def _check_place(folder: Path, recipe: Recipe, data: Data | None, overwrite: bool) -> None:
    """Overwrite nothing but another run, and only if asked."""
    if folder.exists() and not folder.is_dir():
        raise MaplError(f"{str(folder)!r} is a file; choose another --name or --out")
    inside = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if inside and not overwrite:
        other = _another_run(folder, recipe, data) if RECIPE in inside else ""
        problem = f"{other};" if other else "exists already; resume it,"
        raise MaplError(f"{str(folder)!r} {problem} choose another --name, or give --overwrite")
    # A run killed before it had a recipe has only its clients, or a temporary file.
    if RECIPE not in inside and any(CLIENTS not in name and RECIPE not in name for name in inside):
        raise MaplError(f"{str(folder)!r} is not the folder of a run, so it is not overwritten; choose another --name")


def _another_run(folder: Path, recipe: Recipe, data: Data | None) -> str:
    """How the run of a folder differs from this one; empty if resuming that run carries out this recipe."""
    existing = load_recipe(folder)
    if existing.fingerprint() == recipe.fingerprint():
        known, _ = read_cards(folder)
        return "" if {card.id: card.data for card in known} == all_digests(recipe, data) else "is a run on other data"
    old, new = (flat(either.model_dump(mode="json")) for either in (existing, recipe))
    keys = [key for key in old.keys() | new.keys() if old.get(key) != new.get(key) and key != "name"]
    return f"is a run of another recipe (differs in {', '.join(sorted(keys)[:3])}{', …' if len(keys) > 3 else ''})"
