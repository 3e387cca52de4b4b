"""Couriers beside the paper's methods, and what the page says in its first paragraph."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from conftest import line_with
from mapl.analysis.control import control_of, is_ceiling
from mapl.paper import overview
from mapl.paper.further import contests, contests_table
from mapl.paper.plan import plan
from mapl.paper.protocol import Protocol
from mapl.paper.statistics import results
from mapl.paper.store import Store
from mapl.paper.tables import FURTHER, TABLES, cells, find_cell, table
from mapl.recipe import compose, read
from reproduction_store import add_cell, made_row

RECIPES = Path(__file__).parents[1] / "recipes" / "modern"
WHERE = "further/heterogeneous/scenario=1/CIFAR10"


def cell(name: str):
    return next(found for found in table(FURTHER) if found.name == name)


def add(store: Store, name: str, mean: float, scale: str = "", control: float | None = None) -> None:
    recipe = Protocol.of_label(scale).of_cell(cell(name), 0)
    store.add(made_row(recipe, FURTHER, name, mean, scale=scale))
    if control is not None:
        store.add(made_row(control_of(recipe), FURTHER, name, control, scale=scale, control=True))


@pytest.fixture
def store(tmp_path) -> Store:
    """The courier gains 6 of the 8 points that pooled data gain."""
    store = Store(tmp_path)
    add(store, f"{WHERE}/Courier", 0.80, control=0.74)
    add(store, f"{WHERE}/Mutual", 0.75)
    add(store, f"{WHERE}/Pooled", 0.82)
    add_cell(store, "res_hetero/scenario=1/CIFAR10/MAPL", [0.77], control=0.775)
    add_cell(store, "res_hetero/scenario=1/CIFAR10/FedProto", [0.70], control=0.70)
    return store


def test_further_cells_are_none_of_the_papers():
    assert len(cells()) == 362
    assert not {c.name for c in table(FURTHER)} & {c.name for c in cells()}
    assert not any(c.is_published for c in table(FURTHER))
    assert all(c.is_published for c in cells())


def test_the_ceiling_is_that_of_the_courier_with_the_steps_of_a_client_alone():
    protocol = Protocol()
    courier = protocol.of_cell(cell(f"{WHERE}/Courier"), 0)
    pooled = protocol.of_cell(cell(f"{WHERE}/Pooled"), 0)
    assert is_ceiling(pooled)
    assert pooled.train.steps == 5 * 300 // courier.train.batch
    alike = {"name", "method", "network", "partition", "train"}
    assert pooled.model_dump(exclude=alike) == courier.model_dump(exclude=alike)
    assert pooled.method == courier.method
    assert not [c for c in table(FURTHER) if c.method == "Pooled" and c.setting["scenario"] in (3, 4)]


@pytest.mark.parametrize(("models", "file"), [("heterogeneous", "heterogeneous"), ("homogeneous", "homogeneous")])
def test_the_modern_protocol_is_that_of_the_recipes(models, file):
    ours = Protocol("modern").of_cell(cell(f"further/{models}/scenario=1/CIFAR10/Courier"), 0)
    theirs = compose(("file", read(RECIPES / f"{file}.toml")), ("test", {"method": {"name": "courier"}}))[0]
    assert ours.fingerprint() == theirs.fingerprint()
    assert ours.rounds == theirs.rounds == 200


def test_a_plan_of_couriers_has_their_controls():
    works = plan(FURTHER, Protocol(), rows=["1"], columns=["CIFAR10", "heterogeneous"])
    names = [(work.cell.rsplit("/", 1)[-1], work.control) for work in works]
    assert names == [("Courier", False), ("Courier", True), ("Mutual", False), ("Pooled", False)]


def test_a_row_says_what_the_courier_gains_and_how_far_pooled_data_are(store):
    (contest,) = contests(store)
    assert contest.gain.mean == pytest.approx(0.06)
    assert contest.way == pytest.approx(0.06 / 0.08)
    assert contest.over("Mutual").mean == pytest.approx(0.05)
    assert contest.over("MAPL").mean == pytest.approx(0.03)
    assert contest.over("Local").mean == pytest.approx(0.10), "Local is FedProto's control"
    assert contest.over("FedSim") is None
    (row,) = contests_table([contest]).rows
    assert row[:5] == ["the paper's", "heterogeneous", "CIFAR10", "scenario 1", "1"]
    assert row[-1] == "75 %"


def test_protocols_are_never_mixed(store):
    add(store, f"{WHERE}/Courier", 0.9, "modern", control=0.8)
    paper, modern = contests(store)
    assert (paper.protocol, modern.protocol) == ("", "modern")
    assert set(paper.others) == {"Mutual", "Pooled", "MAPL", "FedProto", "Local"}
    assert modern.others == {}
    assert modern.way is None


def test_the_first_paragraph_counts_what_is_there(store):
    found = [result for name in TABLES for result in results(name, store)]
    text = overview.in_a_minute(found, contests(store))
    assert f"{len(found)} of 302 cells are filled" in text
    assert re.search(line_with("MAPL beats other methods", "2 of 2"), text)
    assert re.search(line_with("letters are the reason", "not", "-0.5 points", "CIFAR10"), text)
    assert re.search(line_with("+6.0 ± 0.0 points", "CIFAR10, scenario 1, heterogeneous", "paper's protocol"), text)
    assert "Couriers have not been run" in overview.in_a_minute(found, [])
    assert "0 of 302 cells" in overview.in_a_minute([], [])


def test_the_picture_has_every_cell_once_and_its_number(store):
    found = [result for name in TABLES for result in results(name, store)]
    by_name = {result.cell.name: result for result in found}
    grid, seen, starts = overview._grid(by_name, lambda result: 100 * result.difference)
    assert seen.sum() == len(cells())
    assert np.isfinite(grid).sum() == len(found)
    wanted = sorted(100 * (fmean(r.runs[0].accuracy) - r.cell.accuracy) for r in found)
    assert sorted(grid[np.isfinite(grid)]) == pytest.approx(wanted)
    assert len(starts) == len(TABLES)
    overview.squares(found)
    overview.squares([])


def test_a_further_hour_is_measured_on_the_machine_of_most_runs(store):
    runs = [replace(run, seconds=float(run.rounds), setup_seconds=0.0, device="fast") for run in store.runs.values()]
    text = overview.further_hour(store, runs)
    assert "a further hour on an fast (bf16)" in text
    slow = overview.further_hour(store, [replace(run, seconds=3600.0 * run.rounds) for run in runs])
    assert "would do 0 runs for 0 cells" in slow
    assert overview.further_hour(store, []) == ""


def test_a_cell_of_couriers_has_nothing_published_beside_it(store):
    from mapl.paper.cell_table import as_json_lines, printed

    found = results(FURTHER, store)
    assert "nan" not in "\n".join(printed(FURTHER, found, ""))
    assert all('"published": null' in line for line in as_json_lines(found, ""))
    assert find_cell("res_hetero/scenario=1/CIFAR10/MAPL").is_published
