"""Why a number is no longer finite: the data's mean or std, a temperature, the letters, or the learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from mapl.client import Client
from mapl.data.kinds import Augmenting
from mapl.errors import NotFinite
from mapl.network import Inbox
from mapl.recipe import Recipe
from mapl.runs.part import Part
from mapl.trees import flat

LARGEST_PIXEL = 1e4
"""Normalised images usually stay within ±10. The smallest std that a reader computes, one grey level, makes it 255."""
LARGEST_PARAMETER = 1e10
"""A client with a larger one has diverged, though its numbers are still finite."""
LARGEST_EXPONENT = math.log(torch.finfo(torch.float32).max)
"""88.7; the exponential of more is infinite."""


@contextmanager
def explained(part: Part) -> Iterator[None]:
    """Add the likely cause to the error about a loss that is not finite."""
    try:
        yield
    except NotFinite as error:
        raise NotFinite(f"{error}; {why_not_finite(part)}") from error


def why_not_finite(part: Part) -> str:
    """The likely cause, as the second half of a sentence. Causes that can be seen for certain come first."""
    return (
        _data(part.engine.augmentation)
        or _temperature(part.recipe)
        or part.suspicion
        or f"a lower train.learning_rate (it is {part.recipe.train.learning_rate:g}) usually helps"
    )


def _data(augmentation: Augmenting) -> str | None:
    for mean, std in zip(augmentation.mean, augmentation.std, strict=True):
        if not 1 / LARGEST_PIXEL <= std < math.inf:
            return f"the std of the data set is {std:g}, by which pixels between 0 and 1 are divided"
        if not abs(mean) <= LARGEST_PIXEL * std:
            return f"the mean of the data set is {mean:g}, which is subtracted from pixels between 0 and 1"
    return None


def _temperature(recipe: Recipe) -> str | None:
    for key, value in flat(recipe.method.model_dump(mode="json")).items():
        if key.endswith("temperature") and 1 / value > LARGEST_EXPONENT:
            lowest = 1 / LARGEST_EXPONENT
            return f"method.{key} is {value:g}, and below {lowest:.3f} exp(1/temperature) is no longer finite"
    return None


@contextmanager
def watching_letters(part: Part, pairs: Sequence[tuple[Client, Inbox]], round: int) -> Iterator[None]:
    """Notice it if clients diverge because of the letters that they absorb inside.

    If a number is not finite afterwards, this is an error. If it is only huge, the next loss probably is not finite,
    and `part.suspicion` then says why. Only on a CPU: a look at a number on a GPU waits for all work that is queued.
    """
    part.suspicion = ""
    if part.engine.device.type != "cpu" or not any(len(inbox) for _, inbox in pairs):
        yield
        return
    before = {client.id: _largest(client) for client in part.clients}
    diverged = [client for client, largest in before.items() if not largest < LARGEST_PARAMETER]
    yield
    for client, inbox in pairs:
        if not len(inbox) or client.id in diverged or (after := _largest(client)) < LARGEST_PARAMETER:
            continue
        if diverged:  # their letters, or a server's that is made of them, spread it
            part.suspicion = f"client {diverged[0]} diverged in round {round}; {why_not_finite(part)}"
        else:
            part.suspicion = _letters_did_it(client, inbox, round, before[client.id], after)
        if not after < math.inf:
            raise NotFinite(f"the parameters of client {client.id} are no longer finite: {part.suspicion}")
        return


def _letters_did_it(client: Client, inbox: Inbox, round: int, before: float, after: float) -> str:
    senders = inbox.senders.tolist()
    names = ", ".join(map(str, senders[:4])) + (", …" if len(senders) > 4 else "")
    return (
        f"the letters that client {client.id} read in round {round} (from {names}), or the way they are mixed, took "
        f"its largest parameter from {before:.2g} to {after:.2g}"
    )


def _largest(client: Client) -> float:
    """The largest magnitude among the client's parameters and state; not a number if one of them is none."""
    tensors: list[Tensor] = [*client.model.parameters(), *client.state.values()]
    numbers = [tensor.detach().reshape(-1) for tensor in tensors if tensor.is_floating_point()]
    # Joined, because a look at each of them takes several times as long. This adds 1 to 2 % to a round of tiny models.
    return float(torch.cat([*numbers, torch.zeros(1)]).abs_().max())
