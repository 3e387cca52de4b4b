"""A round of mapl against the same round in a plain loop."""

from __future__ import annotations

from typing import Any

import torch
from common import Options, PeakMemory, Report, Row, Stopwatch, middle, published, say, synthetic
from plain_loop import PlainLoop

from mapl import Dataset, Recipe
from mapl.engine.workers import cores
from mapl.runs.part import Part, build_part
from mapl.runs.round import play_round
from mapl.trees import merge

SMALL = ["mlp", "cnn", "residual", "separable"]
PAPERS = ["resnet18", "shufflenet", "googlenet", "alexnet"]

# Steps so small that no edge is ever dropped: every round carries the letters of all pairs. In the released form, which
# is what the plain loop computes.
RELEASED_GRAPH = {"form": "released", "confidence": "share", "step_size": 1e-7}
GRAPH_FROM_THE_START = {"name": "mapl", "warmup": 0, "graph": RELEASED_GRAPH}

QUICK = {
    "clients": 4,
    "model": {"embedding": 16, "projection": 16, "hidden": 32},
    "partition": {"shots": 4, "stride": 0, "test_shots": 4},
    "train": {"batch": 8},
}


SMALL_HEADS = {"model": {"embedding": 64, "projection": 64, "hidden": 128}}
"""What the demo has. With the paper's 512, 512 and 4,096 the projector is most of a small network."""


def settings(options: Options) -> dict[str, tuple[Recipe, Dataset]]:
    """What is trained: on a GPU the paper's protocol; on a CPU small networks on FashionMNIST, heads of two sizes."""
    if options.device.type == "cuda":
        tree = {
            "clients": 20,
            "method": GRAPH_FROM_THE_START,
            "augment": {"contrastive": {"blur": 0.5}},
            "model": {"backbones": PAPERS},
        }
        words = "the paper's protocol, graph learning from the first round on"
        return {words: setting("cifar10", (3, 32, 32), tree, options)}
    tree = {"clients": 10, "model": {"backbones": SMALL}}
    image = (1, 8, 8) if options.quick else (1, 28, 28)
    return {
        "small networks throughout": setting("fashionmnist", image, merge(tree, SMALL_HEADS), options),
        "small backbones, the paper's projector": setting("fashionmnist", image, tree, options),
    }


def setting(name: str, image: tuple[int, int, int], tree: dict[str, Any], options: Options) -> tuple[Recipe, Dataset]:
    if options.quick:
        tree = merge(tree, QUICK)
    where = {"data": {"name": name, "folder": options.data_folder}, "engine": {"device": options.device.type}}
    recipe = Recipe.of(**merge(tree, where))
    data = None if options.quick else published(recipe)
    if data is None:
        most = recipe.partition.stride * (recipe.clients - 1) + recipe.partition.shots
        data = synthetic(image, most, 15 * recipe.clients)
    return recipe, data


