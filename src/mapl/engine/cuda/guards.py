"""Refuses what a captured step would freeze: numbers that were drawn or read while it was captured."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mapl.client import Client
from mapl.engine.cuda.layers import CannotGroup
from mapl.keys import SHARED
from mapl.model import ClientModel

OF_ONE_CLIENT = frozenset({"id", "samples", "cluster", "train", "test", "tests", "neighbours", "peers"})
"""What is true of one client alone. A captured step would keep the first client's for all."""


@contextmanager
def no_draws(device: torch.device | None = None) -> Iterator[None]:
    """Refuse what draws from a generator of its own: a captured step would repeat the same numbers."""
    with SHARED:  # no other run in this process draws meanwhile
        before = _generators(device)
        yield
        drawn = _generators(device) != before
    if drawn:
        raise CannotGroup("it draws random numbers of its own")


def _generators(device: torch.device | None) -> list[Any]:
    """The states of torch's, Python's and numpy's generators."""
    name, keys, place, *_ = np.random.get_state(legacy=True)
    found = [random.getstate(), (name, np.asarray(keys).tobytes(), place), torch.get_rng_state().tolist()]
    if device is not None and device.type == "cuda":
        found.append(torch.cuda.get_rng_state(device).tolist())
    return found


class _Recorded(Client):
    """A client as a loss sees it while it is captured."""

    def __getattribute__(self, name: str) -> Any:
        if name in OF_ONE_CLIENT:
            raise CannotGroup(f"its loss reads client.{name}, which is a number of one client and no tensor")
        return super().__getattribute__(name)


def recorded(client: Client, model: ClientModel, state: dict[str, Tensor]) -> Client:
    """This client with a model and a state of the slot's, for a loss that is being captured."""
    made = object.__new__(_Recorded)
    vars(made).update({**vars(client), "model": model, "state": state})
    return made
