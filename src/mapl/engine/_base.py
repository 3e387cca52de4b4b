"""What an engine is: how the clients of one process learn and are tested, all of them in one call."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mapl.client import Client
from mapl.data.augment import Augmentation
from mapl.engine.settings import EngineSettings, TrainSettings
from mapl.errors import MaplError
from mapl.keys import generator
from mapl.methods._base import Method


@dataclass(frozen=True)
class Draws:
    """All that is random in one client's round, drawn before it starts."""

    batches: Tensor
    """Indices into the client's training images: (steps, B)."""
    uniforms: Tensor
    """What its augmentation reads: (steps, views · B, P)."""


class Engine(ABC):
    """Trains and tests clients. Whatever is random comes from `draw`, so engines differ in rounding alone."""

    def __init__(
        self,
        method: Method[Any],
        train: TrainSettings,
        augmentation: Augmentation,
        seed: int,
        settings: EngineSettings,
        device: torch.device,
    ):
        self.method = method
        self.settings = train
        self.augmentation = augmentation
        self.seed = seed
        self.engine_settings = settings
        self.device = device

    @property
    def knows_method(self) -> bool:
        """Whether the method is one of this package: what others do in their losses is not known."""
        return type(self.method).__module__.startswith("mapl.methods.")

    def draw(self, client: Client, round: int) -> Draws:
        """The order of the images and every augmentation's parameters: a function of (seed, client, round) alone."""
        n, settings = client.samples, self.settings
        batch = min(settings.batch, n)
        if batch * self.method.views == 1:
            raise MaplError(
                f"client {client.id} has a single training image, too few to normalise a batch: raise partition.shots"
            )
        order = generator(self.seed, client.id, round, "order")
        epochs = [torch.randperm(n, generator=order)[: n // batch * batch] for _ in range(settings.epochs)]
        batches = torch.cat(epochs).view(-1, batch)
        steps, views = len(batches), self.method.views
        uniforms = self.augmentation.draw(generator(self.seed, client.id, round, "augmentation"), steps * views * batch)
        return Draws(batches, uniforms.view(steps, views * batch, -1))

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        """Networks are computed inside, in the precision that was asked for.

        What is mixed, compared or counted outside keeps all digits of float32: TF32 would cost it three of seven.
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
        """Take the clients of a run in: move their models to where they will live. Called once, before `prepare`."""
        if self.device.type == "cuda":
            make_deterministic(self.engine_settings)
        for client in clients:
            client.model.to(self.device)

    def warm_up(self, clients: Sequence[Client]) -> None:  # noqa: B027
        """One-time work before the first round, such as capturing steps; called after `prepare`."""

    @abstractmethod
    def train_all(self, clients: Sequence[Client], round: int) -> list[dict[str, float]]:
        """PML: a round of local training of every client. Returns the mean of each term of each client's loss."""

    @abstractmethod
    def evaluate_all(self, clients: Sequence[Client]) -> list[Tensor]:
        """For every client which of its test images (n,) it classifies rightly: truth values, on the CPU."""

    @abstractmethod
    def embed(self, client: Client) -> Tensor:
        """Embeddings z of the client's test images: (n, d_z)."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """The optimisers that live on from round to round, as named tensors `client.parameter.name`."""

    @abstractmethod
    def load_state(self, clients: Sequence[Client], state: dict[str, Tensor]) -> None:
        """Take such tensors back."""


def make_deterministic(settings: EngineSettings) -> None:
    """Which kernels a GPU's libraries may choose, which is the process's business and not a tensor's."""
    torch.backends.cudnn.deterministic = settings.deterministic
    if settings.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # A few kernels have no deterministic version: torch is to warn of each by name, and not to stop. It loads its whole
    # compiler to be told, which takes seconds: only where that changes something.
    now = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if now != (settings.deterministic,) * 2:
        torch.use_deterministic_algorithms(settings.deterministic, warn_only=settings.deterministic)


def check_finite(client: Client, round: int, losses: dict[str, float]) -> None:
    """A loss that is no number ends a run with a sentence that says whose, when, and what to do."""
    for name, value in losses.items():
        if not abs(value) < float("inf"):
            raise MaplError(
                f"the {name} loss of client {client.id} became {value} in round {round}; "
                "a lower train.learning_rate usually helps"
            )
