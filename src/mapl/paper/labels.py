"""What cells and runs are called in tables, sentences and pictures."""

from __future__ import annotations

from collections.abc import Iterator

from mapl.paper.protocol import OURS
from mapl.paper.store import StoredRun
from mapl.paper.tables import PROTOCOL, Cell, about
from mapl.recipe import Recipe

DATA = {"cifar10": "CIFAR10", "cinic10": "CINIC10", "svhn": "SVHN", "mnist": "MNIST", "fashionmnist": "FashionMNIST"}
TERMS = {"contrastive": "l_cont", "prototype": "l_proto", "uniformity": "l_uni"}
AXES = {
    "dataset": "data set",
    "l_graph": "graph learned",
    "cgl": "graph learned",
    "similarity": "S",
    "confidence": "γ",
    "l1": "norm",
    "fixed_budget": "budget of 65,000 messages",
    "cgl_steps": "steps of CGL",
}
"""What a reader would call an axis of a table; others are called by their own name."""


NAMED = ("models", "scenario", "dataset", "clients", "method")
"""Axes whose values a cell's name says in its own words."""


def axis_name(axis: str) -> str:
    return AXES.get(axis, axis)


def axis_value(cell: Cell, axis: str) -> str:
    """The value of a cell on an axis, in words."""
    if axis == "method":
        return cell.method
    value = cell.setting[axis]
    if axis == "l1":
        return "ℓ1" if value else "ℓ2"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def cell_name(cell: Cell) -> str:
    """A cell in words: MAPL on CIFAR10, scenario 1, and what else its table says about it."""
    axes = [axis for axis in about(cell.table).axes if axis not in NAMED]
    notes = [f"{axis_name(axis)}: {axis_value(cell, axis)}" for axis in axes]
    if cell.setting.get("clients") != 20:
        notes.insert(0, f"{cell.setting.get('clients')} clients")
    if cell.models == "homogeneous":
        notes.insert(0, "homogeneous")
    return ", ".join([f"{cell.method} on {cell.setting['dataset']}", f"scenario {cell.setting['scenario']}", *notes])


def run_name(run: StoredRun) -> str:
    """What was run, the same for all seeds."""
    recipe = run.parsed_recipe
    method = "MAPL+ on " if recipe.method.name == "mapl+" else ""
    data = DATA.get(recipe.data.name, recipe.data.name)
    return ", ".join([f"{method}{data}, scenario {recipe.partition.scenario}", *notes(run)])


def panel_title(run: StoredRun) -> str:
    """The same and the seed, over several lines."""
    recipe = run.parsed_recipe
    method = "MAPL+, " if recipe.method.name == "mapl+" else ""
    data = DATA.get(recipe.data.name, recipe.data.name)
    return "\n".join([f"{method}{data}", *notes(run), f"scenario {recipe.partition.scenario}, seed {run.seed}"])


def prominence(run: StoredRun) -> tuple[int, bool, str]:
    """Sorts the paper's main setting first: CIFAR-10 with nothing special about it."""
    return len(list(notes(run))), run.parsed_recipe.data.name != "cifar10", run_name(run)


def notes(run: StoredRun) -> Iterator[str]:
    """How a run differs from the paper's main setting: full MAPL, 20 clients, four backbones."""
    recipe = run.parsed_recipe
    if len(run.clusters) != 20:
        yield f"M = {len(run.clusters)}"
    if len(set(run.backbones)) == 1:
        yield "homogeneous"
    if run.form not in (None, OURS):
        yield f"form {run.form}"
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
