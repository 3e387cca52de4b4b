"""Reading pickles as data.

A pickle is a program: whoever loads one runs it. Some data sets are published as pickles all the same, so they are read
by an unpickler that knows lists, dictionaries, numbers, strings and numpy arrays, and can call nothing else.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mapl.errors import MaplError


def _latin1(text: str, encoding: str) -> bytes:
    """What `codecs.encode` is asked for by pickles of bytes that Python 2 is to read, and no other codec."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"it asks for the codec {encoding!r}")
    return text.encode("latin-1")


# Asked of an array itself, because numpy 1 and numpy 2 keep them at different places.
_RECONSTRUCT: Callable[..., Any] = np.empty(0).__reduce__()[0]  # type: ignore[assignment]
_FROM_BUFFER: Callable[..., Any] = np.empty(0).__reduce_ex__(5)[0]  # type: ignore[assignment]

_TYPES: dict[tuple[str, str], type] = {("numpy", "ndarray"): np.ndarray, ("numpy", "dtype"): np.dtype}
_FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy.core.numeric", "_frombuffer"): _FROM_BUFFER,
    ("numpy._core.numeric", "_frombuffer"): _FROM_BUFFER,
    ("_codecs", "encode"): _latin1,
}


class _Forbidden(pickle.UnpicklingError):
    """The pickle asks for something that is not data."""


class _DataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # Never super().find_class: that would import what the file names.
        if (module, name) in _TYPES:
            return _TYPES[module, name]
        if (module, name) in _FUNCTIONS:
            # Wrapped afresh, because a pickle may also set attributes of what it was given.
            return partial(_FUNCTIONS[module, name])
        raise _Forbidden(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise _Forbidden("something outside the file")


def read_pickle(data: bytes, where: str) -> Any:
    """What a pickle holds; `where` names it in errors. Pickles of Python 2 give bytes where they had strings."""
    try:
        return _DataUnpickler(io.BytesIO(data), encoding="bytes").load()
    except _Forbidden as error:
        raise MaplError(
            f"{where!r} is not a file of data: its pickle asks for {error}, which data never needs and somebody who "
            "wants to run a program on this machine might; nothing of it was run"
        ) from None
    except MemoryError:
        raise MaplError(f"{where!r} is broken: its pickle asks for more memory than there is") from None
    except Exception as error:  # bytes that are no pickle can make any of its operations fail in any way
        raise MaplError(f"{where!r} is broken or cut off: its pickle cannot be read ({error})") from error
