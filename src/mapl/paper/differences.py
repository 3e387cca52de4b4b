"""Why a cell of MAPL is below the published number, as far as the results store can tell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, pstdev

from mapl.paper.contests import contest, is_mapl
from mapl.paper.figures import identity
from mapl.paper.labels import cell_name
from mapl.paper.protocol import OURS
from mapl.paper.statistics import CellResult
from mapl.paper.store import StoredRun
from mapl.report.text import count, listing

TEST_SHOTS = 15
"""Test images per class in the paper's protocol."""


def difference_sentences(result: CellResult, results: Sequence[CellResult], runs: Sequence[StoredRun]) -> list[str]:
    """What is known about the difference; nothing if ours is not below."""
    if result.difference >= 0:
        return []
    published = 100 * result.published
    images = sum(TEST_SHOTS * len(classes) for classes in result.runs[0].classes)
    error = 100 * math.sqrt(result.published * (1 - result.published) / images)
    sentences = [
        f"{cell_name(result.cell)}: ours is {-100 * result.difference:.1f} points below the published "
        f"{published:.2f} %. The published number is one run tested on {images:,} images: its standard error is "
        f"{error:.1f} points."
    ]
    if result.all_images is not None:
        below = published - 100 * result.all_images.mean
        sentences.append(
            f"On all test images, which removes the choice of images from ours, the same models reach "
            f"{result.all_images.text()} %: {below:.1f} points below, or {below / error:.1f} of those standard errors."
        )
    sentences += [*_further_run(result), _moment(result), _backbones(result)]
    return [*sentences, *_other_form(result, runs), *_same_contest(result, results)]


def _further_run(result: CellResult) -> list[str]:
    """Where one more run would lie: the published number is one run, while our interval is that of a mean."""
    if result.further is None:
        return []
    low, high = (100 * (result.accuracy.mean + side * result.further) for side in (-1, 1))
    chance = f"does, so all of it may be chance. So few seeds make that interval wide (± {100 * result.further:.1f})"
    return [
        f"Judging by the spread of our {len(result.runs)} seeds, one more run of ours would lie between {low:.1f} and "
        f"{high:.1f} % (95 %). The published one {chance if result.like_a_further_run else 'does not'}."
    ]


def _moment(result: CellResult) -> str:
    """Whether an earlier test would have been better."""
    best = fmean(max(run.curve["accuracy"]) for run in result.runs)
    late = fmean(fmean(run.curve["accuracy"][-5:]) for run in result.runs)
    start = "The moment of the test does not explain it: the" if best < result.published else "The"
    return (
        f"{start} last five tests reach {100 * late:.1f} % on average, and the best of all "
        f"{len(result.runs[0].curve['accuracy'])} tests {100 * best:.1f} %."
    )


def _backbones(result: CellResult) -> str:
    """How much depends on who has which backbone."""
    by_name: dict[str, list[float]] = {}
    for run in result.runs:
        for name, accuracy in zip(run.backbones, run.all_images or run.accuracy, strict=True):
            by_name.setdefault(name, []).append(100 * accuracy)
    means = {name: fmean(values) for name, values in by_name.items()}
    if len(means) < 2:
        return "All clients have one backbone."
    tests = "all test images" if all(run.all_images for run in result.runs) else "the paper's test images"
    spread = pstdev(means.values()) / math.sqrt(len(result.runs[0].backbones))
    listed = listing(f"{name} {mean:.1f} %" for name, mean in sorted(means.items(), key=lambda item: -item[1]))
    return (
        f"By backbone, on {tests}: {listed}. Backbones are dealt in turn here, as in the released program. Drawn at "
        f"random, as the paper says, they alone would move the mean by {spread:.1f} points (standard deviation)."
    )


def _other_form(result: CellResult, runs: Sequence[StoredRun]) -> list[str]:
    """Whether it may be the form of the graph: the published number came from the released one."""
    ours = result.runs[0]
    if ours.form != OURS:
        return []
    same = identity(ours.parsed_recipe)
    released = [r for r in runs if r.form == "released" and not r.control and identity(r.parsed_recipe) == same]
    text = f"The published number came from the released graph step, ours from the form “{OURS}”."
    if not released:
        return [f"{text} There is no run of the released form here, so how much this explains is not known."]
    accuracy = 100 * fmean(fmean(run.accuracy) for run in released)
    return [f"{text} The released form reaches {accuracy:.1f} % here ({count(len(released), 'seed')})."]


def _same_contest(result: CellResult, results: Sequence[CellResult]) -> list[str]:
    """Whether the other methods differ as much."""
    others = [r for r in results if contest(r.cell) == contest(result.cell) and not is_mapl(r)]
    if not others:
        return []
    listed = listing(f"{r.cell.method} {100 * r.difference:+.1f}" for r in others)
    mean = 100 * fmean(r.difference for r in others)
    return [f"The other methods in the same cells, ours minus published: {listed}; {mean:+.1f} on average."]
