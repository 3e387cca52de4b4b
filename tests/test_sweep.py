"""Sweeps: what is trained for which options, where it goes, and that a sweep that was killed ends with the same table."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import mapl
from conftest import PRELOADED, in_child, processes_of, small, until, written
from mapl.analysis.sweep import Point, Sweep, plan
from mapl.cli.app import app
from mapl.cli.sweep import _points, is_sweep
from mapl.runs.jobs import carry_out

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
    assert {path: path.stat().st_mtime_ns for path in Path("runs/sweep").rglob("*")} == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--method", "mapl,"], "--method 'mapl,': a name is missing between two commas, or at an end"),
        (["--method", "local,mapel"], "unknown method 'mapel'"),
        (["--set", "clients=4,"], "--set 'clients=4,': a value is missing"),
        (["--set", "clients=4,many"], "clients: got 'many'"),
        (["--set", "seed=1,2", "--seeds", "2"], "--seeds: the seeds are given by --set seed="),
        (["--seeds", "2", "--overwrite"], "--overwrite, --log and --profile are for one run"),
    ],
)
def test_what_cannot_be_swept_is_one_sentence_and_nothing_is_written(arguments, sentence):
    result = CliRunner().invoke(app, ["run", *QUICK, *arguments])
    assert result.exit_code
    assert isinstance(result.exception, mapl.MaplError)
    assert sentence in str(result.exception)
    assert not Path("runs").exists()


def table(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The compared table without the seconds."""
    arms = json.loads(CliRunner().invoke(app, ["compare", *map(str, folders), "--json"]).stdout)["arms"]
    return [{key: value for key, value in arm.items() if key != "seconds"} for arm in arms]


def begin(sweep: Sweep) -> None:
    """In a child, as the leader of a process group."""
    os.setsid()
    multiprocessing.current_process().daemon = False  # those may have no children
    carry_out(sweep.jobs)


@pytest.mark.slow
def test_killed_and_repeated_it_ends_with_the_same_table(quick_workers, tmp_path):
    """SIGKILL for the command alone, as the kernel does it when memory runs out: its workers end by themselves."""
    over = {"rounds": 12, "model": {"backbones": ["mlp"]}, "checkpoint": {"every": 5}}
    points = [Point(small(name, seed=seed, **over)) for seed in (0, 1) for name in ("mapl", "local")]
    whole, killed = plan(points, tmp_path / "whole"), plan(points, tmp_path / "killed")
    assert carry_out(whole.jobs)
    child = in_child(begin, killed)
    group = child.pid
    try:
        until(lambda: any((job.folder / "history.jsonl").exists() for job in killed.jobs))
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        until(lambda: not processes_of(group))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    assert not all((job.folder / "recipe.toml").exists() and mapl.load(job.folder).finished for job in killed.jobs)
    assert carry_out(killed.jobs)
    for one, other in zip(whole.jobs, killed.jobs, strict=True):
        assert written(one.folder) == written(other.folder)
    assert table([job.folder for job in whole.jobs]) == table([job.folder for job in killed.jobs])
