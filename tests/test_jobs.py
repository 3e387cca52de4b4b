"""Many runs at once: Ctrl-C, going on, and what is refused before anything is trained; and what `mapl demo` asks for."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from typer.testing import CliRunner

import mapl
import mapl.cli
from conftest import PRELOADED, SMALL, command, in_child, processes_of, small, stop_after, until, written
from mapl.cli import demo as demo_command
from mapl.cli.app import app
from mapl.runs.jobs import Job, carry_out, is_done
from mapl.terminal.messages import show_warning
from mapl.trees import Tree, merge

LONG: Tree = merge(SMALL, {"rounds": 120, "model": {"backbones": ["mlp"]}}) | {
    "evaluate": {"every": 100},
    "checkpoint": {"every": 1000},
}
ENDLESS: Tree = merge(LONG, {"train": {"epochs": 10**9}})
"""Its first round does not end, so nothing but an end by force ends it."""


def jobs(out: Path, tree: Tree, count: int) -> list[Job]:
    return [Job("small", merge(tree, {"seed": seed}), out / str(seed)) for seed in range(count)]


def as_a_command(jobs: list[Job], output: Path) -> None:
    """What `mapl demo` does, as the leader of a process group, which a terminal's Ctrl-C goes to; for use in a child."""
    os.setsid()
    multiprocessing.current_process().daemon = False  # those may have no children
    mapl.cli.main = lambda: demo_command.train(jobs)
    command([], output)


@contextmanager
def started(jobs: list[Job], output: Path) -> Iterator[ForkServerProcess]:
    """The command in a child; whatever comes of a test, nothing is left of it."""
    child = in_child(as_a_command, jobs, output)
    try:
        yield child
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def test_a_run_that_was_killed_before_its_last_checkpoint_is_not_done(tmp_path):
    """Its history is whole, but its models are missing."""
    (job,) = jobs(tmp_path, SMALL, 1)
    mapl.run(job.recipe(), job.folder)
    whole = written(job.folder)
    assert is_done(job)
    for path in (job.folder / "checkpoints").iterdir():
        path.unlink()
    assert mapl.load(job.folder).finished
    assert not is_done(job)
    mapl.resume(job.folder)
    assert is_done(job)
    assert written(job.folder) == whole
    shutil.rmtree(job.folder / "checkpoints")
    assert is_done(job), "somebody has removed them on purpose"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_saves_what_runs_begins_nothing_and_the_same_command_goes_on(number, status, tmp_path):
    """Sent to all processes, as a terminal and a batch system do."""
    many, out = jobs(tmp_path / "runs", LONG, 3 + (os.cpu_count() or 1)), tmp_path / "out.txt"
    with started(many, out) as child:
        until(lambda: any((job.folder / "history.jsonl").exists() for job in many))
        os.killpg(child.pid, number)
        child.join(60)
    assert child.exitcode == status
    assert "stopped and saved" in out.read_text().splitlines()[-1]
    assert "Traceback" not in out.read_text()
    assert not many[-1].folder.exists(), "what had not begun does not begin"
    begun = [(job, mapl.load(job.folder)) for job in many if job.folder.exists()]
    for job, record in begun:
        assert f"{len(record.rounds):06}" in max((job.folder / "checkpoints").iterdir()).name
    if number == signal.SIGTERM:
        return  # it is the same from here on
    # One alone, because a test has no time for all of them.
    job, before = next((job, record) for job, record in begun if not record.finished)
    with started([job], out) as child:
        child.join(60)
    assert child.exitcode == 0, out.read_text()
    after = mapl.load(job.folder)
    assert after.finished
    assert after.times[: len(before.times)] == before.times, "not begun anew: no two runs take the same time"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are counted in /proc")
@pytest.mark.parametrize("training", [False, True])
def test_a_second_ctrl_c_ends_all_at_once_and_prints_no_traceback(training, tmp_path):
    """Also while the workers still import what they need, which is when Python would print tracebacks."""
    two, out = jobs(tmp_path / "runs", ENDLESS, 2), tmp_path / "out.txt"
    with started(two, out) as child:
        until(lambda: processes_of(child.pid) >= 3)
        until(lambda: not training or any((job.folder / "recipe.toml").exists() for job in two))
        os.killpg(child.pid, signal.SIGINT)
        until(lambda: "finishing this round" in out.read_text())
        os.killpg(child.pid, signal.SIGINT)
        child.join(20)
        assert child.exitcode == 130
        until(lambda: processes_of(child.pid) == 0, 10)
    assert "stopped at once" in out.read_text().splitlines()[-1]
    assert "Traceback" not in out.read_text()


