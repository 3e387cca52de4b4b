"""What noisy letters have given away, in words."""

from __future__ import annotations

import math

from mapl.network import NoiseSettings, epsilon
from mapl.recipe import Recipe
from mapl.runs.record import Record


def spent(record: Record) -> str | None:
    """What the client that released the most letters has spent; None if letters travelled as they were written."""
    epsilons = record.epsilons()
    if epsilons is None:
        return None
    return _bound(record.recipe.network.noise, max(epsilons), "the client that released the most letters")


def planned(recipe: Recipe) -> str | None:
    """What a client will have spent at the end if it writes one letter per round; None without noise."""
    noise = recipe.network.noise
    if noise.clip is None:
        return None
    return _bound(noise, epsilon(noise, recipe.rounds), "a client that writes a letter in each round")


def _bound(noise: NoiseSettings, value: float, who: str) -> str:
    if math.isinf(value):
        return "letters are clipped but have no noise, so no ε holds"
    return f"ε ≤ {value:.4g} at δ = {noise.delta:g} for {who}"
