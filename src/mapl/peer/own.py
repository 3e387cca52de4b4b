"""A peer's own images, with classes numbered and images normalised as the network has agreed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from mapl.data.dataset import Dataset, DataSettings
from mapl.data.loading import load
from mapl.errors import MaplError, unknown
from mapl.names import printable
from mapl.peer.agreement import Agreement, usual
from mapl.peer.settings import DataSection
from mapl.shape import Shape, told

MOST_NAMED = 40
"""How many classes a sentence lists."""


def load_own(data: DataSection, agreed: Agreement | None) -> Dataset:
    """The data set as it is in its file or folder. Pictures get the size that the network has agreed on."""
    size = None if agreed is None else agreed.image[1:]
    return load(DataSettings(name=data.name, folder=data.path, size=size))


def fitted(found: Dataset, agreed: Agreement) -> Dataset:
    """The data set with the classes of the network, their numbers, and the network's mean and std."""
    if found.shape.facts != Shape(agreed.image).facts:
        raise MaplError(
            f"your data are {told(found.shape)}, and those of the network {told(agreed.image)}: change yours to that "
            "shape"
        )
    numbers = _numbers(found, agreed)
    return replace(
        found,
        train=found.train.relabelled(torch.tensor(numbers)),
        test=found.test.relabelled(torch.tensor(numbers)),
        classes=agreed.classes,
        class_names=agreed.names,
        mean=agreed.mean,
        std=agreed.std,
    )


def _numbers(found: Dataset, agreed: Agreement) -> list[int]:
    """The network's number of each of the data set's classes. Without names on one side, numbers are numbers."""
    names = found.class_names or tuple(str(number) for number in range(found.classes))
    known = agreed.numbers() or {str(number): number for number in range(agreed.classes)}
    # Numbers are numbers of classes, unless the network's classes are named by numbers, too.
    if all(map(str.isdigit, names)) and not (agreed.names and all(map(str.isdigit, agreed.names))):
        largest = max(map(int, names))
        if largest >= agreed.classes:
            raise MaplError(
                f"your labels run to {largest}, but the network has {agreed.classes} classes, so labels from 0 to "
                f"{agreed.classes - 1}"
            )
        return [int(name) for name in names]
    return [_number(name, known) for name in names]


def _number(name: str, known: Mapping[str, int]) -> int:
    if usual(name) in known:
        return known[usual(name)]
    said = str(unknown("class", name, list(known)[:MOST_NAMED]))
    more = f" There are {len(known) - MOST_NAMED} more." if len(known) > MOST_NAMED else ""
    raise MaplError(printable(f"your data have a class that the network has not: {said}{more}"))
