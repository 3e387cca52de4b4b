"""Who can reach whom, as a function of the round.

A topology is a set of undirected edges, stored sparsely: one row of neighbours per client, concatenated. Its memory
grows with its edges. The full topology is a rule and stores none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import networkx as nx
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from mapl.contents import check_digest
from mapl.errors import MaplError, unknown
from mapl.keys import NOBODY, key
from mapl.network.explore import ExploreSettings

Pairs = NDArray[np.int64]
"""Undirected edges, (E, 2)."""


class TopologySettings(BaseModel):
    """Who can reach whom."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("full", description="A known topology, or the import path package.module:function of another.")
    degree: int = Field(4, ge=1, description="Neighbours of a client in the regular and the small-world topology.")
    probability: float = Field(0.3, ge=0, le=1, description="Probability of each edge of the Erdős–Rényi topology.")
    rewire: float = Field(0.1, ge=0, le=1, description="Probability that a small-world edge is rewired.")
    path: Path | None = Field(None, description='The edge list that the topology "file" is read from.')
    digest: str | None = Field(
        None, description="Of what is in `path`. A run fills it in, and refuses another file when it is resumed."
    )
    every: int = Field(0, ge=0, description="Redraw the topology every this many rounds; 0 = never.")
    explore: ExploreSettings = Field(ExploreSettings(), description="How a client looks around.")


class Reach(Protocol):
    """One drawn topology."""

    def row(self, client: int) -> Tensor:
        """The sorted ids of a client's neighbours, in a tensor that the caller may keep and change."""
        ...


class Full:
    """Everyone reaches everyone. A rule, because M² edges would be most of a large run's memory."""

    def __init__(self, clients: int) -> None:
        self.clients = clients

    def row(self, client: int) -> Tensor:
        return torch.cat([torch.arange(client), torch.arange(client + 1, self.clients)])


class Sparse:
    """Rows of sorted neighbours, concatenated; client i's are `ids[starts[i] : starts[i + 1]]`."""

    def __init__(self, starts: Tensor, ids: Tensor) -> None:
        self.starts = starts
        self.ids = ids

    @classmethod
    def of(cls, pairs: Pairs, clients: int) -> Sparse:
        """From undirected edges (E, 2), in either direction and in any order; an edge given twice counts once."""
        both = np.concatenate([pairs, pairs[:, ::-1]])
        codes = np.unique(both[:, 0] * clients + both[:, 1])
        starts = np.searchsorted(codes, np.arange(clients + 1) * clients)
        return cls(torch.from_numpy(starts), torch.from_numpy(codes % clients))

    def row(self, client: int) -> Tensor:
        # A copy: a caller that changes it in place must not change the topology.
        return self.ids[self.starts[client] : self.starts[client + 1]].clone()


class Topology:
    """The topology of a run: `neighbours(round, client)`. Only the edges of the current epoch are kept."""

    def __init__(self, settings: TopologySettings, clients: int, seed: int) -> None:
        self.settings = settings
        self.clients = clients
        self.seed = seed
        self._drawn: tuple[int, Reach] | None = None

    @property
    def explores(self) -> bool:
        """Whether a client asks only some of those that it can reach, by `network.explore`."""
        return self.settings.name == "explore"

    @property
    def directed(self) -> bool:
        """Whether a client may be asked by others while it asks nobody."""
        return self.explores and self.clients > 1

    def neighbours(self, round: int, client: int) -> Tensor:
        """The sorted ids of the clients that `client` can reach in `round`, itself excluded."""
        if not 0 <= client < self.clients:
            raise MaplError(f"the topology has no client {client}: it has {self.clients}, numbered from 0")
        return self.drawn(round).row(client)

    def drawn(self, round: int) -> Reach:
        """The topology of a round. It depends only on the round's epoch, not on earlier calls."""
        epoch = round // self.settings.every if self.settings.every else 0
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = epoch, self._draw(epoch)
        return self._drawn[1]

    def drawn_in(self, round: int) -> int:
        """Since which round the topology has been what it is in this one."""
        every = self.settings.every
        if self.explores:  # anybody may ask anybody anew
            return round
        return 0 if not every or self.settings.name in FIXED else round // every * every

    def _draw(self, epoch: int) -> Reach:
        settings = self.settings
        seed = key(self.seed, NOBODY, epoch, "topology")
        if ":" in settings.name:
            # The first round of the epoch, so that a resumed run draws the same edges as an uninterrupted one.
            return _from_import(self.clients, epoch * settings.every, settings, seed)
        if settings.name not in TOPOLOGIES:
            raise unknown("topology", settings.name, TOPOLOGIES)
        return TOPOLOGIES[settings.name](self.clients, settings, seed)


# The known topologies


def full(clients: int, settings: TopologySettings, seed: int) -> Reach:
    """Everyone reaches everyone."""
    return Full(clients)


def none(clients: int, settings: TopologySettings, seed: int) -> Reach:
    """Nobody reaches anybody: every client learns alone."""
    return Sparse.of(np.empty((0, 2), dtype=np.int64), clients)


def ring(clients: int, settings: TopologySettings, seed: int) -> Reach:
    """Each client reaches the one before and the one after it, in a circle."""
    if clients == 1:
        return none(clients, settings, seed)
    ids = np.arange(clients, dtype=np.int64)
    return Sparse.of(np.stack([ids, np.roll(ids, -1)], axis=1), clients)


