"""What a run report says, in sentences. Each of them is computed from the records."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import torch
from torch import Tensor

from mapl.analysis.clusters import adjusted_rand, edges, first_mixed, share_inside
from mapl.analysis.compare import Arm
from mapl.analysis.paired import FEW
from mapl.live.scene import amount
from mapl.names import DASH
from mapl.network.refused import total
from mapl.recipe import has_letters
from mapl.report.curves import mesh, term_name
from mapl.report.embedding import Embedding
from mapl.report.lines import Line, loss_curve, loss_terms, most_interesting
from mapl.report.text import count, listing, percent
from mapl.runs.record import Record

ARMS_EXPLAINED = (
    "The collaboration gain is an arm's accuracy minus that of its control, in percentage points. The control is the "
    "same recipe, data and seed with no letters at all. Shards and initial weights are equal in both, so the gain is "
    "what the letters add. An arm that has not played all rounds of its recipe says how many. An arm is compared "
    "with its control at the round of the arm's last test. ± is a 95 % interval over seeds. Messages, MiB and seconds "
    "are per run."
)
WAY_EXPLAINED = (
    "The way to pooled is the gain as a share of what the ceiling gains over the same control, seed by seed. The "
    "ceiling also trains without letters, but every client has the training samples of its whole cluster. 0 % is "
    "training alone, 100 % is as good as sharing all data. No room: for some seed the ceiling is not better than the "
    "control."
)
LARGEST_CLUSTERING = 500
"""Clients; a spectral clustering of more takes too long."""


def headlines(lines: Sequence[Line]) -> list[str]:
    """The three things to know: how accurate the best arm is, what letters add, and how the network looks."""
    tested = [(line, line.arm) for line in lines if line.arm is not None]
    if not tested:
        return ["None of these runs has been tested yet, so there is no accuracy to show."]
    # A ceiling takes no part: its clients have each other's data.
    contestants = [pair for pair in tested if not pair[1].is_ceiling] or tested
    best, arm = max(contestants, key=lambda pair: pair[1].accuracy.mean)
    subject = best.label if len(lines) == 1 else f"The most accurate arm is {best.label}: it"
    accuracy = (
        f"{subject} classifies {arm.accuracy.text()} % of the test samples correctly "
        f"({count(len(best.first.clients), 'client')}, {count(len(arm.seeds), 'seed')})."
    )
    shown = most_interesting(lines)
    return [accuracy, _what_letters_add(shown), _how_it_looks(shown)]


def further(lines: Sequence[Line]) -> list[str]:
    """The same of the other arms."""
    shown = most_interesting(lines)
    others = [(line, line.arm) for line in lines if line.arm is not None and line is not shown]
    gains = [gain_sentence(line.label, arm) for line, arm in others if arm.gain is not None]
    return [*gains, *(_recovery(line, arm.inside) for line, arm in others if arm.inside is not None)]


def _what_letters_add(line: Line) -> str:
    """The gain, or why none is known."""
    if line.arm is not None and line.arm.gain is not None:
        return gain_sentence(line.label, line.arm)
    if not has_letters(line.first.recipe):
        return "No letter was sent: every client learned alone."
    if not line.first.whole:
        return f"{line.label} is a part of a network, so it is compared with no run without letters."
    return (
        f"What letters add to {line.label} is not known here: its control, the same recipe without letters, "
        "is not among these runs."
    )


def _how_it_looks(line: Line) -> str:
    """Whether the clusters were found; where that is no question, how much was sent, or how much clients differ."""
    arm = line.arm
    if arm is None:
        return ""
    if arm.inside is not None:
        return (
            f"Its clients give {percent(arm.inside)} of their weight for others to their own cluster, which nobody "
            "told them about."
        )
    if arm.messages:
        return f"Each run sent {count(arm.messages, 'letter')}, {amount(round(arm.bytes))} in all."
    return f"The standard deviation over its clients is {100 * arm.spread:.1f} points."


MEASURES_EXPLAINED = (
    "Each is taken at the last test, as a mean over clients, ± a 95 % interval over seeds. The worst tenth are the "
    "clients with the lowest accuracy, a tenth of all, rounded up. Macro-F1 and balanced accuracy are means over the "
    "classes of a client's own test samples. The calibration error (ECE, 15 bins) says by how much a client's "
    "confidence differs from how often it is right; lower is better."
)


def gain_sentence(label: str, arm: Arm) -> str:
    """What the letters add, and how sure that is."""
    if arm.gain is None:
        return ""
    points = f"Letters change the accuracy of {label} by {arm.gain.text(sign='+')} percentage points"
    if arm.gain.interval is None:
        return f"{points}. One seed cannot tell how much of that is chance."
    if abs(arm.gain.mean) <= arm.gain.interval:
        return f"{points}. The interval includes 0, so these seeds do not show that letters help or hurt."
    few = f", but over {arm.pairs} seeds it is worth little" if arm.pairs <= FEW else ""
    return f"{points}. The interval lies {'above' if arm.gain.mean > 0 else 'below'} 0{few}."


def gain_cell(arm: Arm) -> str:
    """The collaboration gain, or why there is none."""
    if arm.gain is not None:
        return arm.gain.text(sign="+")
    if arm.is_part:
        return f"{DASH} (is a part)"
    if arm.is_ceiling:
        return f"{DASH} (is a ceiling)"
    return f"{DASH} (is a control)" if arm.is_control else f"{DASH} (no control given)"


def _recovery(line: Line, inside: float) -> str:
    return (
        f"Of the weight that clients of {line.label} give to others, {percent(inside)} stays inside the true clusters, "
        f"which no client is told about ({percent(_share_at_first(line))} when they first mixed)."
    )


def _share_at_first(line: Line) -> float | None:
    """The share of weight inside clusters in the first round that mixed, mean over seeds."""
    shares = []
    for run in line.runs:
        first = first_mixed(run)
        if first is not None and (share := share_inside(run.among(first), _clusters(run))) is not None:
            shares.append(share)
    return fmean(shares) if shares else None


def _clusters(record: Record) -> list[int]:
    return [card.cluster for card in record.clients]


# Captions


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
        f"Test accuracy by round. At the last test: {ends}. The standard deviation over clients {spread}. In "
        "the second panel each dot is one client of one seed, and each bar is a mean."
    )


def data_caption(record: Record) -> str:
    groups: dict[int, set[int]] = {}
    for card in record.clients:
        groups.setdefault(card.cluster, set()).update(card.classes)
    shared = sum(len(a & b) > 0 for i, a in groups.items() for j, b in groups.items() if i < j)
    if len(record.clients) == 1:
        verdict = "There is only one client"
    elif len(groups) == 1:
        verdict = "There is only one cluster: all clients draw from the same classes"
    elif shared == 0 and len(groups) == len(record.clients):
        verdict = "No two clients have a class in common, and every client is a cluster of its own"
    elif shared == 0:
        verdict = "No class occurs in two clusters, so only clients of one cluster can learn from each other's data"
    else:
        verdict = f"{count(shared, 'pair')} of clusters share classes, so clusters differ only by degree"
    return (
        f"The data of {record.folder.name}. First: a coloured cell means that the client trains on that class; colours "
        f"are the {count(len(groups), 'true cluster')}. Second: classes that both clients have, over classes that "
        f"either has. {verdict}. No method sees this picture."
    )


def graph_caption(line: Line, rounds: dict[int, str]) -> str:
    record = line.typical
    possible = len(record.clients) * (record.recipe.clients - 1)
    text = (
        f"{line.label}, seed {record.recipe.seed}. Grey: the true overlap of classes. Blue: the mixing matrix W; row i "
        "is how much client i listens to each of the others and to itself. Orange lines separate the true clusters. "
        f"After round {len(record.rounds)}, {edges(record.weights()):,} of {possible:,} edges are in use."
    )
    return f"{text} {_graph_verdict(record, min(rounds))}"


def _graph_verdict(record: Record, first: int) -> str:
    """How much closer the graph came to the clusters than the network alone brings it."""
    clusters = _clusters(record)
    if len(set(clusters)) < 2:
        return "With one cluster there is nothing to recover."
    if len(set(clusters)) == len(clusters):
        return "Every client is a cluster of its own, so there is nothing to recover."
    graphs = record.among(first), record.among()
    before, after = (share_inside(graph, clusters) for graph in graphs)
    if before is None or after is None:
        return "In the end nobody listens to anybody."
    if round(100 * before) == round(100 * after) == 100:
        return "From the first letters on, all weight stays inside the clusters, which nobody told the clients about."
    text = f"The share of weight inside the clusters went from {percent(before)} to {percent(after)}: "
    if after >= (1 + before) / 2 and after > before:
        text += f"clients {_kin_found(graphs[1], clusters, after)}, without seeing any of it."
    elif after > before + 0.02:
        text += "clients prefer those whose data are like their own, but still hear many others."
    else:
        text += "the graph says no more about the clusters than it did at first."
    return f"{text} {_rand_sentence(*graphs, clusters)}".strip()


def _kin_found(graph: Tensor, clusters: list[int], share: float) -> str:
    """Whom the clients found. All weight can be inside the clusters while some of their members are still missed."""
    if round(100 * share) < 100:
        return "found most of those whose data are like their own"
    label = torch.tensor(clusters)
    kin = (label[:, None] == label[None, :]).fill_diagonal_(False)
    if bool((graph[kin] > 0).all()):
        return "found all of those whose data are like their own"
    return "listen to some of those whose data are like their own and to hardly anybody else"


def _rand_sentence(first: Tensor, last: Tensor, clusters: list[int]) -> str:
    """How well a clustering of the graph agrees with the true clusters, if there is anything to cluster."""
    if len(clusters) > LARGEST_CLUSTERING or _is_uniform(last) or (rand := adjusted_rand(last, clusters)) is None:
        return ""
    if _is_uniform(first):
        index = f"{rand:.2f} at the end (1 is exact, 0 is chance); at first W was uniform, so there was none"
    else:
        index = f"{adjusted_rand(first, clusters):.2f} at first and {rand:.2f} at the end (1 is exact, 0 is chance)"
    return f"The adjusted Rand index of the true clusters and a spectral clustering of W is {index}."


def _is_uniform(graph: Tensor) -> bool:
    """Whether all hear each other alike: any clustering of such a graph is arbitrary."""
    others = graph[~torch.eye(len(graph), dtype=torch.bool)]
    return bool(others.max() - others.min() < 1e-6)


def embedding_caption(line: Line, embedding: Embedding) -> str:
    if embedding.aligned >= (1 + embedding.by_chance) / 2:
        verdict = "a class lies in the same place whichever client's model sees it"
    elif embedding.aligned > embedding.by_chance + 0.05:
        verdict = "the clients' spaces are partly alike"
    else:
        verdict = "each client has a space of its own"
    chance = f"the same class for {percent(embedding.aligned)} of the points (by chance {percent(embedding.by_chance)})"
    if 1 < len(set(embedding.clusters.tolist())) < len(line.typical.clients):
        chance += f" and the same cluster for {percent(embedding.kin)} (by chance {percent(embedding.kin_by_chance)})"
    return (
        f"{line.label}, seed {line.typical.recipe.seed}, after {count(embedding.rounds, 'round')}: embeddings z of "
        f"{len(embedding.points):,} test samples, each from its own client's model, laid out by t-SNE. Colours are "
        "classes in the first panel and clients in the second; shapes are clusters. The nearest point of another "
        "client has "
        f"{chance}: {verdict}. In a t-SNE, distances between far islands mean nothing."
    )


def loss_caption(lines: Sequence[Line]) -> str:
    line = max(lines, key=lambda one: len(loss_terms(one)))
    ends = []
    for term in loss_terms(line):
        mean = loss_curve(line, term).mean
        ends.append(f"{term_name(term)} from {mean[0]:.4g} to {mean[-1]:.4g}")
    more = " Arms without a term have no line in its panel." if len({tuple(loss_terms(x)) for x in lines}) > 1 else ""
    return (
        "The terms of the training loss, each on its own scale; a client minimises their sum. Mean over clients, "
        f"10–90 % of them shaded. In {line.label}: {listing(ends)}.{more}"
    )


def messages_caption(lines: Sequence[Line]) -> str:
    totals = []
    for line in lines:
        sent, full = (fmean(per_run) for per_run in _messages(line))
        if sent and full:
            totals.append(f"{line.label} {_against_mesh(sent, full)}")
    return (
        "What the network carried, counted by its ledger. Dashed: everybody writes to everybody in every round. "
        f"Messages of a whole run: {listing(totals)}."
    )


def refused_letters(lines: Sequence[Line]) -> str:
    left_out = sum(total(run.refused) for line in lines for run in line.runs)
    were = "was" if left_out == 1 else "were"
    return (
        f"{count(left_out, 'letter')} {were} left out because they failed a check. Their readers went on as if the "
        "letters had been lost. A letter that several clients refuse counts once for each."
    )


def _messages(line: Line) -> tuple[list[int], list[int]]:
    """Messages of each run, and those of the full mesh over as many rounds."""
    return [run.messages for run in line.runs], [mesh(line) * len(run.rounds) for run in line.runs]


def _against_mesh(sent: float, full: float) -> str:
    """The messages of a run beside those of the full mesh."""
    if f"{sent:,.0f}" == f"{full:,.0f}":
        return f"{sent:,.0f} (the full mesh)"
    share = f"{100 * (1 - sent / full):.0f} % saved" if sent < full else f"{sent / full:.3g} times as many"
    return f"{sent:,.0f} instead of {full:,.0f} ({share})"
