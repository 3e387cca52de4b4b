"""A method, a backbone, a data set or a topology is one file anywhere; nothing in the package changes for it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

import mapl
import mapl.methods
from conftest import line_with, small, written
from mapl import MaplError
from mapl.cli.app import app
from mapl.data.partition import SCENARIOS
from mapl.network import TOPOLOGIES
from mapl.plugins import find, index, known, load, summary, table

METHOD = '''
"""Heads are averaged with everybody's, with one setting and something kept between rounds."""
import torch
from pydantic import Field
from torch.nn.functional import cross_entropy
from mapl import Client, Inbox, Letter, Method, MethodSettings


class HeadSettings(MethodSettings):
    strength: float = Field(0.5, ge=0, le=1, description="Share of the mean.")


class HeadMean(Method[HeadSettings]):
    """Heads are averaged."""

    Settings = HeadSettings

    def prepare(self, client: Client) -> None:
        client.state["heard"] = torch.zeros((), dtype=torch.int64)

    def loss(self, client, images, labels):
        return {"cross_entropy": cross_entropy(client.model(images), labels)}

    def wants(self, client, round):
        return client.neighbours

    def letter(self, client: Client, round: int) -> Letter:
        return client.letter(round, {"head": client.model.head.weight})

    def absorb(self, client: Client, round: int, inbox: Inbox) -> None:
        client.state["heard"] += len(inbox)
        client.state.setdefault("late", torch.zeros(3)).add_(1)  # not made in prepare
        if len(inbox):
            with torch.no_grad():
                client.model.head.weight.lerp_(inbox.tensor("head").mean(0), self.settings.strength)
'''

OTHERS = '''
import torch
from torch import nn
from mapl import Dataset, Images, Method

not_callable = 3


class Half(Method):
    """A method without a loss."""


class Linear(nn.Sequential):
    """A linear map."""

    def __init__(self, image, embedding):
        super().__init__(nn.Flatten(), nn.Linear(image[0] * image[1] * image[2], embedding))


class Dots:
    """A dot whose place is the class."""

    suggests = {"clients": 3, "rounds": 2, "partition": {"clusters": 1}}

    def load(self, settings):
        labels = torch.arange(90) % 3
        pixels = torch.zeros(90, 1, 4, 4, dtype=torch.uint8)
        pixels[torch.arange(90), 0, labels, labels] = 255
        images = Images(pixels, labels)
        return Dataset("dots", images, images, 3)


class Nothing:
    def load(self, settings):
        return None


def chain(clients, round, settings, seed):
    """Each client reaches the next."""
    return [(i, i + 1) for i in range(clients - 1)]
