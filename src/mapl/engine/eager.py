"""The eager engine: plain PyTorch, client by client. It is the reference for every other engine."""

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
from mapl.data.samples import Samples
from mapl.engine._base import Answers, Draws, Engine, check_finite, loss_terms
from mapl.engine.channels_last import channels_last, channels_last_for_tests, pixels_together, who_takes_it
from mapl.engine.generators import drawing_from, of_one_kind, say_who_takes_turns, who_draws
from mapl.engine.optimizers import Optimizer, make_optimizer
from mapl.engine.workers import cores, side_by_side
from mapl.errors import MaplError
from mapl.keys import SHARED, key

__all__ = ["Draws", "EagerEngine"]

BACKBONE = "backbone"
TEST_BATCH = {"cpu": 200, "cuda": 512}
"""Test images per batch. On a CPU, larger batches of convolutions leave the cache."""
AT_A_TIME = 2**19
"""Pixels that are augmented at once, about what a core's cache holds. Small images are made for several steps."""

Result = TypeVar("Result")


class EagerEngine(Engine):
    """Trains and tests clients: on a GPU one by one, on a CPU as many at a time as there are workers."""

    def __init__(self, *settings: Any):
        super().__init__(*settings)
        self.optimizers: dict[int, Optimizer] = {}
        self._samples: dict[tuple[int, str], Samples] = {}
        self._keys: Any = None
        self._quiet: set[int] = set()
        """Clients whose training reads no generator but those of `draw`. Only they train side by side."""
        self._seconds: dict[int, float] = {}
        """How long each client's last round took."""
        self._channels_last: set[int] = set()

    def adopt(self, clients: Sequence[Client]) -> None:
        super().adopt(clients)
        for client in clients:
            client.model.precision = torch.bfloat16 if self.engine_settings.precision == "bf16" else None
        if self.device.type == "cuda":
            self._use_gpu(clients)
        else:
            self._use_cpu(clients)

    def _use_cpu(self, clients: Sequence[Client]) -> None:
        """Find out which clients can train side by side, and which take channels-last images."""
        kinds, shape = of_one_kind(clients), self.augmentation.shape
        if not self.method.draws:
            self._quiet |= {client.id for client in clients} - who_draws(kinds, shape)
        self._channels_last |= who_takes_it(kinds, shape)

    def _use_gpu(self, clients: Sequence[Client]) -> None:
        """Draw dropout as the grouped engine does."""
        if find_spec("triton") is not None:
            from mapl.engine.cuda.layers import Keys, keyed

            self._keys = self._keys or Keys(*torch.zeros(2, 1, dtype=torch.int64, device=self.device))
            for client in clients:
                keyed(client.model, self._keys)

    def warm_up(self, clients: Sequence[Client]) -> None:
        if self.device.type == "cpu" and self._workers > 1:
            say_who_takes_turns(self.method, [client for client in clients if client.id not in self._quiet])

    def train_all(self, clients: Sequence[Client], round: int) -> list[dict[str, float]]:
        def train(client: Client) -> dict[str, float]:
            start = perf_counter()
            losses = self.train(client, round)
            self._seconds[client.id] = perf_counter() - start
            return losses

        before = _global_generator()
        losses = self._each(clients, train, lambda client: client.id not in self._quiet)
        if self.device.type == "cpu" and not torch.equal(_global_generator(), before):
            raise MaplError(
                f"in round {round} of method {type(self.method).__name__} random numbers were drawn from torch's "
                "global generator, which clients that train side by side share: declare `draws = True` in the method"
            )
        return losses

    @property
    def _workers(self) -> int:
        """How many clients a CPU trains at a time."""
        return self.engine_settings.workers or max(1, cores() // self.settings.threads)

    def _each(
        self, clients: Sequence[Client], work: Callable[[Client], Result], in_turn: Callable[[Client], bool]
    ) -> list[Result]:
        if self.device.type != "cpu" or profiled():  # parts are billed in one thread
            return [work(client) for client in clients]
        return side_by_side(work, clients, self._workers, in_turn, lambda client: self._seconds.get(client.id, 0.0))

    def train(self, client: Client, round: int) -> dict[str, float]:
        """A round of local training (PML). Returns the mean of each term of the loss."""
        draws = self.draw(client, round)
        samples = self._on_device(client, "train")
        batches, uniforms = draws.batches.to(self.device), draws.uniforms.to(self.device)
        optimizer = self._optimizer(client)
        optimizer.factor = self.settings.rate_factor(round)
        client.model.train()
        totals: dict[str, Tensor] = {}
        with ExitStack() as stack:
            stack.enter_context(self.arithmetic())
            if client.id not in self._quiet:
                seed = key(self.seed, client.id, round, "layers")
                stack.enter_context(drawing_from(seed, self.device))
                self._seed_layers(seed)
            if client.id in self._channels_last:
                stack.enter_context(channels_last(client.model, optimizer))
            for step, batch in enumerate(self._augmented(client, samples, batches, uniforms)):
                epoch, first = divmod(step, self.steps_per_epoch(client))
                if first == 0:
                    self.method.start_epoch(client, round, epoch)
                terms = self._step(client, optimizer, *batch)
                for name, value in terms.items():
                    totals[name] = totals[name] + value if name in totals else value
        optimizer.zero_grad()  # they are not needed until the next round
        losses = {name: float(total) / len(batches) for name, total in totals.items()}
        check_finite(client, round, losses)
        return losses

    def _seed_layers(self, seed: int) -> None:
        if self._keys is not None:
            self._keys.seed.fill_(seed)
            self._keys.cursor.zero_()

    def _augmented(
        self, client: Client, samples: Samples, batches: Tensor, uniforms: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """All views (V · B, …) and labels (V · B,) of each step; small samples for several steps at once."""
        size = self.method.views * batches.shape[1]
        steps = max(1, AT_A_TIME // (size * samples.inputs[0].numel()))
        for chunk, draws in zip(torch.split(batches, steps), torch.split(uniforms, steps), strict=True):
            with part("augmentation"):
                indices = chunk.repeat(1, self.method.views).flatten()
                views = self.augmentation.apply(samples.inputs[indices], draws.flatten(0, 1))
                if client.id in self._channels_last:
                    views = pixels_together(views)
            for step, labels in enumerate(torch.split(samples.labels[indices], size)):
                # Detached: a network that writes over its images must not tie the steps together in autograd.
                yield views[step * size : (step + 1) * size].detach(), labels

    def _step(self, client: Client, optimizer: Optimizer, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        terms = loss_terms(self.method, client, images, labels)
        optimizer.zero_grad()
        torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if self._keys is not None:
            self._keys.cursor.add_(1)
        return {name: value.detach() for name, value in terms.items()}

    def _optimizer(self, client: Client) -> Optimizer:
        if self.settings.reset:
            return self._new_optimizer(client)
        if client.id not in self.optimizers:
            self.optimizers[client.id] = self._new_optimizer(client)
        return self.optimizers[client.id]

    def _new_optimizer(self, client: Client) -> Optimizer:
        return make_optimizer(client.model, self.settings, self.method.learning_rates())

    def _on_device(self, client: Client, split: str) -> Samples:
        """The client's samples. On a GPU they are copied once."""
        samples: Samples = getattr(client, split)
        if self.device.type == "cpu":
            return samples
        if (client.id, split) not in self._samples:
            self._samples[client.id, split] = samples.to(self.device)
        return self._samples[client.id, split]

    def embed(self, client: Client) -> Tensor:
        return self._outputs(client, (BACKBONE,))[BACKBONE][: len(client.test) - client.held]

    @torch.no_grad()
    def _outputs(self, client: Client, networks: Sequence[str]) -> dict[str, Tensor]:
        """The outputs of these networks, the backbone's or own ones, for the client's test and held-out images."""
        model = client.model.eval()
        outputs: dict[str, list[Tensor]] = {name: [] for name in networks}
        with ExitStack() as stack:
            stack.enter_context(self.arithmetic())
            if client.id in self._channels_last:
                stack.enter_context(channels_last_for_tests(model))
            for images in self._test_batches(client):
                for name, parts in outputs.items():
                    # A copy each where there are several: a network may write over its images.
                    x = images.clone() if len(outputs) > 1 else images
                    parts.append(model.embed(x) if name == BACKBONE else model.call(name, x))
        return {name: torch.cat(parts) for name, parts in outputs.items()}

    def _test_batches(self, client: Client) -> Iterator[Tensor]:
        """The recipe's own test images, the others, the held-out ones. Sharing a batch could change their rounding."""
        inputs = self._on_device(client, "test").inputs
        others = len(inputs) - client.tests - client.held
        for images in torch.split(inputs, [client.tests, others, client.held]):
            for batch in torch.split(images, TEST_BATCH[self.device.type]):
                if len(batch):
                    normalised = self.augmentation.normalise(batch)
                    yield pixels_together(normalised) if client.id in self._channels_last else normalised

    def evaluate_all(self, clients: Sequence[Client]) -> list[Answers]:
        return self._each(clients, self.answers_of, lambda client: False)

    def evaluate(self, client: Client) -> Tensor:
        """Which of its test images the client classifies correctly: booleans (n,)."""
        return self.answers_of(client).right[0]

    @torch.no_grad()
    def answers_of(self, client: Client) -> Answers:
        """`evaluate_all` for one client."""
        outputs = self._outputs(client, self.method.answers_with)
        predicted, confidence = self.answer(client, outputs, self._on_device(client, "test").labels)
        return Answers(predicted.cpu(), confidence.cpu(), client.test.labels[: len(confidence)])

    def state(self) -> dict[str, Tensor]:
        if self.settings.reset:
            return {}
        return {
            f"{client}.{path}": value
            for client, optimizer in self.optimizers.items()
            for path, value in optimizer.named_state()
        }

    def load_state(self, clients: Sequence[Client], state: dict[str, Tensor]) -> None:
        entries: dict[int, dict[str, Tensor]] = {}
        for path, value in state.items():
            owner, _, rest = path.partition(".")
            entries.setdefault(int(owner), {})[rest] = value
        for client in clients:
            if client.id in entries:
                self.optimizers[client.id] = self._new_optimizer(client)
                self.optimizers[client.id].load(entries[client.id])


def _global_generator() -> Tensor:
    """The state of torch's global generator while no other run in this process uses it."""
    with SHARED:
        return torch.random.get_rng_state()
