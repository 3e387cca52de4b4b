"""Branches of a slot's graph: work that runs beside the chain of kernels that wait for each other.

A step is a long chain of short kernels, and its length is what a round takes. The gradients of weights are no part of
it: nothing reads them before the optimiser does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

WEIGHTS = -1
"""The branch for gradients of weights; those for single members have the members' numbers."""

_streams: dict[tuple[int, int], torch.cuda.Stream] = {}
"""Streams beside a stream, by (its handle, number)."""
_needed: dict[int, list[Tensor]] = {}
"""What the gradients of weights are made of, by the handle of the stream that it belongs to."""


@contextmanager
def beside(*needed: Tensor) -> Iterator[None]:
    """What is launched inside runs beside all that comes after it, until `rejoin`; till then `needed` is kept."""
    device = needed[0].device
    if device.type != "cuda":
        yield
        return
    main, branch = torch.cuda.current_stream(device), _branch(device, WEIGHTS)
    _needed.setdefault(main.cuda_stream, []).extend(needed)
    branch.wait_stream(main)
    with torch.cuda.stream(branch):
        yield


def rejoin(device: torch.device) -> None:
    """Wait for all that was launched `beside`."""
    if device.type != "cuda":
        return
    main = torch.cuda.current_stream(device)
    if _needed.get(main.cuda_stream):
        main.wait_stream(_branch(device, WEIGHTS))
        _needed[main.cuda_stream].clear()


@contextmanager
def member(device: torch.device, g: int, clients: int) -> Iterator[None]:
    """What a group does for member g alone runs beside what it does for the others."""
    if device.type != "cuda" or clients == 1:
        yield
        return
    main = torch.cuda.current_stream(device)
    branch = _branch(device, g)
    branch.wait_stream(main)
    with torch.cuda.stream(branch):
        yield


def all_members(device: torch.device, clients: int) -> None:
    """Wait for what was done for each member."""
    if device.type == "cuda" and clients > 1:
        main = torch.cuda.current_stream(device)
        for g in range(clients):
            main.wait_stream(_branch(device, g))


def _branch(device: torch.device, number: int) -> torch.cuda.Stream:
    main = torch.cuda.current_stream(device)
    at = (main.cuda_stream, number)
    if at not in _streams:
        _streams[at] = torch.cuda.Stream(device, main.priority)  # type: ignore[no-untyped-call]
    return _streams[at]
