"""How to read the tables and figures of the paper's page, and what they show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from statistics import fmean

from mapl.analysis.clusters import share_inside
from mapl.paper.complexity import Cost
from mapl.paper.pictures import heads, separation
from mapl.paper.protocol import SCALES
from mapl.paper.statistics import CellResult
from mapl.paper.store import Store, StoredRun
from mapl.report.text import count, listing, percent

TABLES_EXPLAINED = (
    "Laid out as in the paper. A filled cell shows: our accuracy in percent (mean over clients and seeds at the last "
    "round, never the best one; ± is the half-width of a 95 % interval over seeds); the published accuracy; ours minus "
    "published, and whether the published value lies inside the interval of our mean; and the collaboration gain, our "
    "accuracy minus that of the same clients, seed and initial weights without letters. The gain's ± is over seeds. In "
    "cells with one seed it is over that seed's clients, which says nothing about how much seeds differ. Bold marks "
    "the best of those that compete in a column, among ours (over the seeds that all of them have) and among the "
    "published. A dash was not run. Tests are the paper's, 15 images per class of each client; the folded tables also "
    "have all test images of each client's classes. MAPL is in the form that our evidence favours: the released "
    "program's losses, and the printed graph objective with confidence relative to its mean. That is neither the "
    "printed graph nor the released one (docs/graph.md)."
)
PAIRS_EXPLAINED = (
    "MAPL's accuracy minus another method's, in points, on the same shards and seeds, so their effect cancels. ± is a "
    "95 % interval over seeds; with one seed it is over clients. The verdict uses all test images if there are such "
    "tests."
)
FORM_WORDS = {
    "balanced": "The released program's losses, and the printed graph objective with confidence relative to its mean",
    "released": "The released program's losses and its graph step",
    "paper": "The losses and the graph objective as printed",
}
FORMS_EXPLAINED = (
    "The printed equations, the released program and a third form of the graph objective differ. The tables above use "
    f"the form whose graph finds the clusters: {FORM_WORDS['balanced'][0].lower()}{FORM_WORDS['balanced'][1:]} "
    "(docs/graph.md)."
)
GRAPH_EXPLAINED = (
    "“Inside clusters” is the share of the weight given to others that stays inside the true clusters, which no client "
    "is told about; “at first” is the first test, when weights are still equal. The adjusted Rand index compares a "
    "spectral clustering of W with the true clusters: 1 is exact, 0 is chance. The ledger counts the messages; the "
    "full mesh has M(M − 1) of them per round."
)
FINAL_GRAPHS = (
    "W at the end of every run with 20 clients that learned its graph; row i is how much client i listens to each of "
    "the others. All share one scale, which a client's weight for itself may exceed. Orange lines separate the true "
    "clusters; above each is the share of the weight given to others that stays inside them."
)


def subtitle(runs: Sequence[StoredRun]) -> str:
    if not runs:
        return "Made by mapl from a results store without any run by the paper's protocol."
    days = sorted(datetime.fromisoformat(run.date).date().isoformat() for run in runs)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    return f"Made by mapl from {count(len(runs), 'run')} by the paper's protocol, {when}."


def other_form(form: str, results: Sequence[CellResult], ours: Sequence[CellResult]) -> str:
    """How another form of MAPL differs from the published numbers, and from our form in the same cells."""
    mean = fmean(100 * result.difference for result in results)
    text = f"{FORM_WORDS[form]}: {count(len(results), 'cell')}, {mean:+.1f} points from the published on average"
    by_name = {result.cell.name: result for result in ours}
    both = [(result, by_name[result.cell.name]) for result in results if result.cell.name in by_name]
    if both:
        apart = fmean(100 * (result.mean_over(our.seeds) - our.mean_over(result.seeds)) for result, our in both)
        text += f", {apart:+.1f} from the tables' form in cells that have both"
    return f"{text}."


def scaled(scale: str, store: Store) -> str:
    """What the scale is, and that its numbers are not the paper's."""
    name = scale.split(" + ")[0]
    what = f" ({SCALES[name].title})" if name in SCALES else ""
    runs = [run for run in store.runs.values() if run.scale == scale]
    return (
        f"{count(len(runs), 'run')} at the scale “{scale}”{what}. These are not the paper's experiments: no published "
        "number is shown beside them, none of these cells counts as filled, and nothing above depends on them."
    )


def curves_caption(groups: Mapping[str, Sequence[StoredRun]], settings: int) -> str:
    several = [f"{label}: {len(runs)}" for label, runs in groups.items() if len(runs) > 1]
    ends = [
        f"{label}: {percent(fmean(shares))}"
        for label, runs in groups.items()
        if (shares := [s for run in runs if (s := share_inside(run.matrix(), run.clusters)) is not None])
    ]
    left = f" {settings - len(groups)} more settings are in the table alone." if settings > len(groups) else ""
    return (
        "What becomes of the graph: edges in use, messages per round (averaged since the previous test), and the share "
        "of the weight given to others that stays inside the true clusters. One seed each"
        f"{', or means over several (' + '; '.join(several) + ')' if several else ''}. Inside at the end: "
        f"{'; '.join(ends)}.{left}"
    )


