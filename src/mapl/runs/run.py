"""The run: a recipe, a loop over rounds, and the files it writes; for a whole network, or for a part of one."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mapl.clock import Clock
from mapl.data.loading import keeping_data
from mapl.data.objects import as_data
from mapl.engine.settings import EngineSettings, RaySettings
from mapl.engine.workers import torch_threads
from mapl.errors import MaplError, warn
from mapl.model import Backbone
from mapl.plugins import looking
from mapl.recipe import Recipe, is_silent
from mapl.runs import chain, checkpoint
from mapl.runs.chain import Round
from mapl.runs.client_data import all_digests, default_name
from mapl.runs.files import only_writer, write_aside
from mapl.runs.folder import (
    CLIENTS,
    HISTORY,
    JOINED,
    RECIPE,
    TIMES,
    clients_file,
    load,
    load_recipe,
    read_cards,
    times_line,
    write_recipe,
)
from mapl.runs.graph import INDEX, ROWS, GraphWriter
from mapl.runs.interrupt import Stopped, interruptible
from mapl.runs.mend import check_same_data, cut_to, intact_history, restore_newest, unfit
from mapl.runs.notebook import in_notebook
from mapl.runs.part import Part, build_part, cards, given_in_python, lasting
from mapl.runs.player import CannotGoOn, Here, MakePlayer, Player, as_the_recipe_says
from mapl.runs.record import PROFILE, Record, part_of
from mapl.runs.saving import bound, restore
from mapl.trees import flat

Observer = Callable[[Recipe, Round, dict[str, float]], None]
"""Called after every round with the recipe, the line of the history, and the seconds of each part of the round."""


def run(
    recipe: Recipe | None = None,
    folder: str | Path | None = None,
    *,
    data: Any = None,
    backbones: Mapping[str, Backbone] | None = None,
    observers: Sequence[Observer] = (),
    stop: Callable[[], bool] = lambda: False,
    overwrite: bool = False,
    profile: bool = False,
    make: MakePlayer = as_the_recipe_says,
) -> Record:
    """Carry out a recipe from its first round and return the record.

    `data` and `backbones` replace what the recipe names, for data and models that live in Python. `data` is anything
    that `mapl.dataset` takes, or a list or a dict of it with one for each client. Without a recipe, everything else is
    made from the data, as by `Recipe.of(data=data)`. `stop` is called after every round; if it returns true, the run
    saves and returns early. `folder` defaults to runs/<title>, with a digest of the data if they are your own. With
    `profile`, the record says where the time went (`record.profile`). `make` makes what plays the rounds: by default
    all clients in this process, or in shards on a cluster if `engine.where` says so.

    Ctrl-C finishes the round and saves before it raises KeyboardInterrupt. A second one does not wait. In a notebook a
    bar shows how far the run is.
    """
    clock = Clock(profile)
    data = None if data is None else as_data(data)
    if recipe is None:
        recipe = Recipe.of() if data is None else Recipe.of(data=data)
    recipe = given_in_python(recipe, data, backbones)
    with keeping_data():
        folder = Path(folder or Path("runs") / default_name(recipe, data))
        _check_place(folder, recipe, lambda: all_digests(recipe, data), overwrite)
        player = make(recipe, data, backbones)
    if recipe.clients == 1 and recipe.network.topology.name != "none" and not is_silent(recipe):
        warn("there is one client and nobody to write to: it trains alone, without letters", once=True)
    with closing(player):
        return _begin(player, folder, _Loop(observers, stop, clock))


def run_part(
    part: Part,
    folder: str | Path,
    *,
    observers: Sequence[Observer] = (),
    stop: Callable[[], bool] = lambda: False,
    overwrite: bool = False,
    durable: bool = False,
) -> Record:
    """Carry out a part of a network from its first round and return its record.

    The folder is that of a run with the clients that the part holds; `mapl.runs.join` makes one run of those of all
    parts. `durable`: a round's checkpoint is written before the round is reported, so with `checkpoint.every = 1`
    nothing of a round happens before the state after the last one is saved. A process that is killed then plays at most
    the round that it was in again. After a power cut it may be one round more.
    """
    folder = Path(folder)
    _check_new(part)
    _check_place(folder, part.recipe, lambda: part.data, overwrite)
    return _begin(Here(part), folder, _Loop(observers, stop, Clock(), durable))


def _begin(player: Player, folder: Path, loop: _Loop) -> Record:
    """Replace what is in the folder, and play all rounds."""
    with _writing(folder, player):
        if folder.exists():
            with only_writer(folder):
                shutil.rmtree(folder)
        folder.mkdir(parents=True)
        write_aside(folder / CLIENTS, clients_file(player.cards))
        # Last, because it makes the folder a run, which can be resumed from then on.
        write_recipe(folder, player.recipe)
    with only_writer(folder), torch_threads(player.recipe.train.threads):
        return loop.play(player, folder, "")


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    data: Any = None,
    backbones: Mapping[str, Backbone] | None = None,
    observers: Sequence[Observer] = (),
    stop: Callable[[], bool] = lambda: False,
    profile: bool = False,
    trust: bool = False,
    ray: RaySettings | None = None,
    make: MakePlayer = as_the_recipe_says,
) -> Record:
    """Resume a run from its newest whole checkpoint, to its last round or to `rounds`.

    The folder is checked first. What can be repaired is, and a warning says so. Other data than those of the run,
    another recipe, or damage before the oldest checkpoint are an error. Data that were given in Python are given again.
    If its recipe names code from outside the package that was not named in this process, `trust` must say that this
    code may run.

    `ray`: go on in shards on this cluster. Without it, all clients train in this process, wherever they trained before:
    a folder, which may be anybody's, does not say which cluster to connect to. `make` is that of `run`.
    """
    clock, folder = Clock(profile), Path(folder)
    with looking(trust):
        recipe = load_recipe(folder)
        if rounds is not None:
            _check_length(folder, recipe, rounds)
            recipe = recipe.model_copy(update={"rounds": rounds})
        with only_writer(folder):
            history = intact_history(folder, recipe)  # first: a damaged recipe could ask for a million clients
            _check_whole(folder, recipe)
            player = make(placed(recipe, ray), None if data is None else as_data(data), backbones)
            with closing(player):
                return _go_on(player, folder, history, _Loop(observers, stop, clock))


def placed(recipe: Recipe, ray: RaySettings | None) -> Recipe:
    """The recipe of a folder, to be carried out on this cluster, or else in this process."""
    engine = recipe.engine.at_home
    if ray is not None:
        engine = engine.model_copy(update={"where": "ray", "ray": ray})
    return recipe.model_copy(update={"engine": engine})


def resume_part(
    part: Part,
    folder: str | Path,
    *,
    observers: Sequence[Observer] = (),
    stop: Callable[[], bool] = lambda: False,
    durable: bool = False,
) -> Record:
    """Resume what `run_part` began in a folder, from its newest whole checkpoint, to the last round of the recipe.

    The part is built anew, with the same recipe, clients and data; `mapl.runs.folder.load_recipe` reads the recipe of
    a folder. The recipe may have more rounds than before. The folder is checked and repaired as `resume` does it.
    """
    folder = Path(folder)
    _check_new(part)
    existing = load_recipe(folder)
    if existing.fingerprint() != part.recipe.fingerprint():
        raise MaplError(f"{str(folder)!r} is a run of another recipe ({_difference(existing, part.recipe)})")
    _check_length(folder, existing, part.recipe.rounds)
    with only_writer(folder):
        history = intact_history(folder, part.recipe)
        _check_not_joined(folder)
        return _go_on(Here(part), folder, history, _Loop(observers, stop, Clock(), durable))


def _go_on(player: Player, folder: Path, history: chain.History, loop: _Loop) -> Record:
    """Restore the newest whole checkpoint, cut the other files to its round, and play the rounds that are left."""
    with _writing(folder, player):
        restore_newest(folder, player, history)
        last = cut_to(folder, player, history)
    with torch_threads(player.recipe.train.threads):
        return loop.play(player, folder, last)


def restored_part(
    folder: str | Path,
    trust: bool = False,
    data: Any = None,
) -> Part | None:
    """A run at its newest whole checkpoint, to look at its models; None if there is no checkpoint.

    The folder of a part has the models of its own clients. Those of the others are not built. `data` are those of the
    run, if they are not what its recipe names.
    If its recipe names code from outside the package, `trust` must say that this code may run.
    """
    with looking(trust):
        record = load(folder)
        history = record.history
        assert history is not None  # it was read from a folder
        saved = checkpoint.latest(Path(folder), lambda saved: unfit(saved, history, len(history.entries), ""))
        if saved is None:
            return None
        # On the CPU: looking at models needs no engine that is ready to train.
        recipe = record.recipe
        evaluate = recipe.evaluate.model_copy(update={"all_images": False})
        recipe = recipe.model_copy(update={"engine": EngineSettings(device="cpu"), "evaluate": evaluate})
        part = build_part(recipe, None if data is None else as_data(data), holds=record.held)
        check_same_data(record.folder, record.clients, cards(part))
        restore(part, saved)
        return part


@dataclass(frozen=True)
class _Loop:
    """The loop over rounds, and what happens in it besides the rounds."""

    observers: Sequence[Observer]
    stop: Callable[[], bool]
    clock: Clock
    durable: bool = False
    """Whether a round is over only when its checkpoint is written."""

    def play(self, player: Player, folder: Path, last_hash: str) -> Record:
        """Play the rounds that are left. `last_hash` is that of the history's last line; empty if there is none."""
        recipe, first, clock, clients = player.recipe, player.round, self.clock, player.cards
        header = chain.Header.of(recipe.fingerprint(), clients_file(clients))
        history = chain.Writer(folder / HISTORY, header, last_hash)
        graph_writer = GraphWriter(folder, [card.id for card in clients])
        graph_writer.cut(first)
        player.warm_up()
        with _writing(folder, player):
            after = [folder / name for name in (HISTORY, ROWS, INDEX)]
            writer = checkpoint.Writer(folder, recipe.checkpoint.keep, after)
        observers: list[Observer] = [*self.observers, *in_notebook(recipe.rounds, first)]
        with clock.running(player.device), lasting(), interruptible() as interrupted, writer as checkpoints:
            for t in range(first, recipe.rounds):
                if player.budget_is_spent:
                    break
                with _saving_what_is_left(player, folder, checkpoints, first):
                    line, seconds = player.play(t, clock)
                last = t + 1 == recipe.rounds or player.budget_is_spent
                stopping = not last and (self.stop() or interrupted())
                with _saving_what_is_left(player, folder, checkpoints, first), _writing(folder, player):
                    history.append(line, graph_writer.append(player.rows()))
                    if last or stopping or (t + 1) % recipe.checkpoint.every == 0:
                        with clock.part("checkpoint"):
                            checkpoints.save(t + 1, bound(player.state(), history.before))
                            if last or stopping:
                                checkpoints.wait()
                            elif self.durable:
                                checkpoints.wait_for_file()
                    chain.append(folder / TIMES, times_line(t, seconds, history.before))
                for observe in observers:
                    observe(recipe, line, seconds)
                if stopping:
                    break
        if clock.profiling and player.round > first:
            with _writing(folder, player):
                write_aside(folder / PROFILE, json.dumps(clock.profile(player.round - first), indent=1).encode())
        record = load(folder)
        if interrupted():
            raise Stopped(_said_of_an_interrupt(record))
        return record


