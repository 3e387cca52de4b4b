"""The eager engine: one client after another, plain PyTorch. It is the reference that every other path equals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mapl.client import Client
from mapl.data.augment import Augmentation
from mapl.engine.settings import TrainSettings
from mapl.errors import MaplError
from mapl.keys import generator, key
from mapl.methods._base import Method


@dataclass(frozen=True)
class Draws:
    """All that is random in one client's round, drawn before it starts."""

    batches: Tensor
    """Indices into the client's training images: (steps, B)."""
    uniforms: Tensor
    """What its augmentation reads: (steps, views · B, P)."""


class EagerEngine:
    """Trains and tests clients one by one."""

    def __init__(self, method: Method[Any], settings: TrainSettings, augmentation: Augmentation, seed: int):
        self.method = method
        self.settings = settings
        self.augmentation = augmentation
        self.seed = seed
        self.optimizers: dict[int, torch.optim.Optimizer] = {}

    def draw(self, client: Client, round: int) -> Draws:
        """The order of the images and every augmentation's parameters: a function of (seed, client, round) alone."""
        n, settings = client.samples, self.settings
        batch = min(settings.batch, n)
        order = generator(self.seed, client.id, round, "order")
        epochs = [torch.randperm(n, generator=order)[: n // batch * batch] for _ in range(settings.epochs)]
        batches = torch.cat(epochs).view(-1, batch)
        steps, views = len(batches), self.method.views
        uniforms = self.augmentation.draw(generator(self.seed, client.id, round, "augmentation"), steps * views * batch)
        return Draws(batches, uniforms.view(steps, views * batch, -1))

    def train(self, client: Client, round: int) -> dict[str, float]:
        """PML: a round of local training. Returns the mean of each term of the loss."""
        draws = self.draw(client, round)
        if draws.uniforms.shape[1] == 1:
            raise MaplError(
                f"client {client.id} has a single training image, too few to normalise a batch: raise partition.shots"
            )
        optimizer = self._optimizer(client)
        client.model.train()
        totals: dict[str, Tensor] = {}
        # Layers that draw for themselves (dropout) read the global generator: lend it the key of this client and round.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(self.seed, client.id, round, "layers"))
            for step, (batch, uniforms) in enumerate(zip(draws.batches, draws.uniforms, strict=True)):
                epoch, first = divmod(step, len(draws.batches) // self.settings.epochs)
                if first == 0:
                    self.method.start_epoch(client, round, epoch)
                terms = self._step(client, optimizer, batch, uniforms)
                for name, value in terms.items():
                    totals[name] = totals[name] + value if name in totals else value
        losses = {name: float(total) / len(draws.batches) for name, total in totals.items()}
        _check_finite(client, round, losses)
        return losses

    def _step(
        self, client: Client, optimizer: torch.optim.Optimizer, batch: Tensor, uniforms: Tensor
    ) -> dict[str, Tensor]:
        views = self.method.views
        images = self.augmentation.apply(client.train.pixels[batch].repeat(views, 1, 1, 1), uniforms)
        terms = self.method.loss(client, images, client.train.labels[batch].repeat(views))
        optimizer.zero_grad(set_to_none=True)
        torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return {name: value.detach() for name, value in terms.items()}

    def _optimizer(self, client: Client) -> torch.optim.Optimizer:
        if self.settings.reset or client.id not in self.optimizers:
            self.optimizers[client.id] = make_optimizer(client, self.settings)
        return self.optimizers[client.id]

    @torch.no_grad()
    def embed(self, client: Client) -> Tensor:
        """Embeddings z of the client's test images: (n, d_z)."""
        client.model.eval()
        images = self.augmentation.normalise(client.test.pixels)
        return torch.cat([client.model.embed(part) for part in torch.split(images, 512)])

    @torch.no_grad()
    def evaluate(self, client: Client) -> float:
        """Share of the client's test images that it classifies rightly."""
        right = self.method.scores(client, self.embed(client)).argmax(1) == client.test.labels
        return int(right.sum()) / len(right)

    def state(self) -> dict[str, Tensor]:
        """The optimisers that live on from round to round, as named tensors."""
        if self.settings.reset:
            return {}
        return {
            f"{client}.{index}.{name}": torch.as_tensor(value)
            for client, optimizer in self.optimizers.items()
            for index, values in optimizer.state_dict()["state"].items()
            for name, value in values.items()
            if value is not None
        }

    def load_state(self, clients: list[Client], state: dict[str, Tensor]) -> None:
        for client in clients:
            entries: dict[int, dict[str, Tensor]] = {}
            for path, value in state.items():
                owner, index, name = path.split(".")
                if int(owner) == client.id:
                    entries.setdefault(int(index), {})[name] = value
            if entries:
                optimizer = make_optimizer(client, self.settings)
                optimizer.load_state_dict({**optimizer.state_dict(), "state": entries})
                self.optimizers[client.id] = optimizer


def make_optimizer(client: Client, settings: TrainSettings) -> torch.optim.Optimizer:
    """A new optimiser over all parameters of a client, prototypes included."""
    parameters = list(client.model.parameters())
    if settings.optimizer == "adam":
        return torch.optim.Adam(
            parameters, settings.learning_rate, settings.betas, weight_decay=settings.weight_decay, fused=True
        )
    return torch.optim.SGD(
        parameters, settings.learning_rate, settings.momentum, weight_decay=settings.weight_decay, fused=True
    )


def _check_finite(client: Client, round: int, losses: dict[str, float]) -> None:
    for name, value in losses.items():
        if not abs(value) < float("inf"):
            raise MaplError(
                f"the {name} loss of client {client.id} became {value} in round {round}; "
                "a lower train.learning_rate usually helps"
            )
