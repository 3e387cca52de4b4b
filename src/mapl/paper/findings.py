"""What the reproduction found, in sentences. Each of them is computed from the results store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from mapl.analysis.clusters import adjusted_rand, share_inside
from mapl.analysis.compare import Estimate
from mapl.paper.contests import best_of, is_mapl, main_results, mapl_contests, pairs
from mapl.paper.differences import difference_sentences
from mapl.paper.labels import cell_name
from mapl.paper.page_tables import PAPER_MESSAGES, counted_by_the_paper, first_inside
from mapl.paper.protocol import OURS
from mapl.paper.statistics import CellResult, Over, difference, paired
from mapl.paper.store import StoredRun
from mapl.paper.tables import cells
from mapl.report.text import count, listing, percent, points

NARROW = 0.03
"""A wider half-width includes so much that including the published value confirms nothing."""
MOST = 6
"""Sentences of one kind; the tables have the rest."""


def findings(
    results: Sequence[CellResult], runs: Sequence[StoredRun], graphs: Sequence[StoredRun]
) -> dict[str, list[str]]:
    """The main results, by subject.

    Args:
        results: all filled cells.
        runs: all runs by the paper's protocol.
        graphs: those that learned a graph.
    """
    if not results:
        nothing = f"None of the {len(cells())} cells of the paper's tables has been run by its protocol yet."
        return {"What was run": [nothing]}
    main, contests = main_results(results), mapl_contests(results)
    by_subject = {
        "What was run": [coverage(results, runs)],
        "What was confirmed, and what was not": [*agreement(results), *mapl_sentences(main[:MOST])],
        "Where MAPL's difference comes from": [s for r in main[:2] for s in difference_sentences(r, results, runs)],
        "What letters add": [
            *gain_sentences(main[:MOST]),
            *without_letters_sentences(contests[:MOST]),
            *other_gain_sentences(contests[:MOST]),
        ],
        "Whether MAPL is the best": [*rank_sentences(contests), *paired_sentences(results)],
        "What became of the graph": graph_sentences(graphs),
    }
    return {subject: sentences for subject, sentences in by_subject.items() if sentences}


def coverage(results: Sequence[CellResult], runs: Sequence[StoredRun]) -> str:
    """How much was run, on what, and for how long."""
    by_seeds = Counter(len(result.runs) for result in results)
    seeds = listing(f"{count(number, 'seed')} in {count(many, 'cell')}" for number, many in sorted(by_seeds.items()))
    controls = sum(run.control for run in runs)
    # A run without letters has no graph, so it has no form either.
    forms = {run.form for run in runs if run.form and not run.control}
    ours = f" MAPL's form “{OURS}” is ours: neither the printed graph objective nor the released step (docs/graph.md)."
    devices = listing(sorted({f"{run.device} ({run.precision})" for run in runs}))
    hours = sum(run.seconds + run.setup_seconds for run in runs) / 3600
    return (
        f"{len(results)} of the {len(cells())} cells of the paper's tables are filled, with {seeds}. They and their "
        f"figures took {count(len(runs), 'run')}, {controls} of them controls without letters: {hours:.1f} hours on "
        f"{devices}.{ours if OURS in forms else ''}"
    )


# Published numbers


def agreement(results: Sequence[CellResult]) -> list[str]:
    """How close ours are to the published numbers."""
    settings = list({result.runs[0].key: result for result in reversed(results)}.values())  # tables share runs
    judged = [result for result in settings if result.published_inside is not None]
    inside = [result for result in judged if result.published_inside]
    like = sum(bool(result.like_a_further_run) for result in judged)
    wide = sum(not _narrow(result) for result in inside)
    too_wide = f", though {wide} of these intervals are wider than ± {100 * NARROW:.0f} points and say little"
    differences = [100 * result.difference for result in settings]
    sentences = []
    if judged:
        sentences.append(
            f"The {len(results)} cells come from {count(len(settings), 'setting')}, {len(judged)} of them with two or "
            f"more seeds. Of these, the published value lies within the 95 % interval of our mean in {len(inside)}"
            f"{too_wide if wide else ''}. The published value is itself one run; it lies within the 95 % interval of "
            f"one further run of ours in {like}."
        )
    if alone := len(settings) - len(judged):
        sentences.append(
            f"{count(alone, 'setting has', 'settings have')} one seed, so no interval: nothing is confirmed there."
        )
    sentences.append(
        f"Ours minus published, over all settings: {fmean(differences):+.1f} points on average, from "
        f"{min(differences):+.1f} to {max(differences):+.1f}; {fmean(map(abs, differences)):.1f} on average without "
        "signs."
    )
    return sentences


def mapl_sentences(main: Sequence[CellResult]) -> list[str]:
    sentences = []
    for result in main:
        ours, published = result.accuracy, 100 * result.published
        text = f"{cell_name(result.cell)}: {100 * ours.mean:.1f} % over {count(len(result.runs), 'seed')}"
        if ours.interval is None:
            sentences.append(f"{text}, published {published:.1f} %. One seed has no interval.")
            continue
        low, high = 100 * (ours.mean - ours.interval), 100 * (ours.mean + ours.interval)
        interval = f"(95 % interval {low:.1f} to {high:.1f})"
        sentences.append(f"{text} {interval}, published {published:.1f} %: {_verdict(result)}.")
    return sentences


def _narrow(result: CellResult) -> bool:
    return result.accuracy.interval is not None and result.accuracy.interval <= NARROW


def _verdict(result: CellResult) -> str:
    if not result.published_inside:
        lower = "lower" if result.difference < 0 else "higher"
        further = ", though one further run of ours might be as far off" if result.like_a_further_run else ""
        return f"not confirmed, ours is {lower}{further}"
    return "confirmed" if _narrow(result) else "inside, but so wide an interval confirms nothing"


# Letters


def gain_sentences(main: Sequence[CellResult]) -> list[str]:
    """What letters add to MAPL; on all test images if there are such tests, which leaves less to chance."""
    sentences = []
    for result in main:
        gain, images = (result.gain_all, "all test images") if result.gain_all else (result.gain, "the paper's tests")
        if gain is None:
            continue
        text = (
            f"Collaboration gain of {cell_name(result.cell)}: {points(gain, '+')} points over the same clients without "
            f"letters ({images})."
        )
        if gain.interval is None:
            sentences.append(f"{text} One seed cannot tell how much of that is chance.")
            continue
        side = f"lies {'above' if gain.mean > 0 else 'below'} 0"
        unsure = "includes 0, so this does not show that letters help or hurt"
        over = _over(result.gain_over, len(result.controls))
        verdict = side if abs(gain.mean) > gain.interval else unsure
        sentences.append(f"{text} The 95 % interval over {over} {verdict}.")
    return sentences


def without_letters_sentences(contests: Sequence[Sequence[CellResult]]) -> list[str]:
    """How far MAPL is ahead of local training without letters: that part comes from its losses and its two views."""
    sentences = []
    for group in contests:
        local = [r for r in group if r.cell.method == "Local"]
        for result in (r for r in group if is_mapl(r) and local):
            ahead, over = difference(result.controls, local[0].runs, "all_images")
            if ahead is None:
                continue
            seeds = len({run.seed for run in result.controls} & set(local[0].seeds))
            side = "ahead of" if ahead.mean >= 0 else "behind"
            sentences.append(
                f"Without letters, {cell_name(result.cell)}, is {points(Estimate(abs(ahead.mean), ahead.interval))} "
                f"points {side} Local on the same shards (all test images, over {_over(over, seeds)}). Neither sends "
                "anything, so this part of the difference comes from its losses on two views of every image, not from "
                "collaboration."
            )
    return sentences


def other_gain_sentences(contests: Sequence[Sequence[CellResult]]) -> list[str]:
    """What letters add to the other methods, one sentence per contest."""
    sentences = []
    for group in contests:
        others = [r for r in group if not is_mapl(r) and r.gain_all is not None]
        if others:
            where = cell_name(others[0].cell).removeprefix(f"{others[0].cell.method} on ")
            gains = listing(f"{r.cell.method} {points(r.gain_all, '+')}" for r in others)
            over = listing(_over(r.gain_over, len(r.controls)) for r in others)
            sentences.append(
                f"Collaboration gain of the other methods on {where}, in points on all test images: {gains} (± over "
                f"{over})."
            )
    return sentences


def _over(over: Over, seeds: int) -> str:
    return "clients of one seed" if over == "clients" else count(seeds, "seed")


# Ranks


def rank_sentences(contests: Sequence[Sequence[CellResult]]) -> list[str]:
    """Whether MAPL is the best, as published."""
    if not contests:
        return []
    lost = [group for group in contests if not is_mapl(best_of(group))]
    published = sum(is_mapl(max(group, key=lambda r: r.published)) for group in contests)
    text = (
        f"Over the seeds that all methods have, MAPL has the highest mean in {len(contests) - len(lost)} of the "
        f"{count(len(contests), 'contest')} that it and at least one other method were run in. By the published "
        f"numbers of the same cells, it has it in {published}."
    )
    return [text, *(_lost(group) for group in lost[:MOST])]


def _lost(group: Sequence[CellResult]) -> str:
    best, mapl = best_of(group), best_of([r for r in group if is_mapl(r)])
    over = " (± over clients of one seed)" if len(set(best.seeds) & set(mapl.seeds)) == 1 else ""
    return f"{cell_name(best.cell)}, is {points(paired(best, mapl))} points ahead of {mapl.cell.method}{over}."


def paired_sentences(results: Sequence[CellResult]) -> list[str]:
    judged = [pair for pair in pairs(results) if pair.better.interval is not None]
    if not judged:
        return []
    better, worse = (sum(pair.verdict.startswith(word) for pair in judged) for word in ("better", "worse"))
    tests = " on all test images" if all(pair.better_all for pair in judged) else ""
    return [
        f"In {count(len(judged), 'comparison')} of MAPL or MAPL+ with another method on the same shards and seeds, the "
        f"95 % interval{tests} shows MAPL better in {better} and worse in {worse}; in {len(judged) - better - worse} "
        "it includes 0. With one seed the interval is over clients, and says nothing about other seeds."
    ]


# The graph


def graph_sentences(runs: Sequence[StoredRun]) -> list[str]:
    """Whether the graph found the clusters, and what it saved."""
    runs = [run for run in runs if len(set(run.clusters)) > 1]
    shares = [share for run in runs if (share := share_inside(run.matrix(), run.clusters)) is not None]
    if not shares:
        return []
    first = [share for run in runs if (share := first_inside(run)) is not None]
    exact = sum(adjusted_rand(run.matrix(), run.clusters) == 1 for run in runs)
    sentences = [
        f"The learned graph: over {count(len(runs), 'run')}, {percent(fmean(shares))} of the weight given to others "
        f"ends up inside the true clusters (from {percent(min(shares))} to {percent(max(shares))}"
        + (f"; {percent(fmean(first))} at first" if first else "")
        + f"). A spectral clustering of W finds the clusters exactly in {exact}."
    ]
    sentences += _shares_by_backbone(runs)
    if alike := [run for run in runs if counted_by_the_paper(run)]:
        sent, forms = [run.messages for run in alike], listing(sorted({f"“{run.form}”" for run in alike}))
        sentences.append(
            "On CIFAR-10 with 20 clients, four backbones and 400 rounds, a run that learns its graph sent "
            f"{fmean(sent):,.0f} messages (from {min(sent):,} to {max(sent):,}; form {forms}). The paper says "
            f"{PAPER_MESSAGES[True]:,}, and {PAPER_MESSAGES[False]:,} without graph learning."
        )
    return sentences


def _shares_by_backbone(runs: Sequence[StoredRun]) -> list[str]:
    """Who is listened to. The paper says of its figure that weights inside a cluster become equal."""
    shares: dict[str, list[float]] = {}
    for run in (run for run in runs if len(set(run.backbones)) > 1):
        given = run.matrix().fill_diagonal_(0)
        for name in set(run.backbones):
            receivers = [i for i, backbone in enumerate(run.backbones) if backbone == name]
            shares.setdefault(name, []).append(100 * float(given[:, receivers].sum() / given.sum()))
    if not shares:
        return []
    by_share = sorted(shares.items(), key=lambda item: -fmean(item[1]))
    listed = listing(f"{name} {min(values):.0f} to {max(values):.0f} %" for name, values in by_share)
    equal = 100 / len(shares)
    verdict = "are far from equal" if fmean(by_share[0][1]) > 1.5 * equal else "stay about equal"
    return [
        f"Inside a cluster, weights {verdict} (the paper says they become equal). The weight given to others goes to "
        f"clients with these backbones: {listed}. Equal weights would give each about {equal:.0f} %."
    ]
