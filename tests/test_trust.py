"""A run folder that somebody sent is data: whatever its recipe names, looking at it imports and runs no code."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import mapl
from conftest import small, stop_after
from mapl import MaplError, Recipe, plugins
from mapl.analysis.compare import compare
from mapl.cli.app import app
from mapl.cli.runs import sentences
from mapl.paper.store import StoredRun
from mapl.recipe import UnreadSettings, to_toml
from mapl.report import write_report
from mapl.runs.export import export_run
from mapl.runs.folder import load_recipe
from mapl.runs.jobs import Job, _check_folder
from mapl.runs.part import build_part
from mapl.runs.run import restored_part

CODE = """
from pathlib import Path
from pydantic import Field
from torch import nn
from mapl import MethodSettings
from mapl.data.sources.digits import Digits
from mapl.methods.local import Local

Path("marker").touch()


class Given(MethodSettings):
    strength: float = Field(0.5, ge=0, description="A setting of its own.")
    limit: float | None = Field(None, description="One without a value, which a recipe file writes as 'none'.")


class Method(Local):
    Settings = Given


class Data(Digits):
    pass


class Net(nn.Sequential):
    def __init__(self, image, embedding):
        super().__init__(nn.Flatten(), nn.Linear(image[0] * image[1] * image[2], embedding))


def line(clients, round, settings, seed):
    return [(i, i + 1) for i in range(clients - 1)]
