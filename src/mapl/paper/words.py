"""What a reproduction found, in sentences. Every one is computed from the results store; none is a hope."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, pstdev

from mapl.paper import cells
from mapl.paper.figures import identity
from mapl.paper.gains import gain_sentences, is_mapl, loss_sentences, other_gain_sentences
from mapl.paper.graph_words import graph_sentences
from mapl.paper.page_tables import best_of, contest, pairs, place
from mapl.paper.scale import OURS
from mapl.paper.statistics import CellResult, paired
from mapl.paper.store import Row
from mapl.report.words import count, listing

METHOD_TABLES = ("res_hetero", "res_homo", "var1")
"""Those that compare methods; the others take MAPL apart."""
NARROW = 0.03
"""An interval with a larger half-width includes so much that including the published value confirms nothing."""
SENTENCES = 6
"""Of one kind; the tables have all."""


def headlines(results: Sequence[CellResult], rows: Sequence[Row], graphs: Sequence[Row]) -> dict[str, list[str]]:
    """The few things to know, by subject, from all runs by the paper's protocol and those that learned a graph."""
    if not results:
        nothing = f"None of the {len(cells())} cells of the paper's tables has been run by its protocol yet."
        return {"What was run": [nothing]}
    held = _contests(results)[:SENTENCES]
    said = {
        "What was run": [coverage(results, rows)],
        "What was confirmed, and what was not": [*agreement(results), *mapl_sentences(results)],
        "Where MAPL's difference comes from": [
            s for r in _main(results)[:2] for s in difference_sentences(r, results, rows)
        ],
        "What letters bought": [
            *gain_sentences(_main(results)[:SENTENCES]),
            *loss_sentences(held),
            *other_gain_sentences(held),
        ],
        "Whether MAPL is the best": [*rank_sentences(results), *paired_sentences(results)],
        "What became of the graph": graph_sentences(graphs),
    }
    return {title: sentences for title, sentences in said.items() if sentences}


def coverage(results: Sequence[CellResult], rows: Sequence[Row]) -> str:
    """How much was run, on what, for how long."""
    by_seeds = Counter(len(result.rows) for result in results)
    seeds = listing(f"{count(number, 'seed')} in {count(many, 'cell')}" for number, many in sorted(by_seeds.items()))
    controls = sum(row.control for row in rows)
    # A run without letters has no graph, and so no form of its own.
    forms = {row.form for row in rows if row.form and not row.control}
    ours = f" MAPL's form “{OURS}” is ours: neither the printed graph objective nor the released step (docs/graph.md)."
    devices = listing(sorted({f"{row.device} ({row.precision})" for row in rows}))
    hours = sum(row.seconds + row.setup_seconds for row in rows) / 3600
    return (
        f"{len(results)} of the {len(cells())} cells of the paper's tables are filled, with {seeds}. They and their "
        f"figures took {count(len(rows), 'run')}, {controls} of them controls without letters: {hours:.1f} hours on "
        f"{devices}.{ours if OURS in forms else ''}"
    )


def agreement(results: Sequence[CellResult]) -> list[str]:
    """How near the published numbers ours are."""
    once = list({result.rows[0].key: result for result in reversed(results)}.values())  # a run is in several tables
    judged = [result for result in once if result.published_inside is not None]
    inside = [result for result in judged if result.published_inside]
    like = sum(bool(result.like_a_further_run) for result in judged)
    wide = sum(not _narrow(result) for result in inside)
    too_wide = f"; in {wide} of these it is wider than ± {100 * NARROW:.0f} points and says little" if wide else ""
    differences = [100 * result.difference for result in once]
    said = []
    if judged:
        said.append(
            f"Behind the {len(results)} cells are {count(len(once), 'setting')}, {len(judged)} of them with two or "
            f"more seeds. The published value lies within the 95 % interval of our mean in {len(inside)} of these"
            f"{too_wide}; it is one run itself, and lies within that of one further run of ours in {like}."
        )
    if alone := len(once) - len(judged):
        said.append(f"{count(alone, 'setting has', 'settings have')} one seed, so no interval: nothing is confirmed.")
    said.append(
        f"Ours less the published, over all settings: {fmean(differences):+.1f} points in the mean, from "
        f"{min(differences):+.1f} to {max(differences):+.1f}; without signs {fmean(map(abs, differences)):.1f}."
    )
    return said


