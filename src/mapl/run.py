"""The run: a recipe, a loop over rounds, and what it leaves on disk."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import mapl.data.sources
import mapl.methods
from mapl import checkpoint
from mapl.client import Client
from mapl.data.augment import Augmentation
from mapl.data.dataset import Dataset, DataSettings
from mapl.data.partition import partition
from mapl.engine.eager import EagerEngine
from mapl.errors import MaplError
from mapl.files import write_aside
from mapl.history import (
    CLIENTS,
    HISTORY,
    RECIPE,
    TIMES,
    ClientCard,
    Record,
    Round,
    decode_all,
    encode_all,
    load,
    load_recipe,
    sparse_row,
)
from mapl.methods._base import Method
from mapl.model import Backbone, architecture, assign, build, find_backbone
from mapl.network import Inbox, Ledger, Post, Topology, nbytes
from mapl.plugins import find
from mapl.recipe import GIVEN_IN_PYTHON, Recipe, to_toml

Observer = Callable[[Recipe, Round, dict[str, float]], None]
"""Called after every round with the recipe, the line of the history, and the seconds of each part of the round."""


@dataclass
class World:
    """A run in memory: the clients and what carries their letters."""

    recipe: Recipe
    clients: list[Client]
    method: Method[Any]
    engine: EagerEngine
    topology: Topology
    ledger: Ledger = field(default_factory=Ledger)
    rounds: list[Round] = field(default_factory=list)
    rows: dict[int, Tensor] = field(default_factory=dict)
    """The row of W that the history last wrote down for each client."""


def run(
    recipe: Recipe,
    folder: str | Path | None = None,
    *,
    data: Dataset | None = None,
    backbones: Mapping[str, Backbone] | None = None,
    observers: Sequence[Observer] = (),
    stop: Callable[[], bool] = lambda: False,
    overwrite: bool = False,
) -> Record:
    """Carry out a recipe from its first round and return what happened.

    `data` and `backbones` take the place of what the recipe names, for data and models that live in Python. `stop` is
    asked after every round whether to save and return early. `folder` is runs/<title> unless it is given.
    """
    recipe = given_in_python(recipe, data, backbones)
    folder = Path(folder or Path("runs") / recipe.title())
    _check_place(folder, overwrite)
    world = build_world(recipe, data, backbones)
    with _writing(folder):
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        write_aside(folder / CLIENTS, json.dumps([asdict(c) for c in cards(world)], indent=1).encode())
        # Last, because it makes the folder a run: one that can be resumed from then on.
        write_aside(folder / RECIPE, to_toml(recipe).encode())
    return _loop(world, folder, observers, stop)


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    data: Dataset | None = None,
    backbones: Mapping[str, Backbone] | None = None,
    observers: Sequence[Observer] = (),
    stop: Callable[[], bool] = lambda: False,
    warn: Callable[[str], None] = lambda message: None,
) -> Record:
    """Go on from a run's newest whole checkpoint, to its last round or to `rounds`."""
    folder = Path(folder)
    recipe = load_recipe(folder)
    if rounds is not None:
        if rounds < recipe.rounds:
            raise MaplError(f"rounds: got {rounds}, but {str(folder)!r} is a run of {recipe.rounds}; give more")
        recipe = recipe.model_copy(update={"rounds": rounds})
    world = build_world(recipe, data, backbones)
    saved = checkpoint.latest(folder, warn)
    if saved is not None:
        _restore(world, saved)
    # What was the last round of a shorter run was tested for that alone.
    world.rounds = [line if _is_tested(recipe, line.round) else replace(line, accuracy=None) for line in world.rounds]
    with _writing(folder):
        write_aside(folder / RECIPE, to_toml(recipe).encode())
        # Lines after the checkpoint belong to rounds that will be played again.
        write_aside(folder / HISTORY, encode_all(world.rounds))
        _cut_times(folder / TIMES, len(world.rounds))
    return _loop(world, folder, observers, stop)


def restored_world(folder: str | Path, warn: Callable[[str], None] = lambda message: None) -> World | None:
    """A run as its newest whole checkpoint has it, for whoever wants to look at its models; None where it has none."""
    saved = checkpoint.latest(Path(folder), warn)
    if saved is None:
        return None
    world = build_world(load(folder).recipe)
    _restore(world, saved)
    return world


def given_in_python(recipe: Recipe, data: Dataset | None, backbones: Mapping[str, Backbone] | None) -> Recipe:
    """The recipe that says truly what is run when data or backbones are given as objects."""
    if data is not None:
        recipe = recipe.model_copy(update={"data": DataSettings(name=GIVEN_IN_PYTHON)})
    if backbones:
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"backbones": tuple(backbones)})})
    return recipe


