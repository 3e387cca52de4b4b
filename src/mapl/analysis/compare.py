"""Runs side by side: accuracy, other measures, cost and collaboration gain.

The collaboration gain of an arm is its accuracy (or another metric of `mapl.measures`) minus that of its control: the
same settings, data and seed on the empty network, after as many rounds. Shards and initial weights are equal in both,
so the difference is what the letters add. What is the same is said in one place, `Recipe.settings`, and the data count
by their content (`Record.data`).

A part of a network is an arm of its own, and in no pair: its mean is over other clients than that of any other run.

The ceiling of an arm is its control with the images of each cluster pooled. The share of the way is the gain of the arm
over the gain of its ceiling: 0 is training alone, 1 is as good as sharing all data inside the clusters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, stdev
from typing import Any

from mapl.analysis.catchup import WITHIN, catch_up, in_words
from mapl.analysis.clusters import share_inside
from mapl.analysis.control import ceilings, is_ceiling, is_control, never_read, twins
from mapl.analysis.labels import labels_of
from mapl.errors import unknown
from mapl.measures import LOWER_IS_BETTER, METRICS, TITLES, Metric
from mapl.recipe import Recipe, has_letters
from mapl.runs.record import Record, part_of
from mapl.trees import flat

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
    is_part: bool = False
    """Whether its runs are parts of a network."""
    pairs: int = 0
    """Over how many pairs of runs the gain is: seeds that its control has as well, tested in the same round."""
    joiners: list[int | None] = field(default_factory=list)
    """Of each client that joined late, in each run: after how many rounds it had caught up (`analysis.catchup`)."""
    metric: Metric = "accuracy"
    """What gain, room and share are of."""
    measures: dict[Metric, Estimate] = field(default_factory=dict)
    """The other metrics at the last test, over seeds, as far as all runs have them."""
    differs: dict[str, Any] = field(default_factory=dict)
    """Its values of the settings in which the arms differ, apart from the method."""

    @property
    def lacks_control(self) -> bool:
        """Whether it has no gain only because no run without letters goes with it."""
        return self.gain is None and not (self.is_control or self.is_ceiling or self.is_part)

    @property
    def way(self) -> str:
        """The share of the way from the control to the ceiling, in words; empty if they are not among the runs."""
        if self.room is None:
            return ""
        return "no room" if self.share is None else f"{self.share.text()} %"

    @property
    def caught_up(self) -> str:
        """How fast late joiners caught up, in words; empty if there are none."""
        return in_words(self.joiners)

    @property
    def value(self) -> Estimate:
        """The metric at the last test, over seeds."""
        return self.accuracy if self.metric == "accuracy" else self.measures[self.metric]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def group(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The runs by label, all seeds of a recipe together, in the order of their first run.

    A seed counts once, or it would narrow the interval. Of several runs of one seed, the longest counts.
    """
    arms = [_tested_first([_farthest(runs) for runs in seeds.values()]) for seeds in _by_seed(records).values()]
    labels = labels_of([runs[0] for runs in arms], [flat(_tree(runs[0])) for runs in arms])
    return {_with_age(label, runs): runs for label, runs in zip(labels, arms, strict=True)}


def _tested_first(runs: list[Record]) -> list[Record]:
    """The runs that were tested, or all if none was."""
    return [run for run in runs if run.tested] or runs


def left_out(records: Sequence[Record]) -> list[str]:
    """A sentence for each run that `compare` leaves out. The same folder given twice is not worth one."""
    untested = {run.folder: run for run in records if not run.tested}
    sentences = [f"run {str(folder)!r} is left out: it has not been tested yet" for folder in untested]
    for seeds in _by_seed(records).values():
        for runs in seeds.values():
            kept = _farthest(runs)
            others = {run.folder: run for run in runs if run.tested and run.folder != kept.folder}
            sentences += [
                f"run {str(run.folder)!r} ({_age([run])}) is left out: {str(kept.folder)!r} ({_age([kept])}) has the "
                "same recipe, data and seed"
                for run in others.values()
            ]
    return sentences


def unpaired(records: Sequence[Record]) -> list[str]:
    """A sentence for each part of a network, which is compared with nothing."""
    parts = {run.folder: part_of(run.folder, run.recipe, run.clients) for run in records}
    return [f"{part}, and is compared with no other run" for part in parts.values() if part]


def _by_seed(records: Sequence[Record]) -> dict[str, dict[int, list[Record]]]:
    """All runs, by recipe and data and then by seed."""
    arms: dict[str, dict[int, list[Record]]] = {}
    for record in records:
        arms.setdefault(_key(_tree(record)), {}).setdefault(record.recipe.seed, []).append(record)
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


