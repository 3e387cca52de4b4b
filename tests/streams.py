"""Streams of a GPU that are played on a CPU, to find work that does not wait for what it needs.

Everything runs at once, in the order in which it is launched, so results are right. Clocks say what a GPU would be free
to do in another order. Two faults are found: two pieces of work touch the same numbers, one of them writes, and neither
waits for the other; and memory goes back to the stream that it is from while another may still use it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from mapl.engine.cuda import branches, networks
from mapl.engine.cuda.kernels import launch

Places = NDArray[np.bool_]
Clock = dict[int, int]

_numbers = itertools.count(1)


class Stream:
    """What `branches` uses of a stream. `clock`: of each stream, how much of its work this one has waited for."""

    def __init__(self, device: object = None, priority: int = 0) -> None:
        self.cuda_stream, self.priority, self.device = next(_numbers), priority, torch.device("cpu")
        self.clock: Clock = {self.cuda_stream: 0}

    def wait_event(self, event: Clock) -> None:
        for stream, time in event.items():
            self.clock[stream] = max(self.clock.get(stream, -1), time)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.clock)

    def record_event(self) -> Clock:
        return dict(self.clock)


class Use(NamedTuple):
    stream: int
    time: int
    writes: bool
    by: str
    places: Places


@dataclass
class Memory:
    """A tensor's memory: the stream that it was made on, and who used it."""

    alive: StorageWeakRef
    owner: Stream
    uses: list[Use] = field(default_factory=list)


class Streams(TorchDispatchMode):
    """Inside, each operation belongs to the current stream. `faults` are what a GPU might do wrong."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.current = [Stream()]
        self.memory: dict[int, Memory] = {}
        self.freed: list[Memory] = []
        self.faults: set[str] = set()
        self.work: dict[int, int] = defaultdict(int)
        """How many operations each stream had."""
        self.inside_kernel = False
        branches.forget()
        patch.setattr(branches, "_current", lambda _: self.current[-1])
        patch.setattr(branches, "_stream", lambda main: Stream(priority=main.priority))
        patch.setattr(torch.cuda, "stream", self.on)
        patch.setattr(networks, "_go_back", self.go_back)
        patch.setattr(launch, "_builders", self)

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        self.current.append(stream)
        try:
            yield
        finally:
            self.current.pop()

    # What runs

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if self.inside_kernel:
            return result
        given = list(zip(function._schema.arguments, args, strict=False))
        given += [(a, kwargs[a.name]) for a in function._schema.arguments if a.name in kwargs]
        writes = [t for a, value in given if a.alias_info and a.alias_info.is_write for t in tensors(value)]
        reads = [t for _, value in given for t in tensors(value)]
        made = tensors(result)
        if function._schema.name.startswith(("aten::empty", "aten::new_empty")):
            for tensor in made:
                self.place(tensor)
        elif writes or not all(any(address(t) == address(r) for r in reads) for t in made):  # a view is no work
            self.ran(function._schema.name, [(t, places(t)) for t in reads], [(t, places(t)) for t in writes + made])
        return result

    def add(self, kernel: Any, grid: Any, arguments: Any, constants: Any) -> None:
        """In the place of what builds kernels: run it, and see what it has changed."""
        self.inside_kernel = True
        given = tensors(arguments)
        before = [whole(tensor).clone() for tensor in given]
        kernel[grid](*arguments, **constants)
        after = [whole(tensor) for tensor in given]
        changed = [~((a == b) | ((a != a) & (b != b))).numpy() for a, b in zip(before, after, strict=True)]
        self.inside_kernel = False
        self.ran(kernel.__name__, [(t, places(t)) for t in given], list(zip(given, changed, strict=True)))

    def ran(self, name: str, reads: list[tuple[Tensor, Places]], writes: list[tuple[Tensor, Places]]) -> None:
        stream = self.current[-1]
        self.work[stream.cuda_stream] += 1
        self._reuse(stream)
        stream.clock[stream.cuda_stream] += 1
        for writing, some in ((False, reads), (True, writes)):
            for tensor, touched in some:
                uses = self.place(tensor).uses
                now = Use(stream.cuda_stream, stream.clock[stream.cuda_stream], writing, name, touched)
                for use in uses:
                    meets = len(use.places) != len(touched) or (use.places & touched).any()
                    if (writing or use.writes) and meets and not waited(stream, use):
                        self.faults.add(f"{name} does not wait for {use.by}")
                uses.append(now)

    # Memory

    def place(self, tensor: Tensor) -> Memory:
        reference = StorageWeakRef(tensor.untyped_storage())
        return self.memory.setdefault(reference.cdata, Memory(reference, self.current[-1]))

    def _reuse(self, stream: Stream) -> None:
        """What was freed goes to the next work of the stream that it is from."""
        gone = [number for number, memory in self.memory.items() if memory.alive.expired()]
        self.freed += [self.memory.pop(number) for number in gone]
        for memory in [memory for memory in self.freed if memory.owner is stream]:
            self.freed.remove(memory)
            self.faults |= {f"{u.by} may still use what was freed" for u in memory.uses if not waited(stream, u)}

    # The backward pass

    def go_back(self, terms: dict[str, Tensor], ones: Tensor) -> None:
        """As autograd does: each node on the stream of its forward pass, after all that its gradients come from."""
        main = self.current[-1]
        end = networks._Ends.apply(ones, *(term for term in terms.values() if term.requires_grad))
        streams: dict[Any, Stream] = {}
        step = branches._forks[main.cuda_stream]
        for number, output in enumerate(step.outputs):
            for node in nodes(output.grad_fn):
                streams.setdefault(node, step.branches[number % len(step.branches)])  # type: ignore[arg-type]
        sources, done = defaultdict(list), {}
        for node in nodes(end.grad_fn):
            for following, _ in node.next_functions:
                sources[following].append(node)

        def before(node: Any) -> None:
            self.current[-1] = streams.get(node, main)
            for source in sources[node]:
                self.current[-1].wait_event(done.get(source, {}))

        def after(node: Any) -> None:
            done[node] = self.current[-1].record_event()

        for node in nodes(end.grad_fn):
            node.register_prehook(lambda _, node=node: before(node))
            node.register_hook(lambda *_, node=node: after(node))
        torch.autograd.backward(end)
        self.current[-1] = main


def nodes(first: Any) -> list[Any]:
    """All nodes behind one, without the ends."""
    found, waiting = dict.fromkeys([first] if first is not None else []), [first] if first is not None else []
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in found and "Accumulate" not in node.name():
                found[node] = None
                waiting.append(node)
    return list(found)


def waited(stream: Stream, use: Use) -> bool:
    return stream.clock.get(use.stream, -1) >= use.time


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.numel() else []
    return [t for one in value for t in tensors(one)] if isinstance(value, list | tuple) else []


def address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def whole(tensor: Tensor) -> Tensor:
    """All numbers of the memory that a tensor lies in."""
    return torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def places(tensor: Tensor) -> Places:
    """Which of them are the tensor's."""
    found = np.zeros(tensor.untyped_storage().nbytes() // tensor.element_size(), dtype=bool)
    at = np.array(tensor.storage_offset())
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        at = at[..., None] + np.arange(size) * stride
    found[at.ravel()] = True
    return found
