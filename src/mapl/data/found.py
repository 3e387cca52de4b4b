"""From what was found, arrays and labels of any common form, to data sets: one, or one for each client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mapl.data.arrays import mean_and_std
from mapl.data.dataset import Dataset
from mapl.data.labels import numbered
from mapl.data.partition import DRAWN, divided
from mapl.data.samples import Features, Images, Kind, Samples, Tokens, statistics
from mapl.errors import MaplError

Array = NDArray[Any]

DEEPEST = 65535
"""The brightest value of a pixel of 16 bits."""
LARGEST_VOCABULARY = 10_000_000


@dataclass(frozen=True)
class Found:
    """Labelled samples as they were found."""

    values: Array
    """(N, …)"""
    labels: Array
    """(N,): names, or numbers of any kind."""
    kind: Kind | None = None
    """What they are; None: as their type and shape say."""
    columns: tuple[str, ...] = ()
    """Names of a table's columns."""
    names: tuple[str, ...] = ()
    """Names of the classes, if they are known: those that labels number, or that are written in them."""
    label: str = ""
    """The column with the labels."""
    vocabulary: int = 0
    """How many token ids there are; 0: as many as the largest id says."""
    notes: tuple[str, ...] = ()
    """What was found, converted or left out, in sentences for a person."""


Pair = tuple[Found, Found | None]
"""Training and test samples; None: a part of the training samples become test samples."""


def dataset_of(name: str, where: str, train: Found, test: Found | None = None) -> Dataset:
    """One data set. `where` it was found, for sentences."""
    return datasets_of([name], [where], [(train, test)])[0]


def datasets_of(names: Sequence[str], places: Sequence[str], pairs: Sequence[Pair]) -> list[Dataset]:
    """Data sets that have everything in common: the kind, the classes and their numbers, mean and std.

    Test samples are drawn for those that have none. Mean and std are those of all training samples.
    """
    where = [place for place, pair in zip(places, pairs, strict=True) for found in pair if found is not None]
    everything = [found for pair in pairs for found in pair if found is not None]
    everything = [_checked(found, place) for found, place in zip(everything, where, strict=True)]
    of_labels = [f"{w}, column {f.label!r}," if f.label else w for w, f in zip(where, everything, strict=True)]
    class_names, numbers = numbered([f.labels for f in everything], [f.names for f in everything], of_labels)
    classes = len(class_names) or 1 + max(int(labels.max()) for labels in numbers)
    samples = iter(_samples(everything, numbers, where))
    splits: list[tuple[Samples, Samples]] = []
    for place, (_, test) in zip(places, pairs, strict=True):
        first = next(samples)
        splits.append(divided(first, place) if test is None else (first, next(samples)))
    mean, std = _normalisation([train for train, _ in splits])
    return [
        Dataset(name, train, test, classes, mean, std, class_names, _notes(pair))
        for name, (train, test), pair in zip(names, splits, pairs, strict=True)
    ]


def _notes(pair: Pair) -> tuple[str, ...]:
    train, test = pair
    return tuple(dict.fromkeys([*train.notes, *([DRAWN] if test is None else test.notes)]))


def _checked(found: Found, where: str) -> Found:
    """The same, with samples (N, …) that are numbers and labels (N,)."""
    values, labels = found.values, found.labels
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    values = values[:, None] if values.ndim == 1 else values
    what = "images" if found.kind == "images" else "samples"
    if values.dtype.kind not in "biuf":
        raise MaplError(f"{where} has {what} of type {values.dtype}; they should be numbers")
    if not len(values):
        raise MaplError(f"{where} has no {what}")
    if labels.ndim != 1 or len(labels) != len(values):
        raise MaplError(
            f"{where} has {len(values)} {what}, but labels of type {labels.dtype} and shape {labels.shape}: it should "
            f"have one label per {what[:-1]}"
        )
    return replace(found, values=values, labels=labels)


def _samples(everything: Sequence[Found], numbers: Sequence[Array], where: Sequence[str]) -> list[Samples]:
    """All of one kind, and of one type."""
    kinds = [found.kind or kind_of_array(found.values) for found in everything]
    if others := [i for i, kind in enumerate(kinds) if kind != kinds[0]]:
        raise MaplError(f"{where[0]} has {kinds[0]}, but {where[others[0]]} has {kinds[others[0]]}")
    values = [found.values for found in everything]
    labels = [torch.from_numpy(each) for each in numbers]
    samples: list[Samples]
    if kinds[0] == "images":
        pixels = as_pixels(values, where)
        samples = [Images(p, k) for p, k in zip(pixels, labels, strict=True)]
    elif kinds[0] == "tokens":
        ids, vocabulary = _token_ids(everything, where)
        samples = [Tokens(t, k, vocabulary) for t, k in zip(ids, labels, strict=True)]
    else:
        rows = [_owned(v, np.float32) for v in values]
        samples = [Features(r, k, f.columns) for r, k, f in zip(rows, labels, everything, strict=True)]
    for one, place in zip(samples, where, strict=True):
        if one.shape.facts != samples[0].shape.facts:
            raise MaplError(
                f"{where[0]} has samples of shape {tuple(samples[0].shape)}, but {place} {tuple(one.shape)}"
            )
        if fault := one.fault():
            raise MaplError(f"{place} has {fault}")
    return samples


