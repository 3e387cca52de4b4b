"""The paper's tables as data. Each line of `published.csv` is a cell: one number of one table.

`mapl show paper:res_hetero/scenario=1/CIFAR10/MAPL` prints the recipe of a cell. docs/tables.md says what was decided
where the paper leaves the training open.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from math import nan
from typing import TYPE_CHECKING, Any

from mapl.errors import unknown

if TYPE_CHECKING:  # recipes bring torch, and a list of the cells needs neither
    from mapl.recipe import Recipe
    from mapl.trees import Tree

PREFIX = "paper:"
"""How the command line names a cell of the paper."""

Value = bool | int | str


@dataclass(frozen=True)
class Table:
    """A table of the paper. `axes` are what its cells differ in, in the order of their names."""

    title: str
    axes: tuple[str, ...]


TABLES = {
    "res_hetero": Table("Heterogeneous models: four scenarios, five data sets", ("scenario", "dataset", "method")),
    "res_homo": Table("Homogeneous models: four scenarios, five data sets", ("scenario", "dataset", "method")),
    "ab1": Table("Ablation of the main components", ("scenario", "l_graph", "l_cont", "l_uni")),
    "ab2": Table("Ablation of graph learning", ("scenario", "similarity", "confidence", "l1")),
    "comm_budget": Table("Performance and communication budget", ("scenario", "cgl", "fixed_budget")),
    "var1": Table("Varying number of clients", ("scenario", "clients", "method")),
    "cgle": Table("Varying number of graph learning steps", ("scenario", "cgl_steps")),
}

FURTHER = "further"
"""A table that is not the paper's: the courier in the settings of its main tables. Nothing published is beside it."""

BEYOND = Table("Not in the paper: couriers in its settings", ("models", "scenario", "dataset", "method"))

PROTOCOL: Tree = {
    "rounds": 400,
    "partition": {
        "clusters": 2,
        "overlap": 4,
        "shots": 300,
        "shots_range": [100, 300],
        "test_shots": 15,
        "sharding": "paper",
        "stride": 200,
    },
    "model": {"assignment": "round-robin", "embedding": 512, "projection": 512, "hidden": 4096},
    "train": {
        "epochs": 1,
        "batch": 64,
        "optimizer": "adam",
        "learning_rate": 1e-4,
        "betas": [0.5, 0.999],
        "weight_decay": 0.0,
        "reset": True,
    },
    "network": {"topology": {"name": "full"}},
    "evaluate": {"moment": "trained"},
}
"""How every cell is trained and tested: as in the released program, which made the published numbers."""

BACKBONES = {
    "heterogeneous": ("resnet18", "shufflenet", "googlenet", "alexnet"),
    "homogeneous": ("resnet18",),
}

RELEASED_GRAPH: Tree = {"form": "released", "confidence": "share"}
"""Not our default, which recovers the clusters better than the graph of the published numbers (docs/graph.md)."""

MAPL: Tree = {"form": "released", "temperature": 100.0, "warmup": 100, "graph": RELEASED_GRAPH}

METHODS: dict[str, Tree] = {
    "Local": {"name": "local"},
    "FedSim": {"name": "fedsim"},
    "FedClassAvg": {"name": "fedclassavg", "mu": 0.1, "temperature": 100.0, "contrast": "port"},
    "FedProto": {"name": "fedproto", "strength": 0.1, "average": "clients", "inference": "head"},
    "FedAvg": {"name": "fedavg"},
    "FLT": {"name": "flt", "latent": 128, "threshold": 1.0},
    "pFedSim": {"name": "pfedsim", "warmup": 200},
    "DFedAvgM": {"name": "dfedavgm"},
    "MAPL": {"name": "mapl", **MAPL},
    "MAPL w/o CGL": {"name": "mapl", **MAPL},  # the cell's own "cgl" says that the graph is not learned
    "MAPL+": {"name": "mapl+", **MAPL},
    "Courier": {"name": "courier"},
    "Mutual": {"name": "mutual"},
    "Pooled": {"name": "courier"},
}
"""The methods as the tables call them. The last three are in the table of couriers alone: the courier, the best
training without letters that we know, and the courier's ceiling."""

