"""What members who bring their own data agree on: classes and their numbers, the shape of an image, mean and std.

The authority's first `mapl peer init --data` writes it down. Invitations carry it, so every member has the same.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, ValidationError, model_validator

from mapl.errors import MaplError
from mapl.names import printable
from mapl.peer.files import VERSION, Written
from mapl.shape import told

if TYPE_CHECKING:
    from mapl.data.dataset import Dataset

AGREEMENT = "agreement.json"
LIMIT = 4 * 1024 * 1024
"""The largest file, in bytes."""
MOST_CLASSES = 100_000

Name = Annotated[str, Field(min_length=1, max_length=200)]
Side = Annotated[int, Field(ge=1, le=4096)]
Share = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1)]
Spread = Annotated[float, Field(allow_inf_nan=False, ge=1e-3, le=1)]
"""Images are divided by it. One grey level is 0.0039."""


class Agreement(Written):
    """What is alike in the data of all members."""

    version: int = Field(ge=1, le=VERSION)
    classes: int = Field(ge=2, le=MOST_CLASSES)
    names: tuple[Name, ...] = ()
    """Of the classes, by number; none if classes have numbers alone."""
    image: tuple[Side, Side, Side]
    """Channels, height and width."""
    mean: tuple[Share, ...]
    std: tuple[Spread, ...]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.names and len(self.names) != self.classes:
            raise ValueError(f"{self.classes} classes have {len(self.names)} names")
        if len(self.numbers()) != len(self.names):
            raise ValueError("two classes have one name")
        if not len(self.mean) == len(self.std) == self.image[0]:
            raise ValueError(f"images of {self.image[0]} channels have {len(self.mean)} means and {len(self.std)} stds")
        return self

    @staticmethod
    def of(data: Dataset) -> Agreement:
        """What others have to agree with, if this data set is the first."""
        if data.kind != "images":
            raise MaplError(
                f"a network of members who bring their own data takes images, and these are {told(data.shape)}"
            )
        try:
            return Agreement(
                version=VERSION,
                classes=data.classes,
                names=data.class_names,
                image=(data.shape[0], data.shape[1], data.shape[2]),
                mean=tuple(data.mean),
                std=tuple(data.std),
            )
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = "".join(f"{part}: " for part in first["loc"][:1])
            said = printable(f"{place}{first['msg'].removeprefix('Value error, ')}")
            raise MaplError(f"the data cannot be those of a network: {said[:200]}") from None

    def numbers(self) -> dict[str, int]:
        """The number of each name."""
        return {usual(name): number for number, name in enumerate(self.names)}


def usual(name: str) -> str:
    """A name in the one form in which names are compared: some systems write é as e and an accent."""
    return unicodedata.normalize("NFC", name)
