"""A part of the network in memory: some or all of its clients, and how they are saved and restored."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

import mapl.data.sources
import mapl.methods
from mapl.client import Client, Server
from mapl.contents import digest_of_file
from mapl.data.dataset import Dataset, DataSettings
from mapl.data.kinds import augmentation
from mapl.data.loading import GIVEN_IN_PYTHON, load
from mapl.data.objects import Data
from mapl.data.partition import Shard, draw_held_out, other_tests, partition
from mapl.data.samples import Kind, Samples
from mapl.engine._base import Engine
from mapl.engine.choose import find_device, find_engine
from mapl.errors import MaplError, warn
from mapl.keys import ALWAYS, key, seeded
from mapl.methods._base import Centralised, Method
from mapl.model import Backbone, architecture, assign, build, find_backbone
from mapl.network import (
    Compressor,
    EncodedPost,
    Ledger,
    Letter,
    MemoryPost,
    Noise,
    Topology,
    Transport,
    check_accountant,
    find_compressor,
    find_noise,
    float_names,
    taking_part,
)
from mapl.network.noise import covered
from mapl.network.transport import LastRead, Leg
from mapl.plugins import find
from mapl.recipe import Recipe, UnreadSettings, validated
from mapl.runs.contract import checked_letter
from mapl.runs.exchange import check_size, look_around, opens
from mapl.runs.record import ClientCard, combined
from mapl.shape import Shape, is_image, usual_backbone


@dataclass
class Part:
    """The clients that this process holds, and what trains and connects them.

    A simulation holds all clients, a shard of a cluster some, a peer one. A round is the same code for each.
    """

    recipe: Recipe
    clients: list[Client]
    method: Method[Any]
    engine: Engine
    topology: Topology
    transport: Transport
    data: Mapping[int, str] = field(default_factory=dict)
    """By client held here: a digest of the data that its images come from (see `digests`)."""
    server: Server | None = None
    """The server of a centralised method, if it lives here."""
    noise: Noise | None = None
    """What makes the letters of the clients noisy, if anything does."""
    compressor: Compressor | None = None
    """What compresses the letters on their way, if anything does."""
    ledger: Ledger = field(default_factory=Ledger)
    reachable: torch.Tensor | None = None
    """The sorted ids of the peers that the clients held here can reach. None: all, as far as the topology lets them.
    A process that knows only some members sets it before a round."""
    round: int = 0
    """How many rounds have been played."""
    read: dict[Leg, LastRead] = field(default_factory=dict)
    """What its nodes have read, if the transport carries letters of other rounds. It is in no checkpoint: after a
    resume, only `Rounds.late` keeps out old letters that were read before."""
    suspicion: str = ""
    """What the last letters did to a client, if they may be why its next loss is not finite."""

    @property
    def whole(self) -> bool:
        """Whether it holds every client of the network."""
        return len(self.clients) == self.recipe.clients

    @property
    def home(self) -> torch.device:
        """Where its clients' models are between rounds, and so their letters: the host, if the GPU has no room."""
        return next(self.clients[0].model.parameters()).device

    def taking_part(self, round: int) -> torch.Tensor | None:
        """The sorted ids of all clients of the network that take part in a round; None: everybody."""
        network, recipe = self.recipe.network, self.recipe
        if opens(self.method, round):
            return None  # what the server finds out then is used in all rounds
        return taking_part(network.participation, network.joiners, recipe.seed, recipe.clients, round)


def given_in_python(recipe: Recipe, data: Data | None, backbones: Mapping[str, Backbone] | None) -> Recipe:
    """The recipe of what really runs when data or backbones are given as objects."""
    if not isinstance(recipe, Recipe):
        raise MaplError(f"recipe: got a {type(recipe).__name__}; make a recipe of your settings with mapl.Recipe.of(…)")
    if backbones is not None and not isinstance(backbones, Mapping):
        raise MaplError(
            f"backbones: got a {type(backbones).__name__}; give a dict from each one's name to what makes it"
        )
    if data is not None:
        recipe = recipe.model_copy(update={"data": DataSettings(name=GIVEN_IN_PYTHON)})
        recipe = with_backbones_for(recipe, data)
    if backbones:
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"backbones": tuple(backbones)})})
    return with_digests(recipe)


