"""`mapl reproduce`: what is planned, that nothing is run twice whatever happens to the process, and the statistics."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

import mapl
from conftest import assert_same, command, in_child, line_with, parameters, play, small
from mapl.analysis.compare import Estimate
from mapl.analysis.control import control_of, twins
from mapl.cli.app import app
from mapl.errors import Busy, MaplError
from mapl.paper import cells, find_cell
from mapl.paper.carry_out import carry_out, opened
from mapl.paper.cost import Rates, images_a_round
from mapl.paper.plan import names, plan
from mapl.paper.protocol import SCALES, Protocol
from mapl.paper.statistics import at_age, filled, paired, results
from mapl.paper.store import RUNS, Store, StoredRun, key_of
from mapl.paper.tables import TABLES

SMOKE = Protocol("smoke")
TIMES = ("seconds", "setup_seconds", "date")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """FashionMNIST's files with few made images: enough for four clients, two hundred images apart."""
    folder = tmp_path_factory.mktemp("data") / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for split, each in (("train", 620), ("t10k", 60)):
        labels = np.tile(np.arange(10, dtype=np.uint8), each)
        images = draw.integers(0, 100, (len(labels), 28, 28), dtype=np.uint8)
        images[np.arange(len(labels)), labels * 2] = 255
        (folder / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, *images.shape) + images.tobytes())
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, len(labels)) + labels.tobytes())
    return folder.parent.parent


def smoke(out: Path, data: Path, *more: str) -> list[str]:
    """A command of three runs: one row of the table, MAPL with its control, and Local."""
    asked = ["reproduce", "res_hetero", "--scale", "smoke", "--rows", "1", "--columns", "Local,MAPL"]
    return [*asked, "--set", f"data.folder={data}", "--out", str(out), *more]