def regular(clients: int, settings: TopologySettings, seed: int) -> Reach:
    """Each client reaches `degree` others, drawn at random."""
    if clients == 1:
        return none(clients, settings, seed)
    degree = _degree(clients, settings)
    if degree * clients % 2:
        raise MaplError(
            f"topology.degree is {degree}, but a regular topology of {clients} clients takes an even number: "
            "each edge has two ends"
        )
    if 2 * degree < clients:
        return _from_networkx(nx.random_regular_graph(degree, clients, seed=seed), clients)
    # Dense edges are the complement of sparse ones. Drawn directly, an almost full topology is retried for hours.
    return _from_networkx(nx.complement(nx.random_regular_graph(clients - 1 - degree, clients, seed=seed)), clients)


def erdos_renyi(clients: int, settings: TopologySettings, seed: int) -> Reach:
    """Each pair of clients is connected with `probability`, independently."""
    if settings.probability == 1:
        return Full(clients)
    return _from_networkx(nx.fast_gnp_random_graph(clients, settings.probability, seed=seed), clients)


def small_world(clients: int, settings: TopologySettings, seed: int) -> Reach:
    """A ring in which each client reaches the `degree` nearest, some edges rewired at random (Watts–Strogatz)."""
    if clients == 1:
        return none(clients, settings, seed)
    degree = _degree(clients, settings)
    if degree % 2:
        raise MaplError(f"topology.degree is {degree}, but a small world takes an even number: half on either side")
    return _from_networkx(nx.watts_strogatz_graph(clients, degree, settings.rewire, seed=seed), clients)


def file(clients: int, settings: TopologySettings, seed: int) -> Reach:
    """The edges listed in the text file `path`, one pair of clients per line."""
    if settings.path is None:
        raise MaplError("topology.path is not set, but the topology 'file' takes the path of an edge list")
    check_digest("network.topology.path", settings.path, settings.digest)
    try:
        text = settings.path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise MaplError(f"topology.path is {settings.path}, which cannot be read: {reason}") from error
    pairs = []
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.partition("#")[0].strip()
        if content:
            pairs.append(_edge(content, clients, f"{settings.path}, line {number}"))
    return Sparse.of(np.array(pairs, dtype=np.int64).reshape(-1, 2), clients)


def explore(clients: int, settings: TopologySettings, seed: int) -> Reach:
    """Each client starts with a few contacts, asks a few strangers a round, and keeps those it listens to."""
    return Full(clients)  # whom it can reach; whom it asks depends on whom it has met


TOPOLOGIES: dict[str, Callable[[int, TopologySettings, int], Reach]] = {
    "full": full,
    "none": none,
    "ring": ring,
    "regular": regular,
    "erdos-renyi": erdos_renyi,
    "small-world": small_world,
    "file": file,
    "explore": explore,
}
"""The known topologies by name; each is (clients, settings, seed) → who reaches whom."""

FIXED = ("full", "none", "ring", "file")
"""Those that stay the same when they are redrawn."""


def _degree(clients: int, settings: TopologySettings) -> int:
    if settings.degree >= clients:
        raise MaplError(
            f"topology.degree is {settings.degree}, but with {clients} clients it takes at most {clients - 1}"
        )
    return settings.degree


def _from_networkx(graph: Any, clients: int) -> Reach:
    flat = np.fromiter((end for edge in graph.edges for end in edge), dtype=np.int64)
    return Sparse.of(flat.reshape(-1, 2), clients)


def _edge(content: str, clients: int, where: str) -> tuple[int, int]:
    """One line `a b` of an edge list."""
    if not re.fullmatch(r"[0-9]{1,18}\s+[0-9]{1,18}", content):
        raise MaplError(f"{where}: {content[:60]!r} is not an edge (two client ids with a space between them)")
    a, b = map(int, content.split())
    if max(a, b) >= clients:
        raise MaplError(f"{where}: client {max(a, b)} is out of range, 0 to {clients - 1}")
    if a == b:
        raise MaplError(f"{where}: client {a} is connected to itself")
    return a, b


def _from_import(clients: int, round: int, settings: TopologySettings, seed: int) -> Reach:
    """The edges that an imported function of (clients, round, settings, seed) returns: pairs, or an (E, 2) array."""
    from mapl.plugins import load

    function: Any = load(settings.name)
    if not callable(function):
        raise MaplError(f"topology {settings.name!r} is not a function of (clients, round, settings, seed)")
    edges = function(clients, round, settings, seed)
    try:
        pairs = np.asarray(edges.cpu() if isinstance(edges, Tensor) else edges if hasattr(edges, "shape") else [*edges])
    except (TypeError, ValueError) as error:
        raise MaplError(f"topology {settings.name!r} did not return pairs of clients: {error}") from error
    if pairs.size == 0:
        return none(clients, settings, seed)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        raise MaplError(
            f"topology {settings.name!r} returned {pairs.dtype} of shape {pairs.shape}, not whole numbers (E, 2)"
        )
    pairs = pairs.astype(np.int64)
    outside = pairs[(pairs < 0) | (pairs >= clients)]
    if outside.size:
        raise MaplError(f"topology {settings.name!r}: client {outside[0]} is out of range, 0 to {clients - 1}")
    loops = pairs[pairs[:, 0] == pairs[:, 1]]
    if loops.size:
        raise MaplError(f"topology {settings.name!r}: client {loops[0, 0]} is connected to itself")
    return Sparse.of(pairs, clients)