def with_backbones_for(recipe: Recipe, data: Data) -> Recipe:
    """The recipe with backbones that take the data, if it names none."""
    one = data if isinstance(data, Dataset) else next(iter(data.values()), None) if isinstance(data, Mapping) else None
    if not isinstance(one, Dataset) or is_image(one.shape) or "backbones" in recipe.model.model_fields_set:
        return recipe
    update = {"backbones": (usual_backbone(one.shape),)}
    return recipe.model_copy(update={"model": recipe.model.model_copy(update=update)})


def with_digests(recipe: Recipe) -> Recipe:
    """The recipe with digests of the files that say who has which images and who reaches whom.

    Other contents under the same name make another run.
    """
    partition, network = recipe.partition, recipe.network
    if partition.scheme == "file" and partition.file and partition.digest is None:
        partition = partition.model_copy(update={"digest": digest_of_file(partition.file.expanduser())})
    topology = network.topology
    if topology.name == "file" and topology.path and topology.digest is None:
        topology = topology.model_copy(update={"digest": digest_of_file(topology.path)})
        network = network.model_copy(update={"topology": topology})
    return recipe.model_copy(update={"partition": partition, "network": network})


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


def build_part(
    recipe: Recipe,
    data: Data | None = None,
    backbones: Mapping[str, Backbone] | None = None,
    *,
    holds: Collection[int] | None = None,
    serves: bool = True,
    transport: Transport | None = None,
    secret: bytes | None = None,
    run: str | None = None,
    compares: bool = True,
) -> Part:
    """Build what a recipe describes, as it is before the first round: the whole network, or the clients in `holds`.

    `data` is one data set that the recipe divides among the clients, or one per client held here: a part needs only the
    data of its own clients. `serves`: whether the server of a centralised method lives here. `transport` replaces the
    recipe's, which reaches only this process. `secret` is the key of the noise on letters
    (`network.noise`); without it, everybody who knows the recipe can subtract the noise (see `find_noise`).
    `run` is what letters carry as their run; by default the recipe's fingerprint. Parts whose recipes differ in what
    is their own affair, such as their backbone, need one that all of them agree on. `compares`: whether clients of
    different architectures are refused here, if the method needs a single one. Who hears of more clients than this part
    holds does it there, with `check_alike`.
    """
    if isinstance(recipe.method, UnreadSettings):  # of a folder that was only looked at
        recipe = validated(recipe.model_dump(mode="json"), "to be run")
    held = sorted(range(recipe.clients) if holds is None else set(holds))
    if not held or held[0] < 0 or held[-1] >= recipe.clients:
        raise MaplError(f"holds: got {held}; a part holds at least one of clients 0 to {recipe.clients - 1}")
    check_accountant(recipe.network.noise)
    method: Method[Any] = find("method", recipe.method.name, mapl.methods)(recipe.method)
    method.mixing = recipe.network.mixing
    _check_mixing(method)
    _check_joiners(recipe, method)
    _check_explores(recipe, method)
    data = checked_data(load_data(recipe) if data is None else data, recipe, held)
    shards = _shards(recipe, data, held, method.holds_out())
    first = next(iter(shards.values()))
    device = find_device(recipe.engine)
    augment = recipe.augment
    images = augment.contrastive if method.augmentation == "contrastive" else augment.plain
    augmenting = augmentation(first, images, augment.features, augment.tokens, augment.function, device)
    engine = find_engine(recipe.engine, device)
    clients = _clients(recipe, shards, backbones or {}, method, run or recipe.fingerprint())
    part = Part(
        recipe=recipe,
        clients=clients,
        method=method,
        engine=engine(method, recipe.train, augmenting, recipe.seed, recipe.engine, device),
        topology=Topology(recipe.network.topology, recipe.clients, recipe.seed),
        transport=transport or MemoryPost(),
        noise=find_noise(recipe.network.noise, recipe.seed, secret),
        compressor=find_compressor(recipe.network.compress, isinstance(method, Centralised) and method.personal),
        data=digests(data, held),
    )
    if isinstance(method, Centralised) and serves:
        part.server = _server(recipe, first.shape, clients[0])
    if compares:
        check_alike(recipe.method.name, architectures(part))
    if recipe.network.message_budget is not None and not part.whole:
        raise MaplError("network.message_budget counts the letters of all clients, but this process holds only some")
    part.engine.adopt(part.clients)
    if transport is None and recipe.network.transport == "bytes":
        part.transport = EncodedPost(part.home)
    for client in part.clients:
        method.prepare(client)
    part.topology.drawn(0)  # an impossible one fails now, not in the first round
    _check_letters(part)
    return part


