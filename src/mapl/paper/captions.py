"""What one sees in the tables and figures of a reproduction, and how to read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from statistics import fmean

from mapl.analysis.clusters import share_inside
from mapl.paper.complexity import Cost
from mapl.paper.pictures import heads, separation
from mapl.paper.scale import SCALES
from mapl.paper.statistics import CellResult
from mapl.paper.store import Row, Store
from mapl.report.words import count, listing

TABLES_EXPLAINED = (
    "Laid out as in the paper. A filled cell has our accuracy in percent (mean over clients and seeds at the last "
    "round, never the best one; ± is the half-width of a 95 % interval over seeds), the published one, ours less the "
    "published and whether the published value lies inside the interval of our mean, and the collaboration gain: the "
    "accuracy less that of the same clients, seed and first weights without letters. The gain's ± is over seeds; in "
    "cells with one seed it is over that seed's clients, which leaves out how much seeds differ. Bold is the best of "
    "those that compete in a column, among ours (on the seeds that all of them have) and among the published. A dash "
    "was not run. Tests are the paper's, 15 images a class of each client; the folded tables also have all test images "
    "of each client's classes. MAPL is in the form that our evidence favours: the released program's losses, and the "
    "printed graph objective with confidence relative to its mean, which is neither the printed graph nor the released "
    "one (docs/graph.md)."
)
PAIRS_EXPLAINED = (
    "MAPL's accuracy less another method's, in points, on the same shards and seeds, so that what shards and seeds do "
    "to both cancels. ± is a 95 % interval over seeds; with one seed it is over clients. The verdict is by all test "
    "images where there are such tests."
)
FORM_WORDS = {
    "balanced": "The released program's losses, and the printed graph objective with confidence relative to its mean",
    "released": "The released program's losses and its graph step",
    "paper": "The losses and the graph objective as they are printed",
}
FORMS_EXPLAINED = (
    "The printed equations, the released program and a third form of the graph objective differ. The tables above have "
    f"the form whose graph finds the clusters: {FORM_WORDS['balanced'][0].lower()}{FORM_WORDS['balanced'][1:]} "
    "(docs/graph.md)."
)
GRAPH_EXPLAINED = (
    "Inside clusters is the share of the weight that clients give to others which stays inside the true clusters, "
    "which no client is told about; at first is the first test, when weights are still equal. The adjusted Rand index "
    "compares a spectral clustering of W with the true clusters: 1 is exact, 0 is chance. Messages are counted by the "
    "ledger; the full mesh has M(M − 1) of them a round."
)
FINAL_GRAPHS = (
    "W at the end of every run with 20 clients that learned its graph; row i is how much client i listens to each of "
    "the others. One scale for all, on which what a client keeps for itself may be off the top. Orange lines part the "
    "true clusters; the share of weight given to others that stays inside them is above each."
)


def below(rows: Sequence[Row]) -> str:
    """The line under the title."""
    if not rows:
        return "Made by mapl from a results store without any run by the paper's protocol."
    days = sorted(datetime.fromisoformat(row.date).date().isoformat() for row in rows)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    return f"Made by mapl from {count(len(rows), 'run')} by the paper's protocol, {when}."


def other_form(form: str, some: Sequence[CellResult], ours: Sequence[CellResult]) -> str:
    """What another form of MAPL gave, against the published and against the tables' form on the same cells."""
    mean = fmean(100 * result.difference for result in some)
    text = f"{FORM_WORDS[form]}: {count(len(some), 'cell')}, {mean:+.1f} points from the published in the mean"
    known = {result.cell.name: result for result in ours}
    both = [(result, known[result.cell.name]) for result in some if result.cell.name in known]
    if both:
        apart = fmean(
            100 * (result.mean_over(tables.seeds) - tables.mean_over(result.seeds)) for result, tables in both
        )
        text += f", {apart:+.1f} from the tables' form where both were run"
    return f"{text}."


def scaled(scale: str, store: Store) -> str:
    """What the scale is, for who might take its numbers for the paper's."""
    known = scale.split(" + ")[0]
    what = f" ({SCALES[known].title})" if known in SCALES else ""
    rows = [row for row in store.rows.values() if row.scale == scale]
    return (
        f"{count(len(rows), 'run')} at the scale “{scale}”{what}. These are not the paper's experiments: no published "
        "number stands beside them, none of these cells counts as filled, and no sentence above rests on them."
    )


def curves_caption(groups: Mapping[str, Sequence[Row]], of: int) -> str:
    several = [f"{label}: {len(rows)}" for label, rows in groups.items() if len(rows) > 1]
    ends = [
        f"{label}: {100 * fmean(shares):.0f} %"
        for label, rows in groups.items()
        if (shares := [s for row in rows if (s := share_inside(row.matrix(), row.clusters)) == s])
    ]
    left = f" {of - len(groups)} more settings are in the table alone." if of > len(groups) else ""
    return (
        "What becomes of the graph: edges in use, messages of a round (in the mean since the test before), and the "
        "share of the weight given to others that stays inside the true clusters. One seed each"
        f"{', or means over several (' + '; '.join(several) + ')' if several else ''}. Inside at the end: "
        f"{'; '.join(ends)}.{left}"
    )


