"""Every command does what it says, speaks plainly when piped, JSON when asked, and one sentence when something is wrong."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from rich.console import Console
from typer.testing import CliRunner

import mapl
from conftest import command, in_child, line_with, small, stop_after, written
from mapl.analysis.compare import Arm, Estimate
from mapl.cli import main
from mapl.cli.app import app
from mapl.cli.compare import CELLS, table
from mapl.names import DASH
from mapl.recipe import read, to_toml, validated, without_letters
from mapl.runs.files import only_writer

QUICK = ["--clients", "4", "--rounds", "2", "--set", "partition.shots=2", "--set", "evaluate.every=1"]


def streams(*arguments: str | Path) -> tuple[str, str]:
    """What the command prints to standard output, and to standard error."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def cli(*arguments: str | Path) -> str:
    return streams(*arguments)[0]


def refused(capsys, monkeypatch, *arguments: str | Path) -> str:
    """What the command prints to standard error when it exits with status 2."""
    monkeypatch.setattr(sys, "argv", ["mapl", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit:
        main()
    assert exit.value.code == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.err


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# run and resume


def test_run_says_how_it_goes_and_what_came_of_it():
    results, progress = (text.splitlines() for text in streams("run", *QUICK))
    assert progress[0].startswith("round 1/2  accuracy ")
    assert progress[1].startswith("round 2/2  accuracy ")
    assert progress[1].endswith(" 0 s left")
    record = mapl.load("runs/digits-s1-mapl-full-m4-seed0")
    assert results[0].startswith(
        f"accuracy {100 * record.mean:.1f} % ± {100 * record.std:.1f} over 4 clients after 2 rounds"
    )
    assert results[1].startswith("24 messages, ")
    assert "inside the true clusters" in results[2]
    assert results[3].endswith("mapl report runs/digits-s1-mapl-full-m4-seed0")
    assert not any("\x1b" in line for line in results + progress)


def test_a_long_run_prints_about_ten_lines():
    _, progress = streams("run", *QUICK, "--rounds", "25", "--method", "local", "--set", "evaluate.every=5")
    assert 10 <= sum(line.startswith("round ") for line in progress.splitlines()) <= 13
    assert "round 25/25" in progress


def test_a_line_between_two_tests_says_the_last_known_accuracy():
    named = ("--name", "run", "--set", "evaluate.every=5")
    _, progress = streams("run", *QUICK, "--rounds", "40", "--method", "local", *named)
    said = dict(re.findall(r"round (\d+)/40  accuracy (\S+)", progress))
    tests = {r.round + 1: f"{100 * fmean(r.accuracy):.1f}" for r in mapl.load("runs/run").tested}
    assert list(said) == [str(done) for done in range(4, 41, 4)]
    assert said["4"] == DASH, "nothing is known yet"
    assert [said[str(done)] for done in range(8, 41, 4)] == [tests[done - done % 5] for done in range(8, 41, 4)]


def test_every_option_reaches_the_recipe(tmp_path):
    Path("my.toml").write_text("seed = 4\n[partition]\nshots = 2\ntest_shots = 3\n")
    cli(
        *("run", "my.toml", "--method", "mapl+", "--data", "digits", "--scenario", 2, "--clients", 3, "--rounds", 1),
        *("--topology", "ring", "--name", "mine", "--out", "elsewhere", "--set", "method.graph.beta=0.2"),
        *("--set", "model.backbones=['cnn']"),
    )
    recipe = mapl.load("elsewhere/mine").recipe
    assert (recipe.method.name, recipe.method.graph.beta, recipe.partition.scenario) == ("mapl+", 0.2, 2)
    assert (recipe.clients, recipe.rounds, recipe.seed, recipe.network.topology.name) == (3, 1, 4, "ring")
    assert (recipe.partition.shots, recipe.model.backbones) == (2, ("cnn",))


def test_a_method_set_twice_keeps_its_settings():
    said = json.loads(cli("show", "--set", "method=mapl+", "--set", "method.warmup=3", "--json"))["recipe"]["method"]
    assert (said["name"], said["warmup"]) == ("mapl+", 3)


def test_json_lines():
    lines = [json.loads(line) for line in cli("run", *QUICK, "--json").splitlines()]
    assert [line["event"] for line in lines] == ["round", "round", "end"]
    record = mapl.load(lines[-1]["folder"])
    assert lines[-1]["accuracy"] == record.mean
    assert lines[-1]["finished"]
    assert sum(line["messages"] for line in lines[:2]) == lines[-1]["messages"] == record.messages
    assert lines[1]["losses"].keys() == record.rounds[1].losses.keys()


def test_profile_is_printed_and_kept():
    lines = cli("run", *QUICK, "--profile", "--name", "run").splitlines()
    assert re.match(r"2 rounds in \d+\.\d s on CPU .*\d+\.\d s of setup", lines[-8])
    parts = mapl.load("runs/run").profile["parts"]
    assert [line.split()[0] for line in lines[-7:]] == list(parts)
    assert lines[-7].split()[1] == f"{100 * parts['training']['share']:.1f}"
    said = [json.loads(line) for line in cli("resume", "runs/run", "--rounds", 3, "--profile", "--json").splitlines()]
    assert [line.pop("event") for line in said] == ["round", "profile", "end"]
    assert said[1] == mapl.load("runs/run").profile
    assert "of setup" not in cli("resume", "runs/run", "--rounds", 4), "only when asked"


def test_a_run_that_another_process_writes_is_a_sentence_and_status_1(capsys, monkeypatch):
    mapl.run(small(), "run")
    monkeypatch.setattr(sys, "argv", ["mapl", "resume", "run"])
    with only_writer(Path("run")), pytest.raises(SystemExit) as exit:
        main()
    assert exit.value.code == 1
    assert re.fullmatch(line_with("error: ", "somebody else is writing", "'run'") + ".*\n", capsys.readouterr().err)


def test_resume_plays_again_what_came_after_the_checkpoint_and_can_go_further():
    """The history is ahead of the checkpoint, as after a kill: the lines of the way back are printed all the same."""
    recipe = small(rounds=6, checkpoint={"every": 2})
    mapl.run(recipe, "whole")
    mapl.run(recipe, "run", stop=stop_after(2))
    with Path("whole/history.jsonl").open("rb") as file:
        Path("run/history.jsonl").write_bytes(b"".join(file.readline() for _ in range(5)))
    _, progress = streams("resume", "run")
    shown = [line.split()[1] for line in progress.splitlines() if line.startswith("round")]
    assert shown == ["3/6", "4/6", "5/6", "6/6"]
    assert written(Path("run")) == written(Path("whole"))
    assert "round 8/8" in streams("resume", "run", "--rounds", 8)[1]
    shutil.copytree("run", "my run")
    assert "mapl report 'my run'" in cli("resume", "my run")
    assert "nothing was left to train: all 8 rounds" in cli("resume", "run", "--rounds", 8)
    assert len(mapl.load("run").rounds) == 8


def test_resume_names_a_damaged_checkpoint_on_standard_error():
    mapl.run(small(), "run")
    newest = max(Path("run/checkpoints").iterdir())
    newest.write_bytes(b"nothing")
    result = CliRunner().invoke(app, ["resume", "run"], catch_exceptions=False)
    assert result.exit_code == 0
    assert f"warning: checkpoint '{newest}' is damaged" in result.stderr


def test_ctrl_c_finishes_the_round_saves_says_how_to_go_on_and_exits_with_130(tmp_path):
    recipe = small(rounds=40, name="run", checkpoint={"every": 1000}, model={"backbones": ["mlp"]})
    Path("recipe.toml").write_text(to_toml(recipe))
    out = tmp_path / "out.txt"
    child = in_child(command, ["run", str(tmp_path / "recipe.toml"), "--out", str(tmp_path)], out)
    while not (out.exists() and "round 4/40" in out.read_text()) and child.is_alive():
        time.sleep(0.005)
    os.kill(child.pid, signal.SIGINT)
    child.join()
    assert child.exitcode == 130
    done = len(mapl.load("run").rounds)
    assert 4 <= done < 40
    said = out.read_text()
    assert "finishing this round, then saving" in said
    assert f"stopped after round {done} of 40, saved in {tmp_path / 'run'}" in said
    assert f"continue with: mapl resume {tmp_path / 'run'}" in said
    assert [int(p.name[:6]) for p in Path("run/checkpoints").iterdir()] == [done]
    mapl.resume("run", rounds=40)
    mapl.run(recipe, "whole")
    assert written(Path("run")) == written(Path("whole"))


# compare, list, show


def test_compare_prints_a_table_and_json():
    mapl.run(small(), "runs/ours")
    mapl.run(small(network={"topology": {"name": "none"}}), "runs/control")
    out = cli("compare", "runs/ours", "runs/control")
    assert "mapl, no letters" in out
    assert re.search(r"mapl, no letters +│.*│ +control │", out)
    arms = json.loads(cli("compare", "runs/ours", "runs/control", "--json"))["arms"]
    gain = mapl.load("runs/ours").mean - mapl.load("runs/control").mean
    assert arms[0]["gain"]["mean"] == pytest.approx(gain)
    assert arms[0]["messages"] == 36
    assert arms[0]["share"] is None
    alone = cli("compare", "runs/ours")
    assert "no control" in alone
    assert "no gain for mapl: it needs the same runs with --topology none" in alone
    assert "no gain for" not in out


def test_compare_leaves_an_untested_run_out_with_a_sentence_and_says_what_differs():
    mapl.run(small(), "runs/ours")
    mapl.run(small("local", train={"learning_rate": 0.1}), "runs/local")
    mapl.run(small(seed=1, evaluate={"every": 3}), "runs/begun", stop=stop_after(1))
    result = CliRunner().invoke(app, ["compare", *map(str, Path("runs").iterdir())], catch_exceptions=False)
    assert result.exit_code == 0
    assert "runs/begun" in result.stderr
    assert "train.learning_rate: " in result.stdout
    with pytest.raises(mapl.MaplError, match="none of these runs has been tested"):
        CliRunner().invoke(app, ["compare", "runs/begun"], catch_exceptions=False)


def test_compare_says_how_much_of_the_way_to_pooled_images_an_arm_has_made():
    train = {"learning_rate": 0.01, "warmup_rounds": 2}
    ours = small(rounds=4, seed=2, train=train, partition={"test_shots": 15})
    control = ours.model_copy(update={"network": without_letters(ours.network)})
    pooled = {"partition": control.partition.model_copy(update={"pooled": True})}
    ceiling = control.model_copy(update={**pooled, "train": ours.train.model_copy(update={"steps": 2})})
    folders = "runs/ours", "runs/control", "runs/ceiling"
    ours, control, ceiling = (mapl.run(*run).mean for run in zip((ours, control, ceiling), folders, strict=True))
    assert ceiling > control
    arms = json.loads(cli("compare", *folders, "--json"))["arms"]
    share = (ours - control) / (ceiling - control)
    assert arms[0]["share"] == {"mean": pytest.approx(share), "interval": None}
    assert [arm["is_ceiling"] for arm in arms] == [False, False, True]
    out = cli("compare", *folders)
    assert f"{100 * share:.1f} %" in out
    assert re.search(r"│ +ceiling │", out)


def test_compare_names_the_run_it_leaves_out_and_says_how_far_an_arm_came():
    mapl.run(small(), "runs/stopped", stop=stop_after(2))
    mapl.run(small(), "runs/whole")
    mapl.run(small(network={"topology": {"name": "none"}}), "runs/control", stop=stop_after(1))
    result = CliRunner().invoke(app, ["compare", "runs/stopped", "runs/whole", "runs/control"])
    parts = ("'runs/stopped'", "2 of 3 rounds", "left out", "'runs/whole'", "3 of 3 rounds", "same recipe")
    assert re.match(line_with("warning: ", *parts), result.stderr)
    assert f"{100 * mapl.load('runs/whole').mean:.1f}" in result.stdout
    assert "mapl, no letters (1 of 3 rounds)" in result.stdout


ESTIMATE = Estimate(0.7123, 0.1234)
WIDE_ARM = Arm(
    *("mapl, one backbone, method.graph.beta=0.2 (12 of 45 rounds)", "mapl", [0, 1, 2], 12, 45, ESTIMATE, 0.1012),
    *(ESTIMATE, None, None, 0.71, 1_234_567.0, 2.0**33, 1234.0, False, False),
)


@pytest.mark.parametrize("width", [50, 60, 80, 120, 180])
def test_the_table_of_compare_cuts_no_number_whatever_the_width(width):
    out = io.StringIO()
    Console(width=width, file=out).print(table([WIDE_ARM, replace(WIDE_ARM, gain=None)], width))
    said = out.getvalue()
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= width
    shown = {heading.strip() for heading in said.splitlines()[1].split("┃")} - {"", "run"}
    assert {"acc. %", "gain"} <= shown
    for title in shown:
        assert CELLS[title](WIDE_ARM) in said
    assert ({"MiB", "s"} <= shown) == (width >= 120)
    assert ({"seeds", "std", "inside"} <= shown) == (width >= 80)


@pytest.mark.parametrize("width", [50, 80, 120])
def test_the_way_to_pooled_is_a_column_only_if_some_arm_has_it(width):
    way = replace(WIDE_ARM, room=ESTIMATE, share=ESTIMATE)
    ceiling = replace(WIDE_ARM, gain=None, is_ceiling=True)
    said = []
    for arms in ([WIDE_ARM, ceiling], [WIDE_ARM, way, ceiling], [replace(way, share=None), ceiling]):
        out = io.StringIO()
        Console(width=width, file=out).print(table(arms, width))
        assert "…" not in out.getvalue()
        assert max(map(len, out.getvalue().splitlines())) <= width
        said.append(out.getvalue())
    shown = [["way to pooled" in text.splitlines()[1], "71.2 ± 12.3 %" in text, "no room" in text] for text in said]
    assert shown == ([[False] * 3] * 3 if width == 50 else [[False] * 3, [True, True, False], [True, False, True]])
    assert all("ceiling" in text for text in said)


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("methods", {"mapl", "mapl+", "local"}),
        ("backbones", {"mlp", "cnn", "residual", "separable"}),
        ("data", {"digits"}),
        ("scenarios", {"1", "2", "3", "4"}),
        ("topologies", {"full", "none", "ring", "file"}),
    ],
)
def test_lists(what, names):
    plain = cli("list", what).splitlines()
    assert names <= {line.split()[0] for line in plain}
    assert all(len(line.split(maxsplit=1)) == 2 for line in plain), "each has a sentence"
    entries = json.loads(cli("list", what, "--json"))
    assert [line.split()[0] for line in plain] == list(entries)