def kind_of_array(values: Array) -> Kind:
    """What an array is made of, by its type and shape.

    Bytes (N, H, W), or with 1 or 3 channels first or last, are images; so are other whole numbers up to 255, uint16
    and, with channels, floats from 0 to 1. Integers of 32 or 64 bits (N, L) are token ids. All else are features.
    """
    type_, low = values.dtype, values.min(initial=0)
    if values.ndim == 2 and type_.kind in "iu" and type_.itemsize >= 4 and low >= 0:
        return "tokens"
    channels = values.ndim == 4 and bool({1, 3} & {values.shape[1], values.shape[3]})
    if not channels and values.ndim != 3:
        return "features"
    if type_ in (np.uint8, np.uint16):
        return "images"
    high = values.max(initial=0)
    whole = low >= 0 and high <= 255 and (type_.kind in "iu" or (high > 1 and bool((values == values.round()).all())))
    return "images" if whole or (channels and type_.kind == "f" and low >= 0 and high <= 1) else "features"


def as_pixels(arrays: Sequence[Array], where: Sequence[str]) -> list[Tensor]:
    """Pixels (N, C, H, W) of one type: uint8, or float32 in [0, 1] as soon as one array has more than 8 bits."""
    made = [_unit(channels_first(array, place), place) for array, place in zip(arrays, where, strict=True)]
    if all(pixels.dtype == np.uint8 for pixels in made):
        return [_owned(pixels, np.uint8) for pixels in made]
    return [_owned(pixels / np.float32(255) if pixels.dtype == np.uint8 else pixels, np.float32) for pixels in made]


def channels_first(images: Array, where: str) -> Array:
    """(N, C, H, W) from any of the three layouts; channels count as last if both readings are possible."""
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and images.shape[3] in (1, 3):
        return images.transpose(0, 3, 1, 2)
    if images.ndim == 4 and images.shape[1] in (1, 3):
        return images
    raise MaplError(
        f"{where} has images of shape {images.shape}; they should be (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or "
        "3 channels"
    )


def _unit(pixels: Array, where: str) -> Array:
    """uint8, or float32 in [0, 1]."""
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype == np.uint16:
        return (pixels / np.float32(DEEPEST)).astype(np.float32)
    if pixels.dtype == bool:
        return pixels.astype(np.uint8) * np.uint8(255)
    low, high = pixels.min(), pixels.max()
    if pixels.dtype.kind == "f" and low >= 0 and high <= 1:
        return pixels.astype(np.float32)
    if low >= 0 and high <= 255 and (pixels == np.floor(pixels)).all():
        return pixels.astype(np.uint8)
    raise MaplError(
        f"{where} has pixels from {low:g} to {high:g}; they should be from 0 to 1, or whole numbers from 0 to 255 "
        "(or to 65535 as uint16)"
    )


def _token_ids(everything: Sequence[Found], where: Sequence[str]) -> tuple[list[Tensor], int]:
    """Ids (N, L), padded with 0 to the length of the longest, and how many ids there are."""
    for found, place in zip(everything, where, strict=True):
        if found.values.ndim != 2 or found.values.dtype.kind not in "iu":
            raise MaplError(
                f"{place} has token ids of type {found.values.dtype} and shape {found.values.shape}; they should be "
                "whole numbers (N, L)"
            )
    vocabulary = max(f.vocabulary for f in everything) or 1 + max(int(f.values.max(initial=0)) for f in everything)
    if vocabulary > LARGEST_VOCABULARY:
        raise MaplError(
            f"{where[0]} has whole numbers up to {vocabulary - 1:,}, which are too large for token ids; if they are no "
            "text, give them as floats"
        )
    longest = max(found.values.shape[1] for found in everything)
    return [_owned(padded(list(f.values), longest), np.int64) for f in everything], vocabulary


def padded(rows: Sequence[Array], longest: int | None = None) -> Array:
    """Rows of token ids, with 0 after their last one."""
    longest = max(map(len, rows), default=0) if longest is None else longest
    made = np.zeros((len(rows), longest), np.int64)
    for i, row in enumerate(rows):
        made[i, : len(row)] = row
    return made


def _owned(array: Array, dtype: Any) -> Tensor:
    # Arrays that are views of a file's bytes are read-only, and tensors must be writable.
    return torch.from_numpy(np.require(array.astype(dtype, copy=False), requirements=["C", "W"]))


def _normalisation(trains: Sequence[Samples]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of all training samples."""
    joined = (
        trains[0]
        if len(trains) == 1
        else replace(
            trains[0], inputs=torch.cat([t.inputs for t in trains]), labels=torch.cat([t.labels for t in trains])
        )
    )
    if not isinstance(joined, Images):
        return joined.normalisation()
    if joined.inputs.dtype == torch.uint8:
        return mean_and_std(joined.pixels)
    return statistics(joined.inputs)
