"""Who draws random numbers while it trains.

What the engine draws is keyed by (seed, client, round). What a network or a loss draws for itself comes from generators
that all threads share: torch's global one, numpy's and Python's. Clients that read those train one after another, each
with generators that start from a key of its own.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mapl.client import Client
from mapl.errors import warn
from mapl.keys import SHARED
from mapl.methods._base import Method
from mapl.model import PROJECTOR, ClientModel
from mapl.shape import Shape, random_samples


def of_one_kind(clients: Sequence[Client]) -> list[list[Client]]:
    """The clients in groups whose networks are alike but for their weights: what holds for one holds for all."""
    kinds: dict[tuple[type, str, str], list[Client]] = {}
    for client in clients:
        kind = type(client.model.backbone), client.architecture, repr(client.model)
        kinds.setdefault(kind, []).append(client)
    return list(kinds.values())


def who_draws(kinds: Sequence[Sequence[Client]], shape: Shape) -> set[int]:
    """The clients whose networks draw random numbers in training: one of each kind is tried on a few samples."""
    return {client.id for clients in kinds if draws(clients[0].model, shape) for client in clients}


def draws(model: ClientModel, shape: Shape) -> bool:
    """Whether a forward pass in training mode moves a generator. The model itself is left as it is."""
    with _restored():
        before = _states()
        try:
            _pass_through(copy.deepcopy(model).train(), random_samples(shape, 4, torch.Generator()))
        except Exception:  # it cannot be copied or run, so nobody knows
            return True
        return _states() != before


def _pass_through(model: ClientModel, samples: Tensor) -> None:
    embedding = model.embed(samples.clone())
    inputs = [samples, embedding]
    if model.has(PROJECTOR):
        inputs.append(model.project(embedding))
    for name in model.own:
        _try_on_any(model, name, inputs)


def _try_on_any(model: ClientModel, name: str, inputs: Sequence[Tensor]) -> None:
    """Run a method's own network on the first input that it takes. Where it takes none, the method's `draws` counts."""
    for x in inputs:
        try:
            model.call(name, x.clone())
        except Exception:  # not its input
            continue
        return


def _states() -> list[object]:
    """What the shared generators will draw next."""
    _, numbers, place, *_ = np.random.get_state(legacy=True)
    return [torch.random.get_rng_state().tolist(), np.asarray(numbers).tobytes(), place, random.getstate()]


@contextmanager
def _restored() -> Iterator[None]:
    """Afterwards the shared generators are as they were. Meanwhile no other run uses them."""
    with SHARED, torch.random.fork_rng(devices=[]):
        of_numpy, of_python = np.random.get_state(), random.getstate()
        try:
            yield
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)


@contextmanager
def drawing_from(key: int, device: torch.device) -> Iterator[None]:
    """Inside, the shared generators start from a key; afterwards they are as they were."""
    with _restored(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(key)
        np.random.seed(key % 2**32)
        random.seed(key)
        yield


def say_who_takes_turns(method: Method[Any], clients: Sequence[Client]) -> None:
    """One line for the reader where several clients cannot train side by side."""
    if len(clients) < 2:
        return
    if method.draws:
        who, why = "all clients", f"the loss of {type(method).__name__} draws random numbers (draws = True)"
    else:
        who = f"clients with the backbone {' or '.join(sorted({client.backbone for client in clients}))}"
        why = "it draws random numbers in training, as dropout does, or cannot be tried"
    warn(f"{who} train one after another on the CPU: {why}", once=True)