def conv_caption(results: Sequence[CellResult]) -> str:
    ends = []
    for scenario in sorted({int(r.cell.setting["scenario"]) for r in results}):
        here = sorted((r for r in results if r.cell.setting["scenario"] == scenario), key=lambda r: -r.accuracy.mean)
        ends.append(f"scenario {scenario}: " + ", ".join(f"{r.cell.method} {r.accuracy.text()} %" for r in here))
    return (
        "Convergence of test accuracy (the paper's protocol) on CIFAR-10 with 20 clients and four backbones. "
        f"{_seeds_of(results)} At the last round, {'; '.join(ends)}."
    )


def _seeds_of(results: Sequence[CellResult]) -> str:
    several = [r for r in results if len(r.runs) > 1]
    if not several:
        return "Every line is one seed."
    named = listing(
        f"{r.cell.method} in scenario {r.cell.setting['scenario']} ({count(len(r.runs), 'seed')})" for r in several
    )
    others = "; every other line is one seed." if len(several) < len(results) else "."
    return f"Means over seeds with their range shaded: {named}{others}"


def class_sim_caption(without: StoredRun, with_proto: StoredRun) -> str:
    before, after = (separation(heads(run), run.clusters)[2] for run in (without, with_proto))
    return (
        "Left: training images. Middle and right: how alike the heads of each pair of clients are (mean cosine over "
        f"classes), each on its own scale, trained without and with l_proto; seed {with_proto.seed}. The AUC is how "
        f"often a pair from one cluster is more alike than a pair from two: {before:.2f} without l_proto and "
        f"{after:.2f} with it (0.5 is chance, 1 separates all pairs). {_alignment_verdict(before, after)}"
    )


def _alignment_verdict(before: float, after: float) -> str:
    if after >= 0.9 and before < 0.75:
        return "As in the paper, heads show who has similar data only if class-wise features are aligned."
    if after >= 0.9:
        return "Heads show who has similar data with l_proto, but here also without it, unlike in the paper."
    return "Here heads do not clearly show who has similar data even with l_proto; in the paper they do."


def col_graph_caption(run: StoredRun, early: StoredRun | None, scenario: int) -> str:
    inside = percent(share_inside(run.matrix(), run.clusters))
    shares, start = run.extra["embedding"], ""
    if early is not None:
        before = early.extra["embedding"]
        start = f" After round {early.rounds} it was {percent(before['aligned'])} and {percent(before['kin'])}."
    return (
        f"Scenario {scenario}, {run.parsed_recipe.data.name}, {len(run.clusters)} clients, seed {run.seed}; "
        f"{_classes(run)}. (a) The true overlap of classes. (b) The mixing matrix W, learned from round "
        f"{getattr(run.parsed_recipe.method, 'warmup', 0) + 1} on; after round {run.rounds}, {inside} of the weight "
        "given to others stays inside the true clusters, which orange lines separate. (c) Test images laid out by "
        "t-SNE, each seen by its own client's model. The nearest embedding z of another client has the same class for "
        f"{percent(shares['aligned'])} (by chance {percent(shares['by_chance'])}) and the same cluster for "
        f"{percent(shares['kin'])} (by chance {percent(shares['kin_by_chance'])}).{start} {_embedding_verdict(run)} "
        f"The nearest projection p has the same class for {percent(shares['p_aligned'])}. Prototypes live in the space "
        "of the projections, so they are drawn there. Distances between far islands mean nothing."
    )


def _classes(run: StoredRun) -> str:
    return "classes " + listing(f"{classes[0]} to {classes[-1]}" for classes in run.classes)


def _embedding_verdict(run: StoredRun) -> str:
    """Whether clusters show in the embeddings, as the paper says of its figure."""
    shares = run.extra["embedding"]
    if shares["kin"] >= (1 + shares["kin_by_chance"]) / 2:
        return "So embeddings group by cluster, as in the paper."
    return "So embeddings group by client and hardly by cluster, unlike in the paper."


def complexity_explained(costs: Sequence[Cost]) -> str:
    right = [cost.method for cost in costs if cost.exact]
    wrong = [cost.method for cost in costs if not cost.exact]
    sizes = ", ".join(f"{name} = {size:,}" for name, size in costs[0].sizes.items())
    return (
        "What a round sends by the paper's formulas (in numbers, without the factor T), and what the ledger counted "
        f"with {sizes}; θ and φ are those of ResNet-18 and its head. Bytes are 4 per number, 8 per count, and one "
        f"header per letter. After the warm-up, the formula matches what is sent for {listing(right)}"
        + (f", but not for {listing(wrong)}" if wrong else "")
        + ". The last column is the formula for 20 clients and 400 rounds on the full mesh."
    )