'''


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A folder with somebody's own two files, entered as a shell would."""
    (tmp_path / "headmean.py").write_text(METHOD)
    (tmp_path / "others.py").write_text(OTHERS)
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for module in ("headmean", "others"):
        sys.modules.pop(module, None)


def cli(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


SMALL = [
    *("--clients", "4", "--rounds", "3", "--set", "partition.shots=2", "--set", "partition.test_shots=5"),
    *("--set", "model.embedding=12", "--set", "model.hidden=16", "--set", "checkpoint.every=1"),
]


def test_a_method_of_ones_own_runs_is_saved_resumed_and_compared(outside):
    own = ("--method", "headmean:HeadMean")
    cli("run", *own, *SMALL, "--name", "own")
    cli("run", *own, *SMALL, "--name", "alone", "--topology", "none")
    cli("run", *own, *SMALL, "--name", "gentle", "--set", "method.strength=0.1")
    record = mapl.load("runs/own")
    assert record.messages == 4 * 3 * 3
    assert record.recipe.method.strength == 0.5
    arms = json.loads(cli("compare", "runs/own", "runs/alone", "runs/gentle", "--json"))["arms"]
    assert [arm["label"] for arm in arms] == [
        "headmean:HeadMean, method.strength=0.5",
        "headmean:HeadMean, no letters",
        "headmean:HeadMean, method.strength=0.1",
    ]
    assert arms[0]["gain"]["mean"] == pytest.approx(record.mean - mapl.load("runs/alone").mean)
    assert "strength = 0.5" in cli("show", *own)

    whole = written(Path("runs/own"))
    for path in sorted(Path("runs/own/checkpoints").iterdir())[1:]:
        path.unlink()
    with Path("runs/own/history.jsonl").open("ab") as file:
        file.write(b"{half a line")
    cli("resume", "runs/own")
    assert written(Path("runs/own")) == whole


def test_a_method_of_ones_own_refuses_what_its_settings_refuse(outside):
    with pytest.raises(MaplError, match=line_with("method.strength: got 2", "1")):
        mapl.Recipe.of(method={"name": "headmean:HeadMean", "strength": 2})
    with pytest.raises(MaplError, match=line_with("unknown key 'method.strenth'", "name, strength", "'strength'?")):
        mapl.Recipe.of(method={"name": "headmean:HeadMean", "strenth": 1})


def test_a_backbone_a_data_set_and_a_topology_of_ones_own(outside):
    recipe = mapl.Recipe.of(
        data="others:Dots",
        model={"backbones": ["others:Linear", "mlp"], "embedding": 8, "projection": 8, "hidden": 8},
        partition={"shots": 5, "stride": 0, "test_shots": 4},
        network={"topology": {"name": "others:chain"}},
        method={"warmup": 5},
    )
    assert (recipe.clients, recipe.rounds) == (3, 2)  # what the data set suggests
    record = mapl.run(recipe, "run")
    assert [card.backbone for card in record.clients] == ["others:Linear", "mlp", "others:Linear"]
    assert record.clients[0].classes == [0, 1, 2]
    assert record.messages == 2 * 2 * 2
    assert mapl.resume("run").rounds == record.rounds


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("nowhere:Name", r"cannot import 'nowhere' of the import path 'nowhere:Name': No module named 'nowhere'"),
        ("others:Nobody", r"module 'others' has no 'Nobody', which the import path 'others:Nobody' names"),
        ("others:", r"'others:' is not an import path: write it as package.module:Name"),
        (":Name", r"':Name' is not an import path"),
        (".others:Name", r"'.others:Name' is not an import path"),
    ],
)
def test_paths_that_lead_nowhere(path, sentence, outside):
    with pytest.raises(MaplError, match=sentence):
        load(path)


@pytest.mark.parametrize(
    ("over", "sentence"),
    [
        ({"method": {"name": "others:Dots"}}, r"method 'others:Dots' is not a method.*mapl.Method"),
        ({"method": {"name": "others:Half"}}, r"method 'others:Half' is not complete.*loss\(\)"),
        ({"data": {"name": "others:chain"}}, r"data set 'others:chain' is not a data source: .*method load"),
        ({"data": {"name": "others:Nothing"}}, r"data set 'others:Nothing' .* NoneType, not a mapl.Dataset"),
        ({"model": {"backbones": ["others:not_callable"]}}, r"backbone 'others:not_callable' is no"),
        (
            {"network": {"topology": {"name": "others:not_callable"}}},
            r"topology 'others:not_callable' is not a function",
        ),
    ],
)
def test_paths_that_lead_to_something_else(over, sentence, outside):
    with pytest.raises(MaplError, match=sentence):
        mapl.run(small(**over), "run")
    assert not Path("run").exists()


@pytest.mark.parametrize("name", ["mapl.methods", "mapl.backbones", "mapl.data.sources", "mapl.runs.writers"])
def test_a_room_offers_what_its_files_export_by_the_names_and_summaries_that_an_import_gives(name):
    room = import_module(name)
    exported = {}
    for path in Path(room.__path__[0]).glob("[!_]*.py"):
        module = import_module(f"{name}.{path.stem}")
        for export in module.__all__:
            thing = getattr(module, export)
            exported[getattr(thing, "name", path.stem.replace("_", "-"))] = thing
    assert known(room) == exported
    assert list(index(name)) == sorted(exported)
    assert {key: entry.summary for key, entry in index(name).items()} == {k: summary(v) for k, v in exported.items()}
    assert all(entry.summary for entry in index(name).values())
    assert all(find("thing", key, room) is thing for key, thing in exported.items())


def test_tables_read_from_the_source_are_those_that_an_import_gives():
    assert table("mapl.data.partition", "SCENARIOS") == {str(key): text for key, text in SCENARIOS.items()}
    topologies = table("mapl.network.topology", "TOPOLOGIES")
    assert topologies == {key: summary(function) for key, function in TOPOLOGIES.items()}
    assert all(topologies.values())


def test_a_name_is_found_without_importing_the_rest_of_its_room():
    program = (
        "import sys, mapl.backbones; from mapl.plugins import find; find('backbone', 'mlp', mapl.backbones);"
        "print([name for name in sys.modules if name.startswith('mapl.backbones.')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "['mapl.backbones.mlp']\n"
