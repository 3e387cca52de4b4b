"""`mapl reproduce --next`: the order of runs, the budget, merging of stores, and a kill at any moment."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from conftest import in_child
from mapl.cli.app import app
from mapl.errors import MaplError
from mapl.paper import cells, find_cell
from mapl.paper.carry_out import follow, opened
from mapl.paper.cost import Rates
from mapl.paper.machine import commit
from mapl.paper.plan import Work
from mapl.paper.protocol import Protocol
from mapl.paper.queue import CLOSE, DATA, MARGIN, Queue, fitting, merge
from mapl.paper.store import Store, StoredRun, key_of
from reproduction_store import add_cell, made_row
from test_reproduce import data as data
from test_reproduce import lasting


@pytest.fixture(scope="module")
def queue() -> Queue:
    """The rule, as if the data sets that can be had were here."""
    asked = Queue(Protocol())
    asked._presence.has_all = lambda recipe: recipe.data.name != "cinic10"  # type: ignore[method-assign]
    return asked


def row_of(work: Work, **over: Any) -> StoredRun:
    return made_row(work.recipe, work.table, work.cell, 0.7, control=work.control, **over)


# The order


def test_the_first_seed_of_the_main_table_comes_first_data_set_by_data_set(queue, tmp_path):
    works = queue.left(Store(tmp_path))
    first = works[: len(queue.stages(Store(tmp_path))[0].works)]
    assert [work.table for work in first] == ["res_hetero"] * len(first)
    assert {work.recipe.seed for work in first} == {0}
    names = [work.cell.split("/")[2] for work in first]
    assert list(dict.fromkeys(names)) == list(DATA)
    assert names == sorted(names, key=DATA.index), "one data set after another"
    wanted = {cell.name for cell in cells() if cell.table == "res_hetero" and cell.setting["dataset"] in DATA}
    assert wanted == {work.cell for work in first if not work.control}
    assert len(wanted) == 80


def test_later_steps_follow_in_the_written_order(queue, tmp_path):
    works = queue.left(Store(tmp_path))
    place = {work.key: number for number, work in enumerate(works)}
    assert len(place) == len(works), "every run once"

    def where(cell: str, seed: int = 0, form: str = "balanced") -> int:
        return place[key_of(Protocol(form=form).of_cell(find_cell(cell), seed))]

    in_order = [
        where("res_hetero/scenario=4/FashionMNIST/MAPL"),
        where("res_hetero/scenario=1/CIFAR10/MAPL", 1),
        where("res_hetero/scenario=2/CIFAR10/FedProto", 2),
        where("res_hetero/scenario=1/CIFAR10/MAPL", 0, "released"),
        where("ab1/scenario=1/l_graph=no/l_cont=no/l_uni=no"),
        where("res_homo/scenario=1/CIFAR10/MAPL"),
        where("res_homo/scenario=1/SVHN/MAPL"),
    ]
    assert in_order == sorted(in_order)


def test_every_cell_with_data_is_reached(queue, tmp_path):
    keys = {work.key for work in queue.left(Store(tmp_path))}
    reachable = [cell for cell in cells() if cell.setting["dataset"] != "CINIC10"]
    assert len(reachable) == 302
    assert all(key_of(Protocol().of_cell(cell, 0)) in keys for cell in reachable)


def test_what_is_stored_is_not_asked_for_again(queue, tmp_path):
    store = Store(tmp_path)
    before = queue.left(store)
    store.add(row_of(before[0]))
    assert [work.key for work in queue.left(store)] == [work.key for work in before[1:]]


@pytest.mark.parametrize(("behind", "asked"), [(CLOSE / 2, True), (3 * CLOSE, False)])
def test_close_methods_get_two_more_seeds(queue, tmp_path, behind, asked):
    store = Store(tmp_path)
    add_cell(store, "res_hetero/scenario=3/SVHN/MAPL", [0.8], control=0.7)
    add_cell(store, "res_hetero/scenario=3/SVHN/FedProto", [0.8 - behind], control=0.7)
    add_cell(store, "res_hetero/scenario=3/SVHN/FedSim", [0.5], control=0.4)
    close = {cell.name.split("/")[-1] for cell in queue.close(store)}
    assert close == ({"MAPL", "FedProto"} if asked else set())
    stage = queue.stages(store)[4]
    assert {work.recipe.seed for work in stage.works} == ({1, 2} if asked else set())
    # What was found close stays so when its further seeds are there: the step does not undo itself.
    for work in stage.works:
        store.add(row_of(work))
    assert {cell.name.split("/")[-1] for cell in queue.close(store)} == close


def test_cells_without_data_are_left_out(data, tmp_path):
    asked = Queue(Protocol(settings=(f"data.folder={data}",)))
    works = asked.left(Store(tmp_path))
    assert {work.recipe.data.name for work in works} == {"fashionmnist"}
    assert not any(work.recipe.method.name == "flt" for work in works), "FLT's encoder needs MNIST, which is not here"


def test_a_run_that_was_begun_comes_first(queue, tmp_path):
    store = Store(tmp_path)
    works = queue.left(store)
    begun = works[100]
    folder = store.running(begun.key) / "checkpoints"
    folder.mkdir(parents=True)
    (folder / f"000050-{'0' * 16}.safetensors").write_bytes(b"")
    assert queue.left(store)[0].key == begun.key
    assert [w.key for w in queue.left(store)[1:4]] == [w.key for w in works[:3]]


# The budget


@given(st.lists(st.floats(1, 300), min_size=1, max_size=12), st.floats(0, 2000))
def test_what_fits_fits_and_nothing_that_fits_is_skipped(costs, seconds):
    works: list[Any] = [SimpleNamespace(recipe=cost, key=str(number)) for number, cost in enumerate(costs)]
    rates: Any = SimpleNamespace(known=True, estimate=lambda recipe, played: recipe)
    chosen = fitting(works, Store(Path("nowhere")), rates, seconds)
    left, places = seconds, {id(work): number for number, work in enumerate(works)}
    assert [places[id(w)] for w in chosen] == sorted(places[id(w)] for w in chosen)
    for work in works:
        fits = MARGIN * work.recipe <= left
        assert fits == any(work is other for other in chosen)
        left -= MARGIN * work.recipe if fits else 0
    assert left >= -1e-6


class Played:
    """Stands in for runs: each takes its time on a clock of its own, and is in the store at once."""

    def __init__(self, seed: int) -> None:
        self.now, self.draw, self.ended = 0.0, random.Random(seed), 0.0
        self.longest = 0.0

    def run(self, work: Work, folder: Path, progress: Any, stop: Any) -> Any:
        self.last = self.draw.uniform(60, 90)
        self.longest = max(self.longest, self.last)
        self.now += self.last
        folder.mkdir(parents=True)
        return SimpleNamespace(finished=True, folder=folder)

    def summarise(self, work: Work, record: Any, setup: float) -> StoredRun:
        return row_of(work, seconds=self.last, setup_seconds=0.0, device="here", precision="fp32")


@pytest.mark.parametrize("budget", [0, 50, 600, 900])
def test_a_budget_is_never_exceeded_by_more_than_one_run(queue, tmp_path, monkeypatch, budget):
    played = Played(budget)
    monkeypatch.setattr("mapl.paper.carry_out._run", played.run)
    monkeypatch.setattr("mapl.paper.carry_out.summarise", played.summarise)
    store = Store(tmp_path)
    follow(queue.agenda(lambda: budget - played.now), store, stop=lambda: played.now >= budget)
    assert played.now <= budget + played.longest
    if budget >= 600:
        assert played.now >= budget - MARGIN * 1.5 * 90, "and it is used"
        assert len(store.runs) == len({run.key for run in store.runs.values()})


# Merging


def test_stores_are_merged_once(queue, tmp_path):
    works = queue.left(Store(tmp_path))[:4]
    ours, theirs = Store(tmp_path / "ours"), Store(tmp_path / "theirs")
    for work in works[:3]:
        ours.add(row_of(work))
    theirs.add(replace(row_of(works[2]), accuracy=[0.1] * 20))
    theirs.add(row_of(works[3]))
    assert merge(ours, theirs.folder) == (1, 1)
    assert merge(ours, theirs.folder) == (0, 1)
    again = Store(ours.folder)
    assert list(again.runs) == [work.key for work in works]
    assert again.runs[works[2].key].accuracy != [0.1] * 20, "ours is kept"


def test_a_folder_without_results_is_not_merged(queue, tmp_path):
    with pytest.raises(MaplError, match="is not a results store"):
        merge(Store(tmp_path / "ours"), tmp_path)


def test_a_store_that_somebody_sent_writes_to_no_other_place(queue, tmp_path):
    row = replace(row_of(queue.left(Store(tmp_path))[0]), table="../../elsewhere")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "res_hetero.jsonl").write_text(row.line())
    with pytest.raises(MaplError, match="is not the name of a table or figure"):
        merge(Store(tmp_path / "ours" / "inside"), tmp_path / "theirs")
    assert not (tmp_path / "elsewhere.jsonl").exists()


def test_a_row_says_which_commit_it_is_from():
    known = commit()
    assert known == "" or len(known.rstrip("+")) == 12


# The command


def cli(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.stdout


def test_a_plan_lists_the_steps_and_runs_nothing(data, tmp_path):
    asked = ["reproduce", "--next", "--plan", "--budget-minutes", "5", "--set", f"data.folder={data}"]
    said = cli(*asked, "--out", str(tmp_path / "out"))
    assert "1. a first seed of res_hetero: 0 of " in said
    assert "8. a first seed of all other cells" in said
    assert not (tmp_path / "out").exists()
    events = [json.loads(line) for line in cli(*asked, "--json", "--out", str(tmp_path / "out")).splitlines()]
    assert [event["event"] for event in events] == ["stage"] * 8 + ["plan"]


def test_next_chooses_by_itself(tmp_path):
    result = CliRunner().invoke(app, ["reproduce", "res_hetero", "--next", "--out", str(tmp_path)])
    assert result.exit_code != 0
    assert "--next chooses cells, seeds and forms itself" in str(result.exception or result.output)


SMOKE_RUNS = 3


def run_a_few(out: Path, data: Path, seed: int) -> None:
    """The first runs of the queue, at a scale of seconds; for use in a child."""
    queue = Queue(Protocol("smoke", rounds=6, settings=(f"data.folder={data}", "checkpoint.every=2")))
    first = {work.key for work in queue.stages(Store(out))[0].works[:SMOKE_RUNS]}

    def agenda(store: Store, rates: Rates) -> list[Work]:
        return [work for work in queue.left(store) if work.key in first]

    with opened(out) as store:
        follow(agenda, store)


@pytest.mark.slow
def test_a_kill_at_any_moment_costs_at_most_the_rounds_since_a_checkpoint(data, tmp_path):
    run_a_few(tmp_path / "whole", data, 0)
    wanted, draw, out = lasting(tmp_path / "whole"), random.Random(0), tmp_path / "out"
    assert len(wanted) == SMOKE_RUNS
    for attempt in range(4):
        child = in_child(run_a_few, out, data, attempt)
        time.sleep(draw.uniform(1, 5))
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
        child.join()
    run_a_few(out, data, 9)
    assert lasting(out) == wanted
