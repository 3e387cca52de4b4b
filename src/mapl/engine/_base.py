"""What an engine is: it trains and tests all clients of one process."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mapl.client import Client
from mapl.data.kinds import Augmenting
from mapl.engine.settings import EngineSettings, TrainSettings
from mapl.errors import MaplError, NotFinite
from mapl.keys import generator
from mapl.methods._base import Method


@dataclass(frozen=True)
class Draws:
    """The random numbers of one client's round, drawn before it starts."""

    batches: Tensor
    """Indices into the client's training images: (steps, B)."""
    uniforms: Tensor
    """Uniform numbers for its augmentation: (steps, views · B, P)."""


@dataclass(frozen=True)
class Answers:
    """What a client answers to its test images, without the held-out ones; on the CPU."""

    predicted: Tensor
    """The class with the largest score: (1 + W, n). First the client's answers, then those of its method's `ways`."""
    confidence: Tensor
    """The probability that the client gives to its answers: (n,) in float64."""
    labels: Tensor
    """The true classes: (n,)."""

    @property
    def right(self) -> Tensor:
        """Which answers are right: booleans (1 + W, n)."""
        return self.predicted == self.labels


class Engine(ABC):
    """Trains and tests clients. All random numbers come from `draw`, so engines differ only in rounding."""

    def __init__(
        self,
        method: Method[Any],
        train: TrainSettings,
        augmentation: Augmenting,
        seed: int,
        settings: EngineSettings,
        device: torch.device,
    ):
        self.method = method
        self.settings = train
        self.augmentation = augmentation
        self.seed = seed
        self.engine_settings = settings.on(device.type)
        self.device = device

    def steps_per_epoch(self, client: Client) -> int:
        """Batches of a local epoch. A short last batch is dropped."""
        full_batches = client.samples // min(self.settings.batch, client.samples)
        return full_batches if self.settings.steps is None else min(full_batches, self.settings.steps)

    def draw(self, client: Client, round: int) -> Draws:
        """The order of the images and every augmentation's parameters: a function of (seed, client, round) alone."""
        n, settings = client.samples, self.settings
        batch = min(settings.batch, n)
        if batch * self.method.views == 1:
            raise MaplError(
                f"client {client.id} has a single training image, too few to normalise a batch: raise partition.shots"
            )
        order = generator(self.seed, client.id, round, "order")
        taken = self.steps_per_epoch(client) * batch
        epochs = [torch.randperm(n, generator=order)[:taken] for _ in range(settings.epochs)]
        batches = torch.cat(epochs).view(-1, batch)
        steps, views = len(batches), self.method.views
        uniforms = self.augmentation.draw(generator(self.seed, client.id, round, "augmentation"), steps * views * batch)
        return Draws(batches, uniforms.view(steps, views * batch, -1))

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        """Inside, networks run in the precision of the settings.

        Everything else keeps full float32: TF32 would cost mixing and similarities three of seven digits.
        """
        if self.device.type != "cuda":
            yield
            return
        products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
        before = products.allow_tf32, convolutions.allow_tf32
        products.allow_tf32 = convolutions.allow_tf32 = self.engine_settings.precision != "fp32"
        try:
            yield
        finally:
            products.allow_tf32, convolutions.allow_tf32 = before

    def adopt(self, clients: Sequence[Client]) -> None:
        """Move the clients' models to the device, and learn how to train them. Called once, before `prepare`."""
        if self.device.type == "cuda":
            make_deterministic(self.engine_settings)
        for client in clients:
            client.model.to(self.device)

    def warm_up(self, clients: Sequence[Client]) -> None:  # noqa: B027
        """One-time work before the first round, such as capturing steps; called after `prepare`."""

    @abstractmethod
    def train_all(self, clients: Sequence[Client], round: int) -> list[dict[str, float]]:
        """A round of local training (PML) of every client. Returns the mean of each term of each client's loss."""

    @abstractmethod
    def evaluate_all(self, clients: Sequence[Client]) -> list[Answers]:
        """What every client answers to its test images."""

    def answer(self, client: Client, outputs: Mapping[str, Tensor], labels: Tensor) -> tuple[Tensor, Tensor]:
        """`predicted` and `confidence` of the client's `Answers`, where the outputs are.

        outputs: of each network in `method.answers_with`, for all of `client.test`; labels: of the same images.
        """
        tests = len(labels) - client.held
        known = {name: output[:tests] for name, output in outputs.items()}
        if client.held:
            held = {name: output[tests:] for name, output in outputs.items()}
            known |= self.method.tune(client, held, labels[tests:])
        by_way = self.method.scores_by_way(client, known)
        scores = [self.method.scores(client, known), *(by_way[way] for way in self.method.ways)]
        exact = scores[0].double()
        probabilities = exact if self.method.scores_are == "probabilities" else exact.softmax(1)
        return torch.stack([one.argmax(1) for one in scores]), probabilities.amax(1)

    @abstractmethod
    def embed(self, client: Client) -> Tensor:
        """Embeddings z of the client's test images: (n, d_z)."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Optimiser state that is kept from round to round, as `client.parameter.name`; parameters count from 0."""

    @abstractmethod
    def load_state(self, clients: Sequence[Client], state: dict[str, Tensor]) -> None:
        """Restore optimiser state from a checkpoint."""


def make_deterministic(settings: EngineSettings) -> None:
    """Tell the GPU's libraries which kernels they may choose. This holds for the whole process."""
    torch.backends.cudnn.deterministic = settings.deterministic
    if settings.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # A few kernels have no deterministic version: torch then warns instead of stopping. The call imports torch's
    # compiler, which takes seconds, so it is made only where it changes something.
    now = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if now != (settings.deterministic,) * 2:
        torch.use_deterministic_algorithms(settings.deterministic, warn_only=settings.deterministic)


def loss_terms(method: Method[Any], client: Client, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The terms of the method's loss for one batch, checked for their kind."""
    terms: object = method.loss(client, images, labels)
    if not isinstance(terms, dict) or not terms:
        kind = f"a {type(terms).__name__}" if not isinstance(terms, dict) else "an empty dict"
        raise MaplError(
            f"the loss of {type(method).__name__} returned {kind}; return its terms by name: {{'name': term}}"
        )
    for name, term in terms.items():
        if not isinstance(term, Tensor) or term.numel() != 1:
            kind = f"shape {tuple(term.shape)}" if isinstance(term, Tensor) else f"type {type(term).__name__}"
            raise MaplError(f"the term {name!r} in the loss of {type(method).__name__} has {kind}; return one number")
    return terms


def check_finite(client: Client, round: int, losses: dict[str, float]) -> None:
    """Stop the run when a loss is not finite. The round, which knows the whole recipe, adds why."""
    for name, value in losses.items():
        if not abs(value) < math.inf:
            raise NotFinite(f"the {name} loss of client {client.id} became {value} in round {round}")
