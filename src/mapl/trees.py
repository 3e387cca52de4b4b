"""Trees of settings, as TOML has them: tables in tables, and values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from mapl.names import printable

Tree = dict[str, Any]
Provenance = dict[str, str]
"""Where the value of each dotted key came from."""

UNSET = "none"
"""How a recipe file says that a setting has no value, because TOML has no null."""


def merge(base: Tree, over: Tree) -> Tree:
    """`base`, overridden by the values of `over`, table by table."""
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merge(result[key], value) if both else value
    return result


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a tree by dotted key; an empty table is a value."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return found


def toml_lines(tree: Tree, provenance: Provenance, path: tuple[str, ...] = ()) -> Iterator[str]:
    """A tree in TOML. Each line says where its value came from, as far as that is known."""
    values = {key: value for key, value in tree.items() if not isinstance(value, dict)}
    if path and values:
        yield from ("", f"[{'.'.join(map(_toml_key, path))}]")
    for key, value in values.items():
        line = f"{_toml_key(key)} = {_toml_text(UNSET if value is None else value)}"
        origin = provenance.get(".".join((*path, key)))
        yield f"{line:<48} # {printable(origin)}" if origin else line
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from toml_lines(value, provenance, (*path, key))


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_text(key)


def _toml_text(value: Any) -> str:
    """A value in TOML, with invisible characters written out."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if printable(c) == c else f"\\U{ord(c):08x}" for c in text)
