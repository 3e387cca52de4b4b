"""What the runs say, in sentences. Every one of them is computed from the records; none is a hope."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

import torch
from torch import Tensor

from mapl.analysis.clusters import adjusted_rand, share_inside
from mapl.analysis.compare import Arm
from mapl.report.curves import mesh, term_name
from mapl.report.embedding import Embedding
from mapl.report.lines import Line, loss_curve, loss_terms
from mapl.report.maps import graph_rounds
from mapl.runs.history import Record

TABLE = (
    "The collaboration gain is an arm's accuracy less that of its own control, in percentage points: the same recipe "
    "and seed with no letters at all. Shards and first weights are equal in both, so the gain is what the letters "
    "bought. An arm that has not played all rounds of its recipe says how many it has; it is compared with its control "
    "as that was in the round of the arm's last test. ± is a 95 % interval over seeds; messages, MiB and seconds are "
    "those of one run."
)
SENTENCES = 3
"""Arms that are spoken about at the top of the page; the table has them all."""


def listing(things: Iterable[object]) -> str:
    """a, b and c."""
    texts = list(dict.fromkeys(str(thing) for thing in things))
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def count(number: float, thing: str, things: str = "") -> str:
    """1 client, 2 clients."""
    return f"{number:,.0f} {thing if number == 1 else things or f'{thing}s'}"


def headlines(lines: Sequence[Line]) -> list[str]:
    """The few things to know."""
    said = []
    tested = [(line, line.arm) for line in lines if line.arm is not None]
    if not tested:
        return ["None of these runs has been tested yet, so there is no accuracy to show."]
    best, arm = max(tested, key=lambda pair: pair[1].accuracy.mean)
    what = "It" if len(lines) == 1 else f"The highest accuracy is that of {best.label}: it"
    said.append(
        f"{what} classifies {arm.accuracy.text()} % of its clients' test images rightly (mean over "
        f"{count(len(best.first.clients), 'client')} and {count(len(arm.seeds), 'seed')} at the last test)."
    )
    said += [gain_sentence(line.label, arm) for line, arm in tested if arm.gain is not None][:SENTENCES]
    recovered = [_recovery(line, arm.inside) for line, arm in tested if arm.inside is not None]
    return said + [text for text in recovered if text][:SENTENCES]


def gain_sentence(label: str, arm: Arm) -> str:
    """What the letters bought, and how sure that is."""
    if arm.gain is None:
        return ""
    points = f"Letters change the accuracy of {label} by {arm.gain.text(sign='+')} percentage points"
    if arm.gain.interval is None:
        return f"{points}; with one seed nobody can say how much of that is chance."
    if abs(arm.gain.mean) <= arm.gain.interval:
        return f"{points}; the interval includes 0, so these seeds do not show that letters help or harm."
    return f"{points}; the interval lies {'above' if arm.gain.mean > 0 else 'below'} 0."


def gain_cell(arm: Arm) -> str:
    """The collaboration gain, or why there is none."""
    if arm.gain is not None:
        return arm.gain.text(sign="+")
    return "– (is a control)" if arm.is_control or arm.method == "local" else "– (no control given)"


def _recovery(line: Line, inside: float) -> str:
    if len({card.cluster for card in line.first.clients}) < 2:
        return ""
    return (
        f"Of the weight that clients of {line.label} give to others, {100 * inside:.0f} % stays inside the true "
        f"clusters, which no client is told about ({100 * _share_at_first(line):.0f} % when they first mixed)."
    )


def _share_at_first(line: Line) -> float:
    """The share of weight inside clusters in the first round that mixed, mean over seeds."""
    shares = []
    for run in line.runs:
        if rounds := graph_rounds(run, None):
            shares.append(share_inside(run.weights(min(rounds)), [card.cluster for card in run.clients]))
    return fmean(shares)


# What one sees in each picture


def accuracy_caption(lines: Sequence[Line]) -> str:
    arms = [(line.label, line.arm) for line in lines if line.arm is not None]
    ranked = sorted(arms, key=lambda pair: -pair[1].accuracy.mean)
    shown = arms if len(arms) <= 4 else [ranked[0], ranked[-1]]
    ends = listing(f"{label} {arm.accuracy.text()} %" for label, arm in shown)
    if len(arms) > len(shown):
        ends = f"between {ends}"
    least, most = (choose(arms, key=lambda pair: pair[1].spread) for choose in (min, max))
    if len(arms) > 1 and round(100 * least[1].spread, 1) < round(100 * most[1].spread, 1):
        spread = f"is largest in {most[0]} ({100 * most[1].spread:.1f} points) and smallest in {least[0]} "
        spread += f"({100 * least[1].spread:.1f})"
    else:
        spread = f"is {100 * most[1].spread:.1f} points"
    return (
        f"How the share of rightly classified test images grows by round. At the last test: {ends}. The standard "
        f"deviation over clients {spread}. On the right every dot is one client of one seed, every bar a mean."
    )


def data_caption(record: Record) -> str:
    cards = record.clients
    groups: dict[int, set[int]] = {}
    for card in cards:
        groups.setdefault(card.cluster, set()).update(card.classes)
    shared = sum(len(a & b) > 0 for i, a in groups.items() for j, b in groups.items() if i < j)
    if len(groups) == 1:
        tells = "There is one cluster only: all draw from the same classes"
    elif shared == 0:
        tells = "No class occurs in two clusters, so only clients of the same cluster can learn from each other's data"
    else:
        tells = f"{count(shared, 'pair')} of clusters share classes: what separates them is a matter of degree"
    return (
        f"What the data of {record.folder.name} look like. Left: a coloured cell means that the client trains on that "
        f"class; colours are the {count(len(groups), 'true cluster')}. Right: classes in common, over classes that "
        f"either has. {tells}. No method sees this picture."
    )


def graph_caption(line: Line, rounds: dict[int, str]) -> str:
    """What became of the graph."""
    record = line.first
    clusters = [card.cluster for card in record.clients]
    matrix = record.weights()
    size = len(clusters)
    edges = int((matrix.clone().fill_diagonal_(0) > 0).sum())
    text = (
        f"{line.label}, seed {record.recipe.seed}. Grey: what the data really have in common. Blue: the mixing matrix "
        f"W; row i is how much client i listens to each of the others and to itself. Orange lines part the true "
        f"clusters. After round {len(record.rounds)}, {edges:,} of {size * (size - 1):,} edges are in use."
    )
    return f"{text} {_graph_verdict(record, min(rounds), clusters)}".strip()


def _graph_verdict(record: Record, first: int, clusters: list[int]) -> str:
    """How much the graph came to look like the clusters, beyond what the network alone makes of it."""
    if len(set(clusters)) < 2:
        return "With one cluster there is nothing to recover."
    graphs = record.weights(first), record.weights()
    before, after = (share_inside(graph, clusters) for graph in graphs)
    if after != after:
        return "In the end nobody listens to anybody."
    text = f"The share of weight inside the clusters went from {100 * before:.0f} % to {100 * after:.0f} %: "
    if after >= (1 + before) / 2 and after > before:
        text += f"clients {_found(graphs[1], clusters, after)}, without seeing any of it."
    elif after > before + 0.02:
        text += "clients lean towards those whose data are like their own, and still hear many others."
    else:
        text += "the graph says no more about the clusters than it did at first."
    return f"{text} {_rand_sentence(*graphs, clusters)}".strip()


def _found(graph: Tensor, clusters: list[int], share: float) -> str:
    """Whom the clients found; all weight may be inside the clusters while some of their members are still missed."""
    if round(100 * share) < 100:
        return "found most of those whose data are like their own"
    label = torch.tensor(clusters)
    kin = (label[:, None] == label[None, :]).fill_diagonal_(False)
    if bool((graph[kin] > 0).all()):
        return "found all of those whose data are like their own"
    return "listen to some of those whose data are like their own and to hardly anybody else"


def _rand_sentence(first: Tensor, last: Tensor, clusters: list[int]) -> str:
    """How far a clustering of the graph agrees with the true clusters, if there is anything to cluster."""
    if len(clusters) > 500 or _is_uniform(last) or (rand := adjusted_rand(last, clusters)) != rand:
        return ""
    if _is_uniform(first):
        indices = f"{rand:.2f} at last (1 is exact, 0 is chance); at first W was uniform: nothing to cluster"
    else:
        indices = f"{adjusted_rand(first, clusters):.2f} at first and {rand:.2f} at last (1 is exact, 0 is chance)"
    return f"A spectral clustering of W agrees with the true clusters to an adjusted Rand index of {indices}."


def _is_uniform(graph: Tensor) -> bool:
    """Whether all hear each other alike: a clustering of such a graph is arbitrary, and its index means nothing."""
    others = graph[~torch.eye(len(graph), dtype=torch.bool)]
    return bool(others.max() - others.min() < 1e-6)


def embedding_caption(line: Line, made: Embedding) -> str:
    if made.aligned >= (1 + made.by_chance) / 2:
        verdict = "classes meet in the same place whoever's model sees them"
    elif made.aligned > made.by_chance + 0.05:
        verdict = "the clients' spaces are partly alike"
    else:
        verdict = "each client has a space of its own"
    return (
        f"{line.label}, seed {line.first.recipe.seed}, after {count(made.rounds, 'round')}: embeddings z of "
        f"{len(made.points):,} test images, each from its own client's model, laid out by t-SNE. Colours are classes "
        f"on the left and clients on the right; shapes are clusters. The nearest point at another client is of the "
        f"same class for {100 * made.aligned:.0f} % of the points (any point there: {100 * made.by_chance:.0f} %) and "
        f"of the same cluster for {100 * made.kin:.0f} % ({100 * made.kin_by_chance:.0f} %): {verdict}. "
        "Distances between far islands mean nothing in a t-SNE."
    )


def loss_caption(lines: Sequence[Line]) -> str:
    line = max(lines, key=lambda one: len(loss_terms(one)))
    ends = []
    for term in loss_terms(line):
        mean = loss_curve(line, term).mean
        ends.append(f"{term_name(term)} from {mean[0]:.4g} to {mean[-1]:.4g}")
    more = " Arms without a term have no line in its panel." if len({tuple(loss_terms(x)) for x in lines}) > 1 else ""
    return (
        f"The terms of the training loss, each on its own scale; a client minimises their sum. Mean over clients, "
        f"10–90 % of them shaded. In {line.label}: {listing(ends)}.{more}"
    )


def messages_caption(lines: Sequence[Line]) -> str:
    said = []
    for line in lines:
        sent, full = sum(run.messages for run in line.runs), sum(mesh(line) * len(run.rounds) for run in line.runs)
        if sent and full:
            said.append(f"{line.label} {_against_mesh(sent / len(line.runs), full / len(line.runs))}")
    return (
        "What the network carried, as its ledger counted it. Dashed: everybody writes to everybody in every round. "
        f"Messages of a whole run: {listing(said)}."
    )


def _against_mesh(sent: float, full: float) -> str:
    """The messages of a run beside those of the full mesh."""
    if f"{sent:,.0f}" == f"{full:,.0f}":
        return f"{sent:,.0f} (as many as that)"
    share = f"{100 * (1 - sent / full):.0f} % saved" if sent < full else f"{sent / full:.3g} times as many"
    return f"{sent:,.0f} instead of {full:,.0f} ({share})"
