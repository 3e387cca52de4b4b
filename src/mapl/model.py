"""A client's model: its own backbone, and the parts that are alike in all clients (Section 3, Assumption 2)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

import mapl.backbones
from mapl.backbones._foreign import Answering, Backbone, adapted, is_of_transformers, timm_model, transformers_model
from mapl.errors import MaplError
from mapl.keys import ALWAYS, NOBODY, generator, key, seeded
from mapl.network import fingerprint
from mapl.plugins import find, permit
from mapl.shape import blank, is_image, told, usual_backbone

__all__ = [
    "Backbone",
    "ClientModel",
    "ModelSettings",
    "Shapes",
    "architecture",
    "assign",
    "build",
    "check_output",
    "find_backbone",
    "make_backbone",
]

PROJECTOR, PROTOTYPES = "projector", "prototypes"
"""The optional parts of a client's model that a method can name in `Method.uses`."""


class ModelSettings(BaseModel):
    """The clients' models."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backbones: tuple[str, ...] = Field(
        ("mlp", "cnn", "residual", "separable"),
        min_length=1,
        description="The clients' backbones: known names or import paths. A single one makes them homogeneous.",
    )
    assignment: Literal["round-robin", "random"] = Field(
        "round-robin", description="Client i gets backbone i modulo their number, or one drawn by seed."
    )
    embedding: int = Field(512, ge=1, description="Dimension d_z of the embedding, the same for all clients.")
    projection: int = Field(512, ge=1, description="Dimension d_p of the projections and the prototypes.")
    hidden: int = Field(4096, ge=1, description="Width of the projector's hidden layer.")
    common_start: bool = Field(
        False, description="Whether clients of one architecture start from the same weights; their prototypes never do."
    )


class ClientModel(nn.Module):
    """h = g ∘ f, and the other networks that the client's method asks for (`Method.uses`, `Method.modules`).

    Every client has:

    - backbone f_θ: samples, such as images (B, C, H, W) → embedding z (B, d_z), any architecture
    - head g_φ: ReLU of z → logits (B, K)

    Some methods use:

    - projector f_ψ: z → p (B, d_p), two layers, batch normalisation and ReLU on the hidden one
    - prototypes ξ: (K, d_p), one per class, learned like any parameter
    - own: the method's own networks, by name; `model.call(name, x)` runs one
    """

    precision: torch.dtype | None = None
    """If an engine sets it, matrix products and convolutions are computed in this dtype; all results are float32."""

    projector: nn.Module
    prototypes: nn.Parameter
    frozen: frozenset[str] = frozenset()
    """Own networks that are not trained: they get no gradient and stay in evaluation mode."""

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Linear,
        projector: nn.Module | None = None,
        prototypes: nn.Parameter | None = None,
    ):
        super().__init__()
        self.backbone = backbone
        self.register_module(PROJECTOR, projector)
        self.head = head
        self.register_parameter(PROTOTYPES, prototypes)
        self.own = nn.ModuleDict()

    def has(self, part: str) -> bool:
        """Whether it has an optional part: "projector" or "prototypes"."""
        return getattr(self, part) is not None

    def add_own(self, modules: Mapping[str, nn.Module], frozen: Collection[str] = ()) -> None:
        """Add the method's own networks, by name; those in `frozen` are not trained."""
        self.own.update(modules)
        self.frozen = frozenset(frozen)
        for name in self.frozen:
            self.own[name].requires_grad_(False).eval()

    def train(self, mode: bool = True) -> ClientModel:
        super().train(mode)
        for name in self.frozen:
            self.own[name].eval()
        return self

    def embed(self, images: Tensor) -> Tensor:
        """z = f_θ(x): samples, such as images (B, C, H, W) → (B, d_z)."""
        return self._in_precision(self.backbone, images)

    def project(self, embedding: Tensor) -> Tensor:
        """p = f_ψ(z): (B, d_z) → (B, d_p)."""
        if not self.has(PROJECTOR):
            raise TypeError("this client has no projector: its method's uses() should name 'projector'")
        return self._in_precision(self.projector, embedding)

    def call(self, name: str, x: Tensor) -> Tensor:
        """The output of one of the method's own networks."""
        return self._in_precision(self.own[name], x)

    def classify(self, embedding: Tensor) -> Tensor:
        """o = g_φ(z): (B, d_z) → (B, K)."""
        return self._in_precision(self.head, torch.relu(embedding))

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.embed(images))

    def _in_precision(self, part: nn.Module, x: Tensor) -> Tensor:
        y: Tensor
        if self.precision is None:
            y = part(x)
            return y
        with torch.autocast(x.device.type, self.precision):
            y = part(x)
        return y.float()


@dataclass(frozen=True)
class Shapes:
    """The sizes of a client's model that the shapes of letters depend on."""

    classes: int
    """K"""
    embedding: int
    """d_z"""
    backbone: int
    """The number of values in the backbone that can be averaged: parameters and batch-normalisation statistics."""

    @property
    def head(self) -> int:
        """The number of values in the head: weight and bias."""
        return self.classes * (self.embedding + 1)

    @staticmethod
    def of(model: ClientModel) -> Shapes:
        tensors = model.backbone.state_dict().values()
        backbone = sum(tensor.numel() for tensor in tensors if tensor.is_floating_point())
        return Shapes(model.head.out_features, model.head.in_features, backbone)


