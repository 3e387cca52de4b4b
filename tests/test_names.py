"""Text that somebody else wrote: a run's name is one folder, and a terminal obeys nothing that a file says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import mapl
from conftest import small
from mapl import MaplError, Recipe
from mapl.cli.app import app
from mapl.errors import MaplWarning
from mapl.names import folder_name, printable
from mapl.terminal import messages
from mapl.terminal.progress import PlainLines

ESCAPES = "\x1b[31m\x07\x9b2J\r\u202egnp\u2066\u200f"


@pytest.mark.parametrize(
    "name",
    ["..", ".", "../up", "a/b", "/etc", "a\\b", "a..b", "a\nb", "\x1b[2J", "a\u202eb", "a\u2066b", "a\x9b", "\0"],
)
def test_names_that_no_run_can_have(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MaplError, match="name: got"):
        Recipe.of(name=name)
    result = CliRunner().invoke(app, ["run", "--name", name])
    assert isinstance(result.exception, MaplError)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["first try", "ξ-ablation, β=0.2", "part[v2]", "дом", "v1.2+x"])
def test_names_that_a_run_can_have(name):
    assert Recipe.of(name=name).title() == name


def test_a_folder_is_named_readably_after_any_text():
    assert folder_name("my.module:Data-s1-mapl") == "my.module.Data-s1-mapl"
    assert folder_name("../../etc/passwd") == ".etc.passwd".lstrip(".")
    assert folder_name("données\x1b[31m") == "données--31m"
    topology = Recipe.of(network={"topology": {"name": "../../x y:\u202eedges"}}).title()
    assert topology == "digits-s1-mapl-.x-y.-edges-m10-seed0"


@settings(max_examples=20)
@given(st.text())
def test_any_text_names_one_folder_and_prints_as_one_line(text):
    name = folder_name(text)
    assert name not in ("", ".", "..")
    assert Path(name).name == name == printable(name)
    assert Recipe.of(name=name).title() == name
    shown = printable(text)
    assert shown.splitlines() in ([], [shown])
    assert printable(shown) == shown


# What is printed


def is_plain(text: str) -> bool:
    return all(line == printable(line) for line in text.split("\n"))


def test_what_is_said_warned_and_wrong_prints_no_escapes(capsys):
    messages.say(f"saved in {ESCAPES}")
    messages.show_warning(MaplWarning(f"first line\n{ESCAPES}"), MaplWarning, "", 0)
    messages.error(MaplError(ESCAPES))
    PlainLines(sys.stdout)(1, 1, f"reading {ESCAPES}", None)
    captured = capsys.readouterr()
    assert is_plain(captured.out)
    assert is_plain(captured.err)
    assert captured.out.count(r"\x1b[31m") == 2
    assert captured.err.count(r"\u202e") == 2


@pytest.fixture(scope="module")
def divided(tmp_path_factory):
    """Two runs that differ only in the file that divides the data."""
    folder = tmp_path_factory.mktemp("divided")
    for version in ("v2", "v3"):
        path = folder / f"part[{version}].json"
        path.write_text('[{"train": [0, 1]}, {"train": [2, 3]}]')
        recipe = small(
            "local",
            clients=2,
            rounds=1,
            data="digits",
            partition={"scheme": "file", "file": str(path)},
            model={"backbones": ["mlp"]},
        )
        mapl.run(recipe, folder / version)
    return folder


def test_brackets_are_no_markup_in_a_table(divided, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    result = CliRunner().invoke(app, ["compare", str(divided / "v2"), str(divided / "v3")])
    assert result.exit_code == 0, result.output
    assert "part[v2].json" in result.stdout
    assert "part[v3].json" in result.stdout


def test_escapes_of_a_recipe_reach_no_terminal(divided, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for file in (divided / "v2").iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    recipe = (folder / "recipe.toml").read_text()
    escaped = "".join(f"\\u{ord(c):04x}" for c in ESCAPES)
    (folder / "recipe.toml").write_text(recipe.replace("part[v2].json", f"[red]{escaped}:smile:"))
    result = CliRunner().invoke(app, ["show", str(folder / "recipe.toml")])
    assert result.exit_code == 0, result.output
    assert is_plain(result.output)
    assert "[red]" in result.output
    assert ":smile:" in result.output
    refused = CliRunner().invoke(app, ["compare", str(folder), str(divided / "v3")])
    assert isinstance(refused.exception, MaplError), "its history is one of another recipe"
    assert is_plain(refused.output)


def test_names_of_classes_reach_the_table_as_they_are_written(tmp_path, monkeypatch):
    import numpy as np
    from PIL import Image

    for split in ("train", "test"):
        for name in ("[bold]cat", f"dog{ESCAPES}"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / split / name / "0.png")
    result = CliRunner().invoke(app, ["data", "check", "folder", "--folder", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "[bold]cat" in result.stdout
    assert is_plain(result.output)
