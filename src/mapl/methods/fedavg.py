"""FedAvg (McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017)."""

from __future__ import annotations

from torch import Tensor

from mapl.client import Server
from mapl.methods._base import MethodSettings
from mapl.methods._mixing import weighted_mean
from mapl.methods._plain import WholeModels
from mapl.network import Inbox

__all__ = ["FedAvg"]


class FedAvgSettings(MethodSettings):
    """FedAvg has no settings of its own."""

    name: str = "fedavg"


class FedAvg(WholeModels[FedAvgSettings]):
    """A server averages whole models, weighted by numbers of samples.

    Letter, both ways: backbone and head (θ + φ) as one vector `model`, batch-normalisation statistics included.

    Differs from its paper: every client takes part in every round, and clients start from their own weights unless
    `model.common_start` is set (the first average makes them equal).
    """

    name = "fedavg"
    Settings = FedAvgSettings

    def aggregate(self, server: Server, round: int, inbox: Inbox) -> dict[str, Tensor]:
        return {"model": weighted_mean(self.mixing, inbox.samples, inbox.tensor("model"))}
