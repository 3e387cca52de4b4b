"""What a data set is: labelled images as tensors, and how to normalise them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
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

    def to(self, device: torch.device) -> Images:
        return Images(self.pixels.to(device), self.labels.to(device))

    def add_to(self, digest: hashlib._Hash) -> None:
        """Add shape, labels and pixels to a hash."""
        digest.update(repr(tuple(self.pixels.shape)).encode())
        for tensor in (self.labels, self.pixels):
            digest.update(tensor.cpu().contiguous().numpy().data)

    def counts(self, classes: int) -> list[int]:
        """How many images each class has."""
        return torch.bincount(self.labels, minlength=classes).tolist()


@dataclass(frozen=True)
class Dataset:
    """A data set with K classes; `mean` and `std` are per channel, for pixels scaled to [0, 1]."""

    name: str
    train: Images
    test: Images
    classes: int
    mean: tuple[float, ...] = field(default=(0.5,))
    std: tuple[float, ...] = field(default=(0.5,))
    class_names: tuple[str, ...] = ()
    """Names of the classes, for tables; if empty, their numbers are used."""
    found: tuple[str, ...] = ()
    """What was found, converted or left out while it was read, in sentences for a person."""

    def __post_init__(self) -> None:
        if self.class_names and len(self.class_names) != self.classes:
            raise MaplError(
                f"data set {self.name!r} has {self.classes} classes, but {len(self.class_names)} names of classes"
            )
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

    def digest(self) -> str:
        """16 hex digits, equal for equal contents: images, labels, number of classes, mean and std. Not names.

        SHA-256 is the fastest of Python's hashes where the processor has instructions for it. Nothing is remembered,
        because tensors can be changed in place.
        """
        digest = hashlib.sha256(repr((self.classes, tuple(self.mean), tuple(self.std))).encode())
        for images in (self.train, self.test):
            images.add_to(digest)
        return digest.hexdigest()[:16]

    @property
    def image(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        channels, height, width = self.train.pixels.shape[1:]
        return channels, height, width


class DataSettings(BaseModel):
    """Where the images come from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("digits", description="A known data set, or the import path of one (package.module:Name).")
    folder: Path | None = Field(
        None,
        description="Folder with the files of the data sets; default: $MAPL_DATA, or data/. For the data set 'folder', "
        "the folder with your images; for 'npz', your file.",
    )

    def root(self) -> Path:
        """The folder with the files of published data sets."""
        return (self.folder or Path(os.environ.get("MAPL_DATA") or "data")).expanduser()

    def own(self) -> Path:
        """Where the user's own data are. There is no default."""
        if self.folder is None:
            where = f"data set {self.name!r} is your own: say where it is, with"
            raise MaplError(
                f'{where} data={{"name": {self.name!r}, "folder": …}}', shell=f"{where} --set data.folder=PATH"
            )
        return self.folder.expanduser()


Progress = Callable[[int, int], None]
"""Called with how much is done and the total (0 if unknown)."""


def unseen(done: int, total: int) -> None:
    """Ignore progress."""


class DataSource(Protocol):
    """How a data set is read, and the defaults that a recipe should have with it; one file of `sources/` each.

    A source may also have `published` (a `Published`: which files it reads, and where to download them). A source that
    takes long to read may have `progress`, a `Progress` that it calls as it reads.
    """

    name: ClassVar[str]
    suggests: ClassVar[dict[str, Any]]
    # It may also have `alike`: the backbone for methods that need one architecture, if that is not resnet18. And
    # `own = True`, if its images are the user's: then its name does not say which images they are.

    def load(self, settings: DataSettings) -> Dataset: ...