def _server(recipe: Recipe, shape: Shape, client: Client) -> Server:
    return Server(
        id=recipe.clients,
        run=recipe.fingerprint(),
        seed=recipe.seed,
        shape=shape,
        shapes=client.shapes,
        data_folder=recipe.data.folder,
    )


@dataclass(frozen=True)
class _Shard:
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


def _shards(recipe: Recipe, data: Data, held: Sequence[int], held_out: float) -> dict[int, _Shard]:
    """The images of each client held here; `held_out`: the share that it keeps out of training."""
    if isinstance(data, Mapping):
        return {client: _own_shard(data[client], held_out, client, recipe.seed) for client in held}
    parts = partition(data, recipe.partition, recipe.clients, recipe.seed, held_out)
    trains: dict[int, Samples] = {}
    for shard in (parts[client] for client in held):
        if id(shard.train) not in trains:  # clients of a pooled cluster share one copy
            trains[id(shard.train)] = data.train.take(shard.train)
    return {client: _shard(recipe, data, parts[client], trains[id(parts[client].train)]) for client in held}


def _shard(recipe: Recipe, dataset: Dataset, shard: Shard, train: Samples) -> _Shard:
    tests = [shard.test, other_tests(dataset, shard)] if recipe.evaluate.all_images else [shard.test]
    test = dataset.test.take(torch.cat(tests))
    test = test.joined(dataset.train.take(shard.held))
    kind = dataset.classes, dataset.mean, dataset.std
    return _Shard(train, test, len(shard.test), len(shard.held), shard.cluster, *kind)


def _own_shard(dataset: Dataset, held_out: float, client: int, seed: int) -> _Shard:
    """A client's own data set, all of it. Its true cluster is unknown."""
    train, test, held = dataset.train, dataset.test, 0
    if held_out:
        out = draw_held_out(train.labels, held_out, client, seed)
        train, test, held = train.take(~out), test.joined(train.take(out)), int(out.sum())
    kind = dataset.classes, dataset.mean, dataset.std
    return _Shard(train, test, len(dataset.test), held, 0, *kind)


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


def _clients(
    recipe: Recipe, shards: Mapping[int, _Shard], given: Mapping[str, Backbone], method: Method[Any], run: str
) -> list[Client]:
    names = recipe.model.backbones
    assigned = assign(recipe.model, len(names), recipe.clients, recipe.seed)
    backbones: dict[str, Backbone] = {}
    clients: list[Client] = []
    for i, shard in shards.items():
        name = names[assigned[i]]
        check = name not in backbones
        backbone = backbones.setdefault(name, given.get(name) or _find_backbone(name)) if check else backbones[name]
        model = build(name, backbone, recipe.model, shard.shape, shard.classes, recipe.seed, i, method.uses(), check)
        client = Client(
            id=i,
            run=run,
            seed=recipe.seed,
            model=model,
            backbone=name,
            architecture=architecture(model.backbone),
            train=shard.train,
            test=shard.test,
            tests=shard.tests,
            held=shard.held,
            cluster=shard.cluster,
        )
        _add_own_networks(client, method)
        clients.append(client)
    return clients


def _add_own_networks(client: Client, method: Method[Any]) -> None:
    with seeded(key(client.seed, client.id, ALWAYS, "own networks")):
        modules = method.modules(client)
    rates = method.learning_rates()
    for name in (name for name in method.answers_with if name != "backbone"):
        if name not in modules:
            raise MaplError(f"method {method.name!r} answers with {name!r}, which is none of its own networks")
    if unknown_names := rates.keys() - modules.keys():
        raise MaplError(
            f"method {method.name!r} gives a learning rate to {min(unknown_names)!r}, but its own networks are: "
            f"{', '.join(modules) or 'none'}"
        )
    client.model.add_own(modules, [name for name, rate in rates.items() if rate == 0])


def _find_backbone(name: str) -> Backbone:
    try:
        return find_backbone(name)
    except MaplError as error:
        if ":" in name:
            raise
        raise MaplError(f"{error} If it was given in Python, pass it again, as backbones={{…}}.") from error


class Architecture(NamedTuple):
    """What a client's backbone is."""

    client: int
    backbone: str
    fingerprint: str


def architectures(part: Part) -> list[Architecture]:
    """The architecture of each client of a part."""
    return [Architecture(c.id, c.backbone, c.architecture) for c in part.clients]


