"""Looking around: which peers a client asks this round if it starts with a few contacts and not with everybody.

One rule for a simulation and for a real peer. It knows a client's number, the ids that the client can reach, and whom
the client has met, with their weights. It keeps nothing: what it must remember is in the client's peers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from mapl.keys import generator

Ids = NDArray[np.int64]


class ExploreSettings(BaseModel):
    """How a client looks around, with the topology "explore"."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    contacts: int = Field(
        3,
        ge=1,
        description="Strangers that a client asks per round as long as it listens to nobody: its first contacts.",
    )
    looks: int = Field(
        2, ge=1, description="Strangers that it asks per round as long as it listens to fewer than `keep` peers."
    )
    keep: int = Field(8, ge=1, description="How many peers it listens to at most.")
    again: float = Field(
        0.25,
        ge=0,
        description="How many of all other peers it asks per round, on average; those it dropped are among them.",
    )


class Choice(NamedTuple):
    """What a client does before it asks for letters."""

    neighbours: Ids
    """Whom it may ask this round, sorted."""
    forget: Ids
    """Peers that it has met and forgets first, sorted. They are strangers from then on."""


def explore(
    seed: int,
    client: int,
    round: int,
    settings: ExploreSettings,
    candidates: Ids,
    met: Ids,
    weights: NDArray[np.float64],
) -> Choice:
    """Whom a client asks in a round: the peers that it listens to, and a few strangers.

    It keeps those `keep` peers that have the most weight and forgets any others with weight. Peers with weight 0 are
    dropped. Every peer that it does not keep has the same chance to be looked at, `again` in all; a dropped one is
    forgotten then, and so a stranger. A client that listens to fewer than `keep` looks at `looks` strangers in any
    case, and one that listens to nobody at `contacts`.

    The answer depends on the arguments alone. Asked again after it was followed, it is the same.

    Args:
        seed: the run's.
        candidates: sorted ids that it can reach now; its own may be among them.
        met: sorted ids of the peers that it has met, its own included.
        weights: how much it listens to each of these.
    """
    near = candidates[candidates != client]
    draws = torch.rand(len(near), dtype=torch.float64, generator=generator(seed, client, round, "explore")).numpy()
    others = met != client
    heard, dropped = others & (weights > 0), _among(near, met[others & (weights == 0)])
    kept, surplus = _strongest(settings.keep, met[heard], weights[heard], near, draws)
    kin = _among(near, kept)
    chance = settings.again / max(1, len(near) - int(kin.sum()))
    due = ~kin & (draws < chance)
    strangers = np.flatnonzero(due | ~(kin | dropped))
    number = max(_missing(settings, int(kin.sum())), min(settings.looks, int(due.sum())))
    asked = strangers[draws[strangers].argsort()[:number]] if number else strangers[:0]
    return Choice(np.union1d(near[kin], near[asked]), np.union1d(surplus, near[due & dropped]))


def _missing(settings: ExploreSettings, kin: int) -> int:
    """How many strangers a client looks at in any case if it listens to `kin` peers that it can reach."""
    if not kin:
        return settings.contacts
    return settings.looks if kin < settings.keep else 0


def _strongest(
    most: int, kin: Ids, weights: NDArray[np.float64], near: Ids, draws: NDArray[np.float64]
) -> tuple[Ids, Ids]:
    """The `most` peers that a client keeps, and the rest: first those within reach, by weight, equal ones by draw."""
    reached = _among(kin, near)
    draw = np.ones(len(kin))
    draw[reached] = draws[np.searchsorted(near, kin[reached])]
    order = np.lexsort((draw, -weights, ~reached))
    return kin[order[:most]], kin[order[most:]]


def _among(ids: Ids, some: Ids) -> NDArray[np.bool_]:
    """Which of the sorted ids are among some others."""
    found = np.zeros(len(ids), dtype=bool)
    if len(ids):
        places = np.searchsorted(ids, some).clip(max=len(ids) - 1)
        found[places[ids[places] == some]] = True
    return found
