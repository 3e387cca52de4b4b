"""MAPL's losses on two views of every image, for the methods that train own networks with them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from mapl.client import Client
from mapl.losses import Form, cross_entropy, prototype_contrastive, prototype_uniformity, supervised_contrastive
from mapl.methods._base import MethodSettings
from mapl.model import PROJECTOR, PROTOTYPES

Term = Literal["contrastive", "prototype", "uniformity"]


class ContrastSettings(MethodSettings):
    """Which of MAPL's losses are used, and how."""

    form: Form = Field(
        "released", description="The losses as printed in the paper, or as its released program computes them."
    )
    temperature: float = Field(100.0, gt=0, description="τ of the contrastive and the uniformity losses.")
    terms: tuple[Term, ...] = Field(
        ("contrastive", "prototype", "uniformity"), description="The loss terms besides cross-entropy (ablation 1)."
    )

    def uses(self) -> tuple[str, ...]:
        """The parts of a client's model that the losses need."""
        return (PROJECTOR, PROTOTYPES) if self.terms else (PROTOTYPES,)


def contrast(
    client: Client, embedding: Tensor, logits: Tensor, labels: Tensor, use: ContrastSettings
) -> dict[str, Tensor]:
    """PML (Algorithm 1): l_ce + l_cont + l_proto + l_uni, on both views.

    embedding: (2 · B, d_z); logits: (2 · B, K); labels: (2 · B,).
    """
    model = client.model
    terms = {"cross_entropy": cross_entropy(logits, labels)}
    projections = model.project(embedding) if use.terms else embedding
    if "contrastive" in use.terms:
        terms["contrastive"] = supervised_contrastive(projections, labels, use.temperature, use.form)
    if "prototype" in use.terms:
        terms["prototype"] = prototype_contrastive(projections, labels, model.prototypes, use.temperature, use.form)
    if "uniformity" in use.terms:
        terms["uniformity"] = prototype_uniformity(model.prototypes, use.temperature, use.form)
    return terms