@pytest.fixture
def quick_workers(monkeypatch):
    """Workers that start in milliseconds. The tests of Ctrl-C have those that a person gets, which import for seconds."""
    monkeypatch.setattr("mapl.runs.jobs.multiprocessing.get_context", lambda kind: PRELOADED)


def test_the_scheduler_tells_how_far_it_is_and_whether_all_is_done(quick_workers, tmp_path):
    # Whether to stop is asked now and then: a short run may be done by then.
    assert not carry_out(jobs(tmp_path / "long", LONG, 1), stop=lambda: True)
    (job,) = jobs(tmp_path, SMALL, 1)
    told: list[tuple[int, int]] = []
    assert carry_out([job], watch=lambda *moment: told.append(moment))
    assert told[-1] == (3, 3)
    assert {total for _, total in told} == {3}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert mapl.load(job.folder).finished


def test_what_the_workers_warn_of_is_shown_as_what_the_command_warns_of(quick_workers, tmp_path, monkeypatch, capfd):
    """Without a line of source, and once if all of them say the same."""
    stopped, *others = jobs(tmp_path, merge(SMALL, {"clients": 1}), 3)
    mapl.run(stopped.recipe(), stopped.folder, stop=stop_after(2))
    max((stopped.folder / "checkpoints").iterdir()).write_bytes(b"nothing")
    monkeypatch.setattr(warnings, "showwarning", show_warning)
    capfd.readouterr()
    assert carry_out([stopped, *others])
    said = sorted(capfd.readouterr().err.splitlines())
    beginnings = ("warning: '", "warning: checkpoint '", "warning: there is one client")
    assert [line.startswith(beginning) for line, beginning in zip(said, beginnings, strict=True)] == [True] * 3


def test_a_run_that_fails_stops_the_others_and_is_what_is_said(quick_workers, tmp_path):
    (tmp_path / "0" / "other").mkdir(parents=True)
    with pytest.raises(mapl.MaplError, match="is not the folder of a run") as error:
        carry_out(jobs(tmp_path, LONG, 2))
    assert error.value.__notes__ == [f"in the run {tmp_path / '0'}"]
    assert not (tmp_path / "1").exists() or not mapl.load(tmp_path / "1").finished


def test_a_run_of_another_recipe_is_refused_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr("mapl.runs.jobs.ProcessPoolExecutor", pytest.fail)
    mapl.run(small(seed=1), tmp_path / "1")
    with pytest.raises(mapl.MaplError, match="is a run of another recipe"):
        carry_out(jobs(tmp_path, LONG, 2))


# mapl demo


@pytest.fixture
def asked(tmp_path, monkeypatch) -> list[Job]:
    """What `mapl demo` asks for; it gets the same arms, but much smaller."""
    monkeypatch.chdir(tmp_path)
    found: list[Job] = []

    def train(jobs: list[Job]) -> None:
        found.extend(jobs)
        for job in jobs:
            recipe = job.recipe()
            parts = {"method": recipe.method.model_dump(), "network": recipe.network.model_dump()}
            base = {"method": {"name": recipe.method.name}}
            mapl.run(
                mapl.Recipe.of(**merge({**SMALL, **base}, {**parts, "seed": recipe.seed, "rounds": 1})), job.folder
            )

    monkeypatch.setattr(demo_command, "train", train)
    return found


@pytest.fixture
def introductions(monkeypatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr("mapl.report.write_report", lambda *_, introduction, **__: found.append(introduction))
    return found


def demo(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["demo", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
def test_a_quick_demo_has_a_folder_of_its_own_and_says_that_it_finds_nothing(asked, introductions):
    out = demo("--quick")
    assert {job.folder.parent for job in asked} == {Path("runs/demo-quick")}
    assert {(job.recipe().seed, job.recipe().rounds) for job in asked} == {(0, 12), (1, 12)}
    assert "12 of 45 rounds" in introductions[0]
    assert out.count(introductions[0]) == 1
    assert "points of accuracy" not in out


def test_a_quick_demo_takes_as_many_seeds_as_are_asked_for(asked, introductions):
    demo("--quick", "--seeds", "1", "--out", "elsewhere")
    assert {job.recipe().seed for job in asked} == {0}
    assert {job.folder.parent for job in asked} == {Path("elsewhere")}


@pytest.mark.slow
def test_the_whole_demo_says_what_each_part_adds(asked, introductions):
    out = demo()
    assert {job.folder.parent for job in asked} == {Path("runs/demo")}
    assert {(job.recipe().seed, job.recipe().rounds) for job in asked} == {(seed, 45) for seed in range(5)}
    assert out.count("points of accuracy") == introductions[0].count("points of accuracy") == 6
    assert "of 45 rounds" not in out
