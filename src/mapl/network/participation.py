"""Who takes part in a round, where not everybody does: a share of the clients, drawn anew, and late joiners not yet.

The answer depends on the settings, the seed, the number of clients and the round alone. So every process of a network
finds the same, however the clients are divided among processes, and after a resume.
"""

from __future__ import annotations

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from mapl.keys import key


class JoinersSettings(BaseModel):
    """Clients that join late."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    clients: int = Field(0, ge=0, description="How many clients join late: those with the highest numbers.")
    round: int = Field(
        0,
        ge=0,
        description="The first round (counted from 0) that they take part in, with models as fresh as in round 0.",
    )


def taking_part(share: float, joiners: JoinersSettings, seed: int, clients: int, round: int) -> Tensor | None:
    """The sorted ids of the clients that take part in a round, one at least; None: everybody."""
    there = clients - joiners.clients if round < joiners.round else clients
    number = max(1, min(there, int(share * there + 0.5)))
    if number == clients:
        return None
    drawn = sorted(range(there), key=lambda client: (key(seed, client, round, "participation"), client))
    return torch.tensor(sorted(drawn[:number]))


def same_since(share: float, joiners: JoinersSettings, round: int) -> int:
    """Since which round the same clients take part as in this one, for certain."""
    if share < 1:
        return round
    return joiners.round if joiners.clients and round >= joiners.round else 0
