"""Named tensors as a few large arrays, which Ray shares between the processes of a host without copying them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mapl.data.dataset import Dataset
from mapl.data.samples import Samples

Bytes = NDArray[np.uint8]
CPU = torch.device("cpu")


class Group(NamedTuple):
    """Tensors of one dtype, one after another."""

    dtype: torch.dtype
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    contents: Bytes


@dataclass(frozen=True)
class Packed:
    """Named tensors on the CPU."""

    groups: tuple[Group, ...]

    @property
    def nbytes(self) -> int:
        return sum(group.contents.nbytes for group in self.groups)

    def copy(self) -> Packed:
        """The same in memory of this process's own."""
        return Packed(tuple(group._replace(contents=group.contents.copy()) for group in self.groups))


@torch.no_grad()
def pack(tensors: Mapping[str, Tensor]) -> Packed:
    """A copy of the tensors, wherever they are."""
    kinds: dict[tuple[torch.dtype, torch.device], list[str]] = {}
    for name, tensor in tensors.items():
        kinds.setdefault((tensor.dtype, tensor.device), []).append(name)
    groups = []
    for (dtype, _), names in kinds.items():
        flat = torch.cat([tensors[name].detach().reshape(-1) for name in names]).cpu()
        shapes = tuple(tuple(tensors[name].shape) for name in names)
        groups.append(Group(dtype, tuple(names), shapes, flat.view(torch.uint8).numpy()))
    return Packed(tuple(groups))


def unpack(packed: Packed, device: torch.device = CPU) -> dict[str, Tensor]:
    """The tensors, on the CPU as views of the arrays. Do not change them: other processes may read the same memory."""
    tensors: dict[str, Tensor] = {}
    for dtype, names, shapes, contents in packed.groups:
        flat = _tensor(contents).view(dtype).to(device)
        pieces = torch.split(flat, [math.prod(shape) for shape in shapes])
        tensors |= {name: piece.view(shape) for name, piece, shape in zip(names, pieces, shapes, strict=True)}
    return tensors


def _tensor(array: NDArray[Any]) -> Tensor:
    """The array as a tensor, without a copy, though it may be read-only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that writing to it is undefined; nobody does
        return torch.from_numpy(array)


# Data sets


@dataclass(frozen=True)
class PackedData:
    """A data set whose tensors are arrays."""

    like: dict[str, Any]
    """What else it has."""
    splits: tuple[tuple[type[Samples], dict[str, Any]], ...]


def pack_data(dataset: Dataset) -> PackedData:
    """The data set as arrays that share its memory."""
    like = {
        field.name: getattr(dataset, field.name) for field in fields(dataset) if field.name not in ("train", "test")
    }
    return PackedData(like, (_arrays(dataset.train), _arrays(dataset.test)))


def unpack_data(packed: PackedData) -> Dataset:
    """The data set, in the memory of the arrays."""
    train, test = (
        kind(**{k: _tensor(v) if isinstance(v, np.ndarray) else v for k, v in values.items()})
        for kind, values in packed.splits
    )
    return Dataset(**packed.like, train=train, test=test)


def _arrays(samples: Samples) -> tuple[type[Samples], dict[str, Any]]:
    values = {field.name: getattr(samples, field.name) for field in fields(samples)}
    arrays = {k: v.cpu().contiguous().numpy() if isinstance(v, Tensor) else v for k, v in values.items()}
    return type(samples), arrays
