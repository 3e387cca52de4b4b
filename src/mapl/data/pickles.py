"""Reading pickles as data.

A pickle is a program: loading it runs it. Some data sets are published as pickles. They are read by an unpickler that
knows lists, dictionaries, numbers, strings and numpy arrays, and can call nothing else.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mapl.errors import MaplError


class _Forbidden(pickle.UnpicklingError):
    """The pickle asks for something other than data."""


def _latin1(text: str, encoding: str) -> bytes:
    """`codecs.encode` as pickles of bytes for Python 2 call it, with no other codec."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"it asks for the codec {encoding!r}")
    return text.encode("latin-1")


# Taken from an array, because numpy 1 and numpy 2 have them in different modules.
_RECONSTRUCT: Callable[..., Any] = np.empty(0).__reduce__()[0]  # type: ignore[assignment]
_FROM_BUFFER: Callable[..., Any] = np.empty(0).__reduce_ex__(5)[0]  # type: ignore[assignment]


_ARRAY = object()
"""Stands for numpy's array class. A pickle names it, but must not call it: that would allocate any size."""


def _empty_array(kind: object, shape: object, dtype: object) -> Any:
    """Every array begins empty. Its shape comes with its bytes, and has to fit them."""
    if kind is not _ARRAY or shape != (0,):
        raise _Forbidden("an array without its bytes")
    return _RECONSTRUCT(np.ndarray, shape, dtype)


_TYPES: dict[tuple[str, str], object] = {("numpy", "ndarray"): _ARRAY, ("numpy", "dtype"): np.dtype}
_FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("numpy.core.numeric", "_frombuffer"): _FROM_BUFFER,
    ("numpy._core.numeric", "_frombuffer"): _FROM_BUFFER,
    ("_codecs", "encode"): _latin1,
}


class _DataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # Never super().find_class: that would import what the file names.
        if (module, name) in _TYPES:
            return _TYPES[module, name]
        if (module, name) in _FUNCTIONS:
            # Wrapped anew each time, because a pickle can set attributes of what it gets.
            return partial(_FUNCTIONS[module, name])
        raise _Forbidden(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise _Forbidden("something outside the file")


def read_pickle(data: bytes, where: str) -> Any:
    """The content of a pickle; `where` names it in errors. Strings in pickles of Python 2 become bytes."""
    try:
        return _DataUnpickler(io.BytesIO(data), encoding="bytes").load()
    except _Forbidden as error:
        raise MaplError(
            f"{where!r} is not a file of data: its pickle asks for {error}, which data never needs but an attack "
            "would; nothing of it was run"
        ) from None
    except MemoryError:
        raise MaplError(f"{where!r} is broken: its pickle asks for more memory than there is") from None
    except Exception as error:  # arbitrary bytes can make it fail in any way
        raise MaplError(f"{where!r} is broken or cut off: its pickle cannot be read ({error})") from error
