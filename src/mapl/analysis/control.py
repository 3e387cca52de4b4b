"""The control arm of a run: the same clients, data, losses and seed, and no letters."""

from __future__ import annotations

from typing import Any

import mapl.methods
from mapl.plugins import find
from mapl.recipe import NetworkSection, Recipe, validated

NOBODY = NetworkSection.model_validate({"topology": {"name": "none"}})
"""The empty network, and nothing that limits letters: there are none."""


def is_control(recipe: Recipe) -> bool:
    """Whether no letters are written."""
    return recipe.network.topology.name == "none" or recipe.method.name == "local"


def twins(recipe: Recipe) -> list[Recipe]:
    """The recipe without letters, in every form in which it is the same run, the plainest last.

    First its own method on the empty network; then without what that method never reads there; then, where it equals a
    simpler method there, that one. So one control arm serves many.
    """
    own = recipe.model_copy(update={"network": NOBODY})
    method = find("method", recipe.method.name, mapl.methods)
    made = [own]
    if method.unread_without_letters:
        made.append(_with_method(own, keep=set(method.Settings.model_fields) - method.unread_without_letters))
    if method.without_letters:
        made += twins(_with_method(own, method.without_letters))
    return made


def control_of(recipe: Recipe) -> Recipe:
    """The twin without letters that most runs share."""
    return twins(recipe)[-1]


def _with_method(recipe: Recipe, name: str = "", keep: set[str] | None = None) -> Recipe:
    """The recipe with another method, or with its own, and of its method's settings those that this one has."""
    settings = keep or set(find("method", name, mapl.methods).Settings.model_fields)
    tree: dict[str, Any] = recipe.model_dump(mode="json")
    kept = {key: value for key, value in tree["method"].items() if key in settings}
    tree["method"] = {**kept, "name": name or recipe.method.name}
    return validated(tree, f"control arm of {recipe.title()}")
