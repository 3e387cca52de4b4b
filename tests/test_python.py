"""What somebody meets who calls the package from Python: its words."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import mapl
from mapl import MaplError, Recipe
from mapl.data.dataset import DataSettings
from mapl.plugins import Untrusted

SOURCE = Path(mapl.__file__).parent
SHELLS = ("cli", "paper", "peer", "terminal")
"""Rooms that are only reached from the command line."""


def said_in_python(path: Path) -> Iterator[tuple[int, str]]:
    """Line and words of everything that a `raise MaplError(…)` says in Python, without the values in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args:
                parts = [part.value for part in ast.walk(argument) if isinstance(part, ast.Constant)]
                yield node.lineno, "".join(part for part in parts if isinstance(part, str))


def test_no_error_of_the_library_names_an_option_of_the_command_line() -> None:
    texts = 0
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] in SHELLS:
            continue
        for line, text in said_in_python(path):
            texts += 1
            # `assignment` reads what was given to --set. A whole command can be given anywhere.
            text = re.sub(r"^--set |mapl data get\s+--folder", "", text)
            found = re.findall(r"--\w+|mapl resume|mapl run\b", text)
            assert not found, f"{path.name}, line {line}: say it in the words of Python, and in shell= as a command"
    assert texts > 300


def test_the_words_of_the_command_line_are_kept_beside_those_of_python() -> None:
    assert str(Untrusted("a:B")).endswith("give trust=True")
    assert Untrusted("a:B").shell.endswith("give --trust")
    with pytest.raises(MaplError, match=r"where it is, with data=\{\"name\": 'npz', \"folder\": …\}$") as raised:
        DataSettings(name="npz").own()
    assert raised.value.shell.endswith("with --set data.folder=PATH")
    assert MaplError("the same for both").shell == "the same for both"


def test_an_error_from_another_process_has_both() -> None:
    error = pickle.loads(pickle.dumps(MaplError("give overwrite=True", shell="give --overwrite")))
    assert (str(error), error.shell) == ("give overwrite=True", "give --overwrite")


# Recipes


def test_a_recipe_is_read_from_its_file_with_settings_over_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('rounds = 7\nseed = 3\n[method]\nname = "courier"\n')
    recipe = Recipe.read(str(path), seed=4)
    assert (recipe.rounds, recipe.seed, recipe.method.name) == (7, 4, "courier")
    assert recipe == Recipe.of(rounds=7, seed=4, method="courier")
    path.write_text("rounds = -1\n")
    with pytest.raises(MaplError, match=rf"^recipe \({path} and Python\): rounds: got -1"):
        Recipe.read(path)
    with pytest.raises(MaplError, match=r"^there is no recipe '.*absent\.toml'$"):
        Recipe.read(tmp_path / "absent.toml")
