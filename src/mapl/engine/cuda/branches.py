"""Branches of a captured step: work that runs beside the chain of kernels that wait for each other.

A step is a long chain of short kernels, and the length of that chain bounds a round. The gradients of weights are not
part of it: nothing reads them before the optimiser does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

MOST = 8
"""Branches for gradients of weights, at most. Torch has 32 streams of a priority and then gives out the first again;
two that are one would share the memory that matrix products work in, though they run side by side."""

_weights: dict[int, torch.cuda.Stream] = {}
"""The branches for gradients of weights, by the handle of the stream that they are beside."""
_needed: dict[int, list[Tensor]] = {}
"""The tensors that these gradients are computed from, by the same handle."""
_members: dict[tuple[int, int], torch.cuda.Stream] = {}
"""The branches for single members of a group, by the handle and the member."""


@contextmanager
def beside(*needed: Tensor) -> Iterator[None]:
    """What is launched inside runs beside all that comes after it, until `rejoin`. Until then `needed` is kept."""
    device = needed[0].device
    main = torch.cuda.current_stream(device) if device.type == "cuda" else None
    if main is None or (main.cuda_stream not in _weights and len(_weights) == MOST):
        yield
        return
    if main.cuda_stream not in _weights:
        _weights[main.cuda_stream] = _stream(main)
    branch = _weights[main.cuda_stream]
    _needed.setdefault(main.cuda_stream, []).extend(needed)
    branch.wait_stream(main)
    with torch.cuda.stream(branch):
        yield


def rejoin(device: torch.device) -> None:
    """Wait for all that was launched `beside`."""
    if device.type == "cuda":
        main = torch.cuda.current_stream(device)
        if _needed.get(main.cuda_stream):
            main.wait_stream(_weights[main.cuda_stream])
            _needed[main.cuda_stream].clear()


def forget() -> None:
    """Start over with other streams, and release what a failed step has kept. Nothing may be running."""
    _weights.clear()
    _needed.clear()
    _members.clear()


@contextmanager
def member(device: torch.device, g: int, clients: int) -> Iterator[None]:
    """What a group does for member g alone runs beside what it does for the others."""
    if device.type != "cuda" or clients == 1:
        yield
        return
    main = torch.cuda.current_stream(device)
    if (main.cuda_stream, g) not in _members:
        _members[main.cuda_stream, g] = _stream(main)
    branch = _members[main.cuda_stream, g]
    branch.wait_stream(main)
    with torch.cuda.stream(branch):
        yield


def all_members(device: torch.device, clients: int) -> None:
    """Wait for what was done for each member."""
    if device.type == "cuda" and clients > 1:
        main = torch.cuda.current_stream(device)
        for g in range(clients):
            main.wait_stream(_members[main.cuda_stream, g])


def _stream(main: torch.cuda.Stream) -> torch.cuda.Stream:
    return torch.cuda.Stream(main.device, main.priority)  # type: ignore[no-untyped-call]