def test_show_prints_a_recipe_that_loads_again_and_where_each_value_came_from():
    Path("my.toml").write_text("seed = 4\n[method]\nname = 'mapl+'\nwarmup = 2\n")
    out = cli("show", "my.toml", "--clients", 6, "--set", "network.letter_limit=123456")
    Path("again.toml").write_text(out)
    recipe = validated(read(Path("again.toml")), "again")
    assert (recipe.seed, recipe.clients, recipe.method.name, recipe.method.warmup) == (4, 6, "mapl+", 2)
    assert recipe.network.letter_limit == 123456
    lines = [line for line in out.splitlines() if " = " in line]
    origins = {line.split(" = ")[0]: line.rpartition("# ")[2] for line in reversed(lines)}  # the first of a name counts
    assert origins["seed"] == "my.toml"
    assert origins["clients"] == "command line"
    assert origins["letter_limit"] == "command line"
    assert origins["sharding"] == "data set digits"
    assert origins["momentum"] == "default"
    said = json.loads(cli("show", "my.toml", "--clients", 6, "--set", "network.letter_limit=123456", "--json"))
    assert said["recipe"] == recipe.model_dump(mode="json")
    assert said["provenance"]["clients"] == "command line"
    values = [line for line in out.splitlines() if " = " in line and not line.startswith("version")]
    assert cli("show", "again.toml").count("# again.toml") == len(values)


