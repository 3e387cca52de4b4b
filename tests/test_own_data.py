"""Own data work on the first try: nothing is set but where they are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from conftest import line_with
from mapl import MaplError, Recipe, resume, run
from mapl.cli.app import app
from mapl.cli.own import introduced
from mapl.data.dataset import DataSettings
from mapl.data.loading import load
from mapl.data.own import suited
from mapl.runs.export import export_run, load_model
from mapl.runs.folder import load_recipe

Bytes = NDArray[np.uint8]


def digits(each: int = 12) -> tuple[Bytes, list[int]]:
    """So many handwritten digits of each class."""
    bunch = load_digits()
    chosen = [i for k in range(10) for i in np.flatnonzero(bunch.target == k)[:each]]
    return (bunch.images[chosen] * (255 / 16)).astype(np.uint8), bunch.target[chosen].tolist()


def write(root: Path, each: int = 12, **names: str) -> Path:
    """A folder of pictures, one folder a class."""
    for number, (image, label) in enumerate(zip(*digits(each), strict=True)):
        path = root / str(label) / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return root


def mapl(*words: object) -> str:
    """What a command prints, apart from progress."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output + str(result.exception)
    return result.stdout


def refused(*words: object) -> str:
    """The sentence with which a command ends."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(result.exception, MaplError), result.output
    return str(result.exception)


SHORT = ("--rounds", 2)


def test_a_folder_of_pictures_runs_with_nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    said = mapl("run", "--data", "photos", *SHORT)
    lines = said.splitlines()
    assert re.match(line_with("found ", "100 training", "20 test", "8×8", "1 channel", "10 classes"), lines[0])
    assert lines[1].strip().startswith("0 12, 1 12,")
    assert "a fifth of each class was drawn" in lines[2]
    assert re.search(line_with("divided ", "2 clients", "IID", "50 training", "20 test"), said)
    assert "accuracy" in lines[-3]


def test_what_else_could_divide_the_data_is_not_what_does(tmp_path: Path) -> None:
    write(tmp_path / "photos")
    for scheme, other in [("iid", "partition.scheme=dirichlet"), ("dirichlet", "partition.alpha=0.1")]:
        recipe = Recipe.of(data=str(tmp_path / "photos"), clients=2, partition={"scheme": scheme})
        assert f"--set {other}," in introduced(recipe)[-1]


def test_a_run_on_own_data_is_resumed_from_anywhere_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    mapl("run", "--data", "photos", "--name", "whole", "--rounds", 3)
    mapl("run", "--data", "photos", "--name", "half", "--rounds", 2)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    mapl("resume", "../runs/half", "--rounds", 3)
    for name in ("history.jsonl", "clients.json"):
        assert (tmp_path / "runs/half" / name).read_bytes() == (tmp_path / "runs/whole" / name).read_bytes()
    exported = export_run(tmp_path / "runs/half", tmp_path / "models")
    assert load_model(exported[0]).head.out_features == 10


def test_a_program_that_reads_json_gets_json_alone(tmp_path: Path) -> None:
    write(tmp_path / "photos")
    command = ["run", "--data", str(tmp_path / "photos"), "--rounds", "1", "--json", "--out", str(tmp_path / "runs")]
    result = CliRunner().invoke(app, command)
    assert [json.loads(line)["event"] for line in result.stdout.splitlines()] == ["round", "end"]
    assert "found     100 training" in result.stderr


@pytest.mark.slow
def test_several_methods_on_own_data_are_compared(tmp_path: Path) -> None:
    folder = write(tmp_path / "photos")
    said = mapl("run", "--data", folder, "--method", "mapl,local", "--rounds", 1, "--out", tmp_path / "runs")
    assert said.startswith("found     100 training and 20 test images")
    assert "gain of mapl: over 1 pair" in said


def test_what_is_asked_for_comes_before_what_suits_the_data(tmp_path: Path) -> None:
    folder = write(tmp_path / "photos")
    shown = json.loads(mapl("show", "--data", folder, "--clients", 4, "--set", "partition.scheme=dirichlet", "--json"))
    assert shown["recipe"]["clients"] == 4
    assert shown["recipe"]["partition"]["scheme"] == "dirichlet"
    assert shown["provenance"]["partition.scheme"] == "command line"
    assert shown["provenance"]["rounds"] == "your data"
    assert Recipe.of(data=str(folder), clients=4).clients == 4


@pytest.mark.parametrize("scenario", [1, 2, 3, 4])
def test_a_scenario_that_is_asked_for_gets_shots_that_fit(tmp_path: Path, scenario: int) -> None:
    write(tmp_path / "photos")
    said = mapl("data", "show", "--data", tmp_path / "photos", "--scenario", scenario, "--json")
    shards = json.loads(said)
    assert len({shard["cluster"] for shard in shards}) == 2
    held = [set(np.flatnonzero(shard["train"])) for shard in shards]
    assert bool(held[0] & held[-1]) == (scenario in (2, 4))


@pytest.mark.parametrize("total", [2, 3, 5, 8, 30, 500])
@pytest.mark.parametrize("classes", [2, 7])
def test_defaults_fit_data_of_any_size(tmp_path: Path, total: int, classes: int) -> None:
    labels = np.arange(total * 2) % min(classes, total)
    images = np.random.default_rng(0).integers(0, 256, (total * 2, 6, 6), np.uint8)
    np.savez(tmp_path / "own.npz", images=images, labels=labels)
    shards = json.loads(mapl("data", "show", "--data", tmp_path / "own.npz", "--json"))
    assert all(sum(shard["train"]) >= 1 and shard["test"] >= 1 for shard in shards)
    if total <= 30:
        recipe = Recipe.of(data=str(tmp_path / "own.npz"), rounds=1)
        assert run(recipe, tmp_path / "run").finished


def test_the_defaults_say_no_number_of_the_paper(tmp_path: Path) -> None:
    dataset = load(DataSettings(name="folder", folder=write(tmp_path / "photos")))
    assert suited(dataset, {})["partition"] == {"scheme": "iid", "test_shots": "all"}
    assert suited(dataset, {"partition": {"scenario": 1}, "clients": 4})["partition"]["shots"] == 5
    assert suited(dataset, {"clients": "many"})["clients"] == 2


def test_in_python_a_path_is_enough(tmp_path: Path) -> None:
    folder = write(tmp_path / "photos")
    record = run(Recipe.of(data=str(folder), rounds=1), tmp_path / "run")
    again = resume(record.folder, rounds=2)
    assert len(again.rounds) == 2
    assert load_recipe(record.folder).data.folder == folder


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("nowhere/photos", "there is no file or folder 'nowhere/photos'"),
        ("photos.zip", "there is no file or folder 'photos.zip'"),
        ("digit", "unknown data set 'digit'.*digits"),
    ],
)
def test_a_path_that_is_not_there(tmp_path: Path, path: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert re.search(sentence, refused("run", "--data", path))
    assert not (tmp_path / "runs").exists()


def test_a_known_name_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "digits")
    monkeypatch.chdir(tmp_path)
    shown: dict[str, Any] = json.loads(mapl("show", "--data", "digits", "--json"))
    assert shown["recipe"]["data"]["folder"] is None
    assert json.loads(mapl("show", "--data", "./digits", "--json"))["recipe"]["data"]["name"] == "folder"


def test_own_data_can_be_checked_by_their_path(tmp_path: Path) -> None:
    folder = write(tmp_path / "photos")
    assert "100 training and 20 test images" in mapl("data", "check", folder)
    assert json.loads(mapl("data", "check", folder, "--json"))["train"] == [10] * 10
