"""Checked images from arrays that were read from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mapl.data.dataset import Images
from mapl.errors import MaplError

Array = NDArray[Any]


def labelled(pixels: Array, labels: Array, classes: int, where: Path, shape: tuple[int, ...] | None = None) -> Images:
    """Check the images of a file: `pixels` are uint8 (N, C, H, W), of `shape` (C, H, W) if that is given; `labels` (N,)
    are whole numbers from 0 to `classes` − 1."""
    name = repr(str(where))
    if pixels.dtype != np.uint8 or pixels.ndim != 4:
        raise MaplError(f"{name} has images of type {pixels.dtype} and shape {pixels.shape}, not uint8 (N, C, H, W)")
    if shape is not None and pixels.shape[1:] != shape:
        raise MaplError(f"{name} has images of shape {pixels.shape[1:]}, not {shape} (channels, height, width)")
    if not len(pixels):
        raise MaplError(f"{name} has no images")
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape != (len(pixels),):
        raise MaplError(
            f"{name} has {len(pixels)} images, but labels of type {labels.dtype} and shape {labels.shape}: it should "
            "have one whole number per image"
        )
    if labels.min() < 0 or labels.max() >= classes:
        at = int(np.flatnonzero((labels < 0) | (labels >= classes))[0])
        raise MaplError(
            f"{name} has the label {labels[at]} (image number {at}); with {classes} classes labels run from 0 to "
            f"{classes - 1}"
        )
    # Arrays that are views of a file's bytes are read-only, and tensors must be writable.
    owned = np.require(pixels, requirements=["C", "W"])
    return Images(torch.from_numpy(owned), torch.from_numpy(labels.astype(np.int64)))


def mean_and_std(pixels: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Per channel, for pixels scaled to [0, 1]. Sums are whole numbers, so their order does not matter."""
    total = torch.zeros(pixels.shape[1], dtype=torch.int64)
    squares = torch.zeros_like(total)
    for start in range(0, len(pixels), 4096):
        values = pixels[start : start + 4096].to(torch.int64)
        total += values.sum((0, 2, 3))
        squares += values.square().sum((0, 2, 3))
    count = pixels.numel() // pixels.shape[1]
    mean = total.double() / count
    std = (squares.double() / count - mean.square()).clamp_min(0).sqrt()
    # A constant channel is divided by one grey level, not by 0.
    return tuple((mean / 255).tolist()), tuple((std.clamp_min(1.0) / 255).tolist())
