"""Sweeps: what is trained for which options, where it goes, and that a sweep that was killed ends with the same table."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import statistics
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

import mapl
from conftest import PRELOADED, command, in_child, processes_of, small, until, written
from mapl.analysis.sweep import Point, Sweep, plan
from mapl.cli.app import app
from mapl.cli.sweep import _points, is_sweep

QUICK = ["--clients", "4", "--rounds", "2", "--set", "partition.shots=2", "--set", "model.backbones=['mlp']"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def quick_workers(monkeypatch):
    monkeypatch.setattr("mapl.runs.jobs.multiprocessing.get_context", lambda kind: PRELOADED)


def planned(*settings: str, method: str | None = None, seeds: int | None = None, controls: bool = True) -> Sweep:
    """What `mapl run` would train with these options."""
    assert is_sweep(method, settings, seeds)
    options: dict[str, Any] = {"method": method, "clients": 4}
    return plan(list(_points(None, settings, seeds, options)), Path("runs"), controls)


def names(sweep: Sweep) -> list[str]:
    return [job.folder.name for job in sweep.jobs]


def test_every_method_and_seed_with_one_control_for_all_that_share_it():
    sweep = planned(method="local,mapl,mapl,courier", seeds=2)
    assert (sweep.arms, sweep.controls, sweep.seeds) == (5, 2, [0, 1])
    kinds = ["local-full", "mapl-full", "courier-full", "mapl-none", "courier-none"]
    assert names(sweep) == [f"digits-s1-{kind}-m4-seed{seed}" for seed in (0, 1) for kind in kinds]
    assert [job.recipe().seed for job in sweep.jobs] == [0] * 5 + [1] * 5
    assert all(job.recipe().name == job.folder.name for job in sweep.jobs)
    assert len(planned(method="mapl,mapl+", seeds=1).jobs) == 3, "both have MAPL's control"
    assert len(planned(method="local,mapl,courier", seeds=2, controls=False).jobs) == 6
    assert len(planned("network.topology.name=none", method="mapl,courier", seeds=2).jobs) == 4, "they are controls"


def test_values_are_apart_at_commas_outside_quotes_and_brackets():
    sweep = planned("train.learning_rate=0.1,0.01", "model.backbones=['cnn'],['cnn', 'mlp']", controls=False)
    chosen = [(job.recipe().train.learning_rate, job.recipe().model.backbones) for job in sweep.jobs]
    assert chosen == [(rate, found) for rate in (0.1, 0.01) for found in (("cnn",), ("cnn", "mlp"))]
    assert not is_sweep("mapl", ["model.backbones=['cnn', 'mlp']", "data.folder='a,b'"], None)


def test_a_name_says_what_varies_and_of_a_control_only_what_it_depends_on():
    rates = planned("train.learning_rate=0.1,0.01", method="mapl")
    ending = ["-train.learning_rate=0.1", "-train.learning_rate=0.01"]
    assert names(rates) == [f"digits-s1-mapl-{kind}-m4-seed0{end}" for kind in ("full", "none") for end in ending]
    warmups = planned("method.warmup=3,4", method="mapl")
    assert names(warmups)[2:] == ["digits-s1-mapl-none-m4-seed0"]
    seeds = planned("seed=3,5", method="local")
    assert names(seeds) == ["digits-s1-local-full-m4-seed3", "digits-s1-local-full-m4-seed5"]


def test_what_is_there_is_found_whatever_its_folder_is_called_and_never_taken_for_another():
    mapl.run(small("local"), "runs/mine")
    mapl.run(small("local", train={"learning_rate": 0.01}), "runs/digits-s1-local-full-m4-seed1")
    mapl.run(small("local", rounds=1), "runs/digits-s1-local-full-m4-seed2")
    Path("runs/damaged").mkdir()
    Path("runs/damaged/recipe.toml").write_text("seed = ")
    Path("runs/damaged/clients.json").write_text("[]")
    sweep = plan([Point(small("local", seed=seed)) for seed in range(3)], Path("runs"))
    assert sweep.jobs[0].folder == Path("runs/mine")
    others = [job.folder.name for job in sweep.jobs[1:]]
    assert all(name.startswith(f"digits-s1-local-full-m4-seed{1 + i}-") for i, name in enumerate(others))
    assert not any(Path("runs", name).exists() for name in others)


def test_the_command_trains_all_ends_with_the_table_and_repeats_nothing(quick_workers):
    arguments = ["run", *QUICK, "--method", "local,mapl", "--seeds", "2", "--name", "sweep", "--json"]
    first = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert first.exit_code == 0, first.output
    arms = {arm["label"]: arm for arm in json.loads(first.stdout)["arms"]}
    assert list(arms) == ["local", "mapl", "mapl, no letters"]
    assert [arm["seeds"] for arm in arms.values()] == [[0, 1]] * 3
    assert arms["mapl"]["pairs"] == 2
    before = {path: path.stat().st_mtime_ns for path in Path("runs/sweep").rglob("*")}
    again = CliRunner().invoke(app, arguments[:-1], catch_exceptions=False)
    assert again.stdout.splitlines()[0].endswith("6 runs in runs/sweep, 6 of them done already")
    assert "mapl, no letters" in again.stdout
    assert "an interval over 2 seeds is worth little" in again.stdout
    assert "confirms" not in again.stdout
    assert again.stdout.splitlines()[-1].startswith("saved in runs/sweep; again with: mapl compare runs/sweep")
    assert {path: path.stat().st_mtime_ns for path in Path("runs/sweep").rglob("*")} == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--method", "mapl,"], "--method 'mapl,': a name is missing between two commas, or at an end"),
        (["--method", "local,mapel"], "unknown method 'mapel'"),
        (["--set", "clients=4,"], "--set 'clients=4,': a value is missing"),
        (["--set", "clients=4,many"], "clients: got 'many'"),
        (["--set", "seed=1,2", "--seeds", "2"], "--seeds: the seeds are given by --set seed="),
        (["--seeds", "2", "--name", "../elsewhere"], "--name '../elsewhere': it should be a name without '/'"),
        (["--seeds", "2", "--overwrite"], "--overwrite, --log and --profile are for one run"),
    ],
)
def test_what_cannot_be_swept_is_one_sentence_and_nothing_is_written(arguments, sentence):
    result = CliRunner().invoke(app, ["run", *QUICK, *arguments])
    assert result.exit_code
    assert isinstance(result.exception, mapl.MaplError)
    assert sentence in str(result.exception)
    assert not Path("runs").exists()


COMMAND = ["run", "--method", "local,mapl,courier", "--seeds", "5", "--clients", "4", "--rounds", "2"]
COMMAND += ["--set", "partition.shots=2", "--set", "model.backbones=['mlp']"]
METHODS = ("local", "mapl", "courier")


def begin(out: Path) -> None:
    """In a child, as the leader of a process group."""
    os.setsid()
    multiprocessing.current_process().daemon = False  # those may have no children
    command([*COMMAND, "--out", str(out)], out.with_suffix(".txt"))


def table(out: Path) -> dict[str, Any]:
    """The compared table that the command ends with, without the seconds."""
    result = CliRunner().invoke(app, [*COMMAND, "--out", str(out), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    for arm in found["arms"]:
        del arm["seconds"]
    return found


def accuracies(out: Path) -> dict[str, list[float]]:
    """By method, seed by seed: the mean over clients after the last round, read from the files alone."""
    found: dict[str, list[float]] = {name: [] for name in METHODS}
    for name, seed in itertools.product(METHODS, range(5)):
        lines = (out / f"digits-s1-{name}-mlp-full-m4-seed{seed}" / "history.jsonl").read_text().splitlines()
        found[name].append(statistics.fmean(json.loads(lines[-1])["accuracy"]))
    return found


@pytest.mark.slow
def test_killed_and_repeated_it_ends_with_the_same_table_and_that_of_scipy(quick_workers, tmp_path):
    """SIGKILL for the command alone, as the kernel does it when memory runs out: its workers end by themselves."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    child = in_child(begin, killed)
    group = child.pid
    try:
        until(lambda: sum(1 for _ in killed.glob("*/history.jsonl")) >= 3)
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        until(lambda: not processes_of(group))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    assert len(list(killed.glob("*/history.jsonl"))) < 25, "it was killed in the middle"
    ours = table(killed)
    assert ours == table(whole)
    folders = sorted(path.name for path in whole.iterdir())
    assert len(folders) == 25
    assert all(written(whole / name) == written(killed / name) for name in folders)
    check_with_scipy(ours["differences"], accuracies(killed))


def check_with_scipy(differences: list[dict[str, Any]], means: dict[str, list[float]]) -> None:
    """Student's t for pairs, and Holm's method from its definition."""
    pairs = list(itertools.combinations(METHODS, 2))
    assert [(d["first"], d["second"]) for d in differences] == pairs
    tests = [stats.ttest_rel(means[first], means[second]) for first, second in pairs]
    largest, rejecting = 0.0, True
    for rank, place in enumerate(np.argsort([test.pvalue for test in tests])):
        test, found = tests[place], differences[place]
        if rejecting:
            level = 0.05 / (len(pairs) - rank)
        rejecting = rejecting and test.pvalue < level
        largest = max(largest, min(1.0, (len(pairs) - rank) * test.pvalue))
        assert found["seeds"] == [0, 1, 2, 3, 4]
        assert (found["p"], found["holm"]) == (pytest.approx(test.pvalue), pytest.approx(largest))
        low, high = test.confidence_interval(1 - level)
        assert found["difference"]["mean"] == pytest.approx((low + high) / 2)
        assert found["difference"]["interval"] == pytest.approx((high - low) / 2)
