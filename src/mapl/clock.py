"""Where the time of a run goes: the laps of every round and, on request, a profile of the parts of a round.

Parts nest, and time is billed to the innermost one: augmentation is not training, though it happens inside it. Code
that sees a client but no clock (an engine, a method) names its part with this module's function,

    with part("augmentation"):
        images = augmentation.apply(…)

which does nothing, at almost no cost, unless the run is being profiled.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch

PARTS = ("training", "augmentation", "exchange", "graph", "evaluation", "checkpoint", "other")
"""The parts of every profile. Other parts that an engine or a method names come after them."""

_TITLES = {"train": "training", "evaluate": "evaluation"}


class Clock:
    """Measures the time of a run's parts. It starts before the run's clients are built.

    Without profiling, it measures only laps and never waits for anything. With profiling, it also bills nested parts
    and waits for the GPU at the borders of every part, so that queued work is billed to the part that queued it.
    """

    def __init__(self, profiling: bool = False):
        self.profiling = profiling
        self.setup = 0.0
        """Seconds before the first round."""
        self.laps: dict[str, float] = {}
        """Seconds of this round's outermost parts, including all nested parts."""
        self.seconds: dict[str, float] = {}
        """Seconds of all rounds, each second billed once: to the innermost part, or to `other`."""
        self._inside: list[str] = []
        self._device = torch.device("cpu")
        self._last = time.perf_counter()

    def new_round(self) -> dict[str, float]:
        """The laps of a new round, filled in as the round proceeds."""
        self.laps = {}
        return self.laps

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Bill to `name` all time inside that is not billed to a nested part."""
        start = self._border()
        self._inside.append(name)
        try:
            yield
        finally:
            end = self._border()
            self._inside.pop()
            if not self._inside:
                self.laps[name] = self.laps.get(name, 0.0) + end - start

    @contextmanager
    def running(self, device: torch.device) -> Iterator[None]:
        """Wraps the rounds of a run on this device. This clock bills the parts that engines and methods name inside."""
        self._device = device
        now = self._now()
        self.setup, self._last = now - self._last, now
        token = _profiler.set(self if self.profiling else None)
        try:
            yield
        finally:
            self._border()
            _profiler.reset(token)

    def profile(self, rounds: int) -> dict[str, Any]:
        """The measurements over `rounds` rounds."""
        billed = dict.fromkeys(PARTS, 0.0) | {_TITLES.get(name, name): s for name, s in self.seconds.items()}
        total = sum(billed.values())
        return {
            "device": _name(self._device),
            "rounds": rounds,
            "setup_seconds": self.setup,
            "seconds": total,
            "parts": {
                name: {"seconds": s, "seconds_a_round": s / rounds, "share": s / total} for name, s in billed.items()
            },
        }

    def _border(self) -> float:
        """The time now. The time since the last border is billed to the part that was running."""
        now = self._now()
        name = self._inside[-1] if self._inside else "other"
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now
        return now

    def _now(self) -> float:
        # While a step is captured, the GPU runs nothing, and waiting for it would break the capture.
        if self.profiling and self._device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


_profiler: ContextVar[Clock | None] = ContextVar("_profiler", default=None)
"""The clock that profiles the current run. A thread started by a run has none, so its time is not billed."""

_UNMEASURED = nullcontext()


def part(name: str) -> AbstractContextManager[None]:
    """Bill the time inside to this part of the round, if the run is profiled."""
    clock = _profiler.get()
    return clock.part(name) if clock else _UNMEASURED


def profiled() -> bool:
    """Whether the current run is profiled."""
    return _profiler.get() is not None


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({platform.machine()})"
