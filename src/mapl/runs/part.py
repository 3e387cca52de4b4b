"""A run in memory: everything that a recipe describes, and how it is saved and brought back."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

import mapl.data.sources
import mapl.methods
from mapl.client import Client, Server
from mapl.data.augment import Augmentation
from mapl.data.dataset import Dataset, DataSettings
from mapl.data.partition import other_tests, partition
from mapl.engine._base import Engine
from mapl.engine.choose import find_device, find_engine
from mapl.errors import MaplError
from mapl.keys import ALWAYS, key, seeded
from mapl.methods._base import Centralised, Method
from mapl.model import Backbone, architecture, assign, build, find_backbone
from mapl.network import Ledger, Topology, nbytes
from mapl.plugins import find
from mapl.recipe import GIVEN_IN_PYTHON, Recipe
from mapl.runs.checkpoint import Checkpoint
from mapl.runs.exchange import reachable
from mapl.runs.history import RECIPE, ClientCard, Round, decode_all, encode_all


@dataclass
class Part:
    """A run in memory: the clients and what carries their letters."""

    recipe: Recipe
    clients: list[Client]
    method: Method[Any]
    engine: Engine
    topology: Topology
    server: Server | None = None
    """The middle of a centralised method."""
    ledger: Ledger = field(default_factory=Ledger)
    rounds: list[Round] = field(default_factory=list)
    rows: dict[int, Tensor] = field(default_factory=dict)
    """The row of W that the history last wrote down for each client."""


def given_in_python(recipe: Recipe, data: Dataset | None, backbones: Mapping[str, Backbone] | None) -> Recipe:
    """The recipe that says truly what is run when data or backbones are given as objects."""
    if data is not None:
        recipe = recipe.model_copy(update={"data": DataSettings(name=GIVEN_IN_PYTHON)})
    if backbones:
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"backbones": tuple(backbones)})})
    return recipe


_kept: ContextVar[dict[DataSettings, Dataset] | None] = ContextVar("_kept", default=None)


@contextmanager
def keeping_data() -> Iterator[None]:
    """Inside, the data set that was loaded last is kept for the next run that names the same one."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def load_data(recipe: Recipe) -> Dataset:
    """The data set that a recipe names."""
    kept = _kept.get()
    if kept is None:
        return _load(recipe)
    if recipe.data not in kept:
        kept.clear()  # before it is loaded: two at a time may be more than the memory holds
        kept[recipe.data] = _load(recipe)
    return kept[recipe.data]


def _load(recipe: Recipe) -> Dataset:
    if recipe.data.name == GIVEN_IN_PYTHON:
        raise MaplError("the data of this run was given in Python: pass it again, as mapl.resume(folder, data=…)")
    source = find("data set", recipe.data.name, mapl.data.sources)
    if not callable(getattr(source, "load", None)):
        raise MaplError(f"data set {recipe.data.name!r} is no data source: it should be a class with a method load")
    dataset = source().load(recipe.data)
    if not isinstance(dataset, Dataset):
        raise MaplError(f"data set {recipe.data.name!r} gave a {type(dataset).__name__}, not a mapl.Dataset")
    return dataset


def build_part(recipe: Recipe, data: Dataset | None = None, backbones: Mapping[str, Backbone] | None = None) -> Part:
    """Everything a recipe describes, in memory, before its first round."""
    dataset = data or load_data(recipe)
    method: Method[Any] = find("method", recipe.method.name, mapl.methods)(recipe.method)
    augment = recipe.augment.contrastive if method.augmentation == "contrastive" else recipe.augment.plain
    device = find_device(recipe.engine)
    engine = find_engine(recipe.engine, device)
    augmentation = Augmentation(augment, dataset.image, dataset.mean, dataset.std, device=device)
    part = Part(
        recipe=recipe,
        clients=_clients(recipe, dataset, backbones or {}, method),
        method=method,
        engine=engine(method, recipe.train, augmentation, recipe.seed, recipe.engine, device),
        topology=Topology(recipe.network.topology, recipe.clients, recipe.seed),
    )
    if isinstance(method, Centralised):
        part.server = Server(
            id=recipe.clients,
            size=recipe.clients,
            run=recipe.fingerprint(),
            seed=recipe.seed,
            image=dataset.image,
            data_folder=recipe.data.folder,
        )
    _check_alike(part)
    part.engine.adopt(part.clients)
    for client in part.clients:
        method.prepare(client)
    part.topology.graph(0)  # an impossible one is better refused now than in the first round
    _check_letters(part)
    return part


