"""`python -m mapl.report.reference` prints docs/recipe.md: the reference of the recipe, made from the settings.

Types, defaults, limits and sentences are those of the fields themselves, so nothing is written twice.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import mapl.backbones
import mapl.data.sources
import mapl.methods
from mapl.data.partition import SCENARIOS
from mapl.network import TOPOLOGIES
from mapl.plugins import known, summary
from mapl.recipe import Recipe, settings_class
from mapl.report.markdown import markdown_table
from mapl.trees import flat

INTRODUCTION = """\
# The recipe

A run is described by one recipe: a TOML file, options on the command line, or both. Everything has a default, so a
recipe states only what differs. Each of these overrides the one before: the defaults below, the data set's suggestions,
the recipe file, the command line.

```toml
rounds = 100

[method]
name = "mapl"
warmup = 30

[partition]
scenario = 2
```

`mapl run my.toml --set method.graph.beta=0.2` runs it with one setting changed. `mapl show my.toml` prints it with
every default filled in, and says where each value came from. An unknown key is an error that names the nearest known
one. `method = "local"` is short for `[method]` with `name = "local"`; the same goes for `data`. If a setting may be
"not set", a recipe says so with `"none"`.

Where a setting takes `package.module:Name`, it names code. `mapl run` imports and runs it, so trust a recipe file as
you would a script. `mapl show` does so only with `--trust`.

This page is generated from the settings: `make docs` rewrites it.
"""

NAMES = {int: "whole number", float: "number", str: "text", bool: "true or false", Path: "path"}
LIMITS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def reference() -> str:
    """The whole page."""
    recipe = Recipe()
    blocks = [INTRODUCTION, *_tables(recipe, (), skip=("method",)), *_methods(), *_suggestions(), *_names()]
    return "\n".join(blocks)


def _tables(settings: BaseModel, path: tuple[str, ...], skip: tuple[str, ...] = (), level: str = "##") -> Iterator[str]:
    """The table of some settings, and the tables inside it."""
    title = f"`[{'.'.join(path)}]`" if path else "At the top"
    if rows := _rows(settings):
        yield f"{level} {title}\n\n{summary(type(settings))}.\n\n{rows}\n"
    for name, value in _inner(settings).items():
        if name not in skip:
            yield from _tables(value, (*path, name), level=level)


def _inner(settings: BaseModel) -> dict[str, BaseModel]:
    """The tables inside a table."""
    values = {name: getattr(settings, name) for name in type(settings).model_fields}
    return {name: value for name, value in values.items() if isinstance(value, BaseModel)}


def _rows(settings: BaseModel, skip: tuple[str, ...] = ()) -> str:
    """The settings of one table, one row each; empty if there are none."""
    rows = [
        (f"`{name}`", takes(field), _value(getattr(settings, name)), field.description or "")
        for name, field in type(settings).model_fields.items()
        if name not in _inner(settings) and name not in skip
    ]
    return _table(("key", "takes", "default", "meaning"), rows) if rows else ""


def takes(field: FieldInfo) -> str:
    """What a setting may be: its type and limits, in words."""
    kinds = get_args(field.annotation) if get_origin(field.annotation) in (Union, types.UnionType) else ()
    if type(None) not in kinds:
        return _limited(in_words(field.annotation), field.metadata)
    rest = [in_words(kind) for kind in kinds if kind is not type(None)]
    return f"{_limited(_either(rest), field.metadata)} or not set"


def in_words(kind: Any) -> str:
    """A type in words."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in NAMES:
        return NAMES[kind]
    if origin is Annotated:
        inner = [part for note in arguments[1:] for part in getattr(note, "metadata", [note])]
        return _limited(in_words(arguments[0]), inner)
    if origin is Literal:
        return _either([_value(argument) for argument in arguments])
    if origin in (Union, types.UnionType):
        return _either([in_words(argument) for argument in arguments])
    if origin is tuple:
        number = "" if arguments[-1] is Ellipsis else f"{len(arguments)} "
        one = in_words(arguments[0])
        return f"list of {number}{one.replace('number', 'numbers').replace('text', 'texts')}"
    return getattr(kind, "__name__", str(kind))


def _either(texts: Sequence[str]) -> str:
    *most, last = texts
    return f"{', '.join(most)} or {last}" if most else last


def _limited(kind: str, metadata: Sequence[Any]) -> str:
    """A type in words, with its limits."""
    limits = []
    for constraint in metadata:
        for attribute, sign in LIMITS.items():
            if (bound := getattr(constraint, attribute, None)) is not None:
                limits.append(f"{sign} {bound:g}")
        if isinstance(constraint, annotated_types.MinLen):
            limits.append(f"({constraint.min_length} or more)")
    return f"{kind} {' and '.join(limits)}" if limits else kind


def _value(value: Any) -> str:
    """A value as written in a recipe."""
    if value is None:
        return "not set"
    if isinstance(value, float):
        return f"`{value:.6g}`"
    if isinstance(value, tuple) and all(isinstance(part, float) for part in value):
        return f"`[{', '.join(f'{part:.6g}' for part in value)}]`"
    return f"`{json.dumps(value, ensure_ascii=False, default=str)}`"


def _methods() -> Iterator[str]:
    """The table `[method]`, with the settings of each method."""
    yield "## `[method]`\n\nThe method and its own settings: `name` is one of these, or `package.module:Name`.\n"
    seen: dict[str, str] = {}
    for name, method in known(mapl.methods).items():
        settings = settings_class(name)(name=name)
        own = _rows(settings, skip=("name",)) or "No settings of its own."
        inner = [
            block for key, value in _inner(settings).items() for block in _tables(value, ("method", key), level="####")
        ]
        body = "\n\n".join([own, *inner])
        if "|" in body and (twin := seen.setdefault(body, name)) != name:
            body = f"The same settings as `{twin}`."
        yield f"### `name = {json.dumps(name)}`\n\n{summary(method)}.\n\n{body.rstrip()}\n"


def _suggestions() -> Iterator[str]:
    """What each data set suggests instead of the defaults."""
    yield (
        "## What each data set suggests\n\n"
        "These replace the defaults above for this data set; a recipe overrides them.\n"
    )
    for name, source in known(mapl.data.sources).items():
        rows = [(f"`{key}`", _value(value)) for key, value in flat(getattr(source, "suggests", {})).items()]
        body = _table(("key", "suggested"), rows) if rows else "Nothing: the defaults apply."
        yield f"### `{name}`\n\n{summary(source)}.\n\n{body}\n"


def _names() -> Iterator[str]:
    """Scenarios, backbones and topologies."""
    listed = {
        "Scenarios": {str(number): text for number, text in SCENARIOS.items()},
        "Backbones": {name: summary(thing) for name, thing in known(mapl.backbones).items()},
        "Topologies": {name: summary(thing) for name, thing in TOPOLOGIES.items()},
    }
    for title, entries in listed.items():
        yield f"## {title}\n\n{_table(('name', 'meaning'), [(f'`{name}`', text) for name, text in entries.items()])}\n"


def _table(titles: tuple[str, ...], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of words; a bar within a cell would end it."""
    return markdown_table(titles, [[cell.replace("|", "\\|") for cell in row] for row in rows], len(titles))


if __name__ == "__main__":
    print(reference(), end="")