ENCODER_DATA = {
    "cinic10": "svhn",  # not cifar10, whose images are among its own
    "svhn": "cifar10",
    "cifar10": "svhn",
    "mnist": "fashionmnist",
    "fashionmnist": "mnist",
}
"""The data set for the encoder of FLT's server: similar images, but not the clients' data set."""

STEPS_ALONE = {1: 5 * 300 // 64, 2: 7 * 300 // 64}
"""By scenario, the steps of a client in a round of its own 300 images per class. The ceiling makes as many, with the
images of the whole cluster. In scenarios 3 and 4 clients have different numbers of images, and there is no ceiling."""

KEYS = {
    "scenario": "partition.scenario",
    "clients": "clients",
    "l_graph": "method.learn_graph",
    "cgl": "method.learn_graph",
    "similarity": "method.graph.use_similarity",
    "confidence": "method.graph.use_confidence",
    "cgl_steps": "method.graph.steps",
}
"""Settings of a cell that are settings of the recipe."""

TERMS = {"l_cont": "contrastive", "l_proto": "prototype", "l_uni": "uniformity"}
"""Settings of a cell that are terms of MAPL's loss."""


@dataclass(frozen=True)
class Cell:
    """One number of one table."""

    table: str
    models: str
    """`heterogeneous` or `homogeneous`."""
    method: str
    """As the table calls it."""
    setting: Mapping[str, Value] = field(hash=False)
    """What its row and column say: scenario, clients, dataset, and what an ablation switches."""
    accuracy: float
    """The published mean over clients, as a fraction, like `Record.mean`."""
    std: float
    """The published standard deviation over clients, as a fraction."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of its name: the table, then the cell's value on each of the table's axes."""
        return (self.table, *(self._part(axis) for axis in about(self.table).axes))

    @property
    def name(self) -> str:
        """Unique, for example `res_hetero/scenario=1/CIFAR10/MAPL`."""
        return "/".join(self.parts)

    def tree(self, **overrides: Any) -> Tree:
        """What the cell sets in a recipe, and `overrides` on top.

        The run is named after the cell, its seed, and its topology if that is not the full mesh. So seeds and control
        arms have folders of their own.
        """
        from mapl.recipe import assignment
        from mapl.trees import merge

        tree = merge(PROTOCOL, {"model": {"backbones": list(BACKBONES[self.models])}, "method": METHODS[self.method]})
        for key, value in self._settings():
            tree = merge(tree, assignment(f"{key}={json.dumps(value)}"))
        topology = merge(tree, overrides)["network"]["topology"]["name"]
        arm = () if topology == "full" else (topology.replace(":", "."),)
        name = "-".join((*self.parts, *arm, f"seed{overrides.get('seed', 0)}"))
        return merge({"name": name, **tree}, overrides)

    def recipe(self, **overrides: Any) -> Recipe:
        """The recipe that should give this number, and `overrides` on top: `cell.recipe(seed=1)`."""
        from mapl.recipe import compose

        return compose((PREFIX + self.name, self.tree(**overrides)))[0]

    @property
    def is_published(self) -> bool:
        """Whether the paper has this number."""
        return self.table != FURTHER

    def text(self) -> str:
        """The published number as the paper prints it."""
        return f"{100 * self.accuracy:.2f} ± {100 * self.std:.2f} %"

    def _part(self, axis: str) -> str:
        if axis in ("method", "models"):
            return self.method if axis == "method" else self.models
        value = self.setting[axis]
        if isinstance(value, bool):
            return f"{axis}={'yes' if value else 'no'}"
        return value if isinstance(value, str) else f"{axis}={value}"

    def _settings(self) -> Iterator[tuple[str, Any]]:
        """Dotted keys of the recipe and their values, beyond the method's own."""
        setting, data = self.setting, str(self.setting["dataset"]).lower()
        yield "data.name", data
        if self.method == "FLT":
            yield "method.encoder_data", ENCODER_DATA[data]
        if self.method == "Pooled":
            yield from (("partition.pooled", True), ("network.topology.name", "none"))
            yield "train.steps", STEPS_ALONE[int(setting["scenario"])]
        for key, value in setting.items():
            if key in KEYS:
                yield KEYS[key], value
        if not setting.keys().isdisjoint(TERMS):
            yield "method.terms", [term for key, term in TERMS.items() if setting[key]]
        if "l1" in setting:
            yield "method.graph.norm", "l1" if setting["l1"] else "l2"
        if setting.get("fixed_budget"):
            yield "network.message_budget", setting["communications"]


def cells() -> list[Cell]:
    """All cells of all tables, in the paper's order."""
    return list(_published())


def about(name: str) -> Table:
    """The title and the axes of a table."""
    return BEYOND if name == FURTHER else TABLES[name]


def table(name: str) -> list[Cell]:
    """The cells of one table."""
    if name == FURTHER:
        return list(_further())
    if name not in TABLES:
        raise unknown("table of the paper", name, TABLES)
    return [cell for cell in _published() if cell.table == name]


def find_cell(name: str) -> Cell:
    """The cell of that name. The error for an unknown name lists the choices at its first wrong part."""
    given = tuple(name.split("/"))
    left = table(given[0])
    for depth in range(1, len(left[0].parts) + 1):
        matching = [cell for cell in left if cell.parts[: depth + 1] == given[: depth + 1]]
        if not matching:
            raise unknown("cell of the paper", name, {"/".join(cell.parts[: depth + 1]) for cell in left})
        left = matching
    return left[0]


def listing(name: str | None = None) -> dict[str, str]:
    """The cells of one table and the published numbers; without a name, all tables, each after its title."""
    if name is not None:
        return {cell.name: cell.text() for cell in table(name)}
    return {key: text for each, tab in TABLES.items() for key, text in ({each: tab.title} | listing(each)).items()}


def resolve(text: str, over: Tree | None = None) -> Tree | None:
    """The tree of the cell that `paper:NAME` names, and `over` on top; None for any other text."""
    if not text.startswith(PREFIX):
        return None
    return find_cell(text.removeprefix(PREFIX)).tree(**(over or {}))


@cache
def _published() -> tuple[Cell, ...]:
    text = files("mapl.paper").joinpath("published.csv").read_text(encoding="utf-8")
    return tuple(
        Cell(
            table=row["table"].removeprefix("tab:"),
            models=row["models"],
            method=row["method"],
            setting=_parsed(row["setting"]),
            accuracy=_fraction(row["accuracy_percent"]),
            std=_fraction(row["std"]),
        )
        for row in csv.DictReader(text.splitlines())
    )


@cache
def _further() -> tuple[Cell, ...]:
    """The courier, its best rival without letters and its ceiling, wherever the main tables have Local."""
    return tuple(
        replace(local, table=FURTHER, method=method, accuracy=nan, std=nan)
        for local in _published()
        if local.table in ("res_hetero", "res_homo") and local.method == "Local"
        for method in ("Courier", "Mutual", "Pooled")
        if method != "Pooled" or local.setting["scenario"] in STEPS_ALONE
    )


def _parsed(setting: str) -> dict[str, Value]:
    """`scenario=1;l_graph=yes;dataset=CIFAR10` as a dictionary of numbers, booleans and strings."""
    pairs = (item.split("=") for item in setting.split(";"))
    return {key: _value(value) for key, value in pairs}


def _value(text: str) -> Value:
    if text in ("yes", "no"):
        return text == "yes"
    return int(text) if text.isdecimal() else text


def _fraction(percent: str) -> float:
    return round(float(percent) / 100, 6)
