"""Where the seconds of a run go: the laps of every round, and on request a profile of all that a round is made of.

Parts nest, and time is billed to the innermost one: augmentation is not training, though it happens inside it. Code
that sees a client and no clock (an engine, a method) names its part with the function of this module,

    with part("augmentation"):
        images = augmentation.apply(…)

which does nothing, and costs next to nothing, unless the run around it is being profiled.
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
"""What a profile always has; a part that an engine or a method names besides these follows them."""

_TITLES = {"train": "training", "evaluate": "evaluation"}


class Clock:
    """Takes the time of a run's parts, from before its part is built.

    Unless it profiles, it takes laps alone and never waits for anything. A profiling one also bills what is nested, and
    waits for a GPU at the borders of every part, so that work which was only queued is billed to who queued it.
    """

    def __init__(self, profiling: bool = False):
        self.profiling = profiling
        self.setup = 0.0
        """Seconds before the first round."""
        self.laps: dict[str, float] = {}
        """Seconds of this round's outermost parts, with all that is inside them."""
        self.seconds: dict[str, float] = {}
        """Seconds of all rounds, each billed once: to the innermost part, or to `other`."""
        self._inside: list[str] = []
        self._device = torch.device("cpu")
        self._last = time.perf_counter()

    def new_round(self) -> dict[str, float]:
        """The laps of the round that begins; they are filled in as it goes."""
        self.laps = {}
        return self.laps

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Bill to `name` whatever is done inside and is not billed to a part of its own."""
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
        """The rounds of a run on this device; parts that engines and methods name in them are billed by this clock."""
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
        """What was measured over so many rounds."""
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
        """Now; what has passed since the last border is billed to the part that we were in."""
        now = self._now()
        name = self._inside[-1] if self._inside else "other"
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now
        return now

    def _now(self) -> float:
        # While a GPU records a graph it runs nothing, and to wait for it would spoil the recording.
        if self.profiling and self._device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


_profiler: ContextVar[Clock | None] = ContextVar("_profiler", default=None)
"""The clock that profiles the run around us. A thread that a run starts has none: its time is nobody's part."""

_UNMEASURED = nullcontext()


def part(name: str) -> AbstractContextManager[None]:
    """Bill what is done inside to this part of the round, if the run is profiled."""
    clock = _profiler.get()
    return clock.part(name) if clock else _UNMEASURED


def profiled() -> bool:
    """Whether the run around us is profiled."""
    return _profiler.get() is not None


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({platform.machine()})"