def test_help_names_every_command():
    out = cli("--help")
    assert all(name in out for name in ("demo", "run", "resume", "compare", "report", "join", "list", "show"))


# What a person can get wrong


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--method", "mapel"], "unknown method 'mapel'; known: "),
        (["run", "--data", "digit"], "Did you mean 'digits'?"),
        (["run", "--topology", "rng", *QUICK], "Did you mean 'ring'?"),
        (["run", "--set", "model.backbones=['cn']"], "unknown backbone 'cn'; known: "),
        (["list", "method"], "unknown list 'method'; known: backbones, data, methods, "),
        (["run", "missing.toml"], "there is no recipe 'missing.toml'"),
        (["run", "courier"], "there is no recipe 'courier'; did you mean --method courier?"),
        (["run", "digits"], "did you mean --data digits?"),
        (["run", "runs"], "recipe 'runs' is a folder, but a recipe is a TOML file; --data runs "),
        (["run", "runs/taken"], "recipe 'runs/taken' is a folder, but a recipe is a TOML file; mapl resume runs/taken "),
        (["run", "--data", "photos"], "unknown data set 'photos'; known: "),
        (["data", "check", "photos"], "There is no file or folder of that name either."),
        (["run", "bad.toml"], "recipe 'bad.toml' is not TOML: "),
        (["run", "odd.toml"], "recipe (odd.toml): unknown key 'method.graph.bta'; known: beta,"),
        (["run", "--set", "clients=many"], "recipe (command line): clients: got 'many', but it should be a valid integer"),
        (["run", "--set", "clients"], "--set 'clients': write it as key=value, for example method.graph.beta=0.2"),
        (["run", "--set", "evaluate.every=0"], "evaluate.every: got 0, but it should be greater than or equal to 1"),
        (["run", "--set", "method.name=3"], "method: its name should be a string"),
        (["run", "--set", "data.name=3"], "data.name: got 3, but it should be a valid string"),
        (["run", "--set", "partition.clusters=11", "--clients", "20"], "got 11, but the data has 10 classes; take at most 10"),
        (["run", "--method", "mapl+", "--set", "network.letter_limit=1000"], "network.letter_limit: got 1,000 bytes, but"),
        (["run", "--set", "network.topology.degree=10", "--topology", "regular"], "topology.degree is 10, but with 10 "),
        (["run", "--clients", "0"], "clients: got 0, but it should be greater than or equal to 1"),
        (["run", "--name", "taken"], "'runs/taken' is a run of another recipe (differs in "),
        (["run", "--method", "nowhere:Name"], "cannot import 'nowhere' of the import path 'nowhere:Name'"),
        (["resume", "nowhere"], "'nowhere' is not the folder of a run: there is no such folder"),
        (["compare", "nowhere"], "'nowhere' is not the folder of a run: there is no such folder"),
        (["show", "--scenario", "5"], "partition.scenario: got 5, but it should be 1, 2, 3 or 4"),
    ],
)  # fmt: skip
def test_one_sentence_and_status_2(arguments, sentence, capsys, monkeypatch):
    Path("bad.toml").write_text("[method\n")
    Path("odd.toml").write_text("[method.graph]\nbta = 1\n")
    Path("runs/taken").mkdir(parents=True)
    Path("runs/taken/recipe.toml").touch()
    error = refused(capsys, monkeypatch, *arguments)
    assert error.startswith("error: ")
    assert sentence in error
    assert error.count("\n") == 1


def test_a_run_whose_checkpoints_are_all_damaged(capsys, monkeypatch):
    mapl.run(small(), "run")
    for path in Path("run/checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    error = refused(capsys, monkeypatch, "resume", "run")
    assert "error: no checkpoint in 'run/checkpoints' is whole" in error
    assert "--overwrite" in error
    assert error.count("warning: checkpoint") == 2


@pytest.mark.parametrize("out", ["taken", "taken/deep", "blocked"])
def test_a_report_that_cannot_be_written(out, capsys, monkeypatch):
    mapl.run(small("local"), "run")
    Path("taken").touch()
    Path("blocked/report.html").mkdir(parents=True)
    error = refused(capsys, monkeypatch, "report", "run", "--out", out)
    assert error.startswith(f"error: report '{out}' could not be written (")
    assert error.endswith("; choose another folder\n")
    assert error.count("\n") == 1


def test_a_wrong_option_is_typers_own_error(capsys, monkeypatch):
    assert "No such option" in refused(capsys, monkeypatch, "run", "--rouns", "3")
