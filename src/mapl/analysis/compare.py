"""Runs side by side: accuracy, cost and collaboration gain.

The collaboration gain of an arm is its accuracy minus that of its control: the same recipe and seed on the empty
network. Shards and initial weights are equal in both, so the difference is what the letters add.

The ceiling of an arm is its control with the images of each cluster pooled. The share of the way is the gain of the arm
over the gain of its ceiling: 0 is training alone, 1 is as good as sharing all data inside the clusters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from mapl.analysis.clusters import share_inside
from mapl.analysis.control import ceilings, has_letters, is_ceiling, is_control, is_silent, twins
from mapl.recipe import Recipe, flat
from mapl.runs.history import Record

ROUNDING = 1e-9
"""Means of accuracies that differ by less are equal."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and the half-width of its 95 % interval (None with fewer than two seeds)."""

    mean: float
    interval: float | None

    @staticmethod
    def of(values: Sequence[float]) -> Estimate:
        if len(values) < 2:
            return Estimate(fmean(values), None)
        from scipy.stats import t as student  # slow to import, and most commands never need it

        quantile = float(student.ppf(0.975, len(values) - 1))
        return Estimate(fmean(values), quantile * stdev(values) / math.sqrt(len(values)))

    def text(self, scale: float = 100, sign: str = "") -> str:
        interval = "" if self.interval is None else f" ± {scale * self.interval:.1f}"
        return f"{scale * self.mean:{sign}.1f}{interval}"


