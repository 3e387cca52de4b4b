"""Shards on Ray against one process with the same work, on one machine; and how the exchange between shards grows.

Needs Ray (pip install 'mapl[ray]'). Both sides play real rounds and take turns, round by round. Processor seconds are
those that all processes of a side used, read from the system: the clock alone says little on a machine with other work.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from common import Options, Report, Row, Stopwatch, middle, say, synthetic
from torch import nn

from mapl import Dataset, Recipe
from mapl.clock import Clock
from mapl.cluster import on_ray
from mapl.cluster.connection import import_ray
from mapl.runs.part import given_in_python
from mapl.runs.player import Player, here
from mapl.trees import merge

SHARDS = 2
CLASSES, WIDTH = 10, 512
EXCHANGES = [("regular", 200), ("regular", 1_000), ("regular", 2_000), ("full", 200), ("full", 1_000), ("full", 2_000)]
QUICK = [("regular", 20), ("full", 20)]


class Tiny(nn.Sequential):
    """As little training as can be, with an embedding of the paper's size."""

    def __init__(self, image: tuple[int, int, int], embedding: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(image[0] * image[1] * image[2], embedding))


def measure(options: Options) -> Report:
    os.environ.update(RAY_worker_niceness="0")  # usually 15: on a busy machine the two sides would not be treated alike
    ray = import_ray()
    # More than the machine may have: of the exchange, not of the training, four shards are measured on two cores.
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR", object_store_memory=10**9)
    try:
        rounds = overhead(options)
        exchanges = [exchange(options, *case, shards) for case in (QUICK if options.quick else EXCHANGES)
                     for shards in ((2,) if options.quick or case[1] < 2_000 else (2, 4))]  # fmt: skip
    finally:
        ray.shutdown()
    return Report(
        title="Shards on Ray, on one machine",
        words=(
            f"{SHARDS} shards with a core each against one process with {SHARDS} workers. The first table: a whole "
            "round of the courier with four kinds of network, on synthetic images. The second: MAPL's exchange alone "
            "(letters of a head and prototypes, 41 KB; carried, checked, the graph learned, prototypes mixed), the "
            "slowest shard's, with clients that hardly train. The exchange includes waiting for the letters of other "
            "shards. 'Kept' is how long a shard takes to copy its state after a round, and 'waiting' is what a round "
            "takes beyond the work of the slowest shard. The sides took turns, round by round. The first table has "
            "medians; the second the quickest of six rounds, because the machine had other work, and of 'kept' the "
            "longest."
        ),
        tables={"A round": rounds, "The exchange": exchanges},
    )


@dataclass
class Side:
    """One way to play the rounds of a recipe."""

    player: Player
    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    messages: int = 0

    def play(self) -> None:
        before, watch = self._used(), Stopwatch(torch.device("cpu"))
        line, parts = self.player.play(self.player.round, Clock())
        self.wall.append(watch.stop())
        self.processor.append(self._used() - before)
        self.parts.append(dict(parts))
        self.messages = line.messages

    def part(self, name: str, of: Callable[[list[float]], float] = middle) -> float:
        return of([parts.get(name, 0.0) for parts in self.parts[1:]])

    def _used(self) -> float:
        crew = getattr(self.player, "_crew", None)
        pids = [os.getpid(), *(process.pid for process in crew.processes.values())] if crew else [os.getpid()]
        return sum(_processor_seconds(pid) for pid in pids)


def _processor_seconds(pid: int) -> float:
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def sides(tree: dict[str, Any], data: Dataset, backbones: dict[str, Any] | None, shards: int) -> list[Side]:
    def made(over: dict[str, Any], make: Callable[..., Player]) -> Side:
        recipe = given_in_python(Recipe.of(**merge(tree, over)), data, backbones)
        return Side(make(recipe, data, backbones))

    alone = made({"engine": {"device": "cpu", "workers": SHARDS}}, here)
    divided = made({"engine": {"device": "cpu", "where": "ray", "ray": {"shards": shards}}}, on_ray)
    return [alone, divided]


def overhead(options: Options) -> list[Row]:
    """Whole rounds."""
    shots, clients = (4, 4) if options.quick else (30, 20)
    tree = {
        "clients": clients, "rounds": 100, "method": "courier", "partition": {"shots": shots, "test_shots": 4},
        "evaluate": {"every": 10},
    }  # fmt: skip
    each = sides(tree, synthetic((1, 28, 28), shots * clients, 4 * clients), None, SHARDS)
    try:
        for number in range(2 if options.quick else options.rounds + 1):
            for side, name in zip(each, ("one process", "shards"), strict=True):
                side.play()
                say(f"round {number + 1}, {name}: {side.wall[-1]:.2f} s, {side.processor[-1]:.2f} s of processor time")
    finally:
        each[1].player.close()
    names = (f"one process, {SHARDS} workers", f"{SHARDS} shards")
    return [
        {
            "program": name, "clients": clients,
            "s per round": middle(side.wall[1:]), "quickest, s": min(side.wall[1:]),
            "processor seconds": middle(side.processor[1:]), "letters a round": side.messages,
            "training, s": side.part("train"), "exchange, s": side.part("exchange"),
            "kept, s": side.part("state") or None, "waiting, s": side.part("waiting") or None,
        }
        for name, side in zip(names, each, strict=True)
    ]  # fmt: skip


def exchange(options: Options, topology: str, clients: int, shards: int) -> Row:
    """The exchange of a round, with clients that hardly train."""
    tree: dict[str, Any] = {
        "clients": clients, "rounds": 100, "method": {"name": "mapl", "warmup": 0},
        "model": {"embedding": WIDTH, "projection": WIDTH, "hidden": 8},
        "partition": {"scheme": "iid"}, "train": {"batch": 4, "steps": 1},
        "network": {"topology": {"name": topology, "degree": 10}}, "evaluate": {"every": 100},
    }  # fmt: skip
    # A step so small that no edge is dropped, as in `exchange`.
    tree["method"] |= {"graph": {"form": "released", "step_size": 1e-7}}
    data = synthetic((1, 2, 2), max(clients, 20), max(clients // 5, 20), CLASSES)
    alone, divided = sides(tree, data, {"tiny": Tiny}, shards)
    try:
        for _ in range(2 if options.quick else 7):
            alone.play()
            divided.play()
    finally:
        divided.player.close()
    say(f"{topology}, {clients} clients, {shards} shards: {divided.part('exchange'):.3f} s")
    return {
        "topology": "regular, 10 neighbours" if topology == "regular" else "full mesh",
        "clients": clients,
        "shards": shards,
        "letters a round": divided.messages,
        "one process, s": round(alone.part("exchange", min), 4),
        "shards, s": round(took := divided.part("exchange", min), 4),
        "µs a letter": round(1e6 * took / divided.messages, 2),
        "kept, s": round(divided.part("state", max), 4),
        "waiting, s": round(divided.part("waiting", min), 4),
    }