def cli(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.stdout


def lasting(out: Path) -> list[dict[str, object]]:
    """The rows of a store, in the order written, without what no two runs agree on."""
    rows = [json.loads(line) for path in sorted(out.glob("*.jsonl")) for line in path.read_text().split("\n")[:-1]]
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    cli(*smoke(out, data))
    return out


# What is planned


def test_a_control_serves_all_that_share_it_and_local_is_one():
    works = plan("res_hetero", Protocol(), rows=["scenario=1"], columns=["CIFAR10"])
    assert [(w.cell.split("/")[-1], w.control) for w in works] == [
        ("Local", False),
        ("FedSim", False),
        ("FedClassAvg", False),
        ("FedClassAvg", True),
        ("FedProto", False),
        ("MAPL", False),
        ("MAPL", True),
    ]
    assert key_of(control_of(works[1].recipe)) == works[0].key
    ablation = plan("ab2", Protocol(), rows=["1"])
    assert [w.control for w in ablation].count(True) == 1, (
        "whatever graph it would learn, without letters it is one run"
    )


def test_a_run_that_stands_in_several_tables_is_one():
    ours = {w.key for w in plan("var1", Protocol(), columns=["clients=20"])}
    assert ours <= {w.key for w in plan("res_hetero", Protocol(), columns=["CIFAR10"])}


def test_seeds_come_one_after_another():
    works = plan("res_hetero", Protocol(), seeds=2, rows=["1"], columns=["svhn", "mapl"])
    assert [(w.recipe.seed, w.control) for w in works] == [(0, False), (0, True), (1, False), (1, True)]
    assert all(w.recipe.evaluate.all_images and w.recipe.checkpoint.every == 50 for w in works)


def test_columns_restrict_axis_by_axis_and_rows_are_alternatives():
    works = plan("res_hetero", Protocol(), rows=["1", "scenario=3"], columns=["CIFAR10", "MNIST", "fedproto"])
    found = [w.cell for w in works if not w.control]
    assert len(found) == 4
    assert all(name.endswith("/FedProto") for name in found)


@pytest.mark.parametrize("option", ["rows", "columns"])
def test_what_is_nowhere_in_the_table_is_an_error_that_lists_what_is(option):
    with pytest.raises(MaplError, match=rf"unknown --{option} 'CIFAR'; known: .*CIFAR10.*Did you mean 'CIFAR10'"):
        plan("res_hetero", Protocol(), **{option: ["CIFAR"]})
    with pytest.raises(MaplError, match=r"unknown table or figure of the paper 'ab3'.*ab1"):
        plan("ab3", Protocol())
    with pytest.raises(MaplError, match="unknown scale 'tiny'; known: modern, small, smoke"):
        Protocol("tiny")
    with pytest.raises(MaplError, match="--seeds N"):
        Protocol(settings=("seed=3",))


def test_the_form_is_that_of_mapl_alone():
    works = plan("res_hetero", Protocol(form="paper"), rows=["1"], columns=["CIFAR10", "MAPL", "Local"])
    assert [getattr(w.recipe.method, "form", None) for w in works] == [None, "paper", "paper"]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("table", [*TABLES, "class_sim", "col_graph", "conv"])
def test_every_table_shrinks_and_never_becomes_the_papers(scale, table):
    works = plan(table, Protocol(scale))
    keys = {w.key for name in names() for w in plan(name, Protocol())}
    assert works
    assert keys.isdisjoint(w.key for w in works)
    assert all(w.scale == scale for w in works)
    for work in works:
        whole = work.recipe.rounds == SCALES[scale].rounds and not work.control
        assert getattr(work.recipe.method, "warmup", 0) < work.recipe.rounds or not whole


@pytest.mark.parametrize(
    "protocol",
    [
        Protocol(),
        Protocol("smoke"),
        Protocol(rounds=20),
        Protocol("small", 3, ("train.batch=5", "partition.stride=9")),
    ],
)
def test_a_label_says_all_that_makes_the_runs_what_they_are(protocol):
    again = Protocol.of_label(protocol.label)
    cell = find_cell("res_hetero/scenario=1/FashionMNIST/MAPL")
    assert key_of(again.of_cell(cell, 3)) == key_of(protocol.of_cell(cell, 3))
    assert Protocol(settings=("engine.kind=eager", "data.folder=x"), rounds=400).label == ""


@pytest.mark.parametrize("name", ["mapl", "mapl+", "fedproto", "fedsim", "fedclassavg"])
def test_every_twin_of_a_run_is_the_same_run(name):
    """To the bit, whatever graph the method would learn: else one control could not stand for the other."""
    over = {"method": {"warmup": 0, "graph": {"steps": 3}}} if name.startswith("mapl") else {}
    parts = [play(twin) for twin in twins(small(name, rounds=2, **over))]
    for part in parts:
        assert [line.accuracy for line in part.lines] == [line.accuracy for line in parts[0].lines]
        trained = {k: v for k, v in parameters(part).items() if "projector" not in k and "prototypes" not in k}
        assert_same(trained, {k: parameters(parts[0])[k] for k in trained})


# What is stored


def row_from(whole: Path) -> StoredRun:
    return next(iter(Store(whole).runs.values()))


def test_a_torn_last_line_is_left_out_and_cut_off_by_the_next_row(whole, tmp_path):
    row = row_from(whole)
    store = Store(tmp_path)
    store.add(row)
    path = tmp_path / "res_hetero.jsonl"
    first = path.read_bytes()
    path.write_bytes(first + b'{"key": "ab')
    assert list(Store(tmp_path).runs) == [row.key]
    other = row.parsed_recipe.model_copy(update={"seed": 7})
    Store(tmp_path).add(replace(row, key=key_of(other), recipe=asdictionary(other)))
    assert path.read_bytes().startswith(first), "what is written is never changed"
    assert list(Store(tmp_path).runs) == [row.key, key_of(other)]


def test_a_setting_that_is_newer_than_a_row_does_not_make_it_another_run(whole, tmp_path):
    row = row_from(whole)
    older = {name: value for name, value in row.recipe.items() if name != "checkpoint"}
    older["train"] = {name: value for name, value in row.recipe["train"].items() if name != "momentum"}
    Store(tmp_path).add(replace(row, key="as it was then", recipe=older))
    assert list(Store(tmp_path).runs) == [row.key]


def test_a_row_of_a_method_that_is_no_more_is_left_out_with_a_word(whole, tmp_path):
    row = row_from(whole)
    Store(tmp_path).add(row)
    gone = replace(row, key="unreadable", recipe={"method": {"name": "gone"}})
    with (tmp_path / "res_hetero.jsonl").open("a") as file:
        file.write(gone.line())
    with pytest.warns(UserWarning, match=r"FashionMNIST/Local is left out \(.*gone"):
        assert list(Store(tmp_path).runs) == [row.key]


def test_a_broken_line_is_one_sentence(whole, tmp_path):
    Store(tmp_path).add(row_from(whole))
    with (tmp_path / "res_hetero.jsonl").open("a") as file:
        file.write("{}\n")
    with pytest.raises(MaplError, match=r"res_hetero\.jsonl', line 2, is not a run: "):
        Store(tmp_path)


def test_a_row_has_all_that_tables_and_figures_need(whole):
    rows = {(r.cell.split("/")[-1], r.control): r for r in Store(whole).runs.values()}
    mapl_row, control = rows["MAPL", False], rows["MAPL", True]
    assert len(mapl_row.accuracy) == len(mapl_row.all_images) == 4
    assert mapl_row.curve["messages"][-1] == mapl_row.messages == 12 * 4
    assert mapl_row.matrix().sum(1).tolist() == pytest.approx([1] * 4, abs=1e-5)
    assert set(mapl_row.weights) >= {"0", "1", "2", "3"}
    assert "folder" not in mapl_row.recipe["data"]
    assert control.messages == 0
    assert (mapl_row.form, rows["Local", False].form) == ("balanced", None)
    assert rows["Local", False].weights == {}
    assert mapl_row.seconds > 0
    assert mapl_row.setup_seconds > 0
    assert mapl_row.parsed_recipe.data.name == "fashionmnist"
    assert not list((whole / RUNS).glob("*")), "the folders of finished runs are gone"


# What happens to the process


def kill_at(arguments: list[str], out: Path, log: Path, ready: Callable[[], bool], number: int) -> int | None:
    child = in_child(command, arguments, log)
    while not ready() and child.is_alive():
        time.sleep(0.001)
    os.kill(child.pid, number)
    child.join()
    return child.exitcode


def under_way(out: Path, rows: int, rounds: int) -> Callable[[], bool]:
    """Whether so many runs are in the store and the next has played so many rounds."""

    def ready() -> bool:
        stored = {row["key"] for row in lasting(out)}
        left = [path for path in out.glob(f"{RUNS}/*/history.jsonl") if path.parent.name not in stored]
        return len(stored) >= rows and any(path.read_bytes().count(b"\n") >= rounds for path in left)

    return ready


LONG = ("--rounds", "10", "--set", "checkpoint.every=2")


@pytest.fixture(scope="module")
def long(data, tmp_path_factory) -> list[dict[str, object]]:
    out = tmp_path_factory.mktemp("long")
    cli(*smoke(out, data, *LONG))
    return lasting(out)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_the_same_command_goes_on_after_a_kill_or_ctrl_c(number, code, data, long, tmp_path):
    arguments, out, log = smoke(tmp_path / "out", data, *LONG), tmp_path / "out", tmp_path / "log"
    assert kill_at(arguments, out, log, under_way(out, 1, 3), number) == code, log.read_text()
    before = lasting(out)
    assert 1 <= len(before) < 3
    if number == signal.SIGINT:
        assert "rerun the command to continue" in log.read_text()
    (left,) = (out / RUNS).glob("*")
    played = (left / "history.jsonl").read_bytes().count(b"\n")
    told = [json.loads(line) for line in cli(*arguments, "--json").splitlines()]
    first = next(event for event in told if event["event"] == "round")
    assert first["round"] > max(1, played - 6), "it went on from its checkpoint"
    assert sum(event["event"] == "run" for event in told) == 3 - len(before), "nothing was run twice"
    assert lasting(out) == long


def test_a_kill_between_the_store_and_the_sweep_costs_nothing(data, whole, tmp_path):
    row = row_from(whole)
    Store(tmp_path).add(row)
    (tmp_path / RUNS / row.key).mkdir(parents=True)
    cli(*smoke(tmp_path, data))
    assert not list((tmp_path / RUNS).glob("*"))
    assert lasting(tmp_path) == lasting(whole)


def test_a_budget_stops_it_and_the_same_command_goes_on(data, whole, tmp_path):
    said = cli(*smoke(tmp_path, data, "--budget-minutes", "0"))
    assert "3 runs, 0 done, 3 to go" in said
    cli(*smoke(tmp_path, data))
    assert lasting(tmp_path) == lasting(whole)


def test_a_plan_needs_no_data(tmp_path):
    folder = ("--set", f"data.folder={str(tmp_path)!r}", "--out", str(tmp_path / "out"))
    said = cli("reproduce", "res_hetero", "--plan", "--columns", "MNIST", *folder)
    assert "to go, time not known yet" in said
    assert "scenario=1/MNIST/MAPL, seed 0" in said


def test_rows_and_columns_are_of_tables():
    with pytest.raises(MaplError, match=line_with("--rows and --columns", "col_graph is a figure")):
        plan("col_graph", Protocol(), rows=["1"])


def test_a_page_of_what_there_is_needs_no_table(whole, tmp_path):
    shutil.copy(whole / "res_hetero.jsonl", tmp_path)
    assert "0 of 362 cells of the paper are filled" in cli("reproduce", "--page", "--out", str(tmp_path))
    assert "Not the paper" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_what_is_finished_is_not_run_again_and_one_process_writes(data, whole, monkeypatch):
    monkeypatch.setattr("mapl.paper.carry_out.run", pytest.fail)
    assert "3 runs, 3 done, 0 to go" in cli(*smoke(whole, data))
    with opened(whole), pytest.raises(Busy, match="somebody else is writing the results in"), opened(whole):
        pass


def test_a_plan_says_what_it_costs_and_saves_nothing(data, whole, tmp_path):
    said = cli(*smoke(tmp_path / "none", data, "--plan"))
    assert "scenario=1/FashionMNIST/MAPL, control, seed 0" in said
    assert "3 runs, 0 done, 3 to go, about " in said
    assert not (tmp_path / "none").exists()
    assert "1 done" not in cli(*smoke(whole, data, "--plan"))


# What is shown


def test_a_scaled_table_says_so_and_fills_no_cell(data, whole):
    said = cli(*smoke(whole, data))
    assert "NOT THE PAPER'S PROTOCOL: smoke" in said
    assert "0 of 100 cells of res_hetero are filled" in said
    assert "1 seed" in said
    assert "over clients" in said
    assert sum(filled(Store(whole)).values()) == 0
    listed = [json.loads(line) for line in cli("reproduce", "--out", str(whole), "--json").splitlines()]
    assert sum(entry.get("cells", 0) for entry in listed) == len(cells()) == 362
    (cell,) = [
        event
        for line in cli(*smoke(whole, data, "--json")).splitlines()
        if (event := json.loads(line))["event"] == "cell" and event["cell"].endswith("MAPL")
    ]
    assert cell["gain_over"] == "clients"
    assert cell["published_inside"] is None


# The numbers


def made(
    cell_name: str, row: StoredRun, accuracies: dict[int, list[float]], *, control: bool = False, **over: object
) -> list[StoredRun]:
    """Rows of a cell of the paper, or of its control, with these accuracies by seed."""
    rows = []
    for seed, values in accuracies.items():
        recipe = Protocol().of_cell(find_cell(cell_name), seed)
        recipe = control_of(recipe) if control else recipe
        curve = {"round": [199, 399], "accuracy": [0.1, float(np.mean(values))]}
        changed = {"scale": "", "seed": seed, "accuracy": values, "all_images": None, "curve": curve, **over}
        rows.append(
            replace(row, key=key_of(recipe), cell=cell_name, control=control, recipe=asdictionary(recipe), **changed)
        )
    return rows


def asdictionary(recipe: mapl.Recipe) -> dict[str, object]:
    return recipe.model_dump(mode="json")


def store_of(folder: Path, *rows: StoredRun) -> Store:
    store = Store(folder)
    store.runs = {row.key: row for row in rows}
    return store


MAPL = "res_hetero/scenario=1/CIFAR10/MAPL"
PROTO = "res_hetero/scenario=1/CIFAR10/FedProto"


def test_intervals_are_students_over_seeds(whole, tmp_path):
    row = row_from(whole)
    draw = np.random.default_rng(1)
    ours = {seed: list(draw.uniform(0.6, 0.9, 4)) for seed in range(3)}
    alone = {seed: list(draw.uniform(0.5, 0.8, 4)) for seed in range(3)}
    proto = {seed: list(draw.uniform(0.5, 0.8, 4)) for seed in range(1, 3)}
    rows = [*made(MAPL, row, ours), *made(MAPL, row, alone, control=True), *made(PROTO, row, proto)]
    store = store_of(tmp_path, *rows)
    theirs, result = results("res_hetero", store)  # in the paper's order
    means = np.array([np.mean(values) for values in ours.values()])
    low, high = stats.t.interval(0.95, 2, means.mean(), stats.sem(means))
    assert result.accuracy.mean == pytest.approx(means.mean())
    assert result.accuracy.interval == pytest.approx((high - low) / 2)
    assert result.spread == pytest.approx(np.mean([np.std(values) for values in ours.values()]))
    assert result.published_inside == (low <= find_cell(MAPL).accuracy <= high)
    gains = means - [np.mean(values) for values in alone.values()]
    assert result.gain.mean == pytest.approx(gains.mean())
    assert result.gain.interval == pytest.approx(stats.t.ppf(0.975, 2) * stats.sem(gains))
    assert result.gain_over == "seeds"
    against = means[1:] - [np.mean(values) for values in proto.values()]
    assert paired(result, theirs) == Estimate(
        pytest.approx(against.mean()), pytest.approx(stats.t.ppf(0.975, 1) * stats.sem(against))
    )
    assert theirs.gain is None
    assert filled(store)["res_hetero"] == 2
    assert [r.cell.name for r in results("var1", store)] == [
        "var1/scenario=1/clients=20/FedProto", "var1/scenario=1/clients=20/MAPL",
    ]  # fmt: skip


def test_with_one_seed_a_gain_is_paired_over_clients(whole, tmp_path):
    ours, alone = [0.8, 0.7, 0.9, 0.6], [0.7, 0.7, 0.6, 0.5]
    row = row_from(whole)
    store = store_of(tmp_path, *made(MAPL, row, {0: ours}), *made(MAPL, row, {0: alone}, control=True))
    (result,) = results("res_hetero", store)
    test = stats.ttest_rel(ours, alone).confidence_interval(0.95)
    assert (result.gain.mean - result.gain.interval, result.gain.mean + result.gain.interval) == pytest.approx(test)
    assert result.gain_over == "clients"
    assert result.accuracy.interval is None
    assert result.published_inside is None


@settings(max_examples=10)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.floats(-0.5, 0.5), st.integers(2, 5))
def test_a_run_that_is_better_by_the_same_everywhere_is_better_by_that_for_sure(whole_row, alone, gain, seeds):
    rows = made(MAPL, whole_row, {seed: [value + gain for value in alone] for seed in range(seeds)})
    twins_ = made(MAPL, whole_row, dict.fromkeys(range(seeds), alone), control=True)
    (result,) = results("res_hetero", store_of(Path("nowhere"), *rows, *twins_))
    assert result.gain.mean == pytest.approx(gain, abs=1e-9)
    assert result.gain.interval == pytest.approx(0, abs=1e-9)
    assert result.spread == pytest.approx(float(np.std([value + gain for value in alone])), abs=1e-9)


