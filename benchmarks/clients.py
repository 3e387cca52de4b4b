"""How the time and the memory of a round grow with the number of clients."""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Mapping

import torch
from common import Options, PeakMemory, Report, Row, Stopwatch, middle, say, synthetic
from rounds import GRAPH_FROM_THE_START, PAPERS, QUICK, SMALL
from torch import nn

from mapl import Dataset, Recipe
from mapl.model import Backbone, find_backbone
from mapl.recipe import merge
from mapl.round import play_round
from mapl.world import build_world

SERIES = {
    "cuda": {"resnet18": ["resnet18"], "mixed": PAPERS},
    "cpu": {"small": SMALL},
}
SIZES = {"cuda": (20, 50, 100, 200, 500, 1000), "cpu": (10, 20, 50, 100)}
QUICK_SIZES = (2, 4)
MOST_ROUNDS = 3


def measure(options: Options) -> Report:
    kind = options.device.type
    sizes = options.clients or (QUICK_SIZES if options.quick else SIZES[kind])
    tables: dict[str, list[Row]] = {}
    for name, backbones in SERIES[kind].items():
        if options.series and name not in options.series:
            continue
        rows = tables.setdefault(f"{name}: {', '.join(backbones)}", [])
        for clients in sizes:
            rows.append(_point(clients, backbones, options, rows))
    recipe, data = _setting(sizes[0], SMALL, options)
    return Report(
        title="More clients on one device",
        words=(
            f"A round of MAPL with training, exchange over the full mesh with graph learning, and test. "
            f"{'×'.join(map(str, data.image))} images, synthetic, the same for all clients: "
            f"{recipe.partition.shots * 5:,} training images and 75 test images each, {recipe.train.batch} a batch in "
            f"two views. The first round, with what is done once, is not counted in seconds a round. "
            f"Linear: 1 is the first line's seconds a client; below 1 a client costs less than there."
            + (" The clients' backbones are copies of one, which shortens the set-up alone." if options.copies else "")
        ),
        tables=tables,
    )


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
    world = build_world(recipe, data, _copies(backbones) if options.copies else None)
    setup = watch.stop()
    torch.set_num_threads(recipe.train.threads)
    seconds: list[float] = []
    start = time.perf_counter()
    # One round before those that count, and one that counts; more while there is time.
    while len(seconds) < 2 or (len(seconds) <= MOST_ROUNDS and time.perf_counter() - start < options.seconds):
        watch = Stopwatch(options.device)
        play_round(world, len(seconds))
        seconds.append(watch.stop())
        say(f"{clients} clients ({', '.join(backbones)}): round {len(seconds) - 1} in {seconds[-1]:.2f} s")
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


def _copies(names: list[str]) -> Mapping[str, Backbone]:
    """The same backbones, each made once and copied for every client."""
    made: dict[str, nn.Module] = {}

    def copier(name: str) -> Backbone:
        def build(image: tuple[int, int, int], embedding: int) -> nn.Module:
            if name not in made:
                made[name] = find_backbone(name)(image, embedding)
            return copy.deepcopy(made[name])

        return build

    return {name: copier(name) for name in names}
