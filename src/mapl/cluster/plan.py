"""Where the shards of a run would be, and what they would need: measured costs, and arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import mapl.methods
from mapl.cluster.costs import Measured, seconds
from mapl.cluster.start import Ready, prepare
from mapl.data.objects import Data
from mapl.methods._base import Centralised
from mapl.model import Backbone
from mapl.network import Topology
from mapl.plugins import find
from mapl.recipe import Recipe


@dataclass(frozen=True)
class PlannedShard:
    """One shard of a plan."""

    machine: str
    backbones: dict[str, int]
    """How many of its clients have each backbone."""
    seconds: float
    """Of training and tests in a round."""
    memory: int
    """Bytes of its process."""
    letters: int
    """Most bytes of letters that it gets from other shards in a round."""

    @property
    def clients(self) -> int:
        return sum(self.backbones.values())


@dataclass(frozen=True)
class Plan:
    """Where a run would be carried out, and what it would take."""

    shards: list[PlannedShard]
    needs: dict[str, float]
    """What each shard asks Ray for."""
    rounds: int
    driver: int
    """Bytes of models that the process keeps that starts the run."""

    @property
    def seconds(self) -> float:
        """Of a round: those of the slowest shard."""
        return max(shard.seconds for shard in self.shards)

    def lines(self) -> list[str]:
        """The plan for a person."""
        asks = " and ".join(f"{count:g} {kind}" for kind, count in self.needs.items())
        lines = [f"{len(self.shards)} {'shard' if len(self.shards) == 1 else 'shards'} of {asks}, in each round:"]
        for number, shard in enumerate(self.shards):
            kinds = ", ".join(f"{count} {name}" for name, count in shard.backbones.items())
            lines += [
                f"  shard {number} on {shard.machine}: {shard.clients:,} clients ({kinds})",
                f"    {shard.seconds:.2f} s of training and tests, {_mib(shard.memory)} of memory, "
                f"up to {_mib(shard.letters)} of letters from other shards",
            ]
        every = [shard.seconds for shard in self.shards]
        minutes = self.rounds * self.seconds / 60
        return [
            *lines,
            f"the fastest shard waits {100 * (1 - min(every) / max(every)):.0f} % of the time for the slowest",
            f"{self.rounds:,} rounds: {minutes:.1f} minutes, and the exchange of letters",
            f"this process keeps the models of the last round: {_mib(self.driver)}",
        ]

    def as_json(self) -> dict[str, Any]:
        """The plan for a program."""
        return {
            "needs": self.needs,
            "rounds": self.rounds,
            "seconds_a_round": self.seconds,
            "driver_bytes": self.driver,
            "shards": [
                {"machine": s.machine, "clients": s.clients, "backbones": s.backbones, "seconds": s.seconds,
                 "bytes": s.memory, "letter_bytes": s.letters}
                for s in self.shards
            ],
        }  # fmt: skip


def plan(recipe: Recipe, data: Data | None = None, backbones: Mapping[str, Backbone] | None = None) -> Plan:
    """Reserve room on the cluster, measure there what clients cost, and say what a run would take. No run begins."""
    ready = prepare(recipe, data, backbones)
    try:
        measured = ready.measured()
        return planned(ready, measured)
    finally:
        ready.crew.close()


def planned(ready: Ready, measured: Measured) -> Plan:
    """The plan that follows from what was measured."""
    held, each, rates = ready.divided(measured), seconds(ready.work, measured.rates), measured.rates
    state = [rates[one.backbone].state for one in ready.work]
    letter = np.array([rates[one.backbone].letter for one in ready.work])
    shards = []
    for number, clients in enumerate(held):
        asked = asked_for(ready.recipe, clients, serves=number == 0)
        elsewhere = np.setdiff1d(asked, clients)
        models = sum(state[client] for client in clients)
        # Its models, and their copy that is sent away; every letter that it reads, as it came and stacked.
        memory = measured.process + 2 * models + int(letter[asked].sum()) + int(letter[elsewhere].sum())
        counts = dict(Counter(ready.work[client].backbone for client in clients))
        time = sum(each[client] for client in clients) / (ready.recipe.engine.workers or 1)
        shards.append(PlannedShard(ready.machines[number], counts, time, memory, int(letter[elsewhere].sum())))
    return Plan(shards, ready.crew.needs, ready.recipe.rounds, sum(state))


def asked_for(recipe: Recipe, clients: tuple[int, ...], serves: bool) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The clients whose letters a shard can ask for: its clients' first neighbours; with the server, all."""
    everyone = np.arange(recipe.clients)
    if recipe.network.topology.name == "none":
        return everyone[:0]
    if issubclass(find("method", recipe.method.name, mapl.methods), Centralised):
        return everyone if serves else everyone[:0]
    if recipe.network.topology.name in ("full", "explore"):
        return everyone
    topology = Topology(recipe.network.topology, recipe.clients, recipe.seed)
    return np.unique(np.concatenate([topology.neighbours(0, client).numpy() for client in clients]))


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
