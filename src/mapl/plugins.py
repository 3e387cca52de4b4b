"""Things found by name: one file each, or an import path `package.module:Name`.

A room of the package (`methods/`, `backbones/`, `data/`) offers what its files export in `__all__`: writing the file is
all there is to registering it. What stands outside the package is named by its import path.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from mapl.errors import MaplError, unknown


def known(room: ModuleType) -> dict[str, Any]:
    """Everything that the files of `room` export, by name: the `name` it carries, otherwise that of its file."""
    found: dict[str, Any] = {}
    for info in pkgutil.iter_modules(room.__path__):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{room.__name__}.{info.name}")
        for export in getattr(module, "__all__", ()):
            thing = getattr(module, export)
            found[getattr(thing, "name", info.name.replace("_", "-"))] = thing
    return dict(sorted(found.items()))


def load(path: str) -> Any:
    """What the import path `package.module:Name` names. Modules of the current folder can be imported too."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute or module_name.startswith("."):
        raise MaplError(f"{path!r} is not an import path: write it as package.module:Name")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        thing = importlib.import_module(module_name)
    except ImportError as error:
        raise MaplError(f"cannot import {module_name!r} of the import path {path!r}: {error}") from error
    try:
        for part in attribute.split("."):
            thing = getattr(thing, part)
    except AttributeError as error:
        raise MaplError(f"module {module_name!r} has no {attribute!r}, which the import path {path!r} names") from error
    return thing


def find(kind: str, name: str, room: ModuleType) -> Any:
    """The thing of `room` with that name, or what an import path names."""
    if ":" in name:
        return load(name)
    things = known(room)
    if name not in things:
        raise unknown(kind, name, things)
    return things[name]


def summary(thing: Any) -> str:
    """The first sentence of a thing's documentation, for lists."""
    lines = (thing.__doc__ or "").strip().splitlines()
    return lines[0].rstrip(".") if lines else ""
