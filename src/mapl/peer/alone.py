"""The control arm of one peer: the same client, data, seed and first weights, but no letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mapl.errors import MaplError
from mapl.peer.identity import Identity
from mapl.peer.process import Say, believing, own_data, own_recipe, shared_recipe
from mapl.peer.settings import PeerSettings
from mapl.recipe import NOBODY
from mapl.runs.folder import RECIPE, load
from mapl.runs.part import build_part
from mapl.runs.record import Record
from mapl.runs.run import Observer, resume_part, run_part

FOLDER = "alone"


def run_alone(
    settings: PeerSettings,
    *,
    stop: Callable[[], bool] = lambda: False,
    observers: Sequence[Observer] = (),
    say: Say = lambda sentence: None,
    trust: bool = False,
) -> Record:
    """Train the peer's client by itself to the recipe's last round, or go on where that stopped."""
    with believing(settings, trust):
        identity = Identity.load(settings.identity)
        recipe = own_recipe(shared_recipe(identity), settings).model_copy(update={"network": NOBODY})
        part = build_part(recipe, own_data(settings, identity), holds=[identity.number])
        folder = _folder(settings)
        if (folder / RECIPE).exists():
            return resume_part(part, folder, observers=observers, stop=stop)
        return run_part(part, folder, observers=observers, stop=stop)


def _folder(settings: PeerSettings) -> Path:
    return settings.folder / FOLDER


@dataclass(frozen=True)
class Gain:
    """The accuracies of one client with and without letters, tested after the same round."""

    rounds: int
    """How many rounds both had played."""
    tests: int
    """On how many images."""
    alone: float
    letters: float | None
    """None if the peer has no test after a round after which the control arm has one."""

    def sentence(self) -> str:
        alone = f"alone {100 * self.alone:.1f} %"
        where = f"on {self.tests:,} test images of its own"
        if self.letters is None:
            return f"after round {self.rounds}: {alone}, {where}; with letters: not tested yet (mapl peer run)"
        gain = 100 * (self.letters - self.alone)
        return (
            f"after round {self.rounds}: with letters {100 * self.letters:.1f} %, {alone}: {gain:+.1f} points, {where}"
        )


def gain(settings: PeerSettings) -> Gain:
    """What letters were worth to this peer so far, after the last round that was tested both with them and without."""
    alone = load(_folder(settings))
    control = _tested(alone)
    if not control:
        raise MaplError(f"{str(alone.folder)!r} has not been tested yet")
    own = {}
    if (settings.run / RECIPE).exists():
        record = load(settings.run)
        without = record.recipe.model_copy(update={"network": NOBODY})
        if (without.fingerprint(), record.data) != (alone.recipe.fingerprint(), alone.data):
            raise MaplError(f"{str(record.folder)!r} and {str(alone.folder)!r} differ in more than letters")
        own = _tested(record)
    both = control.keys() & own.keys()
    last = max(both or control)
    return Gain(last, alone.clients[0].tests, control[last], own.get(last))


def _tested(record: Record) -> dict[int, float]:
    """The accuracy by the number of rounds played."""
    return {line.round + 1: line.accuracy[0] for line in record.tested if line.accuracy}