def assign(settings: ModelSettings, backbones: int, clients: int, seed: int) -> list[int]:
    """The index of each client's backbone."""
    if settings.assignment == "round-robin":
        return [i % backbones for i in range(clients)]
    draw = generator(seed, NOBODY, ALWAYS, "backbones")
    return torch.randint(backbones, (clients,), generator=draw).tolist()


def find_backbone(name: str) -> Backbone:
    """The backbone with that name or import path, also of another library, such as timm:resnet18."""
    module, _, model = name.partition(":")
    if module == "timm" and model:
        permit(name)
        return timm_model(model)
    if module == "transformers" and model:
        permit(name)
        return transformers_model(model)
    backbone: Backbone = find("backbone", name, mapl.backbones)
    if not callable(backbone):
        raise MaplError(f"backbone {name!r} is not a backbone: it should be a function of (shape, embedding)")
    return adapted(name, backbone) if model else backbone


def build(
    name: str,
    backbone: Backbone,
    settings: ModelSettings,
    shape: Sequence[int],
    classes: int,
    seed: int,
    client: int,
    uses: Collection[str] = (PROJECTOR, PROTOTYPES),
    check: bool = True,
) -> ClientModel:
    """One client's model. Its first weights depend on seed and client, or with `common_start` on seed and backbone.

    `uses` names the optional parts to keep (`Method.uses`). `check` runs the model on samples of that shape; once per
    backbone is enough.
    """
    start = (
        key(seed, NOBODY, ALWAYS, f"weights of {name}")
        if settings.common_start
        else key(seed, client, ALWAYS, "weights")
    )
    with seeded(start):
        network = make_backbone(f"backbone {name!r}", backbone, shape, settings.embedding)
        # Drawn even if it is not kept, so that a head's first weights do not depend on the method.
        projector = _projector(settings)
        model = ClientModel(network, nn.Linear(settings.embedding, classes))
        if PROJECTOR in uses:
            model.projector = projector
        if PROTOTYPES in uses:
            model.prototypes = nn.Parameter(_first_prototypes(settings, classes, seed, client))
    if check or any(map(is_lazy, model.parameters())):  # lazy layers get their shapes in a first call
        check_output(f"backbone {name!r}", model.backbone, shape, settings.embedding, "model.embedding")
    return model


def make_backbone(what: str, backbone: Backbone, shape: Sequence[int], embedding: int) -> nn.Module:
    """A network of a backbone, for samples of a shape; `what` it is called in errors."""
    if isinstance(backbone, nn.Module):
        raise MaplError(f"{what} is a network; give what makes one, called with (shape, embedding)")
    try:
        inspect.signature(backbone).bind(shape, embedding)
    except TypeError as error:
        raise MaplError(f"{what} cannot be called with (shape, embedding): {error}") from error
    except ValueError:  # a callable that does not tell what it takes
        pass
    try:
        network: object = backbone(shape, embedding)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if is_image(shape) and isinstance(error, TypeError | IndexError):
            raise  # a mistake in its code, rather than images that are too small
        raise MaplError(f"{what} cannot take {told(shape)}: {error}{_takers(shape)}") from error
    if not isinstance(network, nn.Module):
        raise MaplError(f"{what} returned a {type(network).__name__}, not a torch.nn.Module")
    return Answering(network) if is_of_transformers(network) else network


def _takers(shape: Sequence[int]) -> str:
    """Which backbone takes samples of a shape that others were not made for."""
    if is_image(shape):
        return ""
    return f"; set model.backbones to {usual_backbone(shape)}, or to your own"


def _projector(settings: ModelSettings) -> nn.Module:
    return nn.Sequential(
        nn.Linear(settings.embedding, settings.hidden),
        nn.BatchNorm1d(settings.hidden),
        nn.ReLU(),
        nn.Linear(settings.hidden, settings.projection),
    )


def _first_prototypes(settings: ModelSettings, classes: int, seed: int, client: int) -> Tensor:
    """Uniform in ±1/√d_p, (K, d_p)."""
    torch.manual_seed(key(seed, client, ALWAYS, "prototypes"))
    bound = 1 / math.sqrt(settings.projection)
    return torch.empty(classes, settings.projection).uniform_(-bound, bound)


def architecture(backbone: nn.Module) -> str:
    """A fingerprint of the names and shapes of all tensors: backbones can be averaged if it is equal."""
    return fingerprint({name: tuple(tensor.shape) for name, tensor in backbone.state_dict().items()})


def check_output(what: str, backbone: nn.Module, shape: Sequence[int], embedding: int, setting: str) -> None:
    """Check that a backbone maps samples of a shape to vectors of the size that `setting` asks for."""
    training = backbone.training
    backbone.eval()
    with torch.no_grad():
        try:
            output: object = backbone(blank(shape, 2))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise MaplError(f"{what} cannot take {told(shape)}: {error}{_takers(shape)}") from error
    backbone.train(training)
    actual = f"tensors {tuple(output.shape[1:])}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
    if not isinstance(output, Tensor) or output.shape != (2, embedding):
        raise MaplError(f"{what} maps {told(shape)} to {actual}, but {setting} wants vectors of {embedding}")
