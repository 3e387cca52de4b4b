"""What the loop over rounds plays: the clients of this process, or those of several processes as if they were one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

import torch
from torch import Tensor

from mapl.client import Peers
from mapl.clock import Clock
from mapl.data.objects import Data
from mapl.errors import MaplError
from mapl.model import Backbone
from mapl.recipe import Recipe
from mapl.runs.chain import Round
from mapl.runs.checkpoint import Checkpoint
from mapl.runs.graph import Row
from mapl.runs.part import Part, build_part, cards
from mapl.runs.record import ClientCard
from mapl.runs.round import budget_is_spent, graph, play_round
from mapl.runs.saving import restore, saved_state

Rows = Mapping[int, Peers] | Mapping[int, Row]
"""Rows of W, by client."""


class CannotGoOn(MaplError):
    """A player lacks what it needs to play the next round. It has the state after the rounds that it counts."""

    status = 1


class Player(Protocol):
    """Plays the rounds of a run. The loop around it writes the run's folder, and is the same for every player."""

    @property
    def recipe(self) -> Recipe: ...

    @property
    def cards(self) -> list[ClientCard]:
        """Who its clients are, by number."""
        ...

    @property
    def round(self) -> int:
        """How many rounds have been played."""
        ...

    @property
    def budget_is_spent(self) -> bool:
        """Whether the message budget is used up."""
        ...

    @property
    def device(self) -> torch.device:
        """Where its clients train, for the clock."""
        ...

    def warm_up(self) -> None:
        """Prepare what can be prepared before the first round."""
        ...

    def play(self, t: int, clock: Clock) -> tuple[Round, dict[str, float]]:
        """Play one round. Returns its line of the history, and the seconds of each part.

        Raises `CannotGoOn` if it cannot now; the loop then saves what was played.
        """
        ...

    def rows(self) -> Rows:
        """The rows of W after the last round; empty if the method has no graph."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Everything that is needed to go on after the last round, as named tensors (`mapl.runs.saving`).

        Raises `CannotGoOn`, as `play` does. Of the rounds that are counted then, it has the state.
        """
        ...

    def restore(self, saved: Checkpoint) -> None:
        """Go back, or forward, to the state in a checkpoint."""
        ...

    def close(self) -> None:
        """End what it started outside this process. It plays no more."""
        ...


MakePlayer = Callable[[Recipe, Data | None, Mapping[str, Backbone] | None], Player]
"""Makes a player of a recipe, and of the data and backbones that are given in Python."""


@dataclass(frozen=True)
class Here:
    """Plays a part of a network in this process."""

    part: Part

    @property
    def recipe(self) -> Recipe:
        return self.part.recipe

    @property
    def cards(self) -> list[ClientCard]:
        return cards(self.part)

    @property
    def round(self) -> int:
        return self.part.round

    @property
    def budget_is_spent(self) -> bool:
        return budget_is_spent(self.part)

    @property
    def device(self) -> torch.device:
        return self.part.engine.device

    def warm_up(self) -> None:
        self.part.engine.warm_up(self.part.clients)

    def play(self, t: int, clock: Clock) -> tuple[Round, dict[str, float]]:
        return play_round(self.part, t, clock)

    def rows(self) -> Rows:
        return graph(self.part)

    def state(self) -> dict[str, Tensor]:
        return saved_state(self.part)

    def restore(self, saved: Checkpoint) -> None:
        restore(self.part, saved)

    def close(self) -> None:
        """It started nothing."""


def here(recipe: Recipe, data: Data | None, backbones: Mapping[str, Backbone] | None) -> Player:
    """A player with all clients of the recipe, in this process."""
    return Here(build_part(recipe, data, backbones))


def as_the_recipe_says(recipe: Recipe, data: Data | None, backbones: Mapping[str, Backbone] | None) -> Player:
    """A player with all clients of the recipe, where `engine.where` says.

    What plays on a cluster is found by its name: its room is above this one.
    """
    if recipe.engine.where == "here":
        return here(recipe, data, backbones)
    make: MakePlayer = import_module("mapl.cluster").on_ray
    return make(recipe, data, backbones)
