"""What a large network keeps: the state of its clients, a save, a resume, and W of one round read back.

Every client has a few random images and a network as small as can be: what is measured is what grows with the number of
clients and neighbours, not with models.
"""

from __future__ import annotations

import math
import resource
import tempfile
from pathlib import Path
from typing import Any

import torch
from common import Options, PeakMemory, Report, Row, Stopwatch, say, synthetic
from torch import nn

import mapl
from mapl import Dataset, Recipe
from mapl.client import Client
from mapl.runs import checkpoint
from mapl.runs.folder import load
from mapl.runs.part import build_part, given_in_python
from mapl.runs.saving import restore, saved_state

DEGREE, ROUNDS = 10, 3
CASES, QUICK = (1_000, 10_000), (50, 200)
TINY = {"tiny": lambda image, embedding: nn.Sequential(nn.Flatten(), nn.Linear(math.prod(image), embedding))}


def measure(options: Options) -> Report:
    """One row per number of clients."""
    sizes = options.clients or (QUICK if options.quick else CASES)
    words = (
        f"Clients with {DEGREE} neighbours each (a random regular topology), MAPL, the collaboration graph learned in "
        f"every round, {ROUNDS} rounds. The state is what clients keep between rounds beside their models: whom they "
        "have met, the weights and the numbers of samples. A save is a whole checkpoint, written and on the disk; a "
        "resume reads it, checks it and restores every client. The models are tiny on purpose."
    )
    return Report("State, save and resume", words, {"Clients": [measure_case(clients) for clients in sizes]})


def measure_case(clients: int) -> Row:
    say(f"{clients:,} clients")
    cpu = torch.device("cpu")
    data = _data(clients)
    recipe = given_in_python(_recipe(clients), data, TINY)
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        watch = Stopwatch(cpu)
        record = mapl.run(recipe, run, data=data, backbones=TINY)
        seconds = watch.stop()
        watch = Stopwatch(cpu)
        part = build_part(recipe, data, TINY)
        built = watch.stop()
        memory = PeakMemory(cpu)
        watch = Stopwatch(cpu)
        saved = checkpoint.latest(run, say)
        assert saved is not None
        restore(part, saved)
        resumed = watch.stop()
        watch = Stopwatch(cpu)
        path = checkpoint.save(Path(place), part.round, saved_state(part), keep=1)
        written = watch.stop()
        watch = Stopwatch(cpu)
        again = load(run)
        rows = again.graph.rows(ROUNDS // 2)
        read = watch.stop()
        assert len(rows) == clients == len(record.clients)
        return {
            "clients": clients,
            "letters per round": record.messages // ROUNDS,
            "state of all clients, MB": round(state_bytes(part.clients) / 1e6, 2),
            "the same as dense rows, MB": round(16 * clients**2 / 1e6),
            "checkpoint, MB": round(path.stat().st_size / 1e6, 1),
            "W on disk, MB per round": round(_size(run, "graph.rows", "graph.index") / ROUNDS / 1e6, 2),
            "save, s": round(written, 2),
            "resume, s": round(resumed, 2),
            "W of one round, s": round(read, 2),
            "build, s": round(built, 1),
            "run of three rounds, s": round(seconds, 1),
            "peak memory, GiB": round(max(memory.host(), _peak()), 2),
        }


def state_bytes(clients: list[Client]) -> int:
    """What all clients keep between rounds beside their models."""
    arrays = [array for c in clients for array in (c.peers.ids, c.peers.weights, c.peers.samples)]
    return sum(a.nbytes for a in arrays) + sum(t.nbytes for c in clients for t in c.state.values())


def _size(run: Path, *names: str) -> int:
    return sum((run / name).stat().st_size for name in names)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _recipe(clients: int) -> Recipe:
    tree: dict[str, Any] = {
        "clients": clients,
        "rounds": ROUNDS,
        "method": {"name": "mapl", "warmup": 0},
        "model": {"embedding": 8, "projection": 8, "hidden": 8},
        "network": {"topology": {"name": "regular", "degree": DEGREE}},
        "evaluate": {"every": ROUNDS},
        "checkpoint": {"every": ROUNDS},
        "engine": {"device": "cpu"},
    }
    return Recipe.of(**tree)


def _data(clients: int) -> dict[int, Dataset]:
    """A data set for each client; all are views of one."""
    images = synthetic((1, 4, 4), 2, 1)
    return dict.fromkeys(range(clients), images)
