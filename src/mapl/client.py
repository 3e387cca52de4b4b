"""A client: private data, a model of its own, and the few tensors that its method keeps between rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from mapl.data.dataset import Images
from mapl.model import ClientModel
from mapl.network import Letter


@dataclass
class Client:
    """One of `size` clients. A method sees one of these and its inbox, never the list of all."""

    id: int
    size: int
    """How many clients the network has, M."""
    run: str
    """The run's fingerprint, which every letter carries."""
    model: ClientModel
    backbone: str
    """The name of its backbone."""
    architecture: str
    """The fingerprint of its backbone's tensors: equal fingerprints can be averaged."""
    train: Images
    test: Images
    cluster: int
    """The cluster that its data come from; for reports, never for a method."""
    state: dict[str, Tensor] = field(default_factory=dict)
    """What its method keeps between rounds; updated in place, saved with every checkpoint."""

    @property
    def samples(self) -> int:
        """n_i, its number of training images."""
        return len(self.train)

    def letter(self, round: int, tensors: Mapping[str, Tensor], architecture: str = "") -> Letter:
        """A letter of this client with these contents."""
        return Letter(
            run=self.run,
            sender=self.id,
            round=round,
            samples=self.samples,
            architecture=architecture,
            tensors={name: tensor.detach() for name, tensor in tensors.items()},
        )