def compare(records: Sequence[Record], metric: Metric = "accuracy") -> list[Arm]:
    """The runs as arms, in the order first given. Runs that have not been tested are left out.

    `metric`: what gains are of; one of `mapl.measures.METRICS`. All of them are in each arm's `measures`.
    """
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    groups = group(records)
    tested = {label: runs for label, runs in groups.items() if runs[0].tested}
    alike: dict[str, list[Record]] = {}
    for run in (run for runs in tested.values() for run in runs if run.whole):
        alike.setdefault(_what(run.recipe, run.data), []).append(run)
    differing = _differing([runs[0] for runs in tested.values()])
    arms = []
    for (label, runs), differs in zip(tested.items(), differing, strict=True):
        controls, pooled = _controls(runs[0], alike), _ceilings(runs[0], tested.values())
        arms.append(_arm(label, runs, controls, pooled, differs, metric))
    return arms


def notes(arms: Sequence[Arm]) -> list[str]:
    """What the numbers do not say: over how many pairs each gain is, and in which settings the arms differ."""
    gains: dict[str, list[str]] = {}
    for arm in arms:
        if arm.gain is not None:
            over = f"{arm.pairs} {'pair' if arm.pairs == 1 else 'pairs'}"
            few = "" if arm.pairs == len(arm.seeds) else f", though it has {len(arm.seeds)} seeds"
            gains.setdefault(over + few, []).append(arm.label)
    of = "" if not arms or arms[0].metric == "accuracy" else f" in {TITLES[arms[0].metric]}"
    pairs = [f"gain{of} of {'; '.join(labels)}: over {text}" for text, labels in gains.items()]
    if of and arms[0].metric in LOWER_IS_BETTER:
        pairs.append(f"{TITLES[arms[0].metric]}: lower is better, so a gain below 0 is good")
    if lacking := [arm for arm in arms if arm.lacks_control]:
        # Only the code of a method says whose control it shares (`without_letters`).
        trust = ", or --trust if they are there" if any(":" in arm.method for arm in lacking) else ""
        labels = "; ".join(arm.label for arm in lacking)
        pairs.append(f"no gain for {labels}: it needs the same runs with --topology none, their control{trust}")
    late = [f"{arm.label}: {arm.caught_up}" for arm in arms if arm.joiners]
    if late:
        reached = f"late joiners came within {100 * WITHIN:g} points of the mean of the others"
        pairs.append(f"{reached} (median over joiners and seeds, and how many did): {'; '.join(late)}")
    differing: dict[str, dict[str, list[str]]] = {}
    for arm in arms:
        for key, value in arm.differs.items():
            differing.setdefault(key, {}).setdefault(_value(value), []).append(arm.label)
    settings = []
    for key, values in differing.items():
        texts = (f"{value} ({'; '.join(labels)})" for value, labels in values.items())
        settings.append(f"{key}: {', '.join(texts)}")
    return [*pairs, *settings]


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


Age = tuple[int, int]
"""A seed and a round."""


def _arm(
    label: str,
    runs: list[Record],
    controls: list[Record],
    pooled: list[Record],
    differs: dict[str, Any],
    metric: Metric,
) -> Arm:
    control, ceiling = _values(controls, metric), _values(pooled, metric)
    # A run that was stopped early is compared with its control at the same round.
    own = {(r.recipe.seed, r.tested[-1].round): r.value(metric) for r in runs}
    gains = {age: mean - control[age] for age, mean in own.items() if age in control}
    rooms = {age: ceiling[age] - control[age] for age in gains if age in ceiling}
    shares = [s for r in runs if (s := share_inside(r.among(), [c.cluster for c in r.clients])) is not None]
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
        share=_share(gains, rooms, -1 if metric in LOWER_IS_BETTER else 1),
        inside=fmean(shares) if shares else None,
        messages=fmean(r.messages for r in runs),
        bytes=fmean(r.bytes for r in runs),
        seconds=fmean(r.seconds for r in runs),
        is_control=is_control(runs[0].recipe),
        is_ceiling=is_ceiling(runs[0].recipe),
        is_part=not runs[0].whole,
        pairs=len(gains),
        joiners=[one.rounds for run in runs for one in catch_up(run)],
        metric=metric,
        measures=_measures(runs),
        differs=differs,
    )


