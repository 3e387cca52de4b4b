"""What each kind of data is augmented with: images by `augment`, features by noise, tokens by dropout.

All have one form, `Augmenting`: random numbers are drawn on the CPU from a keyed generator, one row per sample, and
`apply` is a function of samples and numbers alone. So a view is the same on every device and in every order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from mapl.data.augment import NONE, Augmentation, AugmentSettings
from mapl.data.samples import Kind
from mapl.errors import MaplError
from mapl.plugins import load
from mapl.shape import Shape


class FeatureSettings(BaseModel):
    """Random changes to features, which are rows of a table or signals."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    noise: float = Field(
        0.1, ge=0, description="Standard deviation of Gaussian noise, in standard deviations of each feature."
    )
    dropout: float = Field(
        0.1, ge=0, lt=1, description="Probability that a number is replaced by the mean of its feature."
    )


class TokenSettings(BaseModel):
    """Random changes to texts."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    dropout: float = Field(0.1, ge=0, lt=1, description="Probability that a token is replaced by nothing (id 0).")


class Augmenting(Protocol):
    """Augments and normalises batches of samples of one shape."""

    shape: Shape
    mean: tuple[float, ...]
    std: tuple[float, ...]
    uniforms_per_image: int
    """P: random numbers per sample."""

    def draw(self, generator: torch.Generator, n: int) -> Tensor:
        """Uniforms in [0, 1) for n samples, float32 (n, P) on the CPU."""
        ...

    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """Augmented and normalised samples, as a backbone gets them. `uniforms` (N, P) come from `draw`."""
        ...

    def normalise(self, images: Tensor) -> Tensor:
        """Normalised samples without augmentation, for tests."""
        ...


class _Drawing:
    """What all but images have in common."""

    uniforms_per_image = 0

    def draw(self, generator: torch.Generator, n: int) -> Tensor:
        return torch.rand((n, self.uniforms_per_image), generator=generator, dtype=torch.float32)


class FeatureAugmentation(_Drawing):
    """Standardised features, with Gaussian noise and with some replaced by their mean, which is then 0."""

    def __init__(
        self,
        settings: FeatureSettings,
        shape: Shape,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        device: torch.device | str = "cpu",
    ):
        if len(mean) != shape[0] or len(std) != shape[0] or min(std) <= 0:
            raise MaplError(f"mean and std should have one number per feature ({shape[0]}), those of std above 0")
        self.settings, self.shape = settings, shape
        self.mean, self.std = tuple(mean), tuple(std)
        self.size = math.prod(shape)
        self.uniforms_per_image = self.size * ((settings.noise > 0) + (settings.dropout > 0))
        ones = [1] * (len(shape) - 1)
        self._mean = torch.tensor(mean, dtype=torch.float32, device=device).view(-1, *ones)
        self._std = torch.tensor(std, dtype=torch.float32, device=device).view(-1, *ones)

    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
        values = self.normalise(images)
        if self.settings.noise > 0:
            values.add_(normal(uniforms[:, : self.size]).view_as(values), alpha=self.settings.noise)
        if self.settings.dropout > 0:
            values.mul_((uniforms[:, -self.size :] >= self.settings.dropout).view_as(values))
        return values

    def normalise(self, images: Tensor) -> Tensor:
        return images.sub(self._mean).div_(self._std)


class TokenAugmentation(_Drawing):
    """Token ids, some of which are replaced by nothing."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __init__(self, settings: TokenSettings, shape: Shape):
        self.settings, self.shape = settings, shape
        self.uniforms_per_image = shape[0] * (settings.dropout > 0)

    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
        return images * (uniforms >= self.settings.dropout) if self.settings.dropout > 0 else images.clone()

    def normalise(self, images: Tensor) -> Tensor:
        return images.clone()


Function = Callable[[Tensor, Tensor], Tensor]


class OwnAugmentation(_Drawing):
    """A user's function (samples, uniforms) → samples, between what was read and what a backbone gets.

    It gets images in [0, 1] before they are normalised, features after they are standardised, or token ids, and for
    each number or token of them one random number in [0, 1). It returns samples of the same shape and dtype.
    """

    def __init__(self, function: Function, name: str, within: Augmenting, images: bool):
        self.function, self.name, self._within, self._images = function, name, within, images
        self.shape, self.mean, self.std = within.shape, within.mean, within.std
        self.uniforms_per_image = math.prod(self.shape)

    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
        scale = 255 if images.dtype == torch.uint8 else 1
        before = images / scale if self._images else self._within.normalise(images)
        after: Any = self.function(before, uniforms.view_as(before))
        if not isinstance(after, Tensor) or after.shape != before.shape or after.dtype != before.dtype:
            got = f"{after.dtype} {tuple(after.shape)}" if isinstance(after, Tensor) else f"a {type(after).__name__}"
            wanted = f"{before.dtype} {tuple(before.shape)}"
            raise MaplError(
                f"augment.function: {self.name!r} returned {got}, but it was given {wanted}; return the same"
            )
        return self._within.normalise(after) if self._images else after

    def normalise(self, images: Tensor) -> Tensor:
        return self._within.normalise(images)


def normal(uniforms: Tensor) -> Tensor:
    """Normally distributed numbers, float32, from uniforms in [0, 1) that are multiples of 2⁻²⁴."""
    centred = uniforms.double() * 2 - (1 - 2.0**-24)  # symmetric about 0, and never −1 or 1
    return torch.erfinv(centred).mul_(math.sqrt(2)).float()


def augmentation(
    data: Like,
    images: AugmentSettings,
    features: FeatureSettings,
    tokens: TokenSettings,
    function: str | None,
    device: torch.device | str = "cpu",
) -> Augmenting:
    """The augmentation for data of this kind, shape, mean and std: that of its kind, or a user's function."""
    own = function is not None
    if data.kind == "features":
        none = FeatureSettings(noise=0, dropout=0)
        made: Augmenting = FeatureAugmentation(
            none if own else features, data.shape, data.mean, data.std, device=device
        )
    elif data.kind == "tokens":
        made = TokenAugmentation(TokenSettings(dropout=0) if own else tokens, data.shape)
    else:
        made = Augmentation(NONE if own else images, data.shape, data.mean, data.std, device=device)
    if function is None:
        return made
    loaded = load(function)
    if not callable(loaded):
        raise MaplError(f"augment.function: {function!r} is a {type(loaded).__name__}, not a function")
    return OwnAugmentation(loaded, function, made, data.kind == "images")


class Like(Protocol):
    """What an augmentation needs to know of data."""

    @property
    def kind(self) -> Kind: ...
    @property
    def shape(self) -> Shape: ...
    @property
    def mean(self) -> tuple[float, ...]: ...
    @property
    def std(self) -> tuple[float, ...]: ...
