"""How the time and the memory of a round grow with the number of clients."""

from __future__ import annotations

import copy
import gc
import inspect
import math
import statistics
import time
from contextlib import nullcontext
from typing import Any

import torch
from common import Options, PeakMemory, Report, Row, Stopwatch, middle, say, synthetic
from rounds import GRAPH_FROM_THE_START, PAPERS, QUICK, SMALL
from torch import nn

import mapl.runs.part
from mapl import Dataset, Recipe
from mapl.model import ClientModel
from mapl.runs.part import build_part, lasting
from mapl.runs.round import play_round
from mapl.trees import merge

SERIES = {
    "cuda": {"resnet18": ["resnet18"], "mixed": PAPERS},
    "cpu": {"small": SMALL},
}
SIZES = {"cuda": (20, 50, 100, 200, 500, 1000), "cpu": (10, 20, 50, 100)}
QUICK_SIZES = (2, 4)
MOST_ROUNDS = 3
SHARED = " The clients' models are copies of one, with the same first weights: less time and host memory to set up."


def measure(options: Options) -> Report:
    kind = options.device.type
    copied = options.copies and kind == "cuda"  # on a CPU clients learn in the memory that models were made in
    sizes = options.clients or (QUICK_SIZES if options.quick else SIZES[kind])
    tables: dict[str, list[Row]] = {}
    for name, backbones in SERIES[kind].items():
        if options.series and name not in options.series:
            continue
        rows = tables.setdefault(f"{name}: {', '.join(backbones)}", [])
        with _Copies() if copied else nullcontext() as copies:
            for clients in sizes:
                rows.append(_point(clients, backbones, options, rows))
                if copies is not None:
                    copies.free()
    recipe, data = _setting(sizes[0], SMALL, options)
    powers = {title.split(":")[0]: _power(rows) for title, rows in tables.items() if len(rows) > 1}
    return Report(
        title="More clients on one device",
        words=(
            f"A round of MAPL with training, exchange over the full mesh with graph learning, and test. "
            f"{'×'.join(map(str, data.shape))} images, synthetic, the same for all clients: "
            f"{recipe.partition.shots * 5:,} training images and 75 test images each, {recipe.train.batch} a batch in "
            f"two views. The first round, with what is done once, is not counted in seconds a round. "
            f"Linear: 1 is the first line's seconds a client; below 1 a client costs less than there."
            + (SHARED if copied else "")
            + _grows(powers)
        ),
        tables=tables,
        facts={"powers": powers},
    )


def _power(rows: list[Row]) -> float:
    """x of seconds ~ clientsˣ: the slope of their logarithms, by least squares."""
    clients, seconds = ([math.log(row[key]) for row in rows] for key in ("clients", "seconds a round"))
    return statistics.linear_regression(clients, seconds).slope


def _grows(powers: dict[str, float]) -> str:
    if not powers:
        return ""
    each = ", ".join(f"{power:.3f} ({name})" for name, power in powers.items())
    return f" The time of a round grows with the number of clients to the power {each}, by least squares of logarithms."


def _setting(clients: int, backbones: list[str], options: Options) -> tuple[Recipe, Dataset]:
    # Nobody's shard starts further on than another's (stride 0): any number of clients can share a few images.
    tree = {
        "clients": clients,
        "method": GRAPH_FROM_THE_START,
        "data": {"name": "cifar10" if options.device.type == "cuda" else "fashionmnist"},
        "partition": {"stride": 0, "test_shots": "all"},
        "model": {"backbones": backbones},
        "engine": {"device": options.device.type},
    }
    image = (3, 32, 32)
    if options.device.type == "cpu":  # a fifth of the images: a hundred clients are minutes here
        tree, image = merge(tree, {"partition": {"shots": 60}}), (1, 28, 28)
    if options.quick:
        quick = merge(QUICK, {"clients": clients, "partition": {"test_shots": "all"}})
        tree, image = merge(tree, quick), (image[0], 8, 8) if options.device.type == "cpu" else image
    recipe = Recipe.of(**tree)
    return recipe, synthetic(image, recipe.partition.shots, 15)


def _point(clients: int, backbones: list[str], options: Options, before: list[Row]) -> Row:
    gc.collect()
    if options.device.type == "cuda":
        torch.cuda.empty_cache()
    recipe, data = _setting(clients, backbones, options)
    peak, watch = PeakMemory(options.device), Stopwatch(options.device)
    part = build_part(recipe, data)
    setup = watch.stop()
    torch.set_num_threads(recipe.train.threads)
    seconds: list[float] = []
    start = time.perf_counter()
    with lasting():
        # One round before those that count, and one that counts; more while there is time.
        while len(seconds) < 2 or (len(seconds) <= MOST_ROUNDS and time.perf_counter() - start < options.seconds):
            watch = Stopwatch(options.device)
            _, parts = play_round(part, len(seconds))
            seconds.append(watch.stop())
            spent = ", ".join(f"{part} {part_seconds:.3f}" for part, part_seconds in parts.items())
            who = f"{clients} clients ({', '.join(backbones)})"
            say(f"{who}: round {len(seconds) - 1} in {seconds[-1]:.2f} s ({spent})")
    median = middle(seconds[1:])
    each = median / clients
    return {
        "clients": clients,
        "seconds a round": median,
        "seconds a client-round": each,
        "ratio to linear": each / before[0]["seconds a client-round"] if before else 1.0,
        "rounds measured": len(seconds) - 1,
        "set-up, s": setup,
        "first round, s": seconds[0],
        "peak GPU memory, GiB": peak.gpu(),
        "peak host memory, GiB": peak.host(),
    }


class _Copies:
    """Inside, models are made once a backbone and copied for every client; the copies share their first weights.

    They serve one number of clients after another: to draw thousands of networks takes minutes.
    """

    def __init__(self) -> None:
        self._first: dict[str, ClientModel] = {}
        self._made: dict[int, tuple[str, ClientModel]] = {}

    def __enter__(self) -> _Copies:
        self._build = mapl.runs.part.build
        mapl.runs.part.build = self.build  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        mapl.runs.part.build = self._build

    def build(self, name: str, *arguments: Any) -> ClientModel:
        client = inspect.signature(self._build).bind(name, *arguments).arguments["client"]
        if name not in self._first:
            self._first[name] = self._build(name, *arguments)
        if client not in self._made:
            same = {
                id(t): nn.Parameter(t.data) if isinstance(t, nn.Parameter) else t.detach()
                for t in _tensors(self._first[name])
            }
            self._made[client] = name, copy.deepcopy(self._first[name], same)
        return self._made[client][1]

    def free(self) -> None:
        """The models as they were made, so that what an engine gave them is free."""
        for name, model in self._made.values():
            for tensor, first in zip(_tensors(model), _tensors(self._first[name]), strict=True):
                tensor.data = first.data


def _tensors(model: ClientModel) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]
