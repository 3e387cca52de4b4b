"""A step of the optimiser of all members."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import triton
from torch import Tensor

from mapl.engine.cuda.branches import rejoin
from mapl.engine.cuda.kernels import optimiser as kernels
from mapl.engine.cuda.kernels.launch import launch
from mapl.engine.cuda.layers import Stack
from mapl.engine.cuda.layout import Layout
from mapl.engine.settings import TrainSettings

ADAM_EPS = 1e-8
OPTIMISERS = 396
"""Programs of an optimiser: enough to keep the memory busy, few enough that other streams compute meanwhile."""


def optimise(
    flat: Tensor,
    low: Tensor | None,
    gradients: tuple[Tensor, Tensor],
    moments: tuple[Tensor, Tensor],
    learns: Tensor,
    rates: Tensor | None,
    factor: Tensor,
    stack: Stack,
    constants: dict[str, Any],
) -> None:
    """A step of every active member's optimiser, one launch for all parameters; shapes as in `kernels.optimise`."""
    rejoin(flat.device)
    n_low, n = gradients[0].shape[1], gradients[0].shape[1] + gradients[1].shape[1]
    programs = min(triton.cdiv(n, 1024), triton.cdiv(OPTIMISERS, stack.clients))
    launch(kernels.optimise, (programs, stack.clients),
        flat, flat if low is None else low, *gradients, *moments, learns, learns if rates is None else rates,
        factor, stack.step, stack.active, flat.stride(0), n_low, n, COPY=low is not None, RATES=rates is not None,
        BLOCK=1024, **constants,
    )  # fmt: skip


def constants_of(train: TrainSettings) -> dict[str, Any]:
    """What the kernel takes from the recipe."""
    beta1, beta2 = train.betas if train.adaptive else (train.momentum, 0.0)
    return {
        "lr": train.learning_rate, "eps": ADAM_EPS, "decay": train.weight_decay, "DECAYS": train.weight_decay > 0,
        "ADAM": train.adaptive, "DECOUPLED": train.optimizer == "adamw",
        "BETA1": beta1, "BETA2": beta2, "LOG1": _log(beta1), "LOG2": _log(beta2),
    }  # fmt: skip


def rates_of(rates: Mapping[str, float], layout: Layout, usual: float, device: torch.device) -> Tensor | None:
    """The learning rate of every parameter, (n,), or None where all have the usual one.

    rates: of own networks, by name (`Method.learning_rates`).
    """
    own = {f"own.{name}.": rate for name, rate in rates.items() if rate not in (0, usual)}
    if not own:
        return None
    vector = torch.full((layout.parameters,), usual)
    for name, entry in layout.entries.items():
        for prefix, rate in own.items():
            if name.startswith(prefix) and layout.learns(name):
                entry.view(vector).fill_(rate)
    return vector.to(device)


def _log(beta: float) -> float:
    return math.log(beta) if beta else -1e30