def _said_of_an_interrupt(record: Record) -> str:
    """Where the run stands, and how it goes on."""
    if record.finished:
        return f"the run was in its last round; it is finished, in {str(record.folder)!r}"
    way = f"mapl.resume({str(record.folder)!r})" if record.whole else "resume this part"
    return f"stopped after round {len(record.rounds)} of {record.recipe.rounds}, and saved; continue with: {way}"


@contextmanager
def _saving_what_is_left(player: Player, folder: Path, checkpoints: checkpoint.Writer, first: int) -> Iterator[None]:
    """If a player cannot go on, save the last round that it still has the state of, and say which one that is.

    `first`: how many rounds had been played when this process began. Those are saved already.
    """
    try:
        yield
    except CannotGoOn as error:
        if player.round > first:
            with _writing(folder, player):
                before = chain.read_history(folder / HISTORY).before(player.round)
                checkpoints.save(player.round, bound(player.state(), before))
                checkpoints.wait()
        saved = f"the run is saved up to round {player.round}" if player.round else "no round is saved"
        raise CannotGoOn(f"{error}; {saved}: resume it later") from error


@contextmanager
def _writing(folder: Path, player: Player) -> Iterator[None]:
    """Turn an OSError, such as a full disk, into an error that says what to do next."""
    try:
        yield
    except OSError as error:
        resumable = (folder / RECIPE).is_file()
        whole = len(player.cards) == player.recipe.clients
        failed = f"run {str(folder)!r} could not be written ({error});"
        safe = "nothing before its last checkpoint is lost"
        ways = _resumed_by(folder) if whole else ("resume this part",) * 2
        python, shell = (f"{safe}: make room, then {way}" if resumable else "choose another folder" for way in ways)
        raise MaplError(f"{failed} {python}", shell=f"{failed} {shell}") from error