def _measures(runs: Sequence[Record]) -> dict[Metric, Estimate]:
    found: dict[Metric, Estimate] = {}
    for metric in METRICS[1:]:
        values = [value for run in runs if (value := run.tested[-1].value(metric)) is not None]
        if len(values) == len(runs):
            found[metric] = Estimate.of(values)
    return found


def _values(runs: Sequence[Record], metric: Metric) -> dict[Age, float]:
    """The metric at every test."""
    return {(run.recipe.seed, round): value for run in runs for round, value in at_tests(run, metric).items()}


def at_tests(run: Record, metric: Metric = "accuracy") -> dict[int, float]:
    """The metric by tested round: its mean over clients, or the worst tenth of them."""
    return {r.round: value for r in run.tested if (value := r.value(metric)) is not None}


def _share(gains: Mapping[Age, float], rooms: Mapping[Age, float], sign: int) -> Estimate | None:
    """The mean of gain / room, unless the ceiling is no better than the control for some seed.

    `sign`: -1 if lower is better.
    """
    if not rooms or min(sign * room for room in rooms.values()) < ROUNDING:
        return None
    return Estimate.of([gains[age] / room for age, room in rooms.items()])


def _tree(run: Record) -> dict[str, Any]:
    """What makes two runs a row of the table: what they are, whatever the seed, and also how far and where they ran."""
    tree = run.recipe.settings()
    del tree["seed"]
    tree["data"]["digest"] = run.data
    tree |= {"rounds": run.recipe.rounds, "engine": run.recipe.engine.model_dump(mode="json")}
    if has_letters(run.recipe):
        tree["network"]["transport"] = run.recipe.network.transport
    else:
        tree["network"] = {key: tree["network"][key] for key in ("participation", "joiners")}
        for unread in never_read(run.recipe):
            tree["method"].pop(unread, None)
    if not run.whole:
        tree["held"] = run.held
    return tree


def _key(tree: dict[str, Any]) -> str:
    return json.dumps(tree, sort_keys=True)


def _what(recipe: Recipe, data: str) -> str:
    """Equal for the seeds of one recipe on the same data, at any length and on any device: what may be paired."""
    return _key({**recipe.settings(), "seed": None, "content": data})


def _controls(run: Record, alike: Mapping[str, list[Record]]) -> list[Record]:
    """The runs of an arm's control: its own, or those of a run that is equal without letters.

    They may be longer, or from another device. Of several of one seed, the last one counts: that of the same device.
    """
    if not (has_letters(run.recipe) and run.whole):
        return []
    controls = next((runs for twin in twins(run.recipe) if (runs := alike.get(_what(twin, run.data)))), [])
    return sorted(controls, key=lambda control: control.recipe.engine == run.recipe.engine)


def _ceilings(run: Record, arms: Iterable[list[Record]]) -> list[Record]:
    """The runs of an arm's ceiling.

    It may have another `train.steps`, because it has more images. Of several, the one with the same steps counts, or
    else the first given.
    """
    recipe = run.recipe
    if recipe.partition.pooled or not has_letters(recipe) or not run.whole:
        return []
    pooled = [runs for runs in arms if is_ceiling(runs[0].recipe) and runs[0].whole]
    for ceiling in ceilings(recipe):
        wanted = _what(_any_steps(ceiling), run.data)
        alike = [runs for runs in pooled if _what(_any_steps(runs[0].recipe), runs[0].data) == wanted]
        if alike:
            return next((runs for runs in alike if runs[0].recipe.train.steps == recipe.train.steps), alike[0])
    return []


def _any_steps(recipe: Recipe) -> Recipe:
    """The recipe without its `train.steps`."""
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"steps": None})})


def _differing(arms: Sequence[Record]) -> list[dict[str, Any]]:
    """For each arm, its values of the settings in which the arms differ.

    Not the method, and not that an arm is pooled or without letters, which its label says. Settings of the method count
    where arms of one method differ in them.
    """
    flats = [flat({**_tree(run), "evaluate": run.recipe.evaluate.model_dump(mode="json")}) for run in arms]
    keys = [key for key in dict.fromkeys(key for values in flats for key in values) if _differ(key, flats)]
    return [{key: values[key] for key in keys if key in values} for values in flats]


def _differ(key: str, flats: Sequence[dict[str, Any]]) -> bool:
    if key in ("method.name", "partition.pooled", "held"):
        return False
    by_method: dict[str, set[str]] = {}
    for values in (values for values in flats if key in values):
        method = values["method.name"] if key.startswith("method.") else ""
        by_method.setdefault(method, set()).add(json.dumps(values[key]))
    return any(len(values) > 1 for values in by_method.values())
