"""How cells are run: by the paper's protocol, or by a smaller one, which says so wherever it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mapl.errors import MaplError, unknown
from mapl.paper.tables import PROTOCOL, Cell
from mapl.recipe import Recipe, assignment, compose
from mapl.trees import Tree, merge

ROUNDS = int(PROTOCOL["rounds"])
CLIENTS = 20
"""Clients of most cells. A scale replaces this number, and shrinks others in proportion."""

WATCHED: Tree = {"evaluate": {"all_images": True, "every": 10}, "checkpoint": {"every": 50}}
"""What every run has beyond its cell's recipe. None of it changes the training."""

QUIET = ("engine.", "checkpoint.", "evaluate.every", "evaluate.all_images", "data.folder", "name")
"""Settings that do not change the training."""

# Testing on all images of a class dominates a small run, and convolutions dominate the test.
TINY = {"resnet18": "mlp", "shufflenet": "cnn", "googlenet": "mlp", "alexnet": "mlp"}
LITTLE = {"resnet18": "cnn", "shufflenet": "separable", "googlenet": "residual", "alexnet": "mlp"}


@dataclass(frozen=True)
class Scale:
    """Another protocol, mostly a smaller one. Warm-ups and budgets shrink in proportion."""

    title: str
    rounds: int
    clients: int
    """In place of the paper's 20."""
    data: str | None
    """The one data set for all cells; None: each cell's own."""
    backbones: Mapping[str, str] = field(hash=False)
    """What replaces each of the paper's backbones; one that is not named stays."""
    over: Tree = field(hash=False)
    encoder: Tree = field(default_factory=dict, hash=False)
    """What replaces settings of FLT's encoder."""

    def shrunk(self, tree: Tree) -> Tree:
        """The tree of a cell at this scale."""
        before = int(tree.get("clients", CLIENTS))
        clients = max(2 * tree["partition"]["clusters"], before * self.clients // CLIENTS)
        share = self.rounds / ROUNDS
        rounds = max(1, round(tree["rounds"] * share))
        small = merge(tree, {"rounds": rounds, "clients": clients, "method": self._method(tree["method"], share)})
        small["model"] = {
            **tree["model"],
            "backbones": [self.backbones.get(name, name) for name in tree["model"]["backbones"]],
        }
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
        return changed | (self.encoder if method["name"] == "flt" else {})


LITTLE_ENCODER: Tree = {"encoder_data": "synthetic", "encoder_epochs": 1, "latent": 16}
"""FLT's encoder learns from another data set, which may not be at hand."""


SCALES = {
    "smoke": Scale(
        "FashionMNIST alone, 4 clients, 4 rounds, few images, tiny backbones: shows in minutes that everything works",
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
        encoder=LITTLE_ENCODER,
    ),
    "small": Scale(
        "10 clients, 40 rounds, 40 images per class, small backbones: an evening on a laptop",
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
        encoder=LITTLE_ENCODER,
    ),
    "modern": Scale(
        "The paper's networks and data, trained as is usual today: 200 rounds, Adam that is kept, with a rate that "
        "falls from 1e-3 along a cosine, and a test after mixing",
        rounds=200,
        clients=CLIENTS,
        data=None,
        backbones={},
        over={
            "train": {"learning_rate": 1e-3, "reset": False, "cosine_rounds": 200},
            "evaluate": {"moment": "mixed"},
        },
    ),
}
"""`modern` is the protocol of recipes/modern."""


FORMS: dict[str, Tree] = {
    "balanced": {"form": "released", "graph": {"form": "paper", "confidence": "relative"}},
    "released": {"form": "released", "graph": {"form": "released", "confidence": "share"}},
    "paper": {"form": "paper", "graph": {"form": "paper", "confidence": "share"}},
}
"""What MAPL computes. `balanced`: the released program's losses, and the printed graph objective with confidence
relative to its mean. `released`: the released program's losses and graph. `paper`: the printed losses and graph."""

OURS = "balanced"
"""The form of our tables; docs/graph.md says why."""


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
    """How cells are run. By default as in the paper, with MAPL in our form."""

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
        """What differs from the paper's protocol, in one line; empty if nothing does. `of_label` parses it."""
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
        """Whether the cell is run at this scale. A scale with one data set leaves out the columns of the others."""
        only = SCALES[self.scale].data if self.scale else None
        named = [str(c).lower() for c in cell.parts]
        return only is None or only in named or str(cell.setting["dataset"]).lower() not in named

    def of_cell(self, cell: Cell, seed: int) -> Recipe:
        """The recipe of a cell."""
        return self.of_tree(cell.tree(seed=seed), f"paper:{cell.name}")

    def of_tree(self, tree: Tree, origin: str) -> Recipe:
        """The recipe of the tree of a cell or a figure."""
        tree = merge(tree, WATCHED)
        if self.scale:
            tree = SCALES[self.scale].shrunk(tree)
        if self.rounds is not None:
            tree = merge(tree, {"rounds": self.rounds})
        if tree["method"]["name"].startswith("mapl"):
            # A graph that is not learned has no form.
            learns = tree["method"].get("learn_graph", True)
            tree = merge(tree, {"method": FORMS[self.form] if learns else {"form": FORMS[self.form]["form"]}})
        for text in self.settings:
            tree = merge(tree, assignment(text))
        return compose((origin, tree))[0]
