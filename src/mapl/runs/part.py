"""A part of the network in memory: some or all of its clients, and how it is built from a recipe."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

import mapl.data.sources
import mapl.methods
from mapl.client import Client, Server
from mapl.contents import digest_of_file
from mapl.data.dataset import Dataset, DataSettings
from mapl.data.kinds import augmentation
from mapl.data.loading import GIVEN_IN_PYTHON
from mapl.data.objects import Data
from mapl.engine._base import Engine
from mapl.engine.choose import find_device, find_engine
from mapl.errors import MaplError
from mapl.keys import ALWAYS, key, seeded
from mapl.methods._base import Centralised, Method
from mapl.model import Backbone, architecture, assign, build, find_backbone
from mapl.network import (
    Compressor,
    EncodedPost,
    Ledger,
    MemoryPost,
    Noise,
    Topology,
    Transport,
    check_accountant,
    find_compressor,
    find_noise,
    taking_part,
)
from mapl.network.transport import LastRead, Leg
from mapl.plugins import find
from mapl.recipe import Recipe, UnreadSettings, validated
from mapl.runs.client_data import ClientData, checked_data, digests, divided, load_data
from mapl.runs.exchange import opens
from mapl.runs.record import ClientCard
from mapl.runs.refusals import architectures, check_alike, check_letters, check_method
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
    check_method(recipe, method)
    data = checked_data(load_data(recipe) if data is None else data, recipe, held)
    of_clients = divided(recipe, data, held, method.holds_out())
    first = next(iter(of_clients.values()))
    device = find_device(recipe.engine)
    augment = recipe.augment
    images = augment.contrastive if method.augmentation == "contrastive" else augment.plain
    augmenting = augmentation(first, images, augment.features, augment.tokens, augment.function, device)
    engine = find_engine(recipe.engine, device)
    clients = _clients(recipe, of_clients, backbones or {}, method, run or recipe.fingerprint())
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
    check_letters(part)
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


def _clients(
    recipe: Recipe, data: Mapping[int, ClientData], given: Mapping[str, Backbone], method: Method[Any], run: str
) -> list[Client]:
    names = recipe.model.backbones
    assigned = assign(recipe.model, len(names), recipe.clients, recipe.seed)
    backbones: dict[str, Backbone] = {}
    clients: list[Client] = []
    for i, own in data.items():
        name = names[assigned[i]]
        check = name not in backbones
        backbone = backbones.setdefault(name, given.get(name) or _find_backbone(name)) if check else backbones[name]
        model = build(name, backbone, recipe.model, own.shape, own.classes, recipe.seed, i, method.uses(), check)
        client = Client(
            id=i,
            run=run,
            seed=recipe.seed,
            model=model,
            backbone=name,
            architecture=architecture(model.backbone),
            train=own.train,
            test=own.test,
            tests=own.tests,
            held=own.held,
            cluster=own.cluster,
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
