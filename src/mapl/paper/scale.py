"""How cells are run: by the paper's protocol, or by one that was shrunk, which then says so wherever it is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mapl.errors import MaplError, unknown
from mapl.paper import PROTOCOL, Cell
from mapl.recipe import Recipe, Tree, assignment, compose, merge

ROUNDS = int(PROTOCOL["rounds"])
CLIENTS = 20
"""Clients of most cells; a scale says how many take their place, and other numbers shrink in proportion."""

WATCHED: Tree = {"evaluate": {"all_images": True, "every": 10}, "checkpoint": {"every": 50}}
"""What every run of a table has beyond its cell's recipe. None of it changes what is trained."""

QUIET = ("engine.", "checkpoint.", "evaluate.every", "evaluate.all_images", "data.folder", "name")
"""Settings that leave a run what it is."""

# Tests with all images of a class are most of a small run, and convolutions most of a test.
TINY = {"resnet18": "mlp", "shufflenet": "cnn", "googlenet": "mlp", "alexnet": "mlp"}
LITTLE = {"resnet18": "cnn", "shufflenet": "separable", "googlenet": "residual", "alexnet": "mlp"}


@dataclass(frozen=True)
class Scale:
    """A named shrinking of the protocol; warm-ups and budgets shrink with it."""

    title: str
    rounds: int
    clients: int
    """In place of the paper's 20."""
    data: str | None
    """The one data set that everything is run on; None: each cell's own."""
    backbones: Mapping[str, str] = field(hash=False)
    """What takes the place of the paper's."""
    over: Tree = field(hash=False)

    def shrunk(self, tree: Tree) -> Tree:
        """The tree of a cell at this scale."""
        before = int(tree.get("clients", CLIENTS))
        clients = max(2 * tree["partition"]["clusters"], before * self.clients // CLIENTS)
        share = self.rounds / ROUNDS
        rounds = max(1, round(tree["rounds"] * share))
        small = merge(tree, {"rounds": rounds, "clients": clients, "method": self._method(tree["method"], share)})
        small["model"] = {**tree["model"], "backbones": [self.backbones[name] for name in tree["model"]["backbones"]]}
        if self.data:
            small = merge(small, {"data": {"name": self.data}})
        if budget := tree["network"].get("message_budget"):
            pairs = clients * (clients - 1) / (before * (before - 1))
            small = merge(small, {"network": {"message_budget": max(1, round(budget * share * pairs))}})
        return merge(small, self.over)

    def _method(self, method: Tree, share: float) -> Tree:
        changed: Tree = {}
        if "warmup" in method:
            changed["warmup"] = max(1, round(method["warmup"] * share))
        if method["name"] == "flt":  # its encoder wants another data set, which may not be at hand
            changed |= {"encoder_data": "synthetic", "encoder_epochs": 1, "latent": 16}
        return changed


SCALES = {
    "smoke": Scale(
        "FashionMNIST alone, 4 clients, 4 rounds, few images, tiny backbones: that everything works, in minutes",
        rounds=4,
        clients=4,
        data="fashionmnist",
        backbones=TINY,
        over={
            "partition": {"shots": 10, "shots_range": [5, 10]},
            "model": {"embedding": 32, "projection": 32, "hidden": 64},
            "train": {"batch": 10, "learning_rate": 1e-3},
            "evaluate": {"every": 4},
        },
    ),
    "small": Scale(
        "10 clients, 40 rounds, 40 images a class, small backbones: an evening on a laptop",
        rounds=40,
        clients=10,
        data=None,
        backbones=LITTLE,
        over={
            "partition": {"shots": 40, "shots_range": [15, 40]},
            "model": {"embedding": 64, "projection": 64, "hidden": 128},
            "train": {"batch": 20, "learning_rate": 1e-3},
            "evaluate": {"every": 20},
        },
    ),
}


FORMS: dict[str, Tree] = {
    "balanced": {"form": "released", "graph": {"form": "paper", "confidence": "relative"}},
    "released": {"form": "released", "graph": {"form": "released", "confidence": "share"}},
    "paper": {"form": "paper", "graph": {"form": "paper", "confidence": "share"}},
}
"""What MAPL computes. The released program's losses with the printed graph objective, confidence relative to its mean;
the released program's losses and graph; the printed losses and graph. docs/graph.md says why the first one is ours."""


OURS = "balanced"


def form_of(recipe: Recipe) -> str | None:
    """Which of the forms a run of MAPL has; None for other methods."""
    method = recipe.method.model_dump(mode="json")
    if "graph" not in method:
        return None
    learns = method["learn_graph"]
    for name, tree in FORMS.items():
        graph = {key: method["graph"][key] for key in tree["graph"]}
        if method["form"] == tree["form"] and (graph == tree["graph"] or not learns):
            return name
    return "other"


@dataclass(frozen=True)
class Protocol:
    """How cells are run. Without anything set, as the paper's tables were, MAPL in the form that is ours."""

    scale: str = ""
    rounds: int | None = None
    settings: tuple[str, ...] = ()
    """KEY=VALUE, over everything else."""
    form: str = OURS
    """MAPL's form, one of `FORMS`, in place of the cell's."""

    def __post_init__(self) -> None:
        if self.scale and self.scale not in SCALES:
            raise unknown("scale", self.scale, SCALES)
        if self.form not in FORMS:
            raise unknown("form", self.form, FORMS)
        for text in self.settings:
            if text.partition("=")[0].strip() in ("seed", "rounds"):
                raise MaplError(f"--set {text!r}: say it as --{'seeds' if text.startswith('seed') else 'rounds'} N")

    @property
    def label(self) -> str:
        """What differs from the paper's protocol, in a line; empty where nothing does. `of_label` reads it again."""
        rounds = SCALES[self.scale].rounds if self.scale else ROUNDS
        parts = [self.scale] if self.scale else []
        if self.rounds is not None and self.rounds != rounds:
            parts.append(f"rounds={self.rounds}")
        return " + ".join([*parts, *(text for text in self.settings if not text.strip().startswith(QUIET))])

    @staticmethod
    def of_label(label: str, form: str = OURS) -> Protocol:
        scale, rounds, settings = "", None, []
        for part in label.split(" + ") if label else []:
            if part.startswith("rounds="):
                rounds = int(part.removeprefix("rounds="))
            elif "=" in part:
                settings.append(part)
            else:
                scale = part
        return Protocol(scale, rounds, tuple(settings), form)

    def covers(self, cell: Cell) -> bool:
        """Whether the cell is run at this scale: one with a single data set leaves the columns of others out."""
        only = SCALES[self.scale].data if self.scale else None
        named = [str(c).lower() for c in cell.parts]
        return only is None or only in named or str(cell.setting["dataset"]).lower() not in named

    def of_cell(self, cell: Cell, seed: int) -> Recipe:
        """The recipe of a cell."""
        return self.of_tree(cell.tree(seed=seed), f"paper:{cell.name}")

    def of_tree(self, tree: Tree, origin: str) -> Recipe:
        """The recipe of the tree of a cell or a figure."""
        made = merge(tree, WATCHED)
        if self.scale:
            made = SCALES[self.scale].shrunk(made)
        if self.rounds is not None:
            made = merge(made, {"rounds": self.rounds})
        if made["method"]["name"].startswith("mapl"):
            # A graph that is not learned has no form.
            learns = made["method"].get("learn_graph", True)
            made = merge(made, {"method": FORMS[self.form] if learns else {"form": FORMS[self.form]["form"]}})
        return compose((origin, _laid_over(made, self.settings)))[0]


def _laid_over(tree: Tree, settings: Sequence[str]) -> Tree:
    made: dict[str, Any] = tree
    for text in settings:
        made = merge(made, assignment(text))
    return made