@pytest.fixture(scope="module")
def whole_row(whole) -> StoredRun:
    return row_from(whole)


def test_a_twin_that_trained_for_longer_is_read_at_the_same_age(whole):
    row = replace(row_from(whole), accuracy=[0.6], curve={"round": [9, 19, 29], "accuracy": [0.2, 0.4, 0.6]})
    assert [at_age(row, age) for age in (0, 9, 14, 19, 27, 29, 40)] == pytest.approx(
        [0.2, 0.2, 0.3, 0.4, 0.56, 0.6, 0.6]
    )


# The cost


def test_times_of_one_kind_hold_for_others_in_proportion():
    short, long = small(rounds=10), small(rounds=20, partition={"shots": 4})
    rates = Rates()
    rates.glimpse(short, 2.0, 1.0)
    assert rates.estimate(short) == pytest.approx(21)
    rates.learn(short, 1.0, 3.0)
    assert rates.estimate(short) == pytest.approx(13)
    assert rates.estimate(short, played=4) == pytest.approx(6)
    assert images_a_round(long) == 2 * images_a_round(short)
    assert rates.estimate(long) == pytest.approx(3 + 40)
    assert images_a_round(small("local")) == images_a_round(short) / 2


def test_a_store_teaches_what_runs_here_cost(whole):
    store = Store(whole)
    rates = Rates.of(store.runs.values(), row_from(whole).parsed_recipe)
    assert rates.known
    assert not Rates.of(
        [replace(r, device="elsewhere") for r in store.runs.values()], row_from(whole).parsed_recipe
    ).known
    assert asdict(rates)["first"] is None


def test_a_plan_that_is_done_needs_nothing(whole):
    works = plan("res_hetero", SMOKE, rows=["1"], columns=["Local", "MAPL"])
    assert carry_out(works, Store(whole), watch=pytest.fail)
