"""From a recipe to its shards: how many there are, what each needs and holds, and their processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mapl.cluster.balance import divide
from mapl.cluster.connection import Connection
from mapl.cluster.costs import Measured, Work, probes, seconds, work_of
from mapl.cluster.packed import pack_data
from mapl.cluster.shard import Lost, Order
from mapl.data.dataset import Dataset
from mapl.data.objects import Data
from mapl.errors import MaplError
from mapl.model import Backbone
from mapl.plugins import permit
from mapl.recipe import Recipe, UnreadSettings, code_of, validated
from mapl.runs.client_data import checked_data, load_data
from mapl.runs.player import CannotGoOn, Player
from mapl.runs.refusals import Architecture, check_alike


def on_ray(recipe: Recipe, data: Data | None, backbones: Mapping[str, Backbone] | None) -> Player:
    """A player with all clients of the recipe, in shards on a Ray cluster (`engine.ray`)."""
    from mapl.cluster.shards import Shards

    ready = prepare(recipe, data, backbones)
    try:
        measured = ready.measured() if ready.is_mixed else None
        held = ready.divided(measured)
        recipe = recipe.model_copy(update={"engine": recipe.engine.at_home})
        return Shards(ready.crew, recipe, Order(0, held, ready.recipe, ready.backbones), ready.shares(held))
    except BaseException:
        ready.crew.close()
        raise


@dataclass(frozen=True)
class Ready:
    """A recipe, its data, and room for its shards on a cluster. No process is started yet."""

    recipe: Recipe
    """As shards carry it out: in one process each, with as many workers as it has cores."""
    data: Data
    backbones: Mapping[str, Backbone]
    crew: Any
    machines: list[str]
    """Of each shard."""
    work: list[Work]

    @property
    def is_mixed(self) -> bool:
        """Whether some clients cost more than others, so that it has to be measured how much."""
        return self.crew.shards > 1 and len({one.backbone for one in self.work}) > 1

    def measured(self) -> Measured:
        """What a client with each backbone costs, measured in the process of the first shard."""
        clients = probes(self.work)
        self.crew.start([0])
        put = self.crew.ray.put
        given = put(pack_data(self.data)) if isinstance(self.data, Dataset) else self._of(clients)
        try:
            (found,) = self.crew.ask_all("measure", lambda _: [self.recipe, given, self.backbones, clients])
        except Lost as lost:
            why = f": {lost}" if str(lost) else ""
            raise CannotGoOn(f"the process that measured what clients cost was lost{why}") from lost
        kinds = [(client, one.backbone) for client, one in enumerate(self.work)]
        every = [Architecture(client, name, found.architectures[name]) for client, name in kinds]
        check_alike(self.recipe.method.name, every)
        return found  # type: ignore[no-any-return]

    def divided(self, measured: Measured | None) -> tuple[tuple[int, ...], ...]:
        """The clients of each shard."""
        costs = [float(one.images + one.tests) for one in self.work]
        return divide(seconds(self.work, measured.rates) if measured else costs, self.crew.shards)

    def shares(self, held: Sequence[Sequence[int]]) -> list[Any]:
        """The data of each shard, in Ray's object store: one data set is there once for each machine."""
        put = self.crew.ray.put
        if isinstance(self.data, Dataset):
            return [put(pack_data(self.data))] * len(held)
        return [put(self._of(clients)) for clients in held]

    def _of(self, clients: Sequence[int]) -> Any:
        assert isinstance(self.data, Mapping)
        return {client: pack_data(self.data[client]) for client in clients}


def prepare(recipe: Recipe, data: Data | None, backbones: Mapping[str, Backbone] | None) -> Ready:
    """Check the recipe, read the data, connect to the cluster, and reserve room there."""
    for path in code_of(recipe):
        permit(path)  # shards do not ask who named it
    if isinstance(recipe.method, UnreadSettings):  # of a folder that was only looked at
        recipe = validated(recipe.model_dump(mode="json"), "to be run")
    if recipe.network.message_budget is not None:
        raise MaplError(
            "network.message_budget counts the letters of all clients, which no shard knows before it tests: leave it "
            "out, or run in one process"
        )
    connection = Connection(recipe.engine.ray)
    try:
        # Here, because a shard sees only the data of its own clients.
        given = checked_data(load_data(recipe) if data is None else data, recipe, range(recipe.clients))
        work = work_of(recipe, given)
        from mapl.cluster.crew import Crew  # it imports Ray

        needs = needs_of(recipe, connection.ray.cluster_resources())
        shards = shards_of(recipe, needs, connection.ray.nodes())
        crew = Crew(connection, shards, needs, recipe.engine.ray.wait)
    except BaseException:
        connection.close()
        raise
    try:
        machines = crew.reserve()
    except BaseException:
        crew.close()
        raise
    engine = recipe.engine.at_home.model_copy(update={"workers": recipe.engine.workers or 1})
    return Ready(recipe.model_copy(update={"engine": engine}), given, backbones or {}, crew, machines, work)


def needs_of(recipe: Recipe, cluster: Mapping[str, float]) -> dict[str, float]:
    """What one shard asks Ray for."""
    gpus = recipe.engine.ray.gpus_per_shard
    if gpus is None:
        gpus = 1.0 if cluster.get("GPU") and recipe.engine.device != "cpu" else 0.0
    if gpus > 1 and not gpus.is_integer():
        raise MaplError(f"engine.ray.gpus_per_shard: got {gpus:g}, but more than one are whole GPUs")
    cores = float(recipe.train.threads * (recipe.engine.workers or 1))
    return {"CPU": cores, "GPU": gpus} if gpus else {"CPU": cores}


def shards_of(recipe: Recipe, needs: Mapping[str, float], nodes: Sequence[Mapping[str, Any]]) -> int:
    """How many shards there are: as many as asked for, or as the whole cluster has room for."""
    asked, clients = recipe.engine.ray.shards, recipe.clients
    if asked is not None:
        if asked > clients:
            raise MaplError(
                f"engine.ray.shards: got {asked}, but there are {clients} clients, and each has at least one"
            )
        return asked
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    room = sum(int(min(has.get(kind, 0.0) / needs[kind] for kind in needs)) for has in alive)
    return max(1, min(clients, room))
