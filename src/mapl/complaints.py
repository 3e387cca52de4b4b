"""What pydantic finds wrong with settings, in plain words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from mapl.errors import unknown

Section = type[BaseModel]


def complaint(errors: Sequence[Any], section: Section, chosen: Mapping[str, Section | None]) -> str:
    """Pydantic's errors as one sentence: which key, what it got, what it takes.

    `section` is what was checked. `chosen` has the tables of it whose keys depend on what is in them, by key.
    """
    clauses: dict[str, list[str]] = {}
    for error in errors:
        key, table = _place(error["loc"], section, chosen)
        if error["type"] == "extra_forbidden":
            listed = str(unknown("", str(error["loc"][-1]), table.model_fields)).partition(";")[2] if table else ""
            clauses[f"unknown key {key!r};{listed}"] = []
        else:
            given = error["type"] != "missing" and not isinstance(error["input"], dict)
            got = f"got {error['input']!r}, but " if given else ""
            clauses.setdefault(f"{key}: {got}", []).append(_plain(error["msg"]))
    return "; ".join(head + " or ".join(_once("it should be ", takes)) for head, takes in clauses.items())


def _once(opening: str, texts: Sequence[str]) -> list[str]:
    """The texts, with a shared opening left out of all but the first."""
    return [text.removeprefix(opening) if index else text for index, text in enumerate(texts)]


def _place(
    location: Sequence[str | int], whole: Section, chosen: Mapping[str, Section | None]
) -> tuple[str, Section | None]:
    """The dotted key that an error is about, and the table that contains it.

    Pydantic also adds the member of a union that it tried, which is no key.
    """
    section: Section | None = whole
    table, key = section, list[str]()
    for part in location:
        if section is None and isinstance(part, str):
            break
        key.append(str(part))
        table = section
        below: Any = None
        if section is whole and part in chosen:
            below = chosen[str(part)]
        elif section is not None and part in section.model_fields:
            below = section.model_fields[str(part)].annotation
        section = below if isinstance(below, type) and issubclass(below, BaseModel) else None
    return ".".join(key), table


def _plain(message: str) -> str:
    """What a value should be, according to pydantic, in plain words."""
    message = message.removeprefix("Value error, ").replace("Input should be", "it should be")
    message = re.sub(r", unable to parse .*| after validation, not \d+", "", message)
    message = re.sub(r"a valid dictionary or instance of \w+", "a table", message).replace("Tuple", "it")
    return message[0].lower() + message[1:]
