"""Things found by name: one file each, or an import path `package.module:Name`.

A room of the package (`methods/`, `backbones/`, `data/sources/`, `runs/writers/`) offers what its files export in
`__all__`. To register something, write its file. Anything outside the package is named by its import path.

Names and summaries are read from the source. So a list imports nothing, and `find` imports only the file that it needs.

An import path is code. The user names it in Python, on the command line, or in the recipe file given to `mapl run`. A
run folder may come from anybody, so inside `looking` the only import paths that are followed are those that the user
has named in this process.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from mapl.errors import MaplError, unknown

_trust: ContextVar[bool | None] = ContextVar("_trust", default=None)
"""Whether `looking` follows any import path; None outside of it."""
_named: set[str] = set()
"""The import paths that the user has named in this process."""


class Untrusted(MaplError):
    """A file names code from outside the package, and the user has not."""

    def __init__(self, path: str):
        self.path = path
        code = f"{path!r} is code that only a file names, not you: to import and run it, give"
        super().__init__(f"{code} trust=True", shell=f"{code} --trust")


@contextmanager
def looking(trust: bool = False) -> Iterator[None]:
    """Inside, a file chooses what happens: `load` refuses import paths that the user has not named.

    With `trust`, it refuses none. A `looking` inside that one trusts too.
    """
    token = _trust.set(trust or _trust.get() or False)
    try:
        yield
    finally:
        _trust.reset(token)


def is_looking() -> bool:
    """Whether a file chooses what happens."""
    return _trust.get() is not None


def take_as_named(given: Any) -> None:
    """Take note of every import path in a tree of settings that the user gave."""
    if isinstance(given, str):
        if ":" in given:
            _named.add(given)
    elif isinstance(given, Mapping):
        for value in given.values():
            take_as_named(value)
    elif isinstance(given, Sequence):
        for value in given:
            take_as_named(value)


def permit(path: str) -> None:
    """Refuse an import path that only a file names. What is permitted once counts as named."""
    if not is_permitted(path):
        raise Untrusted(path)
    _named.add(path)


def is_permitted(path: str) -> bool:
    """Whether an import path may be followed."""
    return _trust.get() is not False or path in _named


@dataclass(frozen=True)
class Entry:
    """Where a thing is defined, and the first sentence of its documentation."""

    module: str
    attribute: str
    summary: str

    def load(self) -> Any:
        return getattr(importlib.import_module(self.module), self.attribute)


@cache
def index(room: str) -> dict[str, Entry]:
    """What the files of a room (`mapl.methods`) export, by name, without importing them.

    A thing is called what its class attribute `name` says, which must be a plain string in that class, or else like its
    file. Files whose names start with an underscore are not searched.
    """
    entries: dict[str, Entry] = {}
    for path in _source(room).glob("[!_]*.py"):
        body = _parsed(path)
        definitions = _definitions(body)
        for export in _exports(body):
            definition = definitions.get(export)
            name = _name(definition) or path.stem.replace("_", "-")
            entries[name] = Entry(f"{room}.{path.stem}", export, _summary_of(definition))
    return dict(sorted(entries.items()))


def known(room: ModuleType) -> dict[str, Any]:
    """Everything that a room offers, by name. This imports all of its files."""
    return {name: entry.load() for name, entry in index(room.__name__).items()}


def find(kind: str, name: str, room: ModuleType) -> Any:
    """The thing of that name in a room, or what an import path names."""
    if ":" in name:
        return load(name)
    entries = index(room.__name__)
    if name not in entries:
        raise unknown(kind, name, entries)
    return entries[name].load()


def load(path: str) -> Any:
    """What the import path `package.module:Name` names. Modules in the current folder can be imported too."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute or module_name.startswith("."):
        raise MaplError(f"{path!r} is not an import path: write it as package.module:Name")
    permit(path)
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


def summary(thing: Any) -> str:
    """The first sentence of a thing's documentation, for lists."""
    return _first_line(thing.__doc__)


def table(module: str, variable: str) -> dict[str, str]:
    """A dictionary that a module of the package writes out, as keys and texts, without importing the module.

    A value is either a text, or a function of the same module, which stands for the summary of its documentation.
    """
    body = _parsed(_source(module).with_suffix(".py"))
    definitions = _definitions(body)
    written = _assigned(body, variable)
    if not isinstance(written, ast.Dict):
        raise TypeError(f"{module}.{variable} should be written out as a dictionary")
    texts: dict[str, str] = {}
    for key, value in zip(written.keys, written.values, strict=True):
        if key is not None:
            text = _summary_of(definitions[value.id]) if isinstance(value, ast.Name) else ast.literal_eval(value)
            texts[str(ast.literal_eval(key))] = text
    return texts


def _source(module: str) -> Path:
    """Where a module of the package is. Python's own search would import the packages around it."""
    return Path(__file__).parent.joinpath(*module.split(".")[1:])


def _parsed(path: Path) -> Sequence[ast.stmt]:
    return ast.parse(path.read_text(encoding="utf-8")).body


def _exports(body: Sequence[ast.stmt]) -> Iterator[str]:
    exports = _assigned(body, "__all__")
    yield from ast.literal_eval(exports) if exports is not None else ()


def _definitions(body: Sequence[ast.stmt]) -> dict[str, ast.ClassDef | ast.FunctionDef]:
    return {node.name: node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}


def _name(definition: ast.ClassDef | ast.FunctionDef | None) -> str | None:
    value = _assigned(definition.body, "name") if isinstance(definition, ast.ClassDef) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def _assigned(body: Sequence[ast.stmt], name: str) -> ast.expr | None:
    """What `name = …` or `name: type = …` assigns."""
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=target)]) | ast.AnnAssign(target=ast.Name(id=target)):
                if target == name:
                    return statement.value
    return None


def _summary_of(definition: ast.ClassDef | ast.FunctionDef | None) -> str:
    return _first_line(ast.get_docstring(definition) if definition else None)


def _first_line(documentation: str | None) -> str:
    lines = (documentation or "").strip().splitlines()
    return lines[0].rstrip(".") if lines else ""