@dataclass(frozen=True)
class Arm:
    """All the seeds of one recipe."""

    label: str
    method: str
    seeds: list[int]
    rounds: int
    """Played by the shortest of its runs."""
    planned: int
    """Rounds of the recipe: more than `rounds` if a run was stopped, or spent its message budget."""
    accuracy: Estimate
    """Mean over clients at the last test, over seeds."""
    spread: float
    """Population standard deviation over clients, mean over seeds."""
    gain: Estimate | None
    """Collaboration gain over the seeds that both have; None without a control."""
    room: Estimate | None
    """Accuracy of the ceiling minus that of the control, over the seeds that all three have; None without both."""
    share: Estimate | None
    """Gain over room, seed by seed; None without room. A ratio says nothing where one seed has no room."""
    inside: float | None
    """Share of the weight given to others that stays inside the true clusters, mean over seeds."""
    messages: float
    bytes: float
    seconds: float
    is_control: bool
    is_ceiling: bool

    @property
    def way(self) -> str:
        """The share of the way from the control to the ceiling, in words; empty if they are not among the runs."""
        if self.room is None:
            return ""
        return "no room" if self.share is None else f"{self.share.text()} %"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def group(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The runs by label, all seeds of a recipe together, in the order of their first run.

    A seed counts once, or it would narrow the interval. Of several runs of one seed, the longest counts.
    """
    arms = [[_farthest(runs) for runs in seeds.values()] for seeds in _by_seed(records).values()]
    labels = _labels([runs[0].recipe for runs in arms])
    return {_with_age(label, runs): runs for label, runs in zip(labels, arms, strict=True)}


def left_out(records: Sequence[Record]) -> list[str]:
    """A sentence for each run that `group` leaves out. The same folder given twice is not worth one."""
    sentences = []
    for seeds in _by_seed(records).values():
        for runs in seeds.values():
            kept = _farthest(runs)
            others = {run.folder: run for run in runs if run.folder != kept.folder}
            sentences += [
                f"run {str(run.folder)!r} ({_age([run])}) is left out: {str(kept.folder)!r} ({_age([kept])}) has the "
                "same recipe and seed"
                for run in others.values()
            ]
    return sentences


def _by_seed(records: Sequence[Record]) -> dict[str, dict[int, list[Record]]]:
    """All runs, by recipe and then by seed."""
    arms: dict[str, dict[int, list[Record]]] = {}
    for record in records:
        arms.setdefault(_key(_tree(record.recipe)), {}).setdefault(record.recipe.seed, []).append(record)
    return arms


def _farthest(runs: Sequence[Record]) -> Record:
    """The longest run, the first of equals. A tested run counts before an untested one."""
    return max(runs, key=lambda run: (bool(run.tested), len(run.rounds)))


def _with_age(label: str, runs: Sequence[Record]) -> str:
    """The label, and how far the arm came if it has not played all its rounds."""
    whole = all(len(run.rounds) >= run.recipe.rounds for run in runs)
    return label if whole else f"{label} ({_age(runs)})"


def _age(runs: Sequence[Record]) -> str:
    """12 of 45 rounds."""
    played = sorted({len(run.rounds) for run in runs})
    span = str(played[0]) if len(played) == 1 else f"{played[0]} to {played[-1]}"
    return f"{span} of {runs[0].recipe.rounds} rounds"


def compare(records: Sequence[Record]) -> list[Arm]:
    """The runs as arms, in the order first given. Every run must have been tested at least once."""
    groups = group(records)
    by_key = {_key(_tree(runs[0].recipe)): runs for runs in groups.values()}
    arms = []
    for label, runs in groups.items():
        recipe = runs[0].recipe
        arms.append(_arm(label, runs, _controls(recipe, by_key), _ceilings(recipe, groups.values())))
    return arms


Age = tuple[int, int]
"""A seed and a round."""


def _arm(label: str, runs: list[Record], controls: list[Record], pooled: list[Record]) -> Arm:
    control, ceiling = _accuracies(controls), _accuracies(pooled)
    # A run that was stopped early is compared with its control at the same round.
    own = {(r.recipe.seed, r.tested[-1].round): r.mean for r in runs}
    gains = {age: mean - control[age] for age, mean in own.items() if age in control}
    rooms = {age: ceiling[age] - control[age] for age in gains if age in ceiling}
    shares = [s for r in runs if (s := share_inside(r.weights(), [c.cluster for c in r.clients])) is not None]
    return Arm(
        label=label,
        method=runs[0].recipe.method.name,
        seeds=[r.recipe.seed for r in runs],
        rounds=min(len(r.rounds) for r in runs),
        planned=runs[0].recipe.rounds,
        accuracy=Estimate.of([r.mean for r in runs]),
        spread=fmean(r.std for r in runs),
        gain=Estimate.of(list(gains.values())) if gains else None,
        room=Estimate.of(list(rooms.values())) if rooms else None,
        share=_share(gains, rooms),
        inside=fmean(shares) if shares else None,
        messages=fmean(r.messages for r in runs),
        bytes=fmean(r.bytes for r in runs),
        seconds=fmean(r.seconds for r in runs),
        is_control=is_control(runs[0].recipe),
        is_ceiling=is_ceiling(runs[0].recipe),
    )


def _accuracies(runs: Sequence[Record]) -> dict[Age, float]:
    """The mean over clients at every test."""
    return {(run.recipe.seed, r.round): fmean(r.accuracy) for run in runs for r in run.tested if r.accuracy}


def _share(gains: Mapping[Age, float], rooms: Mapping[Age, float]) -> Estimate | None:
    """The mean of gain / room, unless the ceiling is no better than the control for some seed."""
    if not rooms or min(rooms.values()) < ROUNDING:
        return None
    return Estimate.of([gains[age] / room for age, room in rooms.items()])


def _tree(recipe: Recipe) -> dict[str, Any]:
    """What makes two runs the same arm. Without letters all networks are the same."""
    tree = recipe.model_dump(
        mode="json",
        exclude={
            "name": True,
            "seed": True,
            "checkpoint": True,
            "evaluate": {"every", "all_images"},
            "data": {"folder"},
        },
    )
    if not has_letters(recipe):
        tree["network"] = "none"
    return tree


def _key(tree: dict[str, Any]) -> str:
    return json.dumps(tree, sort_keys=True)


def _controls(recipe: Recipe, arms: Mapping[str, list[Record]]) -> list[Record]:
    """The runs of the recipe's control: its own, or those of a run that is equal without letters."""
    if not has_letters(recipe):
        return []
    return next((runs for twin in twins(recipe) if (runs := arms.get(_key(_tree(twin))))), [])


def _ceilings(recipe: Recipe, arms: Iterable[list[Record]]) -> list[Record]:
    """The runs of the recipe's ceiling.

    It may have another `train.steps`, because it has more images. Of several, the one with the same steps counts, or
    else the first given.
    """
    if recipe.partition.pooled or not has_letters(recipe):
        return []
    pooled = [runs for runs in arms if is_ceiling(runs[0].recipe)]
    for ceiling in ceilings(recipe):
        alike = [runs for runs in pooled if _any_steps(runs[0].recipe) == _any_steps(ceiling)]
        if alike:
            return next((runs for runs in alike if runs[0].recipe.train.steps == recipe.train.steps), alike[0])
    return []


def _any_steps(recipe: Recipe) -> str:
    """The key of an arm, whatever its `train.steps`."""
    return _key(_tree(recipe.model_copy(update={"train": recipe.train.model_copy(update={"steps": None})})))


def _labels(recipes: Sequence[Recipe]) -> list[str]:
    """What sets each arm apart, in words."""
    flats = [flat(_tree(recipe)) for recipe in recipes]
    # An arm without letters has no network settings: it neither differs in them nor hides that others do.
    keys = dict.fromkeys(key for values in flats for key in values if key in _DISTINCTIVE)
    differing = [k for k in keys if len({json.dumps(f[k]) for f in flats if k in f}) > 1]
    labels = []
    for recipe, values in zip(recipes, flats, strict=True):
        notes = [_DISTINCTIVE[key](values[key]) for key in differing if key in values]
        if not has_letters(recipe) and not is_silent(recipe):
            notes.append("no letters")
        if recipe.partition.pooled:
            notes.append("pooled")
        labels.append(", ".join([recipe.method.name, *notes]))
    return _distinct(labels, flats)


def _distinct(labels: list[str], flats: list[dict[str, Any]]) -> list[str]:
    """Labels that are still equal get the keys in which their recipes differ."""
    distinct = []
    for label, values in zip(labels, flats, strict=True):
        alike = [f for other, f in zip(labels, flats, strict=True) if other == label]
        keys = [k for k in values if any(f.get(k) != values[k] for f in alike)]
        notes = [str(values[k]) if k == "network.topology.name" else f"{k}={values[k]}" for k in keys]
        distinct.append(", ".join([label, *notes]))
    return distinct


_DISTINCTIVE: dict[str, Callable[[Any], str]] = {
    "data.name": str,
    "partition.scenario": lambda value: f"scenario {value}",
    "clients": lambda value: f"{value} clients",
    "model.backbones": lambda value: "one backbone" if len(set(value)) == 1 else f"{len(set(value))} backbones",
    "network.compress.kind": lambda value: f"{'float32' if value == 'none' else value} letters",
}
"""Settings that need no key to be understood, and how to say them."""
