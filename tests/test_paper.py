"""The paper's tables: every published number has a cell, and every cell is a recipe that can be run."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

import mapl.methods
from mapl.data.augment import PLAIN, RELEASED
from mapl.data.partition import cluster_classes
from mapl.errors import MaplError
from mapl.methods.mapl import MaplSettings
from mapl.model import find_backbone
from mapl.paper import cells, find_cell, listing, resolve
from mapl.paper import tables as room
from mapl.paper.tables import BACKBONES, METHODS, TABLES, Cell, table
from mapl.plugins import find
from mapl.recipe import Recipe, compose, read
from mapl.trees import Tree, merge

RECIPES = Path(__file__).parent.parent / "recipes" / "paper"
ALL = cells()
MAPL = find_cell("res_hetero/scenario=1/CIFAR10/MAPL")


@pytest.fixture(scope="module")
def recipes() -> dict[str, Recipe]:
    return {cell.name: cell.recipe() for cell in ALL}


def published() -> list[dict[str, str]]:
    with Path(room.__file__).with_name("published.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def of_file(name: str, over: Tree) -> Recipe:
    """What `mapl run recipes/paper/NAME.toml` with these options runs."""
    return compose((name, read(RECIPES / f"{name}.toml")), ("command line", over))[0]


def options(cell: Cell) -> Tree:
    """`--method M --data D --scenario S --clients C`."""
    return {
        "method": {"name": METHODS[cell.method]["name"]},
        "data": {"name": str(cell.setting["dataset"]).lower()},
        "partition": {"scenario": cell.setting["scenario"]},
        "clients": cell.setting["clients"],
    }


def test_every_table_has_its_cells() -> None:
    counts = {name: len(table(name)) for name in TABLES}
    # scenarios × data sets × methods; scenarios × rows of the ablations; scenarios × numbers of clients × methods
    assert counts == {
        "res_hetero": 4 * 5 * 5,
        "res_homo": 4 * 5 * 10,
        "ab1": 2 * 8,
        "ab2": 2 * 4,
        "comm_budget": 2 * 4,
        "var1": 2 * 2 * 5,
        "cgle": 2 * 5,
    }
    assert len(ALL) == 362


def test_a_name_is_of_one_cell_and_finds_it() -> None:
    assert len({cell.name for cell in ALL}) == len(ALL)
    assert all(find_cell(cell.name) is cell for cell in ALL)


def test_every_published_number_is_found_again_under_its_cell() -> None:
    rows = published()
    assert len(rows) == len(ALL)
    for row in rows:
        said: dict[str, Any] = dict(item.split("=") for item in row["setting"].split(";"))
        (cell,) = (
            c
            for c in table(row["table"].removeprefix("tab:"))
            if c.method == row["method"] and {k: _as_printed(v) for k, v in c.setting.items()} == said
        )
        assert (f"{100 * cell.accuracy:.2f}", f"{100 * cell.std:05.2f}") == (row["accuracy_percent"], row["std"])
        assert cell.models == row["models"]


def _as_printed(value: room.Value) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def test_every_setting_of_every_row_is_understood() -> None:
    understood = (
        room.KEYS.keys() | room.TERMS.keys() | {"dataset", "l_ce", "l1", "l2", "fixed_budget", "communications"}
    )
    assert {key for cell in ALL for key in cell.setting} == understood
    # What has no key of its own is implied by another: nothing is lost.
    assert all(cell.setting["l_ce"] for cell in table("ab1"))
    assert all(cell.setting["l1"] != cell.setting["l2"] for cell in table("ab2"))
    assert all(cell.setting["cgl"] == (cell.method == "MAPL") for cell in table("comm_budget"))


def test_every_cell_is_a_recipe_of_the_papers_protocol(recipes: dict[str, Recipe]) -> None:
    for cell in ALL:
        recipe = recipes[cell.name]
        assert recipe.clients == cell.setting["clients"]
        assert recipe.rounds == 400
        assert recipe.partition.scenario == cell.setting["scenario"]
        assert (recipe.partition.sharding, recipe.evaluate.moment) == ("paper", "trained")
        assert recipe.model.backbones == BACKBONES[cell.models]
        if isinstance(recipe.method, MaplSettings):
            graph = recipe.method.graph
            assert (recipe.method.form, graph.form, graph.confidence) == ("released", "released", "share")
        # A data set's suggestions leave the released augmentation alone; grey images have no grey to turn to.
        grey = recipe.data.name in ("mnist", "fashionmnist")
        assert recipe.augment.contrastive == RELEASED.model_copy(update={"greyscale": 0.0} if grey else {})
        assert recipe.augment.plain == PLAIN


def test_the_backbones_are_there() -> None:
    for names in BACKBONES.values():
        assert all(callable(find_backbone(name)) for name in names)


def test_published_accuracies_are_whole_numbers_of_right_answers(recipes: dict[str, Recipe]) -> None:
    """So each comes from one run, tested on 15 images a class, with 5 classes a client or 7 (an overlap of 4)."""
    for cell in ALL:
        recipe = recipes[cell.name]
        classes = {len(held) for held in cluster_classes(recipe.partition, 10)}
        assert classes == ({5} if cell.setting["scenario"] in (1, 3) else {7})
        answers = recipe.clients * 15 * classes.pop()
        nearest = round(cell.accuracy * answers) / answers
        assert abs(cell.accuracy - nearest) < 1e-4, cell.name  # 348 are rounded, 14 a hundredth off


def test_methods_that_need_equal_models_are_only_in_the_homogeneous_table() -> None:
    homogeneous = {name for name, tree in METHODS.items() if find("method", tree["name"], mapl.methods).homogeneous}
    assert homogeneous == {"FedAvg", "FLT", "pFedSim", "DFedAvgM"}
    for cell in ALL:
        if cell.method in homogeneous | {"MAPL+"}:
            assert cell.table == "res_homo"
        assert (cell.models == "homogeneous") == (cell.table == "res_homo")


def test_flt_gets_images_that_no_client_has(recipes: dict[str, Recipe]) -> None:
    for cell in ALL:
        if cell.method == "FLT":
            tree = recipes[cell.name].model_dump()
            assert tree["method"]["encoder_data"] in room.ENCODER_DATA.keys() - {tree["data"]["name"]}
            assert {tree["method"]["encoder_data"], tree["data"]["name"]} != {"cinic10", "cifar10"}


SPOT_CHECKS: list[tuple[str, float, float, Tree]] = [
    (
        "res_hetero/scenario=2/SVHN/FedProto",
        70.00,
        11.36,
        {"method": {"name": "fedproto", "strength": 0.1}, "data": {"name": "svhn"}, "partition": {"scenario": 2}},
    ),
    (
        "res_homo/scenario=4/FashionMNIST/MAPL+",
        89.57,
        2.77,
        {"method": {"name": "mapl+"}, "data": {"name": "fashionmnist"}, "model": {"backbones": ("resnet18",)}},
    ),
    (
        "res_homo/scenario=1/MNIST/pFedSim",
        99.00,
        1.57,
        {"method": {"name": "pfedsim", "warmup": 200}, "data": {"name": "mnist"}, "rounds": 400},
    ),
    (
        "ab1/scenario=2/l_graph=no/l_cont=yes/l_uni=no",
        64.71,
        8.21,
        {"method": {"terms": ("contrastive", "prototype"), "learn_graph": False}, "data": {"name": "cifar10"}},
    ),
    (
        "ab1/scenario=1/l_graph=yes/l_cont=no/l_uni=yes",
        72.40,
        8.25,
        {"method": {"terms": ("prototype", "uniformity"), "learn_graph": True}, "partition": {"scenario": 1}},
    ),
    (
        "ab2/scenario=1/similarity=no/confidence=yes/l1=no",
        76.20,
        7.73,
        {"method": {"graph": {"use_similarity": False, "use_confidence": True, "norm": "l2"}}},
    ),
    (
        "ab2/scenario=2/similarity=yes/confidence=yes/l1=yes",
        65.24,
        8.66,
        {"method": {"graph": {"use_similarity": True, "use_confidence": True, "norm": "l1"}}},
    ),
    (
        "comm_budget/scenario=1/cgl=no/fixed_budget=yes",
        72.53,
        6.97,
        {"method": {"learn_graph": False}, "network": {"message_budget": 65000}},
    ),
    (
        "comm_budget/scenario=2/cgl=yes/fixed_budget=no",
        65.43,
        8.40,
        {"method": {"learn_graph": True}, "network": {"message_budget": None}},
    ),
    (
        "var1/scenario=2/clients=10/FedClassAvg",
        62.57,
        7.82,
        {"clients": 10, "method": {"name": "fedclassavg", "mu": 0.1}, "partition": {"scenario": 2, "overlap": 4}},
    ),
    ("cgle/scenario=1/cgl_steps=20", 76.73, 7.98, {"method": {"graph": {"steps": 20}, "warmup": 100}}),
]


@pytest.mark.parametrize(("name", "accuracy", "std", "settings"), SPOT_CHECKS, ids=[check[0] for check in SPOT_CHECKS])
def test_spot_checks_against_the_printed_tables(name: str, accuracy: float, std: float, settings: Tree) -> None:
    cell = find_cell(name)
    assert (100 * cell.accuracy, 100 * cell.std) == pytest.approx((accuracy, std))
    made = cell.recipe().model_dump()
    assert merge(made, settings) == made


@pytest.mark.parametrize("models", ["heterogeneous", "homogeneous"])
def test_the_recipe_files_are_the_cells(models: str, recipes: dict[str, Recipe]) -> None:
    for cell in ALL:
        if cell.models != models or cell.table not in ("res_hetero", "res_homo", "var1"):
            continue
        over = options(cell)
        if cell.method == "FLT":  # the one setting that follows the data set
            over["method"]["encoder_data"] = room.ENCODER_DATA[over["data"]["name"]]
        assert _settings(of_file(models, over)) == _settings(recipes[cell.name]), cell.name


def test_the_ablations_file_is_their_cells(recipes: dict[str, Recipe]) -> None:
    assert _settings(of_file("ablation", {})) == _settings(recipes[MAPL.name])
    for name in ("ab1", "ab2", "comm_budget", "cgle"):
        for cell in table(name):
            tree = cell.tree()
            switched = {key: tree[key] for key in ("method", "network")}
            over = merge(switched, {"partition": {"scenario": cell.setting["scenario"]}})
            assert _settings(of_file("ablation", over)) == _settings(recipes[cell.name]), cell.name


def _settings(recipe: Recipe) -> Tree:
    return recipe.model_dump(exclude={"name"})


def test_the_files_of_the_family_say_the_protocol_themselves() -> None:
    """Not by what happens to be the default."""
    for name in ("heterogeneous", "homogeneous", "ablation"):
        tree = read(RECIPES / f"{name}.toml")
        assert merge(tree, room.PROTOCOL) == tree, name


def test_cells_of_one_run_have_one_published_number(recipes: dict[str, Recipe]) -> None:
    by_run: dict[str, list[Cell]] = {}
    for cell in ALL:
        by_run.setdefault(recipes[cell.name].fingerprint(), []).append(cell)
    assert len(by_run) == 342
    differ = [group for group in by_run.values() if len({(cell.accuracy, cell.std) for cell in group}) > 1]
    # Three numbers of var1 are not those of res_hetero, although they should be the same runs.
    assert {cell.name for group in differ for cell in group if cell.table == "var1"} == {
        "var1/scenario=1/clients=20/FedClassAvg",
        "var1/scenario=2/clients=20/FedSim",
        "var1/scenario=2/clients=20/FedClassAvg",
    }
    assert len(differ) == 3


def test_overrides_go_over_a_cell_and_into_the_runs_name() -> None:
    assert MAPL.recipe().title() == "res_hetero-scenario=1-CIFAR10-MAPL-seed0"
    seeded = MAPL.recipe(seed=3, partition={"shots": 50})
    assert (seeded.seed, seeded.partition.shots, seeded.partition.stride) == (3, 50, 200)
    assert seeded.title() == "res_hetero-scenario=1-CIFAR10-MAPL-seed3"
    control = MAPL.recipe(network={"topology": {"name": "none"}})
    assert control.title() == "res_hetero-scenario=1-CIFAR10-MAPL-none-seed0"
    assert MAPL.recipe(name="mine").title() == "mine"
    assert MAPL.recipe(rounds=5).rounds == 5


def test_no_two_cells_share_a_folder(recipes: dict[str, Recipe]) -> None:
    titles = {recipe.title() for recipe in recipes.values()}
    assert len(titles) == len(ALL)
    assert not any("/" in title for title in titles)


def test_resolve() -> None:
    assert resolve("recipes/paper/heterogeneous.toml") is None
    assert resolve("paper:" + MAPL.name) == MAPL.tree()
    assert resolve("paper:" + MAPL.name, {"seed": 2}) == MAPL.tree(seed=2)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("res_heter", r"unknown table of the paper 'res_heter'; known: ab1, .*Did you mean 'res_hetero'\?"),
        ("res_hetero/scenario=5/CIFAR10/MAPL", r"known: res_hetero/scenario=1, .*, res_hetero/scenario=4\."),
        ("res_hetero/scenario=1/CIFAR/MAPL", r"known: res_hetero/scenario=1/CIFAR10, res_hetero/scenario=1/CINIC10, "),
        ("res_hetero/scenario=1/CIFAR10", r"known: .*res_hetero/scenario=1/CIFAR10/MAPL"),
        ("res_hetero/scenario=1/CIFAR10/MAPL/x", r"known: res_hetero/scenario=1/CIFAR10/MAPL\."),
        ("", "unknown table"),
    ],
)
def test_a_wrong_name_is_told_what_can_stand_there(name: str, complaint: str) -> None:
    with pytest.raises(MaplError, match=complaint):
        find_cell(name)
    with pytest.raises(MaplError, match=complaint):
        resolve("paper:" + name)


def test_listing_has_every_table_and_every_cell() -> None:
    everything = listing()
    assert list(everything) == [key for name in TABLES for key in (name, *listing(name))]
    assert len(everything) == 362 + len(TABLES)
    assert everything[MAPL.name] == "77.27 ± 7.98 %"
    with pytest.raises(MaplError, match="unknown table"):
        listing("tab")
