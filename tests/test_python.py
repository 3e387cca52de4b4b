"""What somebody meets who calls the package from Python: its words, and what a run returns."""

from __future__ import annotations

import ast
import pickle
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest

import mapl
from conftest import line_with, small
from mapl import MaplError, Recipe
from mapl.data.dataset import DataSettings
from mapl.plugins import Untrusted

SOURCE = Path(mapl.__file__).parent
SHELLS = ("cli", "live", "paper", "peer", "terminal")
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


# What a run returns


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> mapl.Record:
    settings = {"clients": 3, "rounds": 4, "evaluate": {"every": 2}, "partition": {"clusters": 1}}
    return mapl.run(small("courier", **settings), tmp_path_factory.mktemp("python") / "<i>run</i>")


def test_a_record_is_one_line(record: mapl.Record) -> None:
    middle = f"courier, 3 clients, 4 of 4 rounds, accuracy {100 * record.mean:.1f} % ± {100 * record.std:.1f}"
    assert repr(record) == f"<Record {str(record.folder)!r}: {middle}>"
    untested = replace(record, rounds=record.rounds[:1])
    assert re.search(line_with("courier", "3 clients", "1 of 4 rounds", "not tested"), repr(untested))
    assert "svg" not in untested._repr_html_()


def test_a_notebook_gets_the_curve_of_the_accuracy(record: mapl.Record) -> None:
    html = record._repr_html_()
    root = fromstring(html)
    assert "&lt;i&gt;run&lt;/i&gt;" in html, "names are text, not markup"
    lines = [line for line in root.iter() if line.tag == "polyline"]
    heights = [float(point.split(",")[1]) for point in lines[0].attrib["points"].split()]
    means = [sum(line.accuracy) / 3 for line in record.tested if line.accuracy]
    assert len(heights) == len(means) == 2
    # Heights are linear in accuracy, downwards, between the lines that are labelled.
    labels = [(float(t.attrib["y"]) - 4, float(t.text[:-2])) for t in root.iter("text") if t.text and "%" in t.text]
    (high, most), *_, (low, least) = labels
    read = [most + (y - high) / (low - high) * (least - most) for y in heights]
    assert read == pytest.approx([100 * mean for mean in means], abs=0.1)


def test_a_long_run_does_not_make_a_notebook_large(record: mapl.Record) -> None:
    rounds = [replace(record.tested[0], round=number) for number in range(5000)]
    html = replace(record, rounds=rounds)._repr_html_()
    assert len(html) < 20_000
    assert "after round 5000<" in html


def test_a_record_as_a_data_frame(record: mapl.Record) -> None:
    pytest.importorskip("pandas")
    frame = record.to_pandas()
    assert len(frame) == 4 * 3
    assert frame["accuracy"].isna().sum() == 2 * 3
    assert frame[frame["round"] == 3]["accuracy"].tolist() == record.accuracy.tolist()
    assert frame[frame["client"] == 1]["backbone"].unique().tolist() == [record.clients[1].backbone]
    for term, values in record.rounds[2].losses.items():
        assert frame[frame["round"] == 2][f"loss_{term}"].tolist() == values
    for way, mean in record.ways.items():
        assert frame[frame["round"] == 3][f"accuracy_{way}"].mean() == pytest.approx(mean)
    assert not {"released", "all_images"} & set(frame)
    assert list(replace(record, rounds=[]).to_pandas()) == ["round", "client", "cluster", "backbone"]


def test_without_pandas_one_sentence_says_what_to_install(record: mapl.Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MaplError, match=r"^to_pandas needs pandas, .* pip install 'mapl\[pandas\]'$"):
        record.to_pandas()