def load_data(recipe: Recipe) -> Dataset:
    """The data set that a recipe names."""
    if recipe.data.name == GIVEN_IN_PYTHON:
        raise MaplError("the data of this run was given in Python: pass it again, as mapl.resume(folder, data=…)")
    source = find("data set", recipe.data.name, mapl.data.sources)
    if not callable(getattr(source, "load", None)):
        raise MaplError(f"data set {recipe.data.name!r} is no data source: it should be a class with a method load")
    dataset = source().load(recipe.data)
    if not isinstance(dataset, Dataset):
        raise MaplError(f"data set {recipe.data.name!r} gave a {type(dataset).__name__}, not a mapl.Dataset")
    return dataset


def build_world(recipe: Recipe, data: Dataset | None = None, backbones: Mapping[str, Backbone] | None = None) -> World:
    """Everything a recipe describes, in memory, before its first round."""
    dataset = data or load_data(recipe)
    method: Method[Any] = find("method", recipe.method.name, mapl.methods)(recipe.method)
    augment = recipe.augment.contrastive if method.augmentation == "contrastive" else recipe.augment.plain
    augmentation = Augmentation(augment, dataset.image, dataset.mean, dataset.std)
    world = World(
        recipe=recipe,
        clients=_clients(recipe, dataset, backbones or {}),
        method=method,
        engine=EagerEngine(method, recipe.train, augmentation, recipe.seed),
        topology=Topology(recipe.network.topology, recipe.clients, recipe.seed),
    )
    for client in world.clients:
        method.prepare(client)
    world.topology.graph(0)  # an impossible one is better refused now than in the first round
    _check_letters(world)
    return world


def _clients(recipe: Recipe, dataset: Dataset, given: Mapping[str, Backbone]) -> list[Client]:
    names = recipe.model.backbones
    backbones = [given.get(name) or find_backbone(name) for name in names]
    shards = partition(dataset, recipe.partition, recipe.clients, recipe.seed)
    clients = []
    for i, (shard, which) in enumerate(
        zip(shards, assign(recipe.model, len(names), recipe.clients, recipe.seed), strict=True)
    ):
        model = build(names[which], backbones[which], recipe.model, dataset.image, dataset.classes, recipe.seed, i)
        clients.append(
            Client(
                id=i,
                size=recipe.clients,
                run=recipe.fingerprint(),
                model=model,
                backbone=names[which],
                architecture=architecture(model.backbone),
                train=dataset.train.take(shard.train),
                test=dataset.test.take(shard.test),
                cluster=shard.cluster,
            )
        )
    return clients


def _check_letters(world: World) -> None:
    """A letter that is too large is better refused before the first round than in it."""
    limit = world.recipe.network.letter_limit
    if limit is None or world.recipe.network.topology.name == "none":
        return
    for client in world.clients:
        reachable = world.topology.neighbours(0, client.id)
        if not len(world.method.wants(client, 0, reachable)):
            continue
        size = nbytes(world.method.letter(client, world.recipe.rounds))
        if size > limit:
            raise MaplError(
                f"network.letter_limit: got {limit:,} bytes, but a letter of {world.recipe.method.name!r} from client "
                f"{client.id} ({client.backbone}) has {size:,}; raise the limit, or take smaller backbones"
            )


def cards(world: World) -> list[ClientCard]:
    """Who the clients are."""
    return [
        ClientCard(
            id=c.id,
            cluster=c.cluster,
            classes=sorted(set(c.train.labels.tolist())),
            samples=c.samples,
            tests=len(c.test),
            backbone=c.backbone,
            parameters=sum(p.numel() for p in c.model.parameters()),
        )
        for c in world.clients
    ]


def _loop(world: World, folder: Path, observers: Sequence[Observer], stop: Callable[[], bool]) -> Record:
    recipe = world.recipe
    for t in range(len(world.rounds), recipe.rounds):
        line, seconds = play_round(world, t)
        last = t + 1 == recipe.rounds
        stopping = not last and stop()
        with _writing(folder):
            _append(folder / HISTORY, line.line())
            if last or stopping or (t + 1) % recipe.checkpoint.every == 0:
                start = time.perf_counter()
                checkpoint.save(folder, t + 1, _state(world), recipe.checkpoint.keep)
                seconds["checkpoint"] = time.perf_counter() - start
            _append(folder / TIMES, json.dumps({"round": t, "seconds": sum(seconds.values()), **seconds}) + "\n")
        for observe in observers:
            observe(recipe, line, seconds)
        if stopping:
            break
    return load(folder)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """A disk that is full, or a folder that cannot be written, is an error that says what to do next."""
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


def _check_place(folder: Path, overwrite: bool) -> None:
    """A run is only ever written over another run, and only when asked."""
    if folder.exists() and not folder.is_dir():
        raise MaplError(f"{str(folder)!r} is a file; choose another --name or --out")
    inside = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if inside and not overwrite:
        raise MaplError(f"{str(folder)!r} exists already; resume it, choose another --name, or give --overwrite")
    # A run that was killed before it had a recipe has nothing but its clients, or a file half-written aside.
    if RECIPE not in inside and any(CLIENTS not in name and RECIPE not in name for name in inside):
        raise MaplError(f"{str(folder)!r} is not the folder of a run, so it is not overwritten; choose another --name")


