"""What a data set is to the rest of the package: labelled images as tensors, and how to normalise them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from mapl.errors import MaplError


@dataclass(frozen=True)
class Images:
    """Pixels (N, C, H, W) as uint8 and their labels (N,) as int64."""

    pixels: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.pixels.ndim != 4 or self.pixels.dtype != torch.uint8:
            raise MaplError(
                f"images must be a uint8 tensor (N, C, H, W), got {self.pixels.dtype} {tuple(self.pixels.shape)}"
            )
        if self.labels.shape != self.pixels.shape[:1] or self.labels.dtype != torch.int64:
            raise MaplError(
                f"labels must be an int64 tensor of shape ({len(self.pixels)},), "
                f"got {self.labels.dtype} {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Tensor) -> Images:
        return Images(self.pixels[indices], self.labels[indices])


@dataclass(frozen=True)
class Dataset:
    """A data set of K classes; `mean` and `std` are per channel, of pixels scaled to [0, 1]."""

    name: str
    train: Images
    test: Images
    classes: int
    mean: tuple[float, ...] = field(default=(0.5,))
    std: tuple[float, ...] = field(default=(0.5,))

    def __post_init__(self) -> None:
        for split, images in (("training", self.train), ("test", self.test)):
            bad = images.labels[(images.labels < 0) | (images.labels >= self.classes)]
            if len(bad):
                raise MaplError(
                    f"data set {self.name!r} has the label {int(bad[0])} among its {split} images; "
                    f"with {self.classes} classes labels run from 0 to {self.classes - 1}"
                )
        if self.train.pixels.shape[1:] != self.test.pixels.shape[1:]:
            raise MaplError(
                f"data set {self.name!r} has training images of shape {tuple(self.train.pixels.shape[1:])} "
                f"but test images of shape {tuple(self.test.pixels.shape[1:])}"
            )

    @property
    def image(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        channels, height, width = self.train.pixels.shape[1:]
        return channels, height, width


class DataSettings(BaseModel):
    """Where the images come from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("digits", description="A known data set, or the import path of one (package.module:Name).")


class DataSource(Protocol):
    """One file of this room: how a data set is read, and what a recipe should default to with it."""

    name: ClassVar[str]
    suggests: ClassVar[dict[str, Any]]

    def load(self, settings: DataSettings) -> Dataset: ...