def conv_caption(some: Sequence[CellResult]) -> str:
    ends = []
    for scenario in sorted({int(r.cell.setting["scenario"]) for r in some}):
        here = sorted((r for r in some if r.cell.setting["scenario"] == scenario), key=lambda r: -r.accuracy.mean)
        ends.append(f"scenario {scenario}: " + ", ".join(f"{r.cell.method} {r.accuracy.text()} %" for r in here))
    return (
        "Convergence of test accuracy (the paper's protocol) on CIFAR-10 with 20 clients and four backbones. "
        f"{_seeds_of(some)} At the last round, {'; '.join(ends)}."
    )


def _seeds_of(some: Sequence[CellResult]) -> str:
    several = [r for r in some if len(r.rows) > 1]
    if not several:
        return "Every line is one seed."
    named = listing(
        f"{r.cell.method} in scenario {r.cell.setting['scenario']} ({count(len(r.rows), 'seed')})" for r in several
    )
    return f"Means over seeds with their range shaded: {named}" + (
        "; every other line is one seed." if len(several) < len(some) else "."
    )


def class_sim_caption(without: Row, with_proto: Row) -> str:
    before, after = (separation(heads(row), row.clusters)[2] for row in (without, with_proto))
    verdict = _alignment_verdict(before, after)
    return (
        "Left: training images. Middle and right: how alike the heads of every two clients are (mean over classes of "
        f"the cosine), each on its own scale, trained without and with l_proto; seed {with_proto.seed}. The AUC is how "
        f"often a pair of one cluster is more alike than a pair of two: {before:.2f} without l_proto and {after:.2f} "
        f"with it (0.5 is chance, 1 tells all pairs apart). {verdict}"
    )


def _alignment_verdict(before: float, after: float) -> str:
    if after >= 0.9 and before < 0.75:
        return "As in the paper, heads tell who has like data only when class-wise features are aligned."
    if after >= 0.9:
        return "Heads tell who has like data with l_proto, but here without it, too: the paper shows no pattern there."
    return "Here heads do not tell clearly who has like data even with l_proto; in the paper they do."


def col_graph_caption(row: Row, early: Row | None, scenario: int) -> str:
    last = share_inside(row.matrix(), row.clusters)
    found = row.extra["embedding"]
    start = f" After round {early.rounds} it was {_nearest(early)}." if early is not None else ""
    return (
        f"Scenario {scenario}, {row.made.data.name}, {len(row.clusters)} clients, seed {row.seed}; {_classes(row)}. "
        "(a) What data have in common. (b) The mixing matrix W, learned from round "
        f"{getattr(row.made.method, 'warmup', 0) + 1} on; after round {row.rounds}, {100 * last:.0f} % of the weight "
        "given to others stays inside the true clusters, which orange lines part. (c) Test images laid out by t-SNE, "
        "each seen by its own client's model. The nearest embedding z at another client is of the same class for "
        f"{_nearest(row, chance=True)}.{start} {_embedding_verdict(row)} The nearest projection p is of the same class "
        f"for {100 * found['p_aligned']:.0f} %. Prototypes live in the space of the projections, so they are drawn "
        "there. Distances between far islands mean nothing."
    )


def _classes(row: Row) -> str:
    held = dict.fromkeys(tuple(classes) for classes in row.classes)
    return "classes " + listing(f"{own[0]} to {own[-1]}" for own in held)


def _nearest(row: Row, chance: bool = False) -> str:
    found = row.extra["embedding"]
    by_class, by_cluster = (
        f" (by chance {100 * found[name]:.0f} %)" if chance else "" for name in ("by_chance", "kin_by_chance")
    )
    return (
        f"{100 * found['aligned']:.0f} %{by_class} and of the same cluster for {100 * found['kin']:.0f} %{by_cluster}"
    )


def _embedding_verdict(row: Row) -> str:
    """Whether clusters show in the embeddings, as the paper says of its figure."""
    found = row.extra["embedding"]
    if found["kin"] >= (1 + found["kin_by_chance"]) / 2:
        return "So embeddings lie by cluster, as in the paper."
    return "So embeddings lie by client and hardly by cluster, unlike in the paper."


def complexity_words(costs: Sequence[Cost]) -> str:
    right = [cost.method for cost in costs if cost.exact]
    wrong = [cost.method for cost in costs if not cost.exact]
    given = ", ".join(f"{name} = {size:,}" for name, size in costs[0].sizes.items())
    return (
        "What the paper's formulas say a round sends (in numbers, without the factor T), and what the ledger counted "
        f"with {given}; θ and φ are those of ResNet-18 and its head. Bytes are 4 a number, 8 a count, and a header a "
        f"letter. The formula is what is sent after the warm-up for {listing(right)}"
        + (f", and not for {listing(wrong)}" if wrong else "")
        + ". The last column is the formula for 20 clients and 400 rounds on the full mesh."
    )