def _check_new(part: Part) -> None:
    """Refuse a part that has played: what it has learned is not in the folder."""
    if part.round:
        raise MaplError(f"the part has played {part.round} rounds already: build it anew")


def _check_length(folder: Path, existing: Recipe, rounds: int) -> None:
    """A run may be made longer, not shorter."""
    if rounds < existing.rounds:
        raise MaplError(f"rounds: got {rounds}, but {str(folder)!r} is a run of {existing.rounds}; give more")


def _check_whole(folder: Path, recipe: Recipe) -> None:
    """Refuse what was not run in one process, and so cannot go on in one."""
    _check_not_joined(folder)
    try:
        known, _ = read_cards(folder)
    except MaplError:
        return  # a damaged file is written again, or refused, once the data are known
    if part := part_of(folder, recipe, known):
        raise MaplError(f"{part}, and only the process that ran it has its transport: resume it there")


def _check_not_joined(folder: Path) -> None:
    if (folder / JOINED).exists():
        raise MaplError(f"{str(folder)!r} was joined from parts: resume those, and join them again")


def _check_place(folder: Path, recipe: Recipe, data: Callable[[], Mapping[int, str]], overwrite: bool) -> None:
    """Overwrite nothing but another run, and only if asked. `data`: the digest of each client's data."""
    if folder.exists() and not folder.is_dir():
        raise MaplError(
            f"{str(folder)!r} is a file; choose another folder",
            shell=f"{str(folder)!r} is a file; choose another --name or --out",
        )
    inside = {path.name for path in folder.iterdir()} if folder.exists() else set()
    # A run killed before it had a recipe has only its clients, or a temporary file.
    if RECIPE not in inside and any(CLIENTS not in name and RECIPE not in name for name in inside):
        not_ours = f"{str(folder)!r} is not the folder of a run, so it is not overwritten; choose another"
        raise MaplError(f"{not_ours} folder", shell=f"{not_ours} --name")
    if RECIPE in inside and not overwrite:
        other = _another_run(folder, recipe, data)
        taken = f"{str(folder)!r} {other or 'exists already'};"
        ways = _resumed_by(folder)
        python, shell = ("" if other else f"continue it with {way}, " for way in ways)
        raise MaplError(
            f"{taken} {python}choose another folder, or give overwrite=True",
            shell=f"{taken} {shell}choose another --name, or give --overwrite",
        )


def _another_run(folder: Path, recipe: Recipe, data: Callable[[], Mapping[int, str]]) -> str:
    """How the run of a folder differs from this one; empty if resuming that run carries out this recipe."""
    existing = load_recipe(folder)
    if existing.fingerprint() == recipe.fingerprint():
        known, given = {card.id: card.data for card in read_cards(folder)[0]}, data()
        if known.keys() != given.keys():
            return "is a run of other clients"
        return "" if known == given else "is a run on other data"
    return f"is a run of another recipe ({_difference(existing, recipe)})"


def _difference(existing: Recipe, recipe: Recipe) -> str:
    """The first settings in which two recipes differ."""
    old, new = (flat(either.model_dump(mode="json")) for either in (existing, recipe))
    keys = [key for key in old.keys() | new.keys() if old.get(key) != new.get(key) and key != "name"]
    return f"differs in {', '.join(sorted(keys)[:3])}{', …' if len(keys) > 3 else ''}"


def _resumed_by(folder: Path) -> tuple[str, str]:
    """What resumes a run, in Python and in a shell."""
    return f"mapl.resume({str(folder)!r})", f"mapl resume {shlex.quote(str(folder))}"
