"""Nodes of the network: clients, and for methods that want one, a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from mapl.data.dataset import Images
from mapl.model import ClientModel
from mapl.network import Letter


@dataclass(kw_only=True)
class Node:
    """Anything that writes and reads letters."""

    id: int
    size: int
    """How many clients the network has, M."""
    run: str
    """The run's fingerprint, which every letter carries."""
    seed: int
    """The recipe's seed; draws are keyed by it (mapl.keys)."""
    state: dict[str, Tensor] = field(default_factory=dict)
    """What its method keeps between rounds; updated in place, saved with every checkpoint."""

    @property
    def samples(self) -> int:
        """How many training images stand behind its letters."""
        return 0

    def letter(self, round: int, tensors: Mapping[str, Tensor], architecture: str = "") -> Letter:
        """A letter of this node with these contents."""
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
    """Private data and a model of its own. A method sees one of these and its inbox, never the list of all."""

    model: ClientModel
    backbone: str
    """The name of its backbone."""
    architecture: str
    """The fingerprint of its backbone's tensors: equal fingerprints can be averaged."""
    train: Images
    test: Images
    """The recipe's own test images, then any others that it is tested with."""
    tests: int
    """How many of its test images, the first ones, are the recipe's own."""
    cluster: int
    """The cluster that its data come from; for reports, never for a method."""

    @property
    def samples(self) -> int:
        """n_i, its number of training images."""
        return len(self.train)


@dataclass(kw_only=True)
class Server(Node):
    """The middle of a centralised method: one more node, number M, without data and without a model."""

    image: tuple[int, int, int]
    """(C, H, W) of the clients' images: what they agreed to work on."""
    data_folder: Path | None
    """Where published data sets lie, for a server that needs images of its own."""