def _clients(recipe: Recipe, dataset: Dataset, given: Mapping[str, Backbone], method: Method[Any]) -> list[Client]:
    names = recipe.model.backbones
    backbones = [given.get(name) or _found(name) for name in names]
    shards = partition(dataset, recipe.partition, recipe.clients, recipe.seed)
    run, image, classes = recipe.fingerprint(), dataset.image, dataset.classes
    clients: list[Client] = []
    checked: set[int] = set()
    for i, (shard, which) in enumerate(
        zip(shards, assign(recipe.model, len(names), recipe.clients, recipe.seed), strict=True)
    ):
        tests = [shard.test, other_tests(dataset, shard)] if recipe.evaluate.all_images else [shard.test]
        check = which not in checked
        model = build(
            names[which], backbones[which], recipe.model, image, classes, recipe.seed, i, method.uses(), check
        )
        checked.add(which)
        clients.append(
            Client(
                id=i,
                size=recipe.clients,
                run=run,
                seed=recipe.seed,
                model=model,
                backbone=names[which],
                architecture=architecture(model.backbone),
                train=dataset.train.take(shard.train),
                test=dataset.test.take(torch.cat(tests)),
                tests=len(shard.test),
                cluster=shard.cluster,
            )
        )
        _add_own_networks(clients[-1], method)
    return clients


def _add_own_networks(client: Client, method: Method[Any]) -> None:
    with seeded(key(client.seed, client.id, ALWAYS, "own networks")):
        modules = method.modules(client)
    frozen = [name for name, rate in method.learning_rates().items() if rate == 0]
    client.model.add_own(modules, frozen)


def _found(name: str) -> Backbone:
    try:
        return find_backbone(name)
    except MaplError as error:
        hint = "" if ":" in name else " One that was given in Python has to be given again, as backbones={…}."
        raise MaplError(f"{error}{hint}") from error


def _check_alike(part: Part) -> None:
    """A method that averages whole models needs them to have one architecture."""
    first = part.clients[0]
    others = [c for c in part.clients if c.architecture != first.architecture]
    if part.method.homogeneous and others:
        who = ", ".join(f"{c.id} ({c.backbone})" for c in others[:4]) + (", …" if len(others) > 4 else "")
        raise MaplError(
            f"method {part.recipe.method.name!r} needs one architecture, but client {first.id} has {first.backbone!r} "
            f"and these differ from it: {who}; give model.backbones one name"
        )


def _check_letters(part: Part) -> None:
    """A letter that is too large is better refused before the first round than in it."""
    limit = part.recipe.network.letter_limit
    if limit is None or part.recipe.network.topology.name == "none":
        return
    for client in part.clients:
        if not len(part.method.wants(client, 0, reachable(client, part.server, part.topology, 0))):
            continue
        size = nbytes(part.method.letter(client, part.recipe.rounds - 1))
        if size > limit:
            raise MaplError(
                f"network.letter_limit: got {limit:,} bytes, but a letter of {part.recipe.method.name!r} from client "
                f"{client.id} ({client.backbone}) has {size:,}; raise the limit, or take smaller backbones"
            )


@contextmanager
def lasting() -> Iterator[None]:
    """Inside, everything that is there already stays: Python's garbage collector does not look through it.

    The models of 400 clients are a million objects, which would hold a round up for a third of a second now and then.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def cards(part: Part) -> list[ClientCard]:
    """Who the clients are."""
    return [
        ClientCard(
            id=c.id,
            cluster=c.cluster,
            classes=sorted(set(c.train.labels.tolist())),
            samples=c.samples,
            tests=c.tests,
            backbone=c.backbone,
            parameters=sum(p.numel() for p in c.model.parameters()),
        )
        for c in part.clients
    ]


def saved_state(part: Part) -> dict[str, Tensor]:
    """Everything that a run needs to go on, as named tensors."""
    tensors: dict[str, Tensor] = {}
    for client in part.clients:
        tensors |= {f"client.{client.id}.model.{k}": v for k, v in client.model.state_dict().items()}
        tensors |= {f"client.{client.id}.state.{k}": v for k, v in client.state.items()}
    if part.server is not None:
        tensors |= {f"server.{k}": v for k, v in part.server.state.items()}
    tensors |= {f"optimizer.{k}": v for k, v in part.engine.state().items()}
    tensors |= {f"ledger.{k}": v for k, v in part.ledger.state().items()}
    tensors["history"] = _bytes_tensor(encode_all(part.rounds))
    tensors["recipe"] = _bytes_tensor(part.recipe.fingerprint().encode())
    return tensors


def _bytes_tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def restore(part: Part, saved: Checkpoint) -> None:
    if saved.tensors["recipe"].numpy().tobytes().decode() != part.recipe.fingerprint():
        raise MaplError(
            f"the run's {RECIPE} is not the one that its checkpoint was written with: change it back, or start a new "
            "run (its name, its rounds and its checkpoints may change)"
        )
    for client in part.clients:
        client.model.load_state_dict(saved.section(f"client.{client.id}.model"))
        for name, value in saved.section(f"client.{client.id}.state").items():
            if name in client.state:
                client.state[name].copy_(value)
            else:  # a method may put something there later than in `prepare`
                client.state[name] = value
    if part.server is not None:
        part.server.state |= saved.section("server")
    part.engine.load_state(part.clients, saved.section("optimizer"))
    part.ledger = Ledger.from_state(saved.section("ledger"))
    part.rounds = decode_all(saved.tensors["history"].numpy().tobytes())
    for client in part.clients:
        if (row := part.method.weights(client)) is not None and part.rounds:
            part.rows[client.id] = row.clone()
