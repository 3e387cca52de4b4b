"""Nodes of the network: clients and, for some methods, a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mapl.data.samples import Samples
from mapl.errors import MaplError
from mapl.model import ClientModel, Shapes
from mapl.network import Letter
from mapl.shape import Shape

NOBODY_NEAR = torch.empty(0, dtype=torch.long)


@dataclass
class Peers:
    """The peers that a client has met, itself included: its row of the mixing matrix W, without clients it never met.

    The three arrays correspond entry by entry. They grow with the number of peers met, not with the network.
    """

    ids: NDArray[np.int64]
    """(n,) sorted."""
    weights: NDArray[np.float64]
    """(n,) how much the client listens to each: w_ij ≥ 0, summing to 1."""
    samples: NDArray[np.int64]
    """(n,) the number of training images that each reported."""

    @staticmethod
    def alone(client: int, samples: int) -> Peers:
        """The row of a client that has met nobody."""
        return Peers(np.array([client]), np.ones(1), np.array([samples]))

    def places(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions of these peers in the arrays. The client must have met them all."""
        return np.searchsorted(self.ids, ids)

    def knows(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these it has met."""
        known: NDArray[np.bool_] = self.ids.take(self.places(ids), mode="clip") == ids
        return known

    def meet(self, ids: NDArray[np.int64], weight: float, samples: NDArray[np.int64]) -> None:
        """Add peers (sorted ids) that it has not met before."""
        places = self.places(ids)
        self.ids = np.insert(self.ids, places, ids)
        self.weights = np.insert(self.weights, places, weight)
        self.samples = np.insert(self.samples, places, samples)

    def forget(self, ids: NDArray[np.int64]) -> None:
        """Remove peers, as if it had never met them. If they had weight, the others share it in proportion."""
        gone = np.isin(self.ids, ids)
        if not gone.any():
            return
        heard = self.weights[gone].any()
        self.ids, self.weights, self.samples = self.ids[~gone], self.weights[~gone], self.samples[~gone]
        if heard:  # otherwise the bits of the others stay as they are
            self.weights = self.weights / self.weights.sum()


@dataclass(kw_only=True)
class Node:
    """Anything that writes and reads letters."""

    id: int
    run: str
    """The run's fingerprint, which every letter carries."""
    seed: int
    """The recipe's seed; draws are keyed by it (mapl.keys)."""
    neighbours: Tensor = NOBODY_NEAR
    """Whom it can reach this round, sorted ids. If the method has a server, a client reaches only the server."""
    state: dict[str, Tensor] = field(default_factory=dict)
    """What its method keeps between rounds; updated in place, saved with every checkpoint."""

    @property
    def samples(self) -> int:
        """The number of training images that its letters report."""
        return 0

    def letter(self, round: int, tensors: Mapping[str, Tensor], architecture: str = "") -> Letter:
        """A letter from this node with these contents."""
        if not isinstance(tensors, Mapping) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
            raise MaplError(
                f"the letter of node {self.id} in round {round}: got {str(tensors)[:60]!r} as its contents; give its "
                "tensors by name: {'name': tensor}"
            )
        return Letter(
            run=self.run,
            sender=self.id,
            round=round,
            samples=self.samples,
            architecture=architecture,
            tensors={name: tensor.detach() for name, tensor in tensors.items()},
        )


@dataclass(kw_only=True)
class Client(Node):
    """Private data and a model of its own. A method sees one client and its inbox, never the list of all."""

    model: ClientModel
    backbone: str
    """The name of its backbone."""
    architecture: str
    """The fingerprint of its backbone's tensors. Backbones with equal fingerprints can be averaged."""
    train: Samples
    test: Samples
    """The recipe's own test samples, then any others that it is tested on, then the held-out ones."""
    tests: int
    """The number of the recipe's own test samples, which come first in `test`."""
    held: int = 0
    """The number of held-out samples, which come last in `test`: its own, but neither trained on nor tests."""
    cluster: int
    """The cluster of its data; for reports, never for a method."""
    peers: Peers = field(init=False)
    """Whom it has met, for methods that weight their neighbours."""

    def __post_init__(self) -> None:
        self.peers = Peers.alone(self.id, self.samples)

    @property
    def samples(self) -> int:
        """n_i, its number of training images."""
        return len(self.train)

    @property
    def shapes(self) -> Shapes:
        """The sizes that letters depend on."""
        return Shapes.of(self.model)


@dataclass(kw_only=True)
class Server(Node):
    """The server of a centralised method: one more node, without data and without a model."""

    shape: Shape
    """Of one of the clients' samples, (C, H, W) of images, which all clients agree on."""
    shapes: Shapes
    """The sizes of the clients' models, as seen in letters."""
    data_folder: Path | None
    """Where published data sets are stored, for a server that needs its own images."""
