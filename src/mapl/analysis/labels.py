"""What the arms of a comparison are called."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from mapl.recipe import has_letters, is_silent
from mapl.runs.record import Record, share_of_network


def labels_of(runs: Sequence[Record], flats: Sequence[dict[str, Any]]) -> list[str]:
    """What sets each arm apart, in words. `runs` has one of each arm, `flats` what makes it an arm of its own."""
    recipes = [run.recipe for run in runs]
    # An arm without letters has no network settings: it neither differs in them nor hides that others do.
    keys = dict.fromkeys(key for values in flats for key in values if key in _DISTINCTIVE)
    differing = [k for k in keys if len({json.dumps(f[k]) for f in flats if k in f}) > 1]
    labels = []
    for run, recipe, values in zip(runs, recipes, flats, strict=True):
        notes = [_DISTINCTIVE[key](values[key]) for key in differing if key in values]
        if not has_letters(recipe) and not is_silent(recipe):
            notes.append("no letters")
        if recipe.partition.pooled:
            notes.append("pooled")
        if not run.whole:
            notes.append(share_of_network(run.held, recipe.clients))
        labels.append(", ".join([recipe.method.name, *notes]))
    return _distinct(labels, flats)


def _distinct(labels: list[str], flats: Sequence[dict[str, Any]]) -> list[str]:
    """Labels that are still equal get the keys in which their recipes differ."""
    distinct = []
    for label, values in zip(labels, flats, strict=True):
        alike = [f for other, f in zip(labels, flats, strict=True) if other == label]
        keys = [k for k in values if any(f.get(k) != values[k] for f in alike)]
        notes = [_NOTES[k](values[k]) if k in _NOTES else f"{k}={values[k]}" for k in keys]
        distinct.append(", ".join([label, *notes]))
    return distinct


_NOTES: dict[str, Callable[[Any], str]] = {
    "network.topology.name": str,
    "data.digest": lambda value: f"data {value[:6]}",
}
"""Settings that a label names without their key, where nothing else tells its arm from another."""

_DISTINCTIVE: dict[str, Callable[[Any], str]] = {
    "data.name": str,
    "partition.scenario": lambda value: f"scenario {value}",
    "clients": lambda value: f"{value} clients",
    "model.backbones": lambda value: "one backbone" if len(set(value)) == 1 else f"{len(set(value))} backbones",
    "network.participation": lambda value: f"{100 * value:g} % take part",
    "network.joiners.clients": lambda value: f"{value} join late",
    "network.mixing.kind": lambda value: f"{value} mixing",
    "network.compress.kind": lambda value: f"{'float32' if value == 'none' else value} letters",
}
"""Settings that need no key to be understood, and how to say them."""