def _main(results: Sequence[CellResult]) -> list[CellResult]:
    """Full MAPL, once for each run: the first table that has it stands for the others."""
    found: dict[str, CellResult] = {}
    for result in results:
        if is_mapl(result) and result.cell.table in METHOD_TABLES:
            found.setdefault(result.rows[0].key, result)
    # The paper's main setting first.
    return sorted(found.values(), key=lambda r: (r.cell.table != "res_hetero", r.cell.setting["dataset"] != "CIFAR10"))


def mapl_sentences(results: Sequence[CellResult]) -> list[str]:
    said = []
    for result in _main(results)[:SENTENCES]:
        ours, published = result.accuracy, 100 * result.published
        text = f"{place(result.cell)}: {100 * ours.mean:.1f} % over {count(len(result.rows), 'seed')}"
        if ours.interval is None:
            said.append(f"{text} against the published {published:.1f} %; one seed has no interval.")
            continue
        low, high = 100 * (ours.mean - ours.interval), 100 * (ours.mean + ours.interval)
        verdict = _verdict(result)
        interval = f"(95 % interval {low:.1f} to {high:.1f})"
        said.append(f"{text} {interval} against the published {published:.1f} %: {verdict}.")
    return said


def _narrow(result: CellResult) -> bool:
    return result.accuracy.interval is not None and result.accuracy.interval <= NARROW


def _verdict(result: CellResult) -> str:
    if not result.published_inside:
        lower = "lower" if result.difference < 0 else "higher"
        return f"not confirmed, ours is {lower}" + (
            ", though one further run of ours might be as far off" if result.like_a_further_run else ""
        )
    return "confirmed" if _narrow(result) else "inside, but so wide an interval confirms nothing"


def difference_sentences(result: CellResult, results: Sequence[CellResult], rows: Sequence[Row]) -> list[str]:
    """What is known of why a cell of MAPL is below the published number; nothing where it is not."""
    if result.difference >= 0:
        return []
    where, published = place(result.cell), 100 * result.published
    images = sum(15 * len(classes) for classes in result.rows[0].classes)
    chance = 100 * math.sqrt(result.published * (1 - result.published) / images)
    said = [
        f"{where}: ours is {-100 * result.difference:.1f} points below the published {published:.2f} %. That is one "
        f"run tested with {images:,} images: its standard error is {chance:.1f} points."
    ]
    if result.all_images is not None:
        said.append(
            f"With all test images of the same models, which leaves the choice of images out of ours, it is "
            f"{result.all_images.text()} %: {published - 100 * result.all_images.mean:.1f} points, or "
            f"{(published - 100 * result.all_images.mean) / chance:.1f} of those standard errors, below."
        )
    said += _further_run(result)
    best = fmean(max(row.curve["accuracy"]) for row in result.rows)
    late = fmean(fmean(row.curve["accuracy"][-5:]) for row in result.rows)
    said.append(
        ("It is not the moment of the test: the" if best < result.published else "The")
        + f" last five tests have {100 * late:.1f} % in the mean, and the best of all "
        f"{len(result.rows[0].curve['accuracy'])} tests {100 * best:.1f} %."
    )
    said += [_backbones(result), *_other_form(result, rows), *_same_contest(result, results)]
    return said


def _further_run(result: CellResult) -> list[str]:
    """Where one more run would lie: the published number is one run, and our interval is of a mean."""
    if result.further is None:
        return []
    low, high = (100 * (result.accuracy.mean + side * result.further) for side in (-1, 1))
    wide = f", though so few seeds make that interval wide (± {100 * result.further:.1f})"
    found = f"does, so chance may be all of it{wide}" if result.like_a_further_run else "does not"
    return [
        f"One more run of ours would lie between {low:.1f} and {high:.1f} % (95 %), by how far "
        f"{len(result.rows)} seeds lie apart. The published one {found}."
    ]


