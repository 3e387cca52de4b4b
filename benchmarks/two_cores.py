"""FedAvg with a small CNN on a CPU: a round of mapl, and the same steps in a plain torch loop that uses all cores.

The plain loop is what general libraries for federated learning do: images are tensors that were normalised in advance,
clients train one after another, and torch spreads every operation over the cores. It does not augment. So mapl is
measured twice: with its recipe's augmentation, and without any, when both sides do the same work. Where fluke
(pip install fluke-fl) is installed, its own clients train on the same images too.
"""

from __future__ import annotations

import copy
import time
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from common import Options, Report, Row, middle, published, say, synthetic
from torch import Tensor, nn

from mapl import Dataset, Recipe
from mapl.engine.workers import cores
from mapl.runs.part import Part, build_part, given_in_python
from mapl.runs.round import play_round
from mapl.trees import merge

NOT_AUGMENTED = {"augment": {"plain": {"crop_padding": 0, "flip": 0.0}}}
BF16 = {"engine": {"precision": "bf16"}}


class FedAvgCnn(nn.Sequential):
    """The network of the FedAvg paper without padding; with its head it has 582,026 parameters on 28×28 grey images."""

    def __init__(self, image: tuple[int, int, int], embedding: int):
        layers = [nn.Conv2d(image[0], 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU()]
        layers += [nn.MaxPool2d(2), nn.Flatten()]
        with torch.no_grad():
            width = nn.Sequential(*layers)(torch.zeros(1, *image)).shape[1]
        super().__init__(*layers, nn.Linear(width, embedding))


BACKBONES = {"fedavg-cnn": FedAvgCnn}


def recipe_for(options: Options) -> Recipe:
    tree: dict[str, Any] = {
        "clients": 10,
        "method": "fedavg",
        "data": {"name": "fashionmnist", "folder": options.data_folder},
        "engine": {"device": "cpu"},
    }
    if options.quick:
        tree = merge(tree, {"clients": 2, "partition": {"shots": 8, "test_shots": 4}, "train": {"batch": 8}})
    return Recipe.of(**tree)


def measure(options: Options) -> Report:
    recipe = recipe_for(options)
    data = None if options.quick else published(recipe)
    data = data or synthetic((1, 28, 28), recipe.partition.stride * recipe.clients + 300, 15 * recipe.clients)
    every: dict[str, Side] = {
        "mapl": Ours(recipe, data),
        "mapl, not augmented": Ours(recipe, data, NOT_AUGMENTED),
        "mapl, not augmented, bf16": Ours(recipe, data, merge(NOT_AUGMENTED, BF16)),
    }
    # Threads that share an operation wait for each other: on a busy machine that takes many times as long.
    for threads in {1} if options.quick else {1, cores()}:
        every[f"plain loop, threads: {threads}"] = Plain(recipe, data, threads)
    if find_spec("fluke") and not options.quick:
        every[f"fluke's clients, threads: {cores()}"] = Fluke(recipe, data, cores())
    for repeat in range(2 if options.quick else options.rounds + 1):  # in turn; the first round warms up
        for name, side in every.items():
            side.play(repeat)
            say(f"{name}: {side.wall[-1]:.2f} s, {side.cpu[-1]:.2f} s of CPU")
    first = next(iter(every.values()))
    assert isinstance(first, Ours)
    return Report(
        title="FedAvg with a small CNN on all cores of a CPU",
        words=_described(recipe, data, first.part),
        tables={"Seconds per round, training, exchange and test": [side.row(name) for name, side in every.items()]},
        facts={"recipe": recipe.model_dump(mode="json", exclude={"data": {"folder"}})},
    )


def _described(recipe: Recipe, data: Dataset, part: Part) -> str:
    client = part.clients[0]
    parameters = sum(p.numel() for p in client.model.parameters())
    return (
        f"{recipe.clients} clients with a CNN of {parameters:,} parameters, data {data.name}. Each has "
        f"{client.samples:,} training and {len(client.test)} test images, {recipe.train.batch} per batch, "
        f"{recipe.train.optimizer}. Medians; the programs took turns, round by round. CPU seconds are the sum over all "
        "threads. The plain loop's include the time in which its threads wait for each other."
    )


class Side:
    """One program: its seconds by the clock, and those that its threads used."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def play(self, round: int) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        self.play_round(round)
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)

    def play_round(self, round: int) -> None:
        raise NotImplementedError

    def row(self, name: str) -> Row:
        return {
            "program": name,
            "s per round": middle(self.wall[1:]),
            "quickest, s": min(self.wall[1:]),
            "CPU seconds": middle(self.cpu[1:]),
            "first round, s": self.wall[0],
        }


class Ours(Side):
    """mapl."""

    def __init__(self, recipe: Recipe, data: Dataset, over: dict[str, Any] | None = None) -> None:
        super().__init__()
        # Given in Python as a user would give it: a class that mapl does not know.
        tree = merge(recipe.model_dump(mode="json"), over or {})
        recipe = given_in_python(Recipe.model_validate(tree), data, BACKBONES)
        self.part = build_part(recipe, data, BACKBONES)

    def play_round(self, round: int) -> None:
        torch.set_num_threads(self.part.recipe.train.threads)
        play_round(self.part, round)


class Plain(Side):
    """Clients one after another, every operation on `threads` threads."""

    def __init__(self, recipe: Recipe, data: Dataset, threads: int) -> None:
        super().__init__()
        self.recipe, self.threads = recipe, threads
        part = build_part(given_in_python(recipe, data, BACKBONES), data, BACKBONES)
        self.clients = [
            (copy.deepcopy(c.model), self._ready(part, c.train), self._ready(part, c.test)) for c in part.clients
        ]

    @staticmethod
    def _ready(part: Part, images: Any) -> tuple[Tensor, Tensor]:
        return part.engine.augmentation.normalise(images.pixels), images.labels

    def play_round(self, round: int) -> None:
        torch.set_num_threads(self.threads)
        for model, train, _ in self.clients:
            self._train(model, *train)
        self._average()
        for model, _, (images, labels) in self.clients:
            model.eval()
            with torch.no_grad():
                (model(images).argmax(1) == labels).float().mean().item()

    def _train(self, model: nn.Module, images: Tensor, labels: Tensor) -> None:
        use = self.recipe.train
        optimizer = torch.optim.Adam(model.parameters(), use.learning_rate, use.betas)
        model.train()
        order = torch.randperm(len(labels))[: len(labels) // use.batch * use.batch]
        for batch in order.view(-1, use.batch):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            loss.item()

    def _average(self) -> None:
        states = [model.state_dict() for model, _, _ in self.clients]
        mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
        for model, _, _ in self.clients:
            model.load_state_dict(mean)


class Fluke(Plain):
    """The same with fluke's clients, which also take the short last batch of an epoch."""

    def __init__(self, recipe: Recipe, data: Dataset, threads: int) -> None:
        from fluke.client import Client
        from fluke.config import OptimizerConfigurator
        from fluke.data import FastDataLoader

        super().__init__(recipe, data, threads)
        use = recipe.train
        adam = {"name": "Adam", "lr": use.learning_rate, "betas": use.betas}
        self.trainers: dict[int, Any] = {}
        for number, (model, (images, labels), _) in enumerate(self.clients):
            loader = FastDataLoader(images, labels, num_labels=10, batch_size=use.batch, shuffle=True)
            optimizers = OptimizerConfigurator(adam, {"name": "StepLR", "step_size": 1, "gamma": 1.0})
            client = Client(number, loader, None, optimizers, nn.CrossEntropyLoss(), local_epochs=use.epochs)
            client.model = model
            self.trainers[id(model)] = client

    def _train(self, model: nn.Module, images: Tensor, labels: Tensor) -> None:
        client = self.trainers[id(model)]
        client.optimizer = None  # a new one every round, as on the other sides
        client.fit()