def check_alike(method: str, clients: Sequence[Architecture]) -> None:
    """A method that averages whole models needs a single architecture."""
    first = clients[0]
    others = [c for c in clients if c.fingerprint != first.fingerprint]
    if find("method", method, mapl.methods).homogeneous and others:
        who = ", ".join(f"{c.client} ({c.backbone})" for c in others[:4]) + (", …" if len(others) > 4 else "")
        raise MaplError(
            f"method {method!r} needs one architecture, but client {first.client} has {first.backbone!r} "
            f"and these differ from it: {who}; set model.backbones to one name"
        )


def _check_mixing(method: Method[Any]) -> None:
    """A robust rule needs a method that averages several letters."""
    if method.mixing.kind != "mean" and not method.averages:
        raise MaplError(
            f"network.mixing: got {method.mixing.kind!r}, but method {method.name!r} does not average several letters "
            "at a time, so there is nothing to make robust; leave it at 'mean'"
        )


def _check_joiners(recipe: Recipe, method: Method[Any]) -> None:
    """A server that sorts the clients once, in the first round, never learns of one that joins later."""
    if recipe.network.joiners.clients and isinstance(method, Centralised) and method.opens:
        raise MaplError(
            f"network.joiners: method {recipe.method.name!r} sorts all clients in its first round, so those that join "
            "later would stay alone; take another method"
        )


def _check_explores(recipe: Recipe, method: Method[Any]) -> None:
    """To look around, clients must find out whom to listen to. With a server, or without letters, they never look."""
    if recipe.network.topology.name != "explore" or isinstance(method, Centralised) or method.silent:
        return
    if not method.learns_graph():
        raise MaplError(
            f"network.topology: got 'explore', but method {method.name!r} learns no graph here, so its clients would "
            "not know whom to keep; take courier, mapl or mapl+, or another topology"
        )


def _check_letters(part: Part) -> None:
    """Refuse letters that are too large, or cannot be compressed or clipped, before the first round, not in it."""
    network, compressor = part.recipe.network, part.compressor
    checked = network.letter_limit is not None or compressor is not None or part.noise is not None
    if not checked or network.topology.name == "none":
        return
    look_around(part.method, part.clients, part.server, part.topology, 0)
    for client in part.clients:
        letter = last_letter(part, client) if len(client.neighbours) else None
        if letter is None:
            continue
        if part.noise is not None and client is part.clients[0]:
            _check_noise(part, letter)
        if compressor is not None:
            if not float_names(letter):
                raise MaplError(
                    f"network.compress: got {network.compress.kind!r}, but the letters of method {part.method.name!r} "
                    "have no float32 tensor to compress; set it to 'none'"
                )
            letter = compressor.largest(letter)
        check_size(letter, network.letter_limit)


def _check_noise(part: Part, letter: Letter) -> None:
    """Refuse noise that changes nothing, and name the tensors that it does not cover."""
    bare = [name for name in letter.tensors if name not in covered(letter)]
    if len(bare) == len(letter.tensors):
        raise MaplError(
            f"network.noise: the letters of method {part.method.name!r} have no float32 tensor to add noise to; "
            "set network.noise.clip to 'none'"
        )
    if bare:
        warn(
            f"network.noise: {', '.join(map(repr, bare))} in the letters of method {part.method.name!r} travels "
            "without noise, and ε does not cover it",
            once=True,
        )


def last_letter(part: Part, client: Client) -> Letter | None:
    """A letter like the client's last one. Some methods' last letters are their largest. None if it never writes."""
    made = (part.method.letter(client, round) for round in reversed(range(part.recipe.rounds)))
    letters = (checked_letter(part.method, client, "letter", letter) for letter in made)
    return next((letter for letter in letters if letter is not None), None)


@contextmanager
def lasting() -> Iterator[None]:
    """Inside, Python's garbage collector skips all objects that already exist.

    The models of 400 clients are a million objects. Scanning them would now and then delay a round by a third of a
    second.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def cards(part: Part) -> list[ClientCard]:
    """A description of each client, for reports."""
    return [
        ClientCard(
            id=c.id,
            cluster=c.cluster,
            classes=sorted(set(c.train.labels.tolist())),
            samples=c.samples,
            tests=c.tests,
            backbone=c.backbone,
            parameters=sum(p.numel() for p in c.model.parameters()),
            data=part.data[c.id],
        )
        for c in part.clients
    ]
