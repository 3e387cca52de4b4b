"""Branches of a captured step: work that runs beside the chain of kernels that wait for each other.

A step is a long chain of short kernels, and the length of that chain bounds a round. The gradients of weights are not
part of it: nothing reads them before the optimiser does. Nor are the networks that a method brings along, if they read
the images: they need nothing from the backbone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

MOST = 16
"""Branches for gradients of weights, at most. After `STREAMS` of a priority torch gives out the first again; two that
are one would share the memory that matrix products work in, though they run side by side."""

STREAMS = 32
"""Torch has so many streams of a priority."""
ASIDES = 2
"""Branches for networks beside the backbone, at most, in a step: a courier and its teacher. Further ones share them."""

_crowded: set[int] = set()
"""The priorities at which a step has one branch for all such networks, because streams are short."""
_weights: dict[int, torch.cuda.Stream] = {}
"""The branches for gradients of weights, by the handle of the stream that they are beside."""
_needed: dict[int, list[Tensor]] = {}
"""The tensors that these gradients are computed from, by the same handle."""
_members: dict[tuple[int, int], torch.cuda.Stream] = {}
"""The branches for single members of a group, by the handle and the member."""
_asides: dict[tuple[int, int], torch.cuda.Stream] = {}
"""The branches for networks beside the backbone, by the handle of the step's stream and a number below `ASIDES`."""
_forks: dict[int, _Fork] = {}
"""Where the steps that are being launched begin, by the same handle."""


@dataclass(frozen=True)
class _Fork:
    """The beginning of a step: its images are ready, and nothing has read them yet."""

    ready: torch.cuda.Event
    images: Tensor
    version: int
    outputs: list[Tensor] = field(default_factory=list)
    """What branches have made for the step's stream, kept until `rejoin`."""
    branches: dict[int, torch.cuda.Stream] = field(default_factory=dict)
    """Those that run beside this step, by number."""

    def feeds(self, x: Tensor) -> bool:
        """Whether x is the step's images, or a view of them, as they were at the beginning."""
        same = x.untyped_storage().data_ptr() == self.images.untyped_storage().data_ptr()
        return same and self.images._version == self.version


def plan(slots: Mapping[int, int]) -> None:
    """How many slots there will be, by the priority of their streams. It decides how many branches each may have."""
    of_a_slot = 1 + ASIDES + 2  # the step, networks beside it, gradients of weights of the step and of one such network
    _crowded.clear()
    _crowded.update(priority for priority, number in slots.items() if number * of_a_slot > STREAMS)


def fork(images: Tensor) -> None:
    """A step begins. What `aside` launches for these images waits for nothing that comes after this."""
    if (main := _current(images.device)) is not None:
        _forks[main.cuda_stream] = _Fork(main.record_event(), images, images._version)


def aside(network: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A network's output. If it reads the step's images, it runs beside the backbone; what comes after waits for it.

    The networks of a step run beside each other, too. Autograd takes the backward pass of a layer to the stream of its
    forward pass, so that runs beside the backbone as well.
    """
    main = _current(x.device)
    start = _forks.get(main.cuda_stream) if main is not None else None
    if main is None or start is None or not start.feeds(x):
        return network(x)
    number = 0 if main.priority in _crowded else len(start.outputs) % ASIDES
    if (main.cuda_stream, number) not in _asides:
        _asides[main.cuda_stream, number] = _stream(main)
    branch = start.branches[number] = _asides[main.cuda_stream, number]
    branch.wait_event(start.ready)
    with torch.cuda.stream(branch):
        y = network(x)
    main.wait_stream(branch)
    # The branch owns its memory, and could use it again before the step's stream has read it.
    start.outputs.append(y)
    return y


@contextmanager
def beside(*needed: Tensor) -> Iterator[None]:
    """What is launched inside runs beside all that comes after it, until `rejoin`. Until then `needed` is kept."""
    main = _current(needed[0].device)
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
    """Wait for all that was launched `beside` and `aside`. The step's images may be released."""
    if (main := _current(device)) is not None:
        step = _forks.pop(main.cuda_stream, None)
        for branch in step.branches.values() if step is not None else ():
            _rejoin(branch)
            main.wait_stream(branch)
        _rejoin(main)


def _rejoin(stream: torch.cuda.Stream) -> None:
    if _needed.get(stream.cuda_stream):
        stream.wait_stream(_weights[stream.cuda_stream])
        _needed[stream.cuda_stream].clear()


def forget() -> None:
    """Start over with other streams, and release what a failed step has kept. Nothing may be running."""
    _weights.clear()
    _needed.clear()
    _members.clear()
    _asides.clear()
    _forks.clear()


@contextmanager
def member(device: torch.device, g: int, clients: int) -> Iterator[None]:
    """What a group does for member g alone runs beside what it does for the others."""
    main = _current(device) if clients > 1 else None
    if main is None:
        yield
        return
    if (main.cuda_stream, g) not in _members:
        _members[main.cuda_stream, g] = _stream(main)
    branch = _members[main.cuda_stream, g]
    branch.wait_stream(main)
    with torch.cuda.stream(branch):
        yield


def all_members(device: torch.device, clients: int) -> None:
    """Wait for what was done for each member."""
    main = _current(device) if clients > 1 else None
    if main is not None:
        for g in range(clients):
            main.wait_stream(_members[main.cuda_stream, g])


def _current(device: torch.device) -> torch.cuda.Stream | None:
    """The stream that work is launched on. On a CPU there is none, and no branches."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


def _stream(main: torch.cuda.Stream) -> torch.cuda.Stream:
    return torch.cuda.Stream(main.device, main.priority)  # type: ignore[no-untyped-call]
