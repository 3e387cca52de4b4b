"""What a reproduction found, in sentences. Every one is computed from the results store; none is a hope."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, pstdev

from mapl.clusters import adjusted_rand, share_inside
from mapl.paper import cells
from mapl.report.reproduction_gains import gain_sentences, is_mapl, loss_sentences, other_gain_sentences
from mapl.report.reproduction_tables import (
    PAPER_COMMUNICATIONS,
    contest,
    counted_by_the_paper,
    first_inside,
    pairs,
    place,
)
from mapl.report.words import count, listing
from mapl.reproduce.statistics import CellResult
from mapl.reproduce.store import Row

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
        "Where MAPL's difference comes from": [s for r in _main(results)[:2] for s in difference_sentences(r, results)],
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
    forms = listing(sorted({row.form for row in rows if row.form and not row.control}))
    devices = listing(sorted({f"{row.device} ({row.precision})" for row in rows}))
    hours = sum(row.seconds + row.setup_seconds for row in rows) / 3600
    return (
        f"{len(results)} of the {len(cells())} cells of the paper's tables are filled, with {seeds}. They and their "
        f"figures took {count(len(rows), 'run')}, {controls} of them controls without letters: {hours:.1f} hours on "
        f"{devices}.{f' Form of MAPL: {forms}.' if forms else ''}"
    )


def agreement(results: Sequence[CellResult]) -> list[str]:
    """How near the published numbers ours are."""
    judged = [result for result in results if result.published_inside is not None]
    inside = [result for result in judged if result.published_inside]
    wide = sum(not _narrow(result) for result in inside)
    too_wide = f"; in {wide} of these it is wider than ± {100 * NARROW:.0f} points and says little" if wide else ""
    differences = [100 * result.difference for result in results]
    said = []
    if judged:
        settings = len({result.rows[0].key for result in judged})
        repeated = f": {count(settings, 'setting')}, repeated in several tables" if settings < len(judged) else ""
        said.append(
            f"{count(len(judged), 'filled cell has', 'filled cells have')} two or more seeds{repeated}. The published "
            f"value lies within our 95 % interval in {len(inside)} of them{too_wide}. Every published number is one "
            "run itself."
        )
    if len(judged) < len(results):
        alone = len(results) - len(judged)
        said.append(f"{count(alone, 'cell has', 'cells have')} one seed, so no interval: nothing is confirmed there.")
    said.append(
        f"Ours less the published, over all filled cells: {fmean(differences):+.1f} points in the mean, from "
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
        return f"not confirmed, ours is {'lower' if result.difference < 0 else 'higher'}"
    return "confirmed" if _narrow(result) else "inside, but so wide an interval confirms nothing"


def difference_sentences(result: CellResult, results: Sequence[CellResult]) -> list[str]:
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
            f"With all test images of the same models, which leaves that chance out, ours is "
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
    said += [_backbones(result), *_same_contest(result, results)]
    return said


def _further_run(result: CellResult) -> list[str]:
    """Where one more run would lie: the published number is one run, and our interval is of a mean."""
    if result.accuracy.interval is None:
        return []
    half = result.accuracy.interval * math.sqrt(len(result.rows) + 1)  # t s / √n becomes t s √(1 + 1/n)
    low, high = 100 * (result.accuracy.mean - half), 100 * (result.accuracy.mean + half)
    found = "does, so that chance may be all of it" if abs(result.difference) <= half else "does not"
    return [
        f"One more run of ours would lie between {low:.1f} and {high:.1f} % (95 %), by how far "
        f"{len(result.rows)} seeds lie apart. The published one {found}."
    ]


def _backbones(result: CellResult) -> str:
    """How much hangs on who has which backbone."""
    by_name: dict[str, list[float]] = {}
    for row in result.rows:
        for name, accuracy in zip(row.backbones, row.all_images or row.accuracy, strict=True):
            by_name.setdefault(name, []).append(100 * accuracy)
    means = {name: fmean(values) for name, values in by_name.items()}
    if len(means) < 2:
        return "All clients have one backbone."
    spread = pstdev(means.values()) / math.sqrt(len(result.rows[0].backbones))
    listed = listing(f"{name} {mean:.1f} %" for name, mean in sorted(means.items(), key=lambda item: -item[1]))
    return (
        f"By backbone it is {listed}. Backbones are dealt in turn here, as in the released program; were they drawn at "
        f"random, as the paper says, the draw alone would move the mean by {spread:.1f} points (standard deviation)."
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
    won = [group for group in held if is_mapl(max(group, key=lambda r: r.accuracy.mean))]
    published = sum(is_mapl(max(group, key=lambda r: r.published)) for group in held)
    text = (
        f"MAPL has the highest mean in {len(won)} of the {count(len(held), 'contest')} that it and at least one other "
        f"method were run in; by the published numbers of the same cells, in {published}."
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
    best = max(group, key=lambda r: r.accuracy.mean)
    mine = max((r for r in group if is_mapl(r)), key=lambda r: r.accuracy.mean)
    ahead = f"{best.accuracy.text()} % against {mine.accuracy.text()} %"
    return f"{place(best.cell)} is ahead of {mine.cell.method}: {ahead}."


def paired_sentences(results: Sequence[CellResult]) -> list[str]:
    found = [pair for pair in pairs(results) if pair.better.interval is not None]
    if not found:
        return []
    better, worse = (sum(pair.verdict.startswith(word) for pair in found) for word in ("better", "worse"))
    neither = len(found) - better - worse
    return [
        f"Of {count(len(found), 'comparison')} of MAPL or MAPL+ with another method on the same shards and seeds, the "
        f"95 % interval shows it better in {better} and worse in {worse}; in {neither} it includes 0. With one seed "
        "that interval is over clients, and knows nothing of other seeds."
    ]


def graph_sentences(rows: Sequence[Row]) -> list[str]:
    """Whether the graph found the clusters, and what it saved."""
    rows = [row for row in rows if len(set(row.clusters)) > 1]
    shares = [share for row in rows if (share := share_inside(row.matrix(), row.clusters)) == share]
    if not shares:
        return []
    first = [share for row in rows if (share := first_inside(row)) == share]
    rand = [adjusted_rand(row.matrix(), row.clusters) for row in rows]
    said = [
        f"The learned graph: over {count(len(rows), 'run')}, {100 * fmean(shares):.0f} % of the weight given to others "
        f"ends inside the true clusters (from {100 * min(shares):.0f} % to {100 * max(shares):.0f} %"
        + (f"; {100 * fmean(first):.0f} % at first" if first else "")
        + f"), and a spectral clustering of W finds the clusters exactly in {sum(r == 1 for r in rand)}."
    ]
    alike = [row for row in rows if counted_by_the_paper(row)]
    if alike:
        sent = [row.messages for row in alike]
        said.append(
            "On CIFAR-10 with 20 clients, four backbones and 400 rounds a run that learns its graph sent "
            f"{fmean(sent):,.0f} messages (from {min(sent):,} to {max(sent):,}); the paper says "
            f"{PAPER_COMMUNICATIONS[True]:,}, and {PAPER_COMMUNICATIONS[False]:,} without graph learning."
        )
    return said
