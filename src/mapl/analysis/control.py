"""The control arm of a run: the same clients, data, losses and seed, but no letters. And its ceiling.

The ceiling is the control with the images of every client's cluster pooled: what collaboration could reach at best.
"""

from __future__ import annotations

from typing import Any

from mapl.plugins import looking
from mapl.recipe import Recipe, has_letters, method_class, validated, without_letters


def is_control(recipe: Recipe) -> bool:
    """Whether clients train alone, each on its own images."""
    return not has_letters(recipe) and not recipe.partition.pooled


def is_ceiling(recipe: Recipe) -> bool:
    """Whether clients train alone, each on the images of its whole cluster."""
    return not has_letters(recipe) and recipe.partition.pooled


@looking()
def twins(recipe: Recipe) -> list[Recipe]:
    """The recipe without letters, in every form that is the same run, the plainest last.

    First its own method on the empty network. Then without the settings that the method never reads there. Then, if
    the method equals a simpler one there, that one. So one control can serve many arms.
    """
    own = recipe.model_copy(update={"network": without_letters(recipe.network)})
    method = method_class(recipe.method.name)
    forms = [own]
    if method.unread_without_letters:
        forms.append(_with_method(own, keep=set(method.Settings.model_fields) - method.unread_without_letters))
    if method.without_letters:
        forms += twins(_with_method(own, method.without_letters))
    return forms


@looking()
def never_read(recipe: Recipe) -> frozenset[str]:
    """The settings of the method that it never reads without letters."""
    return method_class(recipe.method.name).unread_without_letters


def control_of(recipe: Recipe) -> Recipe:
    """The form of the control that most runs share."""
    return twins(recipe)[-1]


def ceilings(recipe: Recipe) -> list[Recipe]:
    """The recipe's control with pooled images, in every form that is the same run, as `twins` has them."""
    pooled = recipe.partition.model_copy(update={"pooled": True})
    return twins(recipe.model_copy(update={"partition": pooled}))


def _with_method(recipe: Recipe, name: str = "", keep: set[str] | None = None) -> Recipe:
    """The recipe with the named method, or its own, keeping the method settings in `keep` or that the method has."""
    settings = keep or set(method_class(name).Settings.model_fields)
    tree: dict[str, Any] = recipe.model_dump(mode="json")
    kept = {key: value for key, value in tree["method"].items() if key in settings}
    tree["method"] = {**kept, "name": name or recipe.method.name}
    return validated(tree, f"control arm of {recipe.title()}")
