"""What noisy letters give away: (ε, δ), computed by Google's dp-accounting."""

from __future__ import annotations

import functools
import math
from importlib.util import find_spec

from mapl.errors import MaplError
from mapl.network.noise import NoiseSettings

SENSITIVITY = 2.0
"""How far apart, in multiples of the clip, two letters can be: any two vectors of norm C are at most 2 C apart."""


def check_accountant(settings: NoiseSettings) -> None:
    """Refuse noise that nobody could account for, before any work is done."""
    if settings.multiplier and find_spec("dp_accounting") is None:
        raise MaplError(
            "network.noise: ε is computed by dp-accounting, which is not installed: pip install 'mapl[privacy]'"
        )


@functools.lru_cache(maxsize=1024)
def epsilon(settings: NoiseSettings, letters: int) -> float:
    """An upper bound on ε at `settings.delta` for a client that released this many letters; infinite without noise.

    It holds for replacing all data of the client by any other data: a Gaussian mechanism of sensitivity 2 C per letter,
    composed over the letters (Rényi differential privacy). Everything else that is said about the client is outside it.
    """
    if not letters:
        return 0.0
    if not settings.multiplier:
        return math.inf
    check_accountant(settings)
    from dp_accounting import GaussianDpEvent  # most of a second to import, and only noise needs it
    from dp_accounting.rdp import RdpAccountant

    ratio = settings.multiplier / SENSITIVITY
    accountant = RdpAccountant(_orders(ratio / math.sqrt(letters), settings.delta))
    accountant.compose(GaussianDpEvent(ratio), letters)
    return float(accountant.get_epsilon(settings.delta))


LOWEST_ORDER = 1.011
"""The library converts no order up to 1.01."""


def _orders(ratio: float, delta: float) -> list[float]:
    """Orders of Rényi divergence around the best one for a Gaussian with this ratio of noise to sensitivity.

    The library's own orders begin at 1.1, which makes ε 8 % too large where there is little noise.
    """
    best = ratio * math.sqrt(-2 * math.log(delta))
    return [max(LOWEST_ORDER, 1 + best * 2 ** (step / 8)) for step in range(-16, 17)]
