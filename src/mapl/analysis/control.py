"""The control arm of a run: the same clients, data, losses and seed, but no letters."""

from __future__ import annotations

from typing import Any

import mapl.methods
from mapl.plugins import find
from mapl.recipe import NetworkSection, Recipe, validated

NOBODY = NetworkSection.model_validate({"topology": {"name": "none"}})
"""The empty network, without any limit on letters."""


def is_control(recipe: Recipe) -> bool:
    """Whether no letters are written."""
    return recipe.network.topology.name == "none" or recipe.method.name == "local"


def twins(recipe: Recipe) -> list[Recipe]:
    """The recipe without letters, in every form that is the same run, the plainest last.

    First its own method on the empty network. Then without the settings that the method never reads there. Then, if
    the method equals a simpler one there, that one. So one control can serve many arms.
    """
    own = recipe.model_copy(update={"network": NOBODY})
    method = find("method", recipe.method.name, mapl.methods)
    forms = [own]
    if method.unread_without_letters:
        forms.append(_with_method(own, keep=set(method.Settings.model_fields) - method.unread_without_letters))
    if method.without_letters:
        forms += twins(_with_method(own, method.without_letters))
    return forms


def control_of(recipe: Recipe) -> Recipe:
    """The form of the control that most runs share."""
    return twins(recipe)[-1]


def _with_method(recipe: Recipe, name: str = "", keep: set[str] | None = None) -> Recipe:
    """The recipe with the named method, or its own, keeping the method settings in `keep` or that the method has."""
    settings = keep or set(find("method", name, mapl.methods).Settings.model_fields)
    tree: dict[str, Any] = recipe.model_dump(mode="json")
    kept = {key: value for key, value in tree["method"].items() if key in settings}
    tree["method"] = {**kept, "name": name or recipe.method.name}
    return validated(tree, f"control arm of {recipe.title()}")
