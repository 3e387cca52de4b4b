"""The data of each client: what it trains on and is tested with, and a digest that says which they are."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

import mapl.data.sources
from mapl.data.dataset import Dataset
from mapl.data.loading import GIVEN_IN_PYTHON, load
from mapl.data.objects import Data
from mapl.data.partition import Share, draw_held_out, other_tests, partition
from mapl.data.samples import Kind, Samples
from mapl.errors import MaplError
from mapl.plugins import find
from mapl.recipe import Recipe
from mapl.runs.record import combined
from mapl.shape import Shape


@dataclass(frozen=True)
class ClientData:
    """One client's samples, and what they have in common with the other clients'."""

    train: Samples
    test: Samples
    tests: int
    held: int
    cluster: int
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def kind(self) -> Kind:
        return self.train.kind

    @property
    def shape(self) -> Shape:
        return self.train.shape


def load_data(recipe: Recipe) -> Dataset:
    """The data set that a recipe names."""
    return load(recipe.data)


def digests(data: Data, held: Collection[int]) -> dict[int, str]:
    """By client: the digest of the data that its images come from.

    With one data set for all it is the digest of the whole: the recipe and its seed say who gets which images. So it
    is equal for all seeds, for pooled images and for held-out ones, and in every process, whichever clients it holds.
    With a data set per client it is that of the client's own, which is all that a process knows of the others' data.
    """
    if isinstance(data, Dataset):
        return dict.fromkeys(sorted(held), data.digest())
    # Marked, because a client that has all of a data set is another run than one that has a share of it.
    return {client: hashlib.sha256(f"own {data[client].digest()}".encode()).hexdigest()[:16] for client in sorted(held)}


def checked_data(data: Data, recipe: Recipe, held: Sequence[int]) -> Data:
    """The data, if it is what these clients need."""
    if isinstance(data, Mapping):
        if recipe.partition.pooled:
            raise MaplError("partition.pooled: it needs one data set for all clients, and here each has its own")
        _check_given(data, held, recipe.clients)
        _check_same_kind({client: data[client] for client in held})
    elif not isinstance(data, Dataset):
        raise MaplError(f"data: got a {type(data).__name__}; give a mapl.Dataset, or one for each client by its number")
    return data


def default_name(recipe: Recipe, data: Data | None = None) -> str:
    """The recipe's title. If it cannot say what the data are, because they are the user's own, a digest says it."""
    if recipe.name or not own_data(recipe):
        return recipe.title()
    return f"{recipe.title()}-{combined(all_digests(recipe, data))[:6]}"


def own_data(recipe: Recipe) -> bool:
    """Whether the data are the user's own, so that their name does not say what they are."""
    name = recipe.data.name
    return name == GIVEN_IN_PYTHON or ":" in name or getattr(find("data set", name, mapl.data.sources), "own", False)


def all_digests(recipe: Recipe, data: Data | None) -> dict[int, str]:
    """`digests` of all clients of a recipe, before it is built."""
    every = range(recipe.clients)
    return digests(checked_data(load_data(recipe) if data is None else data, recipe, every), every)


def divided(recipe: Recipe, data: Data, held: Sequence[int], held_out: float) -> dict[int, ClientData]:
    """The images of each client held here; `held_out`: the share that it keeps out of training."""
    if isinstance(data, Mapping):
        return {client: _own(data[client], held_out, client, recipe.seed) for client in held}
    parts = partition(data, recipe.partition, recipe.clients, recipe.seed, held_out)
    trains: dict[int, Samples] = {}
    for share in (parts[client] for client in held):
        if id(share.train) not in trains:  # clients of a pooled cluster share one copy
            trains[id(share.train)] = data.train.take(share.train)
    return {client: _share_of(recipe, data, parts[client], trains[id(parts[client].train)]) for client in held}


def _share_of(recipe: Recipe, dataset: Dataset, share: Share, train: Samples) -> ClientData:
    tests = [share.test, other_tests(dataset, share)] if recipe.evaluate.all_images else [share.test]
    test = dataset.test.take(torch.cat(tests))
    test = test.joined(dataset.train.take(share.held))
    kind = dataset.classes, dataset.mean, dataset.std
    return ClientData(train, test, len(share.test), len(share.held), share.cluster, *kind)


def _own(dataset: Dataset, held_out: float, client: int, seed: int) -> ClientData:
    """A client's own data set, all of it. Its true cluster is unknown."""
    train, test, held = dataset.train, dataset.test, 0
    if held_out:
        out = draw_held_out(train.labels, held_out, client, seed)
        train, test, held = train.take(~out), test.joined(train.take(out)), int(out.sum())
    kind = dataset.classes, dataset.mean, dataset.std
    return ClientData(train, test, len(dataset.test), held, 0, *kind)


def _check_given(data: Mapping[int, Dataset], held: Sequence[int], clients: int) -> None:
    """Every client held here needs a data set with training and test images, and there are no others."""
    if names := [key for key in data if not hasattr(key, "__index__")]:
        raise MaplError(
            f"data: got a {type(data).__name__} with the key {names[0]!r}; give a mapl.Dataset, or one for each client "
            "by its number"
        )
    for client in held:
        if client not in data:
            raise MaplError(f"data: there is no data set for client {client}, which this process holds")
    for client, dataset in data.items():
        if client not in range(clients):
            raise MaplError(f"data: got one for client {client!r}, but the recipe has clients 0 to {clients - 1}")
        if not isinstance(dataset, Dataset):
            raise MaplError(f"data: client {client} got a {type(dataset).__name__}, not a mapl.Dataset")
        for split, samples in (("training", dataset.train), ("test", dataset.test)):
            if not len(samples):
                raise MaplError(f"data: client {client} has no {split} {dataset.noun}")


def _check_same_kind(data: Mapping[int, Dataset]) -> None:
    """All clients need samples of the same kind, shape, classes and normalisation."""
    kinds = {(d.kind, d.classes, d.shape.facts, tuple(d.mean), tuple(d.std)): client for client, d in data.items()}
    if len(kinds) > 1:
        a, b = list(kinds.values())[:2]
        what = data[a].noun
        raise MaplError(f"data: clients {a} and {b} differ in their classes, the shape of their {what}, mean or std")
