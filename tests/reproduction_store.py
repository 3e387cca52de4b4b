"""A results store that nobody ran: rows with made-up numbers for real recipes, for tests of what is made from it."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import torch

from mapl.analysis.control import control_of
from mapl.paper import find_cell
from mapl.paper.figures import FIGURES, needs
from mapl.paper.protocol import Protocol, form_of
from mapl.paper.store import Store, StoredRun, key_of, sparse
from mapl.recipe import Recipe

SIZE = 20


def made_row(recipe: Recipe, table: str, cell: str, mean: float, **over: Any) -> StoredRun:
    """A row of a run with this accuracy in the mean over clients; every second client is 5 points above it."""
    size = recipe.clients
    clusters = [i * 2 // size for i in range(size)]
    rounds = min(recipe.rounds, over.pop("played", recipe.rounds))
    learns = getattr(recipe.method, "learn_graph", False) and recipe.network.topology.name != "none"
    tests = list(range(9, rounds, 10))
    inside = [_inside(t) if learns else -1.0 for t in tests]
    edges = [_edges(size, t) if learns else 0 for t in tests]
    messages = [float(sum(_edges(size, s) for s in range(t + 1))) if learns else 0.0 for t in tests]
    noise = random.Random(f"{cell}{recipe.seed}")
    values: dict[str, Any] = {
        "key": key_of(recipe),
        "table": table,
        "cell": cell,
        "control": False,
        "scale": "",
        "seed": recipe.seed,
        "rounds": rounds,
        "form": form_of(recipe),
        "recipe": recipe.model_dump(mode="json"),
        "accuracy": [mean + (0.05 if i % 2 else -0.05) for i in range(size)],
        "all_images": [mean - 0.01] * size,
        "clusters": clusters,
        "classes": _classes(recipe, clusters),
        "samples": [1500] * size,
        "backbones": [recipe.model.backbones[i % len(recipe.model.backbones)] for i in range(size)],
        "messages": int(messages[-1]) if messages else 0,
        "bytes": 1000,
        "curve": {
            "round": [float(t) for t in tests],
            "accuracy": [mean * (1 - math.exp(-(t + 20) / 60)) + noise.gauss(0, 0.004) for t in tests],
            "all_images": [mean - 0.01 for _ in tests],
            "messages": messages,
            "bytes": [4.0 * m for m in messages],
            "edges": [float(e) for e in edges],
            "inside": inside,
        },
        "weights": {},
        "seconds": 1800.0,
        "setup_seconds": 0.0,
        "device": "NVIDIA <H200>",
        "precision": "bf16",
        "versions": {"torch": "2.6"},
        "date": "2026-11-15T12:00:00+00:00",
    }
    if learns:
        kept = {t for t in (*needs(recipe).weights_at, rounds - 1) if t < rounds}
        values["weights"] = {str(t): sparse(_matrix(clusters, _inside(t))) for t in sorted(kept)}
    return StoredRun(**values | over)


def _classes(recipe: Recipe, clusters: list[int]) -> list[list[int]]:
    overlap = 0 if recipe.partition.scenario in (1, 3) else recipe.partition.overlap
    width = (10 + overlap) // 2
    return [list(range(width)) if c == 0 else list(range(10 - width, 10)) for c in clusters]


def _inside(t: int) -> float:
    """The share of weight inside clusters: that of a uniform graph, then rising after the warm-up."""
    return 9 / 19 if t < 100 else min(1.0, 9 / 19 + (t - 99) / 150)


def _edges(size: int, t: int) -> int:
    mesh = size * (size - 1)
    return mesh if t < 110 else max(size * (size // 2 - 1), mesh - (t - 110) * size // 8)


def _matrix(clusters: list[int], inside: float) -> torch.Tensor:
    label = torch.tensor(clusters)
    same = label[:, None] == label[None, :]
    others = ~torch.eye(len(clusters), dtype=torch.bool)
    within, between = (same & others).sum(1, keepdim=True), (~same).sum(1, keepdim=True)
    weights = torch.where(same, inside / within, (1 - inside) / between) * 0.9
    return weights.masked_fill(~others, 0.1).double()


def add_cell(store: Store, name: str, means: list[float], control: float | None = None, scale: str = "") -> None:
    """The runs of a cell, a seed each, with their controls where one is given."""
    cell, protocol = find_cell(name), Protocol.of_label(scale)
    for seed, mean in enumerate(means):
        recipe = protocol.of_cell(cell, seed)
        if key_of(recipe) not in store:
            store.add(made_row(recipe, cell.table, name, mean, scale=scale))
        twin = control_of(recipe)
        if control is not None and key_of(twin) not in store:
            row = made_row(twin, cell.table, name, control + 0.004 * seed, control=True, scale=scale)
            store.add(row)


def add_figures(store: Store, seed: int = 0) -> None:
    """The runs of class_sim and col_graph, with what they hand over for the figures."""
    for figure in ("class_sim", "col_graph"):
        for work in FIGURES[figure].works(seed):
            recipe = Protocol().of_tree(work.tree, figure)
            wanted = needs(recipe).extra
            if key_of(recipe) in store:
                continue
            extra = _extra(recipe, wanted, aligned="without" not in work.name, early=recipe.rounds < 400)
            store.add(made_row(recipe, figure, work.name, 0.75, extra=extra))


def _extra(recipe: Recipe, wanted: tuple[str, ...], aligned: bool, early: bool) -> dict[str, Any]:
    clusters = [i * 2 // recipe.clients for i in range(recipe.clients)]
    draw = torch.Generator().manual_seed(len(wanted))
    label = torch.tensor(clusters)
    similarity = 0.1 * torch.rand(len(clusters), len(clusters), generator=draw) - 0.02
    if aligned:
        similarity += 0.3 * (label[:, None] == label[None, :])
    similarity = ((similarity + similarity.T) / 2).fill_diagonal_(1)
    classes = _classes(recipe, clusters)
    made: dict[str, Any] = {
        "heads": {"form": "released", "own": similarity.tolist(), "by_class": similarity.tolist()},
        "distribution": [[300 if k in own else 0 for k in range(10)] for own in classes],
        "embedding": _embedding(classes, clusters, early, draw),
    }
    return {name: made[name] for name in wanted}


def _embedding(classes: list[list[int]], clusters: list[int], early: bool, draw: torch.Generator) -> dict[str, Any]:
    centres = 30 * torch.randn(2, 10, 2, generator=draw)
    images = [(i, own[n % len(own)]) for i, own in enumerate(classes) for n in range(80)]
    held = [(i, k) for i, own in enumerate(classes) for k in own]
    spread = 25 if early else 3

    def points(of: list[tuple[int, int]], width: float) -> list[list[float]]:
        noise = width * torch.randn(len(of), 2, generator=draw)
        return (torch.stack([centres[clusters[i], k] for i, k in of]) + noise).tolist()

    return {
        "z": points(images, spread),
        "p": points(images, spread) + points(held, 1),
        "labels": [k for _, k in images + held],
        "clients": [i for i, _ in images + held],
        "prototypes": len(held),
        "aligned": 0.3 if early else 0.9,
        "p_aligned": 0.95,
        "by_chance": 0.1,
        "kin": 0.6 if early else 1.0,
        "kin_by_chance": 0.5,
    }


def made_store(folder: Path) -> Store:
    """Several cells, seeds, controls, gaps, another scale, one seed; enough for every part of the page."""
    store = Store(folder)
    for scenario, down in ((1, 0.0), (2, 0.11)):
        for method, mean in (("MAPL", 0.765), ("FedClassAvg", 0.74), ("FedProto", 0.715), ("FedSim", 0.70)):
            means = [mean - down + d for d in (0.0, 0.008, 0.016)]
            add_cell(store, f"res_hetero/scenario={scenario}/CIFAR10/{method}", means, control=0.70 - down)
        add_cell(store, f"res_hetero/scenario={scenario}/CIFAR10/Local", [0.70 - down + d for d in (0.0, 0.01, 0.005)])
    add_cell(store, "res_hetero/scenario=1/SVHN/MAPL", [0.80], control=0.76)
    add_cell(store, "res_hetero/scenario=1/SVHN/FedProto", [0.82], control=0.76)
    add_cell(store, "ab1/scenario=1/l_graph=no/l_cont=yes/l_uni=no", [0.75, 0.76])
    add_cell(store, "res_hetero/scenario=1/MNIST/MAPL", [0.5], control=0.4, scale="rounds=40")
    add_figures(store)
    return store
