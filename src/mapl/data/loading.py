"""The data set that settings name. Inside `keeping_data`, the last one is read only once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import mapl.data.sources
from mapl.data.dataset import Dataset, DataSettings, Progress
from mapl.data.found import Pair
from mapl.errors import MaplError
from mapl.plugins import find

GIVEN_IN_PYTHON = "python"
"""The name of a data set that was given as an object."""

_kept: ContextVar[dict[DataSettings, Dataset] | None] = ContextVar("_kept", default=None)
_progress: ContextVar[Progress | None] = ContextVar("_progress", default=None)


@contextmanager
def keeping_data(progress: Progress | None = None) -> Iterator[None]:
    """Inside, the last data set loaded is kept for the next time that the same one is named.

    `progress` is told how far a data set is read that takes long.
    """
    token = _kept.set({} if (outer := _kept.get()) is None else outer)
    watch = _progress.set(progress or _progress.get())
    try:
        yield
    finally:
        _progress.reset(watch)
        _kept.reset(token)


def load(settings: DataSettings) -> Dataset:
    """The data set that the settings name."""
    kept = _kept.get()
    if kept is None:
        return _load(settings)
    if settings not in kept:
        kept.clear()  # before loading: two at once may not fit in memory
        kept[settings] = _load(settings)
    return kept[settings]


def _load(settings: DataSettings) -> Dataset:
    name = settings.name
    if name == GIVEN_IN_PYTHON:
        raise MaplError("the data of this run was given in Python: pass it again, as mapl.resume(folder, data=…)")
    source = find("data set", name, mapl.data.sources)
    if not callable(getattr(source, "load", None)):
        raise MaplError(f"data set {name!r} is not a data source: it should be a class with a method load")
    made, watch = source(), _progress.get()
    if watch and hasattr(made, "progress"):
        made.progress = watch
    dataset = made.load(settings)
    if not isinstance(dataset, Dataset):
        raise MaplError(f"data set {name!r} returned a {type(dataset).__name__}, not a mapl.Dataset")
    return dataset


def read_own(settings: DataSettings) -> Pair:
    """What is in a folder or a file of your own, before its classes are numbered."""
    source = find("data set", settings.name, mapl.data.sources)
    if not hasattr(source, "found"):
        raise MaplError(f"{settings.name!r} is not the path of a folder or a file of your own")
    found: Pair = source().found(settings)
    return found
