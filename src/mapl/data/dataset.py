"""What a data set is: labelled samples as tensors, and how to normalise them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict, Field

from mapl.data.samples import Features, Images, Kind, Samples, Tokens
from mapl.errors import MaplError
from mapl.shape import Shape, told

__all__ = [
    "DataSettings",
    "DataSource",
    "Dataset",
    "Features",
    "Images",
    "Progress",
    "Samples",
    "Tokens",
    "unseen",
]


@dataclass(frozen=True, repr=False)
class Dataset:
    """A data set with K classes.

    `mean` and `std` are per channel, for pixels scaled to [0, 1]; by default one half. For features they are per column
    of a table, or per channel of a signal; by default those of the training samples. Tokens have none.
    """

    name: str
    train: Samples
    test: Samples
    classes: int
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    class_names: tuple[str, ...] = ()
    """Names of the classes, for tables; if empty, their numbers are used."""
    found: tuple[str, ...] = ()
    """What was found, converted or left out while it was read, in sentences for a person."""

    def __post_init__(self) -> None:
        self._check_kind()
        if not self.mean and not self.std:
            mean, std = self.train.normalisation()
            object.__setattr__(self, "mean", mean)
            object.__setattr__(self, "std", std)
        if self.class_names and len(self.class_names) != self.classes:
            raise MaplError(
                f"data set {self.name!r} has {self.classes} classes, but {len(self.class_names)} names of classes"
            )
        for split, samples in (("training", self.train), ("test", self.test)):
            bad = samples.labels[(samples.labels < 0) | (samples.labels >= self.classes)]
            if len(bad):
                raise MaplError(
                    f"data set {self.name!r} has the label {int(bad[0])} among its {split} {self.noun}; "
                    f"with {self.classes} classes labels run from 0 to {self.classes - 1}"
                )
            if fault := samples.fault():
                raise MaplError(f"data set {self.name!r} has among its {split} {self.noun} {fault}")

    def _check_kind(self) -> None:
        kinds = getattr(self.train, "kind", None), getattr(self.test, "kind", None)
        if None in kinds or kinds[0] != kinds[1]:
            given = f"{type(self.train).__name__} and {type(self.test).__name__}"
            raise MaplError(
                f"data set {self.name!r} is made of {given}; give mapl.Images, mapl.Features or mapl.Tokens, the same "
                "for training and tests"
            )
        if self.train.shape.facts != self.test.shape.facts:
            raise MaplError(
                f"data set {self.name!r} has training {self.noun} of shape {_shape(self.train)} "
                f"but test {self.noun} of shape {_shape(self.test)}"
            )

    def digest(self) -> str:
        """16 hex digits, equal for equal contents: images, labels, number of classes, mean and std. Not names.

        SHA-256 is the fastest of Python's hashes where the processor has instructions for it. Nothing is remembered,
        because tensors can be changed in place.
        """
        digest = hashlib.sha256(repr((self.classes, tuple(self.mean), tuple(self.std))).encode())
        for samples in (self.train, self.test):
            samples.add_to(digest)
        return digest.hexdigest()[:16]

    def summary(self) -> str:
        """How much there is of what."""
        counted = f"{len(self.train):,} training and {len(self.test):,} test"
        return f"{counted} {told(self.shape)} in {self.classes} classes"

    def __repr__(self) -> str:
        return f"<mapl.Dataset {self.name!r}: {'; '.join([self.summary(), *self.found])}>"

    @property
    def kind(self) -> Kind:
        """What it is made of: images, features or tokens."""
        return self.train.kind

    @property
    def noun(self) -> str:
        """What one calls its samples."""
        return "images" if self.kind == "images" else "samples"

    @property
    def shape(self) -> Shape:
        """Of one sample: (C, H, W) of an image."""
        return self.train.shape


def _shape(samples: Samples) -> str:
    among = f" with a vocabulary of {samples.shape.vocabulary}" if samples.shape.vocabulary else ""
    return f"{tuple(samples.shape)}{among}"


Side = Annotated[int, Field(ge=1, le=4096)]


class DataSettings(BaseModel):
    """Where the samples come from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("digits", description="A known data set, or the import path of one (package.module:Name).")
    folder: Path | None = Field(
        None,
        description="Folder with the files of the data sets; default: $MAPL_DATA, or data/. For the data set 'folder', "
        "the folder with your images; for 'npz' and 'table', your file.",
    )
    size: Side | tuple[Side, Side] | None = Field(
        None,
        description="Your own images in files: pixels of a side, or [height, width]. 'none': as they are, or squares "
        "of 64 pixels or less if they have several sizes or are larger than 128.",
    )
    label: str | None = Field(
        None,
        description="Your own table: the column with the labels. 'none': the one called label, class, target or y, or "
        "the only one with text, or the last.",
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
