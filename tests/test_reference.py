"""docs/recipe.md says what the settings say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

import mapl.methods
from mapl.plugins import known
from mapl.recipe import Recipe
from mapl.report.reference import reference, takes

PAGE = Path(__file__).parents[1] / "docs" / "recipe.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "docs/recipe.md is out of date: run make docs"


def test_every_setting_has_a_row_and_a_sentence() -> None:
    text = reference()

    def check(settings: BaseModel) -> None:
        for name, field in type(settings).model_fields.items():
            value = getattr(settings, name)
            if isinstance(value, BaseModel):
                check(value)
            elif name != "name":
                assert field.description, f"{type(settings).__name__}.{name} has no description"
                assert f"| `{name}` |" in text

    check(Recipe())


def test_every_method_is_described() -> None:
    for name in known(mapl.methods):
        assert f'### `name = "{name}"`' in reference()


def test_tables_are_whole() -> None:
    for block in reference().split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        bars = {line.replace("\\|", "").count("|") for line in rows}
        assert len(bars) <= 1, f"rows of one table have as many cells: {rows[0]}"


class Kinds(BaseModel):
    number: float = Field(0.5, ge=0, lt=1)
    words: tuple[str, ...] = Field(("a",), min_length=1)
    pair: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]] = (1.0, 2.0)
    choice: Literal["a", "b", "c"] = "a"
    maybe: int | None = Field(None, ge=1)
    either: Annotated[int, Field(ge=1)] | Literal["all"] = 1
    switch: bool = True


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("number", "number ≥ 0 and < 1"),
        ("words", "list of texts (1 or more)"),
        ("pair", "list of 2 numbers > 0"),
        ("choice", '`"a"`, `"b"` or `"c"`'),
        ("maybe", "whole number ≥ 1 or not set"),
        ("either", 'whole number ≥ 1 or `"all"`'),
        ("switch", "true or false"),
    ],
)
def test_types_in_words(key: str, words: str) -> None:
    assert takes(Kinds.model_fields[key]) == words
