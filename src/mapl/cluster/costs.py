"""What a client's round costs: images to train and test on, and measured seconds for each, by backbone."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

import mapl.methods
from mapl.data.dataset import Dataset
from mapl.data.objects import Data
from mapl.data.partition import draw_held_out, partition
from mapl.engine.settings import TrainSettings
from mapl.model import Backbone, assign
from mapl.network import nbytes
from mapl.plugins import find
from mapl.recipe import Recipe
from mapl.runs.exchange import look_around
from mapl.runs.part import build_part
from mapl.runs.refusals import last_letter
from mapl.runs.saving import saved_state

STEPS = 2
"""Batches of one measurement. The second measurement counts: the first prepares things."""


class Work(NamedTuple):
    """What one client does in a round."""

    backbone: str
    images: int
    """Training images, as often as it sees them."""
    tests: float
    """Test images, on average over rounds."""


class Rate(NamedTuple):
    """What clients with one backbone cost, measured in a shard's process."""

    train: float
    """Seconds for a training image."""
    test: float
    state: int
    """Bytes of what is saved of such a client."""
    letter: int
    """Bytes of its last letter; 0 if it never writes one."""


@dataclass(frozen=True)
class Measured:
    """What was measured in one process."""

    rates: dict[str, Rate]
    process: int
    """Bytes of memory of the process, with one client of each backbone."""
    architectures: dict[str, str]
    """The fingerprint of each backbone's architecture."""


def work_of(recipe: Recipe, data: Data) -> list[Work]:
    """The work of every client."""
    names, clients = recipe.model.backbones, recipe.clients
    assigned = assign(recipe.model, len(names), clients, recipe.seed)
    held_out = find("method", recipe.method.name, mapl.methods)(recipe.method).holds_out()
    if isinstance(data, Mapping):
        sizes = [_own_size(data[client], held_out, client, recipe.seed) for client in range(clients)]
    else:
        shares = partition(data, recipe.partition, clients, recipe.seed, held_out)
        sizes = [(len(share.train), len(share.test)) for share in shares]
    return [
        Work(names[kind], images_a_round(recipe.train, train), test / recipe.evaluate.every)
        for kind, (train, test) in zip(assigned, sizes, strict=True)
    ]


def _own_size(dataset: Dataset, held_out: float, client: int, seed: int) -> tuple[int, int]:
    labels = dataset.train.labels
    held = int(draw_held_out(labels, held_out, client, seed).sum()) if held_out else 0
    return len(labels) - held, len(dataset.test)


def images_a_round(train: TrainSettings, samples: int) -> int:
    """How many images a client with so many trains on in a round. A short last batch is dropped."""
    batch = min(train.batch, samples)
    steps = samples // batch if batch else 0
    return train.epochs * batch * (steps if train.steps is None else min(steps, train.steps))


def probes(work: Sequence[Work]) -> tuple[int, ...]:
    """The first client with each backbone."""
    first: dict[str, int] = {}
    for client, one in enumerate(work):
        first.setdefault(one.backbone, client)
    return tuple(sorted(first.values()))


def seconds(work: Sequence[Work], rates: Mapping[str, Rate]) -> list[float]:
    """The seconds of each client's round."""
    return [rates[one.backbone].train * one.images + rates[one.backbone].test * one.tests for one in work]


def measure(recipe: Recipe, data: Data, backbones: Mapping[str, Backbone], clients: Sequence[int]) -> Measured:
    """Train and test each of these clients alone, a few batches, and take the time. They are not used for anything."""
    short = recipe.train.model_copy(update={"epochs": 1, "steps": min(STEPS, recipe.train.steps or STEPS)})
    alone = recipe.engine.model_copy(update={"kind": "eager", "workers": 1})
    shortened = recipe.model_copy(update={"train": short, "engine": alone})
    part = build_part(shortened, data, backbones, holds=clients, serves=False, compares=False)
    look_around(part.method, part.clients, None, part.topology, recipe.rounds - 1)
    rates = {}
    for client in part.clients:
        train = test = 0.0
        for _ in range(2):
            start = _now(part.engine.device)
            part.engine.train_all([client], 0)
            middle = _now(part.engine.device)
            part.engine.evaluate_all([client])
            train, test = middle - start, _now(part.engine.device) - middle
        letter = last_letter(part, client) if len(client.neighbours) else None
        prefix = f"client.{client.id}."
        state = sum(tensor.nbytes for name, tensor in saved_state(part).items() if name.startswith(prefix))
        rates[client.backbone] = Rate(
            train / max(1, images_a_round(short, client.samples)),
            test / max(1, len(client.test)),
            state,
            nbytes(letter) if letter is not None else 0,
        )
    return Measured(rates, _memory(), {client.backbone: client.architecture for client in part.clients})


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _memory() -> int:
    """Bytes of memory of this process; 0 where the system does not say."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if path.exists() else 0
