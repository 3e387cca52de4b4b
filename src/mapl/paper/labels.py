"""What a run is called in a table or beside a line: its setting, from its recipe, whatever it was run for."""

from __future__ import annotations

from collections.abc import Iterator

from mapl.paper import PROTOCOL
from mapl.paper.scale import OURS
from mapl.paper.store import Row
from mapl.recipe import Recipe

DATA = {"cifar10": "CIFAR10", "cinic10": "CINIC10", "svhn": "SVHN", "mnist": "MNIST", "fashionmnist": "FashionMNIST"}
TERMS = {"contrastive": "l_cont", "prototype": "l_proto", "uniformity": "l_uni"}


def setting(row: Row) -> str:
    """What was learned on and how, the same for all seeds."""
    recipe = row.made
    name = {"mapl+": "MAPL+ on "}.get(recipe.method.name, "")
    data = DATA.get(recipe.data.name, recipe.data.name)
    return ", ".join([f"{name}{data}, scenario {recipe.partition.scenario}", *notes(row)])


def short(row: Row) -> str:
    """A title that fits a small panel."""
    recipe = row.made
    plus = {"mapl+": "MAPL+, "}.get(recipe.method.name, "")
    data = DATA.get(recipe.data.name, recipe.data.name)
    return "\n".join([f"{plus}{data}", *notes(row), f"scenario {recipe.partition.scenario}, seed {row.seed}"])


def prominence(row: Row) -> tuple[int, bool, str]:
    """The paper's main setting first: nothing special about it, CIFAR-10."""
    return len(list(notes(row))), row.made.data.name != "cifar10", setting(row)


def notes(row: Row) -> Iterator[str]:
    """In what it differs from the paper's main setting: full MAPL, 20 clients, four backbones."""
    recipe = row.made
    if len(row.clusters) != 20:
        yield f"M = {len(row.clusters)}"
    if len(set(row.backbones)) == 1:
        yield "homogeneous"
    if row.form not in (None, OURS):
        yield f"form {row.form}"
    if recipe.partition.scenario in (2, 4) and recipe.partition.overlap != PROTOCOL["partition"]["overlap"]:
        yield f"overlap {recipe.partition.overlap}"
    yield from _method_notes(recipe)
    if recipe.network.message_budget is not None:
        yield f"budget {recipe.network.message_budget:,}"


def _method_notes(recipe: Recipe) -> Iterator[str]:
    terms, graph = getattr(recipe.method, "terms", None), getattr(recipe.method, "graph", None)
    if terms is not None and (missing := [name for term, name in TERMS.items() if term not in terms]):
        yield f"no {', '.join(missing)}"
    if graph is not None:
        if not graph.use_similarity:
            yield "no S"
        if not graph.use_confidence:
            yield "no γ"
        if graph.norm != "l2":
            yield "ℓ1"
        if graph.steps != 1:
            yield f"{graph.steps} steps of CGL"