def _other_form(result: CellResult, rows: Sequence[Row]) -> list[str]:
    """Whether it may be the form of the graph: the published number came from the released one."""
    mine = result.rows[0]
    if mine.form != OURS:
        return []
    alike = identity(mine.made)
    found = [row for row in rows if row.form == "released" and not row.control and identity(row.made) == alike]
    text = f"The published number came from the released graph step, ours from the form “{OURS}”"
    if not found:
        return [f"{text}. No run of the released form is here, so its share in the difference is not known."]
    accuracy = 100 * fmean(fmean(row.accuracy) for row in found)
    return [f"{text}. The released form gives {accuracy:.1f} % here ({count(len(found), 'seed')})."]


def _backbones(result: CellResult) -> str:
    """How much hangs on who has which backbone."""
    by_name: dict[str, list[float]] = {}
    for row in result.rows:
        for name, accuracy in zip(row.backbones, row.all_images or row.accuracy, strict=True):
            by_name.setdefault(name, []).append(100 * accuracy)
    means = {name: fmean(values) for name, values in by_name.items()}
    tests = "all test images" if all(row.all_images for row in result.rows) else "the paper's test images"
    if len(means) < 2:
        return "All clients have one backbone."
    spread = pstdev(means.values()) / math.sqrt(len(result.rows[0].backbones))
    listed = listing(f"{name} {mean:.1f} %" for name, mean in sorted(means.items(), key=lambda item: -item[1]))
    return (
        f"By backbone, with {tests}, it is {listed}. Backbones are dealt in turn here, as in the released program; "
        f"were they drawn at random, as the paper says, the draw alone would move the mean by {spread:.1f} points "
        "(standard deviation)."
    )


def _same_contest(result: CellResult, results: Sequence[CellResult]) -> list[str]:
    """Whether the other methods differ as much."""
    others = [r for r in results if contest(r.cell) == contest(result.cell) and not is_mapl(r)]
    if not others:
        return []
    listed = listing(f"{r.cell.method} {100 * r.difference:+.1f}" for r in others)
    mean = 100 * fmean(r.difference for r in others)
    return [f"The other methods of the same cells, ours less the published: {listed}; {mean:+.1f} in the mean."]


def rank_sentences(results: Sequence[CellResult]) -> list[str]:
    """Whether MAPL is the best, as published. MAPL and MAPL+ count as one: the paper's own."""
    held = _contests(results)
    if not held:
        return []
    won = [group for group in held if is_mapl(best_of(group))]
    published = sum(is_mapl(max(group, key=lambda r: r.published)) for group in held)
    text = (
        f"On the seeds that all of them have, MAPL has the highest mean in {len(won)} of the "
        f"{count(len(held), 'contest')} that it and at least one other method were run in; by the published numbers of "
        f"the same cells, in {published}."
    )
    return [text, *[_lost(group) for group in held if group not in won][:SENTENCES]]


def _contests(results: Sequence[CellResult]) -> list[list[CellResult]]:
    """Cells that are compared with each other, MAPL and another method among them; the same runs once."""
    contests: dict[tuple[str, ...], list[CellResult]] = {}
    for result in results:
        if result.cell.table in METHOD_TABLES:
            contests.setdefault(contest(result.cell), []).append(result)
    both = [group for group in contests.values() if len({is_mapl(r) for r in group}) == 2]
    return list({frozenset(r.rows[0].key for r in group): group for group in reversed(both)}.values())[::-1]


def _lost(group: Sequence[CellResult]) -> str:
    best, mine = best_of(group), best_of([r for r in group if is_mapl(r)])
    alone = len(set(best.seeds) & set(mine.seeds)) == 1
    over = " (± over clients of one seed)" if alone else ""
    return f"{place(best.cell)}, is {paired(best, mine).text()} points ahead of {mine.cell.method}{over}."


def paired_sentences(results: Sequence[CellResult]) -> list[str]:
    found = [pair for pair in pairs(results) if pair.better.interval is not None]
    if not found:
        return []
    better, worse = (sum(pair.verdict.startswith(word) for pair in found) for word in ("better", "worse"))
    neither = len(found) - better - worse
    tests = " with all test images" if all(pair.better_all for pair in found) else ""
    return [
        f"Of {count(len(found), 'comparison')} of MAPL or MAPL+ with another method on the same shards and seeds, the "
        f"95 % interval{tests} shows it better in {better} and worse in {worse}; in {neither} it includes 0. With one "
        "seed that interval is over clients, and knows nothing of other seeds."
    ]
