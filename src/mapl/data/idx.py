"""The idx format of MNIST: two zero bytes, a type, the number of dimensions, their sizes, the values."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from mapl.errors import MaplError

UNSIGNED_BYTES = 0x08
GZIP = b"\x1f\x8b"
MOST = 1_000_000
"""Images or labels in one file. The largest published set in this format, EMNIST, has 814,255."""


def read_idx(path: Path, *sizes: int) -> NDArray[np.uint8]:
    """The unsigned bytes of an idx file, gzipped or not: (N, *sizes), with N up to `MOST`.

    The header says how many bytes follow, and no more than that is unpacked.
    """
    name = repr(str(path))
    try:
        with path.open("rb") as file:
            packed = file.read(2) == GZIP
        with gzip.open(path) if packed else path.open("rb") as file:
            shape = _shape(file, name, 1 + len(sizes))
            if shape[0] > MOST or shape[1:] != sizes:
                raise MaplError(
                    f"{name} announces {_times(shape)} bytes; it should be {_times(('N', *sizes))}, with N up to {MOST}"
                )
            size = math.prod(shape)
            data = file.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise MaplError(f"{name} is broken or cut off: {error}") from error
    if len(data) != size:
        follow = "more" if len(data) > size else f"{len(data):,}"
        raise MaplError(
            f"{name} is cut off or has too much: its header announces {_times(shape)} bytes, and {follow} follow"
        )
    return np.frombuffer(data, np.uint8).reshape(shape)


def _shape(file: BinaryIO | gzip.GzipFile, name: str, dimensions: int) -> tuple[int, ...]:
    header = file.read(4 + 4 * dimensions)
    if len(header) < 4 + 4 * dimensions or header[:4] != bytes((0, 0, UNSIGNED_BYTES, dimensions)):
        raise MaplError(
            f"{name} is not an idx file of unsigned bytes in {dimensions} dimensions: it begins with "
            f"{header[:4].hex(' ')}"
        )
    return struct.unpack(f">{dimensions}I", header[4:])


def _times(shape: Sequence[object]) -> str:
    return " × ".join(map(str, shape))