"""

KINDS = {
    "theirs:Method": {"method": {"name": "theirs:Method", "strength": 0.25}},
    "theirs:Data": {"data": {"name": "theirs:Data"}},
    "theirs:Net": {"model": {"backbones": ["theirs:Net", "mlp"]}},
    "theirs:line": {"network": {"topology": {"name": "theirs:line"}}},
    "theirs:Net as courier": {"method": {"name": "courier", "courier": "theirs:Net"}},
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder, with somebody's module in it; what a test imports from there is forgotten afterwards."""
    (tmp_path / "theirs.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugins, "_named", set())
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before
    sys.modules.pop("theirs", None)


def forget(here: Path, path: list[str]) -> None:
    """Go on as a new process would, that has imported nothing."""
    plugins._named.clear()
    sys.modules.pop("theirs", None)
    sys.path[:] = path
    (here / "marker").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Where `sent` keeps its runs."""
    return tmp_path_factory.mktemp("folders")


@pytest.fixture
def sent(here, folders):
    """A run folder as somebody would send it, stopped after one of two rounds."""

    def make(kind: str) -> Path:
        path, over = list(sys.path), KINDS[kind]
        if not (kept := folders / kind).exists():
            name = over.get("method", {"name": "local"})["name"]
            mapl.run(small(name, **{"rounds": 2, **over}), kept, stop=stop_after(1))
            assert (here / "marker").exists()
        forget(here, path)
        return shutil.copytree(kept, here / "sent")

    return make


def is_untouched(here: Path) -> bool:
    return not (here / "marker").exists() and "theirs" not in sys.modules and str(here) not in sys.path


def cli(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def said(result: Result) -> str:
    """The sentence that a command would end with."""
    assert isinstance(result.exception, MaplError), result.output
    return result.exception.shell


@pytest.mark.parametrize("kind", KINDS)
def test_no_command_imports_what_only_a_folder_names(kind, here, sent):
    folder = sent(kind)
    for command in (
        ("compare", folder),
        ("compare", folder, "--json"),
        *([("report", folder, "--out", "page")] if kind == "theirs:Method" else []),  # the others below
        ("show", folder / "recipe.toml"),
        ("show", folder / "recipe.toml", "--json"),
        ("list", "methods"),
        ("data", "list"),
    ):
        result = cli(*command)
        assert result.exit_code == 0, result.output
        assert is_untouched(here), command
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    for command in (("export", folder, "--to", "models"), ("resume", folder)):
        assert re.search(rf"'{kind.split()[0]}'.*--trust", said(cli(*command)))
        assert is_untouched(here), command
    assert not Path("models").exists()
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("kind", KINDS)
def test_no_function_imports_what_only_a_folder_names(kind, here, sent):
    folder = sent(kind)
    record = mapl.load(folder)
    assert compare([record])[0].rounds == 1
    assert write_report([record], here / "page").exists()
    for refused in (
        lambda: restored_part(folder),
        lambda: export_run(folder, here / "models"),
        lambda: mapl.resume(folder),
    ):
        with pytest.raises(MaplError, match=rf"'{kind.split()[0]}'.*trust=True"):
            refused()
    assert is_untouched(here)


@pytest.mark.parametrize("kind", KINDS)
def test_trust_runs_it(kind, here, sent):
    folder = sent(kind)
    path = list(sys.path)
    assert cli("export", folder, "--to", "models", "--client", 0, "--trust").exit_code == 0
    assert (here / "marker").exists()
    forget(here, path)
    assert mapl.resume(folder, trust=True).finished
    assert str(here) in sys.path


def test_settings_of_a_method_that_is_not_imported_are_kept_as_they_are_written(here, sent):
    folder = sent("theirs:Method")
    unread, text = mapl.load(folder).recipe, (folder / "recipe.toml").read_text()
    assert isinstance(unread.method, UnreadSettings)
    assert unread.method.strength == 0.25
    assert text.startswith(to_toml(unread))
    assert text.removeprefix(to_toml(unread)).startswith("# digest")
    with plugins.looking(trust=True):
        known = mapl.load(folder).recipe
    assert type(known.method).__name__ == "Given"
    assert known.fingerprint() == unread.fingerprint()


@pytest.mark.parametrize("line", ['"a key]" = 1', "when = 2026-01-01", "far = nan", 'deep = [{"\\u001b" = 1}]'])
def test_settings_of_a_method_that_is_not_imported_are_only_data(line, here, sent):
    folder = sent("theirs:Method")
    text = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(text.replace("strength = 0.25", line))
    with pytest.raises(MaplError, match="method: "):
        mapl.load(folder)


def test_what_the_user_names_is_imported(here, sent):
    """On the command line of `show`; in Python, for a run that is resumed."""
    Path("recipe.toml").write_text('method = "theirs:Method"\ndata = "theirs:Data"\n')
    unread = cli("show", "recipe.toml")
    assert "theirs:Method" in unread.stdout
    assert "strength" not in unread.stdout
    assert "--trust" in unread.stderr
    assert is_untouched(here)
    path = list(sys.path)
    assert "strength = 0.5" in cli("show", "recipe.toml", "--trust").stdout
    forget(here, path)
    named = cli("show", "recipe.toml", "--method", "theirs:Method")
    assert "strength = 0.5" in named.stdout
    assert "theirs:Method" not in named.stderr

    folder = sent("theirs:Net")
    Recipe.of(model={"backbones": ["theirs:Net"]})
    assert mapl.resume(folder).finished


def test_the_data_of_a_recipe_file_are_shown_without_its_code(here):
    Path("recipe.toml").write_text('data = "theirs:Data"\n')
    assert re.search(r"'theirs:Data'.*--trust", said(cli("data", "show", "recipe.toml")))
    assert is_untouched(here)
    assert cli("data", "show", "recipe.toml", "--trust").exit_code == 0
    assert (here / "marker").exists()


def test_a_run_that_names_code_says_how_to_resume_it(sent):
    assert sentences(mapl.load(sent("theirs:Net")))[-1].endswith("sent --trust")
    mapl.run(small("local", rounds=2), "mine", stop=stop_after(1))
    assert sentences(mapl.load("mine"))[-1].endswith("mine")


def test_a_recipe_that_was_looked_at_can_be_run(here, sent):
    """To run it is the user's own choice."""
    record = mapl.run(mapl.load(sent("theirs:Method")).recipe, "mine")
    assert type(record.recipe.method).__name__ == "Given"
    assert (here / "marker").exists()


def test_other_readers_of_recipes_import_nothing(here, sent):
    """A run that is in the way of another, a job of many, and the store of results."""
    folder = sent("theirs:Method")
    with pytest.raises(MaplError, match="another recipe"):
        mapl.run(small("local"), folder)
    with pytest.raises(MaplError, match="another recipe"):
        _check_folder(Job("arm", small("local").model_dump(), folder))
    tree = json.loads(mapl.load(folder).recipe.model_dump_json())
    stored = StoredRun.__new__(StoredRun)
    object.__setattr__(stored, "recipe", tree)
    object.__setattr__(stored, "cell", "somebody's")
    assert isinstance(stored.parsed_recipe.method, UnreadSettings)
    assert is_untouched(here)


@pytest.mark.parametrize("path", ["timm:resnet18", "mapl.cli:main", "os:getcwd"])
def test_installed_code_is_not_called_either(path, tmp_path, monkeypatch):
    monkeypatch.setattr(plugins, "_named", set[str]())  # whatever other tests of this process have named
    folder = tmp_path / "sent"
    mapl.run(small("local", rounds=1), folder)
    text = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(text.replace('backbones = ["mlp", ', f'backbones = ["{path}", '))
    with pytest.raises(MaplError, match="history"):
        export_run(folder, tmp_path / "models")
    with plugins.looking(), pytest.raises(MaplError, match=rf"'{path}'.*trust"):
        build_part(load_recipe(folder))
