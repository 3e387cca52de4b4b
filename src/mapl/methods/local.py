"""Local: every client alone."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy

from mapl.client import Client
from mapl.methods._base import Method, MethodSettings

__all__ = ["Local"]


class Local(Method[MethodSettings]):
    """No exchange at all: cross-entropy on one plainly augmented view.

    The paper's first baseline (Appendix, "Baselines"). It differs from another method's control arm (the same method on
    an empty network), which keeps that method's views and losses.
    """

    name = "local"

    def loss(self, client: Client, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"cross_entropy": cross_entropy(client.model(images), labels)}
