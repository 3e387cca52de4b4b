"""Kinds of data: labelled images, features (tables and signals) and token ids (text), as tensors."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from mapl.errors import MaplError
from mapl.shape import IMAGE_SIDES, Shape

Kind = Literal["images", "features", "tokens"]


@dataclass(frozen=True)
class Samples:
    """What clients learn from: `inputs` (N, …) and their labels (N,) as int64. Made as one of the kinds below."""

    inputs: Tensor
    labels: Tensor
    kind: ClassVar[Kind]

    def __post_init__(self) -> None:
        self._check_inputs()
        if self.labels.shape != self.inputs.shape[:1] or self.labels.dtype != torch.int64:
            raise MaplError(
                f"labels must be an int64 tensor of shape ({len(self.inputs)},), "
                f"got {self.labels.dtype} {tuple(self.labels.shape)}"
            )

    def _check_inputs(self) -> None:
        """Refuse what is not of this kind, by type and shape alone."""
        raise NotImplementedError

    def fault(self) -> str:
        """What is wrong with a value, with its place; empty if all are as they should be."""
        return ""

    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation, for a data set that gives none."""
        return (), ()

    @property
    def shape(self) -> Shape:
        """Of one sample."""
        return Shape(self.inputs.shape[1:])

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Tensor) -> Self:
        """The samples at these places."""
        return replace(self, inputs=self.inputs[indices], labels=self.labels[indices])

    def to(self, device: torch.device) -> Self:
        """The same samples on a device."""
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))

    def joined(self, other: Samples) -> Self:
        """These samples, and then others of the same kind."""
        if not len(other):
            return self
        inputs, labels = torch.cat([self.inputs, other.inputs]), torch.cat([self.labels, other.labels])
        return replace(self, inputs=inputs, labels=labels)

    def relabelled(self, numbers: Tensor) -> Self:
        """The same samples, with `numbers[k]` for the label k."""
        return replace(self, labels=numbers[self.labels])

    def add_to(self, digest: hashlib._Hash) -> None:
        """Add shape, labels and inputs to a hash; and the kind, if it is not the one that was there first."""
        if self.inputs.dtype != torch.uint8:
            digest.update(repr((self.kind, str(self.inputs.dtype), self.shape.vocabulary)).encode())
        digest.update(repr(tuple(self.inputs.shape)).encode())
        for tensor in (self.labels, self.inputs):
            digest.update(tensor.cpu().contiguous().numpy().data)

    def counts(self, classes: int) -> list[int]:
        """How many samples each class has."""
        return torch.bincount(self.labels, minlength=classes).tolist()


@dataclass(frozen=True)
class Images(Samples):
    """Pixels (N, C, H, W), uint8 or float32 in [0, 1], and their labels (N,) as int64."""

    kind = "images"

    @property
    def pixels(self) -> Tensor:
        """The images, (N, C, H, W)."""
        return self.inputs

    def unit(self) -> Tensor:
        """The images as float32 in [0, 1]."""
        return self.inputs.float() / 255 if self.inputs.dtype == torch.uint8 else self.inputs

    def _check_inputs(self) -> None:
        if self.inputs.ndim != IMAGE_SIDES + 1 or self.inputs.dtype not in (torch.uint8, torch.float32):
            raise MaplError(
                "images must be a uint8 tensor (N, C, H, W), or a float32 one of values in [0, 1], got "
                f"{self.inputs.dtype} {tuple(self.inputs.shape)}"
            )

    def fault(self) -> str:
        if self.inputs.dtype == torch.uint8:
            return ""
        return _first((self.inputs >= 0) & (self.inputs <= 1), self.inputs, "a pixel of", "pixels are 0 to 1")

    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return (0.5,), (0.5,)


@dataclass(frozen=True)
class Features(Samples):
    """Finite numbers (N, …) as float32, such as rows of a table (N, F) or signals (N, C, L); labels (N,) as int64."""

    columns: tuple[str, ...] = ()
    """Names of a table's columns, for sentences."""
    kind = "features"

    def _check_inputs(self) -> None:
        if self.inputs.ndim < 2 or self.inputs.dtype != torch.float32 or (not self.inputs[:1].numel() and len(self)):
            raise MaplError(
                "features must be a float32 tensor (N, F), or (N, …) of more dimensions, got "
                f"{self.inputs.dtype} {tuple(self.inputs.shape)}"
            )
        if self.columns and self.inputs.shape[1:] != (len(self.columns),):
            raise MaplError(f"features of shape {tuple(self.inputs.shape)} have {len(self.columns)} names of columns")

    def fault(self) -> str:
        return _first(self.inputs.isfinite(), self.inputs, "the value", "all should be finite numbers", self.columns)

    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Of each column of a table, of each channel of a signal. One that never changes is only centred."""
        return statistics(self.inputs)


@dataclass(frozen=True)
class Tokens(Samples):
    """Token ids (N, L) as int64, 0 to `vocabulary` − 1, where 0 stands for nothing (padding); labels (N,) as int64."""

    vocabulary: int
    kind = "tokens"

    @property
    def shape(self) -> Shape:
        return Shape(self.inputs.shape[1:], self.vocabulary)

    def _check_inputs(self) -> None:
        if self.inputs.ndim != 2 or self.inputs.dtype != torch.int64 or not self.inputs.shape[1]:
            raise MaplError(
                f"token ids must be an int64 tensor (N, L), got {self.inputs.dtype} {tuple(self.inputs.shape)}"
            )
        if self.vocabulary < 1:
            raise MaplError(f"vocabulary: got {self.vocabulary}, but there is at least one token id")

    def fault(self) -> str:
        inside = (self.inputs >= 0) & (self.inputs < self.vocabulary)
        why = f"with a vocabulary of {self.vocabulary} ids run from 0 to {self.vocabulary - 1}"
        return _first(inside, self.inputs, "the token id", why)


def statistics(inputs: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each column or channel (N, C, …). One that never changes has a deviation of 1.

    They are part of what says which data these are. So they are rounded to ten digits, and summed on one thread: the
    last digits of a sum depend on its order.
    """
    values = inputs.cpu().numpy().astype(np.float64).swapaxes(0, 1).reshape(inputs.shape[1], -1)
    with np.errstate(invalid="ignore"):  # what is not finite is refused elsewhere, with its place
        mean, std = values.mean(1), values.std(1)
    std = np.where(std > 1e-6 * np.abs(values).max(1, initial=0), std, 1.0)
    return tuple(float(f"{x:.10g}") for x in mean), tuple(float(f"{x:.10g}") for x in std)


def _first(good: Tensor, values: Tensor, what: str, why: str, columns: tuple[str, ...] = ()) -> str:
    """The first bad value in words."""
    if good.all():
        return ""
    row, *rest = torch.nonzero(~good)[0].tolist()
    place = f"column {columns[rest[0]]!r}" if columns else f"place {', '.join(map(str, rest))}"
    return f"{what} {values[(row, *rest)].item():g} in sample {row}, {place}, counted from 0; {why}"
