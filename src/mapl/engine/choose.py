"""Which engine carries out a recipe on this machine."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

from mapl.engine._base import Engine
from mapl.engine.eager import EagerEngine
from mapl.engine.settings import EngineSettings
from mapl.errors import MaplError, warn


def find_device(settings: EngineSettings) -> torch.device:
    """The device that the settings name, or the best there is."""
    # Each stream gets a queue of its own; with the usual eight, groups of clients would wait for each other. Read once,
    # when CUDA starts.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise MaplError("engine.device: got 'cuda', but torch sees no GPU here; use 'cpu' or 'auto'")
    cuda = settings.device == "cuda" or (settings.device == "auto" and torch.cuda.is_available())
    if settings.kind == "grouped" and not cuda:
        raise MaplError("engine.kind: got 'grouped', but groups need a GPU, and this run is on the CPU")
    return torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")


def find_engine(settings: EngineSettings, device: torch.device) -> type[Engine]:
    """The eager engine, or on a GPU the one that trains clients of one architecture as groups."""
    if device.type != "cuda" or settings.kind == "eager":
        return EagerEngine
    if find_spec("triton") is None:
        if settings.kind == "grouped":
            raise MaplError("engine.kind: got 'grouped', but Triton is not installed: pip install triton")
        warn("without Triton a GPU trains one client after another: pip install triton", once=True)
        return EagerEngine
    from mapl.engine.cuda import GroupedEngine  # Triton, which only a GPU needs

    return GroupedEngine
