"""Which runs each figure of the paper needs, and what has to be kept of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from mapl.paper.extras import Extra
from mapl.paper.protocol import FORMS
from mapl.paper.store import Store, StoredRun
from mapl.paper.tables import cells, find_cell
from mapl.recipe import Recipe, compose
from mapl.trees import Tree, merge

GRAPH_ROUNDS = (0, 49, 99, 100, 109, 199)
"""Rounds, counted from 0, whose W is kept beside the last: the first, the paper's T = 50, the last of the warm-up, one
and ten rounds after it, and the paper's T = 200."""
EARLY = 50
"""Rounds of the run that shows early embeddings: the paper's T = 50."""


@dataclass(frozen=True)
class FigureWork:
    """One run that a figure needs."""

    figure: str
    name: str
    """Its name within the figure."""
    tree: Tree
    """All that it sets in a recipe."""
    weights_at: tuple[int, ...] = ()
    """Rounds, counted from 0, whose W is kept. That of the last always is."""
    extra: tuple[Extra, ...] = ()

    @property
    def recipe(self) -> Recipe:
        return compose((f"figure {self.figure}", self.tree))[0]

    def run_in(self, store: Store) -> StoredRun | None:
        """Its run, whatever table or figure it was run for; of several forms the first of `FORMS`."""
        recipe = self.recipe
        same = identity(recipe)
        alike = (r for r in store.runs.values() if r.seed == recipe.seed and len(r.clusters) == recipe.clients)
        matching = [run for run in alike if identity(run.parsed_recipe) == same]
        return min(matching, key=lambda run: (_rank(run.form), run.date), default=None)


def _rank(form: str | None) -> int:
    return list(FORMS).index(form) if form in FORMS else len(FORMS)


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, or its table of communication complexity."""

    title: str
    make: Callable[[int], list[FigureWork]]

    def works(self, seed: int = 0) -> list[FigureWork]:
        """The runs that it needs; none if it is made without training."""
        return self.make(seed)


def _class_sim(seed: int) -> list[FigureWork]:
    """Ten clients in two clusters with disjoint classes, with and without l_proto."""
    cell = find_cell("var1/scenario=1/clients=10/MAPL")
    without: Tree = {"method": {"terms": ["contrastive", "uniformity"]}}
    return [
        FigureWork(
            "class_sim",
            name,
            _named(cell.tree(seed=seed), over, "class_sim", name, seed),
            extra=("heads", "distribution"),
        )
        for name, over in (("without l_proto", without), ("with l_proto", {}))
    ]


def _col_graph(seed: int) -> list[FigureWork]:
    """Ten clients; disjoint classes, or classes 4 and 5 in both clusters; after 400 rounds and after 50."""
    works = []
    for scenario in (1, 2):
        cell = find_cell(f"var1/scenario={scenario}/clients=10/MAPL")
        over: Tree = {"partition": {"overlap": 2}} if scenario == 2 else {}
        for rounds in (EARLY, 400):
            name = f"scenario={scenario}" if rounds == 400 else f"scenario={scenario}/rounds={rounds}"
            tree = _named(cell.tree(seed=seed), merge(over, {"rounds": rounds}), "col_graph", name, seed)
            wanted = tuple(t for t in GRAPH_ROUNDS if t < rounds)
            works.append(FigureWork("col_graph", name, tree, wanted, ("distribution", "embedding")))
    return works


def _conv(seed: int) -> list[FigureWork]:
    """The cells of res_hetero themselves: the figure shows their curves."""
    wanted = [c for c in cells() if c.table == "res_hetero" and c.setting["dataset"] == "CIFAR10"]
    return [
        FigureWork("conv", cell.name, cell.tree(seed=seed), GRAPH_ROUNDS if cell.method == "MAPL" else ())
        for cell in wanted
        if cell.setting["scenario"] in (1, 2)
    ]


def _named(tree: Tree, over: Tree, figure: str, name: str, seed: int) -> Tree:
    """A cell's tree with something over it, under a name of its own."""
    plain = name.replace("/", "-").replace(" ", "-")
    return merge(merge(tree, over), {"name": f"{figure}-{plain}-seed{seed}"})


FIGURES = {
    "class_sim": Figure("Data distribution, and similarity of heads without and with l_proto", _class_sim),
    "col_graph": Figure("Data distribution, learned collaboration graph and latent embedding, M = 10", _col_graph),
    "conv": Figure("Convergence of test accuracies, scenarios 1 and 2, CIFAR-10, M = 20", _conv),
    "complexity": Figure("Communication complexity: the paper's formulas and the ledger", lambda seed: []),
}


@dataclass(frozen=True)
class Needs:
    """What all figures together need of one run."""

    weights_at: tuple[int, ...]
    extra: tuple[Extra, ...]


def needs(recipe: Recipe) -> Needs:
    """What has to be kept of this run so that no figure has to run it again.

    Tables and figures share runs, and the store keeps each run once.
    """
    needed = _needs(recipe.seed).get(identity(recipe), Needs((), ()))
    learns = getattr(recipe.method, "learn_graph", False) and recipe.network.topology.name != "none"
    rounds = set(needed.weights_at) | ({t for t in GRAPH_ROUNDS if t < recipe.rounds} if learns else set())
    return Needs(tuple(sorted(rounds)), needed.extra)


def identity(recipe: Recipe) -> str:
    """Equal for runs that make the same picture: the same run of the same length, apart from MAPL's form and from when
    it is tested.
    """
    tree = {**recipe.settings(), "rounds": recipe.rounds}
    del tree["evaluate"]
    tree["method"].pop("form", None)
    for key in ("form", "confidence"):
        tree["method"].get("graph", {}).pop(key, None)
    return json.dumps(tree, sort_keys=True)


@cache
def _needs(seed: int) -> dict[str, Needs]:
    by_identity: dict[str, list[FigureWork]] = {}
    for figure in FIGURES.values():
        for work in figure.works(seed):
            by_identity.setdefault(identity(work.recipe), []).append(work)
    return {key: _union(works) for key, works in by_identity.items()}


def _union(works: Sequence[FigureWork]) -> Needs:
    rounds = sorted({t for work in works for t in work.weights_at})
    extra = dict.fromkeys(one for work in works for one in work.extra)
    return Needs(tuple(rounds), tuple(extra))