def measure(options: Options) -> Report:
    tables: dict[str, list[Row]] = {}
    words, recipes = [], {}
    for name, (recipe, data) in settings(options).items():
        plain, ours = _play(recipe, data, options)
        images = sum(c.samples // min(recipe.train.batch, c.samples) for c in plain.part.clients)
        images *= recipe.train.batch * recipe.train.epochs
        tables[f"Seconds a round: {name}"] = [
            plain.row(images),
            *(side.row(images, plain.median) for side in ours.values()),
        ]
        tables[f"Parts of a round of mapl, in seconds: {name}"] = [side.parts() for side in ours.values()]
        words.append(f"{name[0].upper()}{name[1:]}: {_described(recipe, data, plain)}{plain.others()}")
        recipes[name] = recipe.model_dump(mode="json", exclude={"data": {"folder"}})
    return Report(
        title="A round: training, exchange and test of all clients",
        words=" ".join(words)
        + " Seconds are medians; set-up is the part's making and the first round's excess over the median. "
        "What the plain loop is: `benchmarks/plain_loop.py`.",
        tables=tables,
        facts={"recipes": recipes},
    )


def _play(recipe: Recipe, data: Dataset, options: Options) -> tuple[_Plain, dict[str, Ours]]:
    """Rounds of both sides, by turns, so that what else the machine does meets both alike."""
    device = options.device
    precisions = ("bf16", "tf32") if device.type == "cuda" and not options.quick else (recipe.engine.precision,)
    ours = {p: Ours(_with_precision(recipe, p), data, device) for p in precisions}
    plain = _Plain(recipe, data, device, options)
    for repeat in range(1 if options.quick else options.rounds):
        if repeat and sum(plain.seconds) > options.seconds:
            break
        for side in ours.values():
            side.play()
        plain.play()
    return plain, ours


def _described(recipe: Recipe, data: Dataset, plain: _Plain) -> str:
    return (
        f"{recipe.clients} clients ({', '.join(recipe.model.backbones)}), data {data.name}, "
        f"{'×'.join(map(str, data.shape))}, {recipe.train.batch} images a batch in two views, "
        f"{plain.part.clients[0].samples:,} images and {len(plain.part.clients[0].test)} test images a client."
    )


def _with_precision(recipe: Recipe, precision: str) -> Recipe:
    return recipe.model_copy(update={"engine": recipe.engine.model_copy(update={"precision": precision})})


class Ours:
    """mapl's side."""

    def __init__(self, recipe: Recipe, data: Dataset, device: torch.device) -> None:
        self.device, self.recipe = device, recipe
        self.name = f"mapl, {recipe.engine.on(device.type).precision}"
        say(f"{self.name}: setting up")
        self.peak = PeakMemory(device)
        watch = Stopwatch(device)
        self.part: Part = build_part(recipe, data)
        self.setup = watch.stop()
        self.seconds: list[float] = []
        self.laps: list[dict[str, float]] = []
        self.first = self._round(keep=False)
        self.memory = self.peak.gpu()

    def play(self) -> None:
        self._round(keep=True)

    def _round(self, keep: bool) -> float:
        torch.set_num_threads(self.recipe.train.threads)
        watch = Stopwatch(self.device)
        laps = play_round(self.part, self.part.round)[1]
        seconds = watch.stop()
        say(f"{self.name}: {'a' if keep else 'first'} round in {seconds:.2f} s")
        if keep:
            self.seconds.append(seconds)
            self.laps.append(laps)
        return seconds

    def row(self, images: int, plain: float) -> Row:
        median = middle(self.seconds)
        return {
            "program": self.name,
            "seconds a round": median,
            "images/s": images / median,
            "times as fast": plain / median,
            "quickest, s": min(self.seconds),
            "rounds measured": len(self.seconds),
            "set-up, s": self.setup + max(0.0, self.first - median),
            "peak GPU memory, GiB": self.memory,
        }

    def parts(self) -> Row:
        names = self.laps[0]
        return {"program": self.name, **{name: middle([laps[name] for laps in self.laps]) for name in names}}


class _Plain:
    """The plain loop's side, in the way that suits it best: how many loader processes, how many threads."""

    def __init__(self, recipe: Recipe, data: Dataset, device: torch.device, options: Options) -> None:
        self.device = device
        self.peak = PeakMemory(device)
        watch = Stopwatch(device)
        # Its part lives on the CPU, so that no engine prepares anything for it; the loop moves the models itself.
        on_cpu = recipe.model_copy(update={"engine": recipe.engine.model_copy(update={"device": "cpu"})})
        self.part = build_part(on_cpu, data)
        self.setup = watch.stop()
        self.loops = {way: PlainLoop(self.part, data, device, way[0]) for way in _ways(options)}
        self.tried: dict[tuple[int, int], list[float]] = {way: [] for way in self.loops}
        next(iter(self.loops.values())).train(self.part.clients[0])  # what a program does once, the first time
        self.memory: float | None = None

    def play(self) -> None:
        """A round; the first time one in every way, then only in the best."""
        for workers, threads in self.loops if not self.seconds else [self.best]:
            torch.set_num_threads(threads)
            watch = Stopwatch(self.device)
            self.loops[workers, threads].play(len(self.tried[workers, threads]))
            self.tried[workers, threads].append(watch.stop())
            way = f"{workers} loader processes, {threads} threads"
            say(f"plain loop, {way}: a round in {self.tried[workers, threads][-1]:.2f} s")
        self.memory = self.peak.gpu()

    @property
    def best(self) -> tuple[int, int]:
        return min(self.tried, key=lambda way: middle(self.tried[way] or [float("inf")]))

    @property
    def seconds(self) -> list[float]:
        return self.tried[self.best]

    @property
    def median(self) -> float:
        return middle(self.seconds)

    def row(self, images: int) -> Row:
        workers, threads = self.best
        return {
            "program": f"plain loop, fp32, {workers} loader processes, {threads} threads",
            "seconds a round": self.median,
            "images/s": images / self.median,
            "times as fast": 1.0,
            "quickest, s": min(self.seconds),
            "rounds measured": len(self.seconds),
            "set-up, s": self.setup,
            "peak GPU memory, GiB": self.memory,
        }

    def others(self) -> str:
        """What the plain loop took in the ways that suit it less."""
        slower = [f"{w} and {t}: {middle(s):.3g} s" for (w, t), s in self.tried.items() if (w, t) != self.best]
        return f" Other numbers of loader processes and threads: {'; '.join(slower)}." if slower else ""


def _ways(options: Options) -> list[tuple[int, int]]:
    """How the plain loop is run: loader processes and threads."""
    if options.quick:
        return [(0, 1)]
    if options.plain_workers is not None:
        return [(options.plain_workers, cores())]
    # Torch's own default is a thread a core; where loader processes want the cores too, one may be better.
    return [(4, cores())] if options.device.type == "cuda" else [(0, cores()), (2, cores()), (2, 1)]
