"""Curves for TensorBoard, in the run's folder."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from mapl.errors import MaplError
from mapl.measures import METRICS
from mapl.recipe import Recipe
from mapl.runs.chain import Round
from mapl.runs.writers._recorded import clients_of, recorded

__all__ = ["TensorBoard"]


class TensorBoard:
    """Curves for TensorBoard: accuracy, losses, messages, bytes and seconds, in tensorboard/; needs mapl[tensorboard].

    Rounds that are played again after a crash hide their old points.
    """

    name: ClassVar[str] = "tensorboard"

    def __init__(self, folder: str | Path):
        self.run = Path(folder)
        self.folder = self.run / "tensorboard"
        try:  # here, so that a missing package is reported before the first round
            self._library: Any = importlib.import_module("torch.utils.tensorboard")
        except ImportError as error:
            raise MaplError(
                f"writer 'tensorboard' needs the package tensorboard, which cannot be imported ({error}): "
                "pip install 'mapl[tensorboard]'"
            ) from error
        self._events: Any = None
        self._next: int | None = None
        self._held: list[int] | None = None

    def __call__(self, recipe: Recipe, line: Round, seconds: dict[str, float]) -> None:
        try:
            if line.round != self._next:
                self._take_up(line.round)
            self._write(line, seconds)
            self._events.flush()  # so that a kill loses no finished round
        except OSError as error:
            raise MaplError(f"the curves in {str(self.folder)!r} could not be written ({error})") from error
        self._next = line.round + 1

    def _take_up(self, start: int) -> None:
        """Start an event file that hides the points of earlier files from round `start` on.

        A run without curves so far also gets those of its earlier rounds.
        """
        if self._events is not None:
            self._events.close()
        new = not any(self.folder.glob("events.*"))
        past = recorded(self.run, start) if new else []
        self._held = clients_of(self.run)
        self._events = self._library.SummaryWriter(str(self.folder), purge_step=0 if new else start)
        for line, seconds in past:
            self._write(line, seconds)

    def _write(self, line: Round, seconds: dict[str, float]) -> None:
        for tag, value in scalars(line, seconds, self._held).items():
            self._events.add_scalar(tag, value, line.round)


def scalars(line: Round, seconds: dict[str, float], held: Sequence[int] | None = None) -> dict[str, float]:
    """A round as named numbers. `held`: the numbers of the clients, if they are not 0, 1, 2, …"""
    named = {f"loss/{term}": value for term, value in line.mean_losses.items()}
    named |= {"network/messages": line.messages, "network/bytes": line.bytes}
    named |= {f"time/{part}": value for part, value in seconds.items()}
    if line.accuracy:
        named["accuracy/mean"] = fmean(line.accuracy)
        clients = range(len(line.accuracy)) if held is None else held
        named |= {f"accuracy/client_{client}": value for client, value in zip(clients, line.accuracy, strict=True)}
        named |= {f"measures/{name}": value for name in METRICS[1:] if (value := line.value(name)) is not None}
    if line.all_images:
        named["accuracy/all_images"] = fmean(line.all_images)
    named |= {f"accuracy/{way}": fmean(accuracy) for way, accuracy in (line.ways or {}).items()}
    return named