def play_round(world: World, t: int) -> tuple[Round, dict[str, float]]:
    """One round: learn, write letters, read them, adjust. Returns its line and the seconds of each part."""
    clock = _Clock()
    losses = [world.engine.train(client, t) for client in world.clients]
    clock.lap("train")
    accuracy = _test(world, t, "trained")
    clock.lap("evaluate")
    before = world.ledger.messages, world.ledger.bytes
    for client, inbox in _exchange(world, t):
        world.method.absorb(client, t, inbox)
    clock.lap("exchange")
    accuracy = accuracy or _test(world, t, "mixed")
    clock.lap("evaluate")
    line = Round(
        round=t,
        losses={term: [loss[term] for loss in losses] for term in losses[0]},
        accuracy=accuracy,
        messages=world.ledger.messages - before[0],
        bytes=world.ledger.bytes - before[1],
        rows=_changed_rows(world),
    )
    world.rounds.append(line)
    return line, clock.seconds


def _exchange(world: World, t: int) -> list[tuple[Client, Inbox]]:
    """Letters of this round, written before anybody adjusts, to those who asked for them."""
    requests = {c.id: world.method.wants(c, t, world.topology.neighbours(t, c.id)) for c in world.clients}
    wanted = torch.unique(torch.cat(list(requests.values()))).tolist()
    letters = {i: world.method.letter(world.clients[i], t) for i in wanted}
    inboxes = Post(world.ledger, world.recipe.network.letter_limit).deliver(letters, requests)
    return [(client, inboxes[client.id]) for client in world.clients]


def _test(world: World, t: int, moment: str) -> list[float] | None:
    """Accuracies, if this round is tested and this is the moment for it."""
    if world.recipe.evaluate.moment != moment or not _is_tested(world.recipe, t):
        return None
    return [world.engine.evaluate(client) for client in world.clients]


def _is_tested(recipe: Recipe, t: int) -> bool:
    return (t + 1) % recipe.evaluate.every == 0 or t + 1 == recipe.rounds


def _changed_rows(world: World) -> dict[int, dict[str, list[Any]]]:
    changed = {}
    for client in world.clients:
        row = world.method.weights(client)
        if row is not None and (client.id not in world.rows or not torch.equal(row, world.rows[client.id])):
            if not row.isfinite().all():
                raise MaplError(
                    f"the weights of client {client.id} are no longer finite in round {len(world.rounds)}; "
                    "a lower train.learning_rate usually helps"
                )
            world.rows[client.id] = row.clone()
            changed[client.id] = sparse_row(row)
    return changed


def _state(world: World) -> dict[str, Tensor]:
    """Everything that a run needs to go on, as named tensors."""
    tensors: dict[str, Tensor] = {}
    for client in world.clients:
        tensors |= {f"client.{client.id}.model.{k}": v for k, v in client.model.state_dict().items()}
        tensors |= {f"client.{client.id}.state.{k}": v for k, v in client.state.items()}
    tensors |= {f"optimizer.{k}": v for k, v in world.engine.state().items()}
    tensors |= {f"ledger.{k}": v for k, v in world.ledger.state().items()}
    tensors["history"] = _bytes_tensor(encode_all(world.rounds))
    tensors["recipe"] = _bytes_tensor(world.recipe.fingerprint().encode())
    return tensors


def _bytes_tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def _restore(world: World, saved: checkpoint.Checkpoint) -> None:
    if saved.tensors["recipe"].numpy().tobytes().decode() != world.recipe.fingerprint():
        raise MaplError(
            f"the run's {RECIPE} is not the one that its checkpoint was written with: change it back, or start a new "
            "run (its name, its rounds and its checkpoints may change)"
        )
    for client in world.clients:
        client.model.load_state_dict(saved.section(f"client.{client.id}.model"))
        for name, value in saved.section(f"client.{client.id}.state").items():
            if name in client.state:
                client.state[name].copy_(value)
            else:  # a method may put something there later than in `prepare`
                client.state[name] = value
    world.engine.load_state(world.clients, saved.section("optimizer"))
    world.ledger = Ledger.from_state(saved.section("ledger"))
    world.rounds = decode_all(saved.tensors["history"].numpy().tobytes())
    for client in world.clients:
        if (row := world.method.weights(client)) is not None and world.rounds:
            world.rows[client.id] = row.clone()


def _cut_times(path: Path, rounds: int) -> None:
    """Keep the times of the rounds that are kept; a last line that was cut off (a crash) is left out."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    write_aside(path, b"".join(line + b"\n" for line in lines if json.loads(line)["round"] < rounds))


class _Clock:
    """Seconds of each part of a round."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        now = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now
