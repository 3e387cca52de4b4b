"""How long runs take: seconds for each image that is trained on, measured here, and what that makes for others."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean

from mapl.data.partition import cluster_classes
from mapl.paper.machine import device_name, precision
from mapl.paper.store import StoredRun
from mapl.plugins import looking
from mapl.recipe import Recipe, method_class
from mapl.runs.part import build_part
from mapl.runs.round import play_round

CLASSES = 10
"""Of every data set of the paper."""


def images_a_round(recipe: Recipe) -> float:
    """Images that all clients together train on in a round, views counted."""
    settings = recipe.partition
    shots = settings.shots if settings.scenario in (1, 2) else fmean(settings.shots_range)
    held = fmean(len(classes) for classes in cluster_classes(settings, CLASSES))
    return recipe.clients * held * shots * recipe.train.epochs * _views(recipe)


@looking()
def _views(recipe: Recipe) -> int:
    return method_class(recipe.method.name).views


@looking()
def _networks(recipe: Recipe) -> int:
    return len(method_class(recipe.method.name).answers_with)


Kind = tuple[int, tuple[str, ...], tuple[int, ...], str]


def kind_of(recipe: Recipe) -> Kind:
    """Runs of one kind take about the same time for an image: views, backbones, other sizes of the models, data.

    The sizes count the networks that answer: a client with a courier has more to train.
    """
    model = recipe.model
    sizes = (model.embedding, model.projection, model.hidden, recipe.clients, _networks(recipe))
    return _views(recipe), model.backbones, sizes, recipe.data.name


@dataclass
class Rates:
    """What was measured on this device so far."""

    seconds: dict[Kind, list[float]] = field(default_factory=dict)
    """For an image."""
    setups: dict[Kind, list[float]] = field(default_factory=dict)
    first: tuple[Kind, float, float] | None = None
    """What the run that is under way has shown, until it is over: its kind, seconds for an image and of setting up."""

    @staticmethod
    def of(rows: Iterable[StoredRun], here: Recipe) -> Rates:
        """From the finished runs of a store that were made on a machine like this."""
        rates, device, exact = Rates(), device_name(here), precision(here)
        for row in rows:
            if row.device == device and row.precision == exact:
                rates.learn(row.parsed_recipe, row.seconds / row.rounds, row.setup_seconds)
        return rates

    def learn(self, recipe: Recipe, seconds_a_round: float, setup: float) -> None:
        kind = kind_of(recipe)
        self.seconds.setdefault(kind, []).append(seconds_a_round / images_a_round(recipe))
        self.setups.setdefault(kind, []).append(setup)
        self.first = None

    def glimpse(self, recipe: Recipe, seconds_a_round: float, setup: float) -> None:
        """Take what a run shows in its first rounds, where nothing better is known."""
        self.first = (kind_of(recipe), seconds_a_round / images_a_round(recipe), setup)

    @property
    def known(self) -> bool:
        return bool(self.seconds) or self.first is not None

    def estimate(self, recipe: Recipe, played: int = 0) -> float:
        """Seconds that a run takes from round `played` on.

        Of a kind that is not known: what the slowest run with these models took, or else the mean of all kinds.
        """
        kind = kind_of(recipe)
        setup = 0.0 if played else self._mean(self.setups, kind, 2)
        return setup + self._mean(self.seconds, kind, 1) * images_a_round(recipe) * (recipe.rounds - played)

    def _mean(self, measured: dict[Kind, list[float]], kind: Kind, place: int) -> float:
        if kind in measured:
            return fmean(measured[kind])
        if self.first is not None and (self.first[0] == kind or not measured):
            return float(self.first[place])  # type: ignore[arg-type]
        if alike := [fmean(values) for other, values in measured.items() if other[:3] == kind[:3]]:
            return max(alike)
        return fmean(fmean(values) for values in measured.values()) if measured else 0.0


def measure(recipe: Recipe, rounds: int = 2) -> Rates:
    """Play the first rounds of a run in memory, and take the last one's time; nothing is saved."""
    start = time.perf_counter()
    part = build_part(recipe)
    part.engine.warm_up(part.clients)
    setup, seconds = time.perf_counter() - start, 0.0
    for t in range(min(rounds, recipe.rounds)):
        seconds = sum(play_round(part, t)[1].values())
    rates = Rates()
    rates.learn(recipe, seconds, setup)
    return rates
