"""Whom clients listen to, by the form of graph learning: how many edges, how many change, whether clusters are found.

Clients in two clusters on handwritten digits; everything but the graph's settings is the same. And one row alone, its
similarities held fixed, to see what a form makes of them. docs/graph.md explains what is found.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from statistics import fmean

import torch
from common import Options, Report, Row, say
from torch import Tensor

from mapl import Client, Recipe
from mapl.analysis.clusters import adjusted_rand, share_inside
from mapl.collaboration import GraphSettings, learn_rows
from mapl.engine.workers import cores
from mapl.methods.mapl import Mapl
from mapl.runs.graph import Row as Weights
from mapl.runs.graph import fill
from mapl.runs.part import Part, build_part
from mapl.runs.round import play_round

GRAPHS = {
    "released": {"form": "released", "confidence": "share"},
    "paper": {"form": "paper", "confidence": "share"},
    "balanced": {"form": "paper", "confidence": "relative"},
}
FORMS = {
    "released": ("mapl", GRAPHS["released"]),
    "released, every head read": ("edges:EveryHead", GRAPHS["released"]),
    "paper": ("mapl", GRAPHS["paper"]),
    "balanced (the default)": ("mapl", GRAPHS["balanced"]),
    "balanced, every head read": ("edges:EveryHead", GRAPHS["balanced"]),
}
"""By name: the method and its graph. The losses are the released program's throughout."""
SCENARIOS = {1: "no class in both clusters", 2: "four of seven classes in both clusters"}
LATE = 20
"""Rounds at the end in which changed edges are counted: those after the warm-up always change some."""

PEERS, ROW_ROUNDS = 20, 400
LEAST = (0.6, 0.5, 0.4, 0.3)
"""Of a row alone: the least similarity inside its cluster; the largest is 0.6."""
COLUMNS = (
    "An edge is a weight above 0 that a client gives to another; of those at the end, how many are inside the true "
    f"clusters, and how many have a weight below 0.001. Changed: edges that came or went, a round, in the last {LATE} "
    "rounds. Weight inside: share of the weight given to others that stays in the true cluster. ARI: how well a "
    "clustering of the graph agrees with the true one. A row alone: one client of "
    f"{PEERS}, similarities held fixed for {ROW_ROUNDS} rounds, those of its own cluster spread evenly, those of the "
    "others from 0.18 to 0.06, and every head read; changes in the last 100 rounds."
)


class EveryHead(Mapl):
    """MAPL that goes on reading those to whom it gives no weight, as the released program does."""

    name = "every-head"

    def wants(self, client: Client, round: int) -> Tensor:
        return client.neighbours


def measure(options: Options) -> Report:
    seeds = 1 if options.quick else 3
    sizes = options.clients or ((4,) if options.quick else (10, 20))
    cases = [(m, s, form, seed) for m in sizes for s in SCENARIOS for form in FORMS for seed in range(seeds)]
    found = _play_all([recipe(*case, options) for case in cases])
    tables: dict[str, list[Row]] = {}
    for m in sizes:
        for s, words in SCENARIOS.items():
            rows = {f: [r for c, r in zip(cases, found, strict=True) if c[:3] == (m, s, f)] for f in FORMS}
            tables[f"{m} clients, scenario {s}: {words}"] = [_mean(form, runs) for form, runs in rows.items()]
    rounds, warmup = _length(options)
    names = ("clients", "scenario", "graph", "seed")
    return Report(
        title="The edges of the learned graph",
        words=f"Handwritten digits, {rounds} rounds, the graph is learned from round {warmup + 1} on; means over "
        f"{seeds} seed{'s' if seeds > 1 else ''}. {COLUMNS}",
        tables=tables | {"A row alone": [_row_alone(form, least) for form in GRAPHS for least in LEAST]},
        facts={"runs": [dict(zip(names, case, strict=True)) | row for case, row in zip(cases, found, strict=True)]},
    )


def recipe(clients: int, scenario: int, form: str, seed: int, options: Options) -> Recipe:
    method, graph = FORMS[form]
    rounds, warmup = _length(options)
    return Recipe.of(
        seed=seed,
        clients=clients,
        rounds=rounds,
        method={"name": method, "warmup": warmup, "graph": graph},
        data="digits",
        partition={"scenario": scenario},
        evaluate={"every": rounds},
        engine={"device": options.device.type, "workers": 1},
    )


def _length(options: Options) -> tuple[int, int]:
    """Rounds, and how many of them are the warm-up."""
    return (3, 1) if options.quick else (60, 20)


def _play_all(recipes: Sequence[Recipe]) -> list[Row]:
    """All runs, a process for each core."""
    found = []
    with ProcessPoolExecutor(min(cores(), len(recipes)), multiprocessing.get_context("spawn")) as pool:
        for row in pool.map(play, recipes):
            found.append(row)
            say(f"{len(found)} of {len(recipes)} runs")
    return found


def play(recipe: Recipe) -> Row:
    """One run, in memory alone."""
    torch.set_num_threads(recipe.train.threads)
    part = build_part(recipe)
    used = []
    for t in range(recipe.rounds):
        line, _ = play_round(part, t)
        used.append(_weights(part).fill_diagonal_(0) > 0)
    weights, clusters = _weights(part), [client.cluster for client in part.clients]
    own = torch.tensor(clusters)
    return {
        "messages": part.ledger.messages,
        "edges at the end": int(used[-1].sum()),
        "inside": int(used[-1][own[:, None] == own].sum()),
        "below 0.001": int(used[-1][weights < 0.001].sum()),
        "changed a round": _changed(used[-LATE - 1 :]),
        "weight inside": share_inside(weights, clusters),
        "ARI": adjusted_rand(weights, clusters),
        "self-weight": float(weights.diagonal().mean()),
        "accuracy, %": 100 * fmean(line.accuracy or []),
    }


def _weights(part: Part) -> Tensor:
    """W (M, M)."""
    matrix = torch.zeros(len(part.clients), len(part.clients), dtype=torch.float64)
    fill(matrix, {client.id: Weights(client.peers.ids, client.peers.weights) for client in part.clients})
    return matrix


def _changed(used: Sequence[Tensor]) -> float:
    return fmean(int((a != b).sum()) for a, b in pairwise(used))


def _mean(form: str, runs: Sequence[Row]) -> Row:
    return {"graph": form} | {key: fmean(run[key] for run in runs) for key in runs[0]}


def _row_alone(form: str, least: float) -> Row:
    """What becomes of a uniform row whose similarities are these for ever."""
    settings = GraphSettings.model_validate(GRAPHS[form])
    half = PEERS // 2
    inside, outside = torch.linspace(0.6, least, half - 1), torch.linspace(0.18, 0.06, half)
    s = torch.cat([torch.ones(1), inside, outside]).double()
    gamma = torch.full_like(s, 1 if settings.confidence == "relative" else 1 / PEERS)
    everybody = torch.ones(PEERS, dtype=torch.bool)
    row, used = torch.full_like(s, 1 / PEERS), []
    for _ in range(ROW_ROUNDS):
        row = learn_rows(row, torch.tensor(0), s, gamma, everybody, settings)
        used.append(row[1:] > 0)
    return {
        "graph": form,
        "similarity inside": f"0.6 to {least}" if least < 0.6 else "0.6",
        "edges inside": int(used[-1][: half - 1].sum()),
        "edges outside": int(used[-1][half - 1 :].sum()),
        "changed a round": _changed(used[-101:]),
        "weight outside": float(row[half:].sum()),
        "self-weight": float(row[0]),
    }
