"""`mapl data` finds, gets, checks and shows data sets."""

from __future__ import annotations

import functools
import http.server
import itertools
import json
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from conftest import line_with
from mapl import MaplError
from mapl.cli.data import app
from mapl.data.published import md5
from mapl.data.sources.mnist import Mnist
from mapl.names import DASH
from test_data_sources import cinic, mnist


def invoked(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def data(*arguments: object) -> str:
    return invoked(*arguments).stdout


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A web folder on this machine with a small MNIST, which is the published one as far as anybody can tell."""
    mnist(tmp_path / "web")
    files = tmp_path / "web" / "MNIST" / "raw"
    downloads = tuple(
        replace(file, md5=md5(files / Path(file.path).name), urls=("http://127.0.0.1:1/never",))
        for file in Mnist.published.downloads
    )
    layout = {file.path: file.md5 for file in downloads}
    monkeypatch.setattr(Mnist, "published", replace(Mnist.published, layouts=(layout,), downloads=downloads))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = functools.partial(QuietHandler, directory=files)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def test_list_says_what_is_found(tmp_path: Path) -> None:
    mnist(tmp_path)
    lines = {line.split()[0]: line for line in data("list", "--folder", tmp_path).splitlines()}
    assert "found" in lines["mnist"]
    assert "handwritten digits" in lines["mnist"]
    assert "missing" in lines["cifar10"]
    assert lines["digits"].split()[1] == DASH
    found = json.loads(data("list", "--folder", tmp_path, "--json"))
    assert found["folder"] == str(tmp_path)
    assert found["data"]["mnist"]["files"] == "found"


MNIST_FACTS = ("6 training", "3 test", "28×28")
"""Of the files that `mnist` writes."""


MNIST_FACTS = ("6 training", "3 test", "28×28")
"""Of the files that `mnist` writes."""


def test_get(tmp_path: Path, mirror: str) -> None:
    folder = tmp_path / "data"
    result = invoked("get", "mnist", "--folder", folder, "--mirror", mirror)
    assert "train-images-idx3-ubyte.gz: 100 %" in result.stderr
    said = result.stdout
    assert re.search(line_with("mnist: ", *MNIST_FACTS, "1 channel", "10 classes", folder), said)
    again = invoked("get", "mnist", "--folder", folder)
    assert "100 %" not in again.stderr, "nothing is downloaded twice"
    assert "train-images-idx3-ubyte.gz: checksum as published" in data("check", "mnist", "--folder", folder)


def test_get_without_a_network(tmp_path: Path, mirror: str) -> None:
    with pytest.raises(MaplError, match=r"put train-images-idx3-ubyte.gz, .* into '.*MNIST/raw' by hand, then run"):
        data("get", "mnist", "--folder", tmp_path / "data", "--timeout", 0.5)


def test_get_what_cannot_be_had() -> None:
    assert "digits has nothing to download" in data("get", "digits")
    with pytest.raises(MaplError, match=r"unknown data set 'mnits'.*Did you mean 'mnist'"):
        data("get", "mnits")


def test_check(tmp_path: Path) -> None:
    mnist(tmp_path)
    said = data("check", "mnist", "--folder", tmp_path)
    assert re.search(line_with("mnist: ", *MNIST_FACTS), said)
    assert "train-images-idx3-ubyte.gz: not the published checksum" in said
    found = json.loads(data("check", "mnist", "--folder", tmp_path, "--json"))
    assert found["train"] == [1, 1, 1, 0, 1, 1, 0, 0, 0, 1]
    assert found["test"] == [0, 1, 1, 0, 0, 0, 0, 1, 0, 0]
    assert found["image"] == [1, 28, 28]
    with pytest.raises(MaplError, match="missing"):
        data("check", "cifar10", "--folder", tmp_path)


def test_check_shows_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cinic(tmp_path)
    monkeypatch.setattr("mapl.cli.own.PATIENCE", 0.0)
    result = invoked("check", "cinic10", "--folder", tmp_path, "--json")
    lines = [line for line in result.stderr.splitlines() if " %" in line]
    assert [line.partition(" %")[0] for line in lines] == [f"reading cinic10: {10 * i}" for i in range(1, 11)]
    assert json.loads(result.stdout)["name"] == "cinic10", "programs get nothing but JSON"


def test_what_is_read_quickly_needs_no_progress(tmp_path: Path) -> None:
    cinic(tmp_path)
    assert invoked("check", "cinic10", "--folder", tmp_path).stderr == ""


def test_check_names_classes_and_what_has_no_checksum(tmp_path: Path) -> None:
    cinic(tmp_path)
    said = data("check", "cinic10", "--folder", tmp_path)
    assert "airplane" in said
    assert "no checksum published" in said


def test_check_with_a_live_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cinic(tmp_path)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("mapl.cli.own.PATIENCE", 0.0)
    app(["check", "cinic10", "--folder", str(tmp_path)], standalone_mode=False)
    assert "reading cinic10: 100 %" in capsys.readouterr().err


def test_check_ones_own(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (8, 4, 4, 3), np.uint8)
    labels = np.arange(8) % 2
    np.savez(tmp_path / "own.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    said = data("check", "npz", "--folder", tmp_path / "own.npz")
    assert re.search(line_with("npz: ", "8 training", "8 test", "4×4"), said)


def test_show_says_which_class_has_which_number(tmp_path: Path) -> None:
    for name, number in itertools.product(("dog", "cat"), range(6)):
        (tmp_path / name).mkdir(exist_ok=True)
        Image.new("L", (8, 8), number).save(tmp_path / name / f"{number}.png")
    said = data("show", "--data", tmp_path, "--clients", 2)
    assert "by client and class: 0 cat, 1 dog" in " ".join(said.split())


def test_show() -> None:
    said = data("show", "--clients", 4, "--scenario", 2, "--set", "partition.shots=3")
    assert "training images of digits by client and class" in said
    rows = json.loads(data("show", "--clients", 4, "--scenario", 2, "--set", "partition.shots=3", "--json"))
    assert [row["cluster"] for row in rows] == [0, 0, 1, 1]
    assert rows[0]["train"] == [3] * 7 + [0] * 3
    assert rows[3]["train"] == [0] * 3 + [3] * 7


def test_show_schemes_by_seed() -> None:
    first, other = (
        json.loads(
            data("show", "--seed", seed, "--set", "partition.scheme=dirichlet", "--set", "partition.alpha=1", "--json")
        )
        for seed in (0, 1)
    )
    assert sum(sum(row["train"]) for row in first) == 1198
    assert first != other


def test_show_takes_a_recipe_and_a_folder(tmp_path: Path) -> None:
    mnist(tmp_path)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('clients = 2\n[data]\nname = "mnist"\n[partition]\nscheme = "iid"\ntest_shots = "all"\n')
    rows = json.loads(data("show", recipe, "--folder", tmp_path, "--json"))
    assert [sum(row["train"]) for row in rows] == [3, 3]


def test_show_draws(tmp_path: Path) -> None:
    data("show", "--clients", 4, "--png", tmp_path / "who.png")
    with Image.open(tmp_path / "who.png") as image:
        assert image.format == "PNG"
        assert min(image.size) > 300
    with pytest.raises(MaplError, match="cannot be written"):
        data("show", "--clients", 4, "--png", tmp_path / "nowhere" / "who.png")


def test_show_many_classes(tmp_path: Path) -> None:
    labels = np.arange(400) % 40
    images = np.zeros((400, 4, 4), np.uint8)
    np.savez(tmp_path / "own.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    chosen = ("--data", "npz", "--folder", tmp_path / "own.npz", "--clients", 40, "--set", "partition.scheme=shards")
    said = data("show", *chosen, "--set", "partition.test_shots=all", "--png", tmp_path / "who.png")
    assert "classes" in said
    assert " 39 " not in said.splitlines()[1]
