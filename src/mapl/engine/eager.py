"""The eager engine: plain PyTorch, client by client. It is the reference that every other path equals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import Tensor

from mapl.client import Client
from mapl.clock import part, profiled
from mapl.data.dataset import Images
from mapl.engine._base import Draws, Engine, check_finite
from mapl.engine.channels_last import channels_last, pixels_together, who_takes_it
from mapl.engine.settings import TrainSettings
from mapl.engine.workers import cores, never_draws, side_by_side
from mapl.keys import key

__all__ = ["Draws", "EagerEngine", "make_optimizer"]

TEST_BATCH = 512
AT_A_TIME = 2**19
"""Numbers of the images that are augmented at once, about what a core's cache holds: several steps' small ones."""

Result = TypeVar("Result")


class EagerEngine(Engine):
    """Trains and tests clients: on a GPU one by one, on a CPU as many at a time as there are workers."""

    def __init__(self, *settings: Any):
        super().__init__(*settings)
        self.optimizers: dict[int, torch.optim.Optimizer] = {}
        self._images: dict[tuple[int, str], Images] = {}
        self._keys: Any = None
        self._quiet: set[int] = set()
        """Clients whose training reads no generator but those of `draw`."""
        self._seconds: dict[int, float] = {}
        """How long each client's last round took."""
        self._channels_last: set[int] = set()

    def adopt(self, clients: Sequence[Client]) -> None:
        super().adopt(clients)
        if self.device.type == "cuda":
            self._use_gpu(clients)
        else:
            self._use_cpu(clients)

    def _use_cpu(self, clients: Sequence[Client]) -> None:
        """Learn of each client whether it can train beside others, and how its convolutions are best laid out."""
        if self.knows_method:
            self._quiet = {client.id for client in clients if never_draws(client.model)}
        self._channels_last = who_takes_it(clients, self.augmentation.shape)

    def _use_gpu(self, clients: Sequence[Client]) -> None:
        """Low precision where it was asked for, and dropouts that are drawn as the engine of graphs draws them."""
        for client in clients:
            client.model.precision = torch.bfloat16 if self.engine_settings.precision == "bf16" else None
        if find_spec("triton") is not None:
            from mapl.engine.cuda.layers import Keys, keyed

            self._keys = self._keys or Keys(*torch.zeros(2, 1, dtype=torch.int64, device=self.device))
            for client in clients:
                keyed(client.model, self._keys)

    def train_all(self, clients: Sequence[Client], round: int) -> list[dict[str, float]]:
        def train(client: Client) -> dict[str, float]:
            start = perf_counter()
            losses = self.train(client, round)
            self._seconds[client.id] = perf_counter() - start
            return losses

        return self._each(clients, train, lambda client: client.id not in self._quiet)

    def _each(
        self, clients: Sequence[Client], work: Callable[[Client], Result], in_turn: Callable[[Client], bool]
    ) -> list[Result]:
        if self.device.type != "cpu" or profiled():  # parts are billed in one thread
            return [work(client) for client in clients]
        workers = self.engine_settings.workers or max(1, cores() // self.settings.threads)
        return side_by_side(work, clients, workers, in_turn, lambda client: self._seconds.get(client.id, 0.0))

    def train(self, client: Client, round: int) -> dict[str, float]:
        """PML: a round of local training. Returns the mean of each term of the loss."""
        draws = self.draw(client, round)
        images = self._on_device(client, "train")
        batches, uniforms = draws.batches.to(self.device), draws.uniforms.to(self.device)
        optimizer = self._optimizer(client)
        client.model.train()
        totals: dict[str, Tensor] = {}
        with ExitStack() as stack:
            stack.enter_context(self.arithmetic())
            if client.id not in self._quiet:
                # Layers that draw for themselves (dropout) read the global generator: lend it a key of ours.
                stack.enter_context(torch.random.fork_rng([self.device] if self.device.type == "cuda" else []))
                self._seed_layers(key(self.seed, client.id, round, "layers"))
            if client.id in self._channels_last:
                stack.enter_context(channels_last(client.model, optimizer))
            for step, batch in enumerate(self._augmented(client, images, batches, uniforms)):
                epoch, first = divmod(step, len(batches) // self.settings.epochs)
                if first == 0:
                    self.method.start_epoch(client, round, epoch)
                terms = self._step(client, optimizer, *batch)
                for name, value in terms.items():
                    totals[name] = totals[name] + value if name in totals else value
        optimizer.zero_grad(set_to_none=True)  # who waits for its next turn needs no gradients
        losses = {name: float(total) / len(batches) for name, total in totals.items()}
        check_finite(client, round, losses)
        return losses

    def _seed_layers(self, seed: int) -> None:
        torch.manual_seed(seed)
        if self._keys is not None:
            self._keys.seed.fill_(seed)
            self._keys.cursor.zero_()

    def _augmented(
        self, client: Client, images: Images, batches: Tensor, uniforms: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """All views (V · B, C, H, W) and labels (V · B,) of each step; small images are made for several at a time."""
        size = self.method.views * batches.shape[1]
        steps = max(1, AT_A_TIME // (size * images.pixels[0].numel()))
        for some, draws in zip(torch.split(batches, steps), torch.split(uniforms, steps), strict=True):
            with part("augmentation"):
                chosen = some.repeat(1, self.method.views).flatten()
                made = self.augmentation.apply(images.pixels[chosen], draws.flatten(0, 1))
                if client.id in self._channels_last:
                    made = pixels_together(made)
            for step, labels in enumerate(torch.split(images.labels[chosen], size)):
                # Detached, so that a network may write over its images: they are no part of anything then.
                yield made[step * size : (step + 1) * size].detach(), labels

    def _step(
        self, client: Client, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        terms = self.method.loss(client, images, labels)
        optimizer.zero_grad(set_to_none=True)
        torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if self._keys is not None:
            self._keys.cursor.add_(1)
        return {name: value.detach() for name, value in terms.items()}

    def _optimizer(self, client: Client) -> torch.optim.Optimizer:
        if self.settings.reset:
            return make_optimizer(client, self.settings)
        if client.id not in self.optimizers:
            self.optimizers[client.id] = make_optimizer(client, self.settings)
        return self.optimizers[client.id]

    def _on_device(self, client: Client, split: str) -> Images:
        """The client's images; on a GPU a copy of them, made once and kept."""
        images: Images = getattr(client, split)
        if self.device.type == "cpu":
            return images
        if (client.id, split) not in self._images:
            self._images[client.id, split] = images.to(self.device)
        return self._images[client.id, split]

    @torch.no_grad()
    def embed(self, client: Client) -> Tensor:
        client.model.eval()
        pixels = self._on_device(client, "test").pixels
        # The recipe's own images in batches of their own: what comes after them cannot change how they are rounded.
        parts = [*torch.split(pixels[: client.tests], TEST_BATCH), *torch.split(pixels[client.tests :], TEST_BATCH)]
        with self.arithmetic():
            return torch.cat([client.model.embed(self.augmentation.normalise(part)) for part in parts if len(part)])

    def evaluate_all(self, clients: Sequence[Client]) -> list[Tensor]:
        return self._each(clients, self.evaluate, lambda client: False)

    @torch.no_grad()
    def evaluate(self, client: Client) -> Tensor:
        """Which of the client's test images it classifies rightly."""
        right = (
            self.method.scores(client, {"backbone": self.embed(client)}).argmax(1)
            == self._on_device(client, "test").labels
        )
        return right.cpu()

    def state(self) -> dict[str, Tensor]:
        if self.settings.reset:
            return {}
        return {
            f"{client}.{index}.{name}": torch.as_tensor(value)
            for client, optimizer in self.optimizers.items()
            for index, values in optimizer.state_dict()["state"].items()
            for name, value in values.items()
            if value is not None
        }

    def load_state(self, clients: Sequence[Client], state: dict[str, Tensor]) -> None:
        entries: dict[int, dict[int, dict[str, Tensor]]] = {}
        for path, value in state.items():
            owner, index, name = path.split(".")
            entries.setdefault(int(owner), {}).setdefault(int(index), {})[name] = value
        for client in clients:
            if client.id in entries:
                optimizer = make_optimizer(client, self.settings)
                optimizer.load_state_dict({**optimizer.state_dict(), "state": entries[client.id]})
                self.optimizers[client.id] = optimizer


def make_optimizer(client: Client, settings: TrainSettings) -> torch.optim.Optimizer:
    """A new optimiser over all parameters of a client, prototypes included."""
    parameters = list(client.model.parameters())
    if settings.optimizer == "adam":
        return torch.optim.Adam(
            parameters, settings.learning_rate, settings.betas, weight_decay=settings.weight_decay, fused=True
        )
    # torch's fused SGD with momentum fails where a parameter has its first gradient later than others.
    return torch.optim.SGD(
        parameters,
        settings.learning_rate,
        settings.momentum,
        weight_decay=settings.weight_decay,
        fused=settings.momentum == 0,
    )
