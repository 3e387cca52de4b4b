"""The idx format of MNIST: two zero bytes, a type, the number of dimensions, their sizes, the values."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mapl.errors import MaplError

UNSIGNED_BYTES = 0x08
GZIP = b"\x1f\x8b"


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The unsigned bytes of an idx file with this many dimensions, gzipped or not."""
    name = repr(str(path))
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if raw.startswith(GZIP) else raw
    except (OSError, EOFError, zlib.error) as error:
        raise MaplError(f"{name} is broken or cut off: {error}") from error
    start = 4 + 4 * dimensions
    if len(raw) < start or raw[:4] != bytes((0, 0, UNSIGNED_BYTES, dimensions)):
        raise MaplError(
            f"{name} is not an idx file of unsigned bytes in {dimensions} dimensions: it begins with {raw[:4].hex(' ')}"
        )
    shape = struct.unpack(f">{dimensions}I", raw[4:start])
    if len(raw) - start != math.prod(shape):
        raise MaplError(
            f"{name} is cut off or has too much: its header announces {' × '.join(map(str, shape))} bytes, and "
            f"{len(raw) - start:,} follow"
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)
