"""A run's folder that was damaged is named, repaired or harmless. It never changes a number silently."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mapl
import mapl.recipe
import mapl.runs.chain
from conftest import line_with, made_of, small, told, written
from damaged_runs import PLAYED, Bench, judge, make_npz, tiny
from mapl import Images, MaplError
from mapl.data.objects import Data
from mapl.runs import chain
from mapl.runs.checkpoint import newest
from mapl.runs.files import write_aside
from mapl.runs.part import build_part
from mapl.runs.record import combined

CHUNKS = 4


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench.build(tmp_path_factory.mktemp("bench"))


@pytest.fixture
def folder(bench: Bench, tmp_path: Path) -> Path:
    return shutil.copytree(bench.run, tmp_path / "run")


# A fuzzer: seeds are numbers of damaged folders


def test_sixty_damaged_folders(bench: Bench) -> None:
    verdicts = judge(bench, range(60))
    assert verdicts.failures == []
    assert verdicts.counts["compare"]["named"] >= 20
    assert verdicts.counts["report"]["named"] >= 20
    assert verdicts.counts["export"]["named"] >= 15
    assert verdicts.counts["resume"]["repaired"] >= 15


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_thousand_damaged_folders(bench: Bench, chunk: int) -> None:
    verdicts = judge(bench, range(60 + chunk, 1060, CHUNKS))
    assert verdicts.failures == []
    assert sum(verdicts.counts["compare"].values()) == 1000 // CHUNKS


# One by one: which file, which line


Damage = Callable[[Path, Bench], None]


def edit(name: str, change: Callable[[list[str]], list[str]]) -> Damage:
    def damage(folder: Path, bench: Bench) -> None:
        path = folder / name
        path.write_text("".join(change(path.read_text().splitlines(keepends=True))))

    return damage


def from_other(name: str, other: str) -> Damage:
    def damage(folder: Path, bench: Bench) -> None:
        shutil.copy(bench.root / other / name, folder / name)

    return damage


def nine(lines: list[str]) -> list[str]:
    return [lines[0], re.sub(r'"accuracy":\[[\d.]+', '"accuracy":[9.0', lines[1]), *lines[2:]]


DAMAGES: dict[str, tuple[Damage, str]] = {
    "edited": (edit("history.jsonl", nine), r"history.jsonl', line 2"),
    "deleted": (edit("history.jsonl", lambda lines: [lines[0], *lines[2:]]), r"history.jsonl', line 2"),
    "repeated": (edit("history.jsonl", lambda lines: [*lines[:2], *lines[1:]]), r"history.jsonl', line 3"),
    "swapped": (edit("history.jsonl", lambda lines: [lines[1], lines[0], lines[2]]), r"history.jsonl', line 1"),
    "last deleted": (edit("history.jsonl", lambda lines: lines[:-1]), r"history.jsonl' ends after line 2"),
    "last torn": (edit("history.jsonl", lambda lines: [*lines[:-1], lines[-1][:50]]), r"history.jsonl' ends after line 2"),
    "another seed's history": (from_other("history.jsonl", "seed"), r"recipe.toml.*line 1 of history.jsonl"),
    "another seed's recipe": (from_other("recipe.toml", "seed"), r"recipe.toml.*line 1 of history.jsonl"),
    "other data's clients": (from_other("clients.json", "elsewhere"), r"clients.json.*line 1 of history.jsonl"),
    "other data's history": (from_other("history.jsonl", "elsewhere"), r"clients.json.*line 1 of history.jsonl"),
    "another seed's graph": (from_other("graph.rows", "seed"), r"graph.rows"),
    "recipe of more rounds": (edit("recipe.toml", lambda lines: ["rounds = 9\n" if line == "rounds = 4\n" else line for line in lines]),
                              r"recipe.toml' was edited"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named_with_file_and_line(bench: Bench, folder: Path, name: str) -> None:
    damage, sentence = DAMAGES[name]
    damage(folder, bench)
    with pytest.raises(MaplError, match=sentence):
        mapl.load(folder).weights()


def test_a_name_in_the_recipe_that_is_unknown_is_named_with_the_file(bench: Bench, folder: Path) -> None:
    """One bit makes "map|" of "mapl"."""
    edit("recipe.toml", lambda lines: [line.replace('"mapl"', '"map|"') for line in lines])(folder, bench)
    for look in (mapl.load, mapl.resume):
        with pytest.raises(MaplError, match=r"recipe\.toml\): unknown method 'map\|'"):
            look(folder)


def test_resume_repairs_a_torn_line_and_damage_after_a_checkpoint_and_says_so(bench: Bench, folder: Path) -> None:
    DAMAGES["last torn"][0](folder, bench)
    (folder / "times.jsonl").write_text("nonsense\n")
    (folder / "clients.json").unlink()
    with told() as said:
        record = mapl.resume(folder)
    assert [word for word in ("clients.json", "cut off", "times.jsonl") if any(word in one for one in said)] == [
        "clients.json",
        "cut off",
        "times.jsonl",
    ]
    assert written(folder) == written(bench.root / "whole")
    assert [time["round"] for time in record.times] == [2, 3]
    (remark,) = record.remarks
    assert "2 of 4 rounds" in remark


def test_what_cannot_be_repaired_is_left_as_it_is(bench: Bench, folder: Path) -> None:
    edit("history.jsonl", lambda lines: ["{}\n", *lines[1:]])(folder, bench)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(MaplError, match=r"history.jsonl', line 1"):
        mapl.resume(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_checkpoint_of_another_run_is_not_taken_for_this_ones(bench: Bench, folder: Path) -> None:
    """Its recipe is the same, and so is its round; only the data differ."""
    for path in (folder / "checkpoints").iterdir():
        path.unlink()
    theirs = bench.root / "elsewhere" / "checkpoints"
    shutil.copy(max(theirs.iterdir()), folder / "checkpoints")
    assert newest(folder) == PLAYED
    with pytest.raises(MaplError, match="from another run"):
        mapl.resume(folder)


# Data


def test_a_file_of_data_that_was_replaced_is_not_trained_on(tmp_path: Path) -> None:
    data = make_npz(tmp_path / "mine.npz", 0)
    mapl.run(tiny(data), tmp_path / "run", stop=lambda: True)
    moved = data.rename(tmp_path / "moved.npz")
    make_npz(data, 1)
    for start in (mapl.resume, mapl.runs.run.restored_part):
        with pytest.raises(MaplError, match=r"the data are not those of run '.*run'"):
            start(tmp_path / "run")
    with pytest.raises(MaplError, match=line_with("run'", "other data")):
        mapl.run(tiny(data), tmp_path / "run")
    moved.replace(data)
    assert mapl.resume(tmp_path / "run").finished


@pytest.mark.parametrize(
    ("settings", "setting", "before", "after"),
    [
        ({"partition": {"scheme": "file"}}, "partition.file", {"first": 0}, {"first": 4}),
        ({"network": {"topology": {"name": "file"}}}, "network.topology.path", "0 1\n2 3\n", "0 2\n1 3\n"),
    ],
)
def test_a_file_that_a_recipe_names_is_part_of_the_run(
    settings: dict[str, Any], setting: str, before: Any, after: Any, tmp_path: Path
) -> None:
    """Who has which images and who reaches whom: other contents under the same name are another run."""

    def contents(what: Any) -> str:
        if isinstance(what, str):
            return what
        return json.dumps({"train": [[100 * c + what["first"] + i for i in range(4)] for c in range(4)]})

    file = tmp_path / "named"
    file.write_text(contents(before))
    section, *rest = setting.split(".")
    place: dict[str, Any] = {rest[-1]: file}
    for key in reversed(rest[:-1]):
        place = {key: place}
    recipe = small("mapl", rounds=2, **mapl.recipe.merge(settings, {section: place}))
    record = mapl.run(recipe, tmp_path / "run", stop=lambda: True)
    file.write_text(contents(after))
    with pytest.raises(MaplError, match=rf"{setting}.*is not the file that the run began with"):
        mapl.resume(tmp_path / "run")
    with pytest.raises(MaplError, match="another recipe"):
        mapl.run(recipe, tmp_path / "run")
    assert mapl.run(recipe, tmp_path / "other", stop=lambda: True).identity != record.identity
    file.write_text(contents(before))
    assert mapl.resume(tmp_path / "run").finished


@pytest.mark.parametrize("name", ["graph.rows", "times.jsonl", "checkpoints", ".recipe.toml.1"])
def test_a_link_is_not_written_through(name: str, folder: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    entry = folder / name
    if entry.is_dir():
        entry.rename(tmp_path / "elsewhere")
        precious = tmp_path / "elsewhere"
    entry.unlink(missing_ok=True)
    entry.symlink_to(precious)
    before = sorted(path.name for path in precious.iterdir()) if precious.is_dir() else precious.read_text()
    for look in (mapl.load, mapl.resume):
        with pytest.raises(MaplError, match="is a link"):
            look(folder)
    assert before == (sorted(path.name for path in precious.iterdir()) if precious.is_dir() else precious.read_text())


def test_a_folder_in_the_place_of_a_file_is_named(folder: Path) -> None:
    (folder / "times.jsonl").unlink()
    (folder / "times.jsonl").mkdir()
    with pytest.raises(MaplError, match=r"times.jsonl' is not a file"):
        mapl.resume(folder)


def test_an_aside_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    aside = tmp_path / f".file.{os.getpid()}"
    aside.symlink_to(tmp_path / "precious")
    write_aside(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("value", ['"high"', "[5.0, 0.1, 0.1, 0.1]", '["a"]', "{}"])
def test_values_that_no_run_writes_are_named_even_under_a_right_hash(value: str, bench: Bench, folder: Path) -> None:
    history = chain.read_history(folder / "history.jsonl")
    assert history.header is not None
    writer = chain.Writer(folder / "history.jsonl", history.header)
    (folder / "history.jsonl").unlink()
    for entry in history.entries:
        writer.append(entry.round, entry.graph)
    first = (folder / "history.jsonl").read_bytes().splitlines()[0]
    body = re.sub(rb'"accuracy":(null|\[[^\]]*\])', b'"accuracy":' + value.encode(), first.rpartition(b',"chain"')[0])
    (folder / "history.jsonl").write_bytes(chain.closed(body, history.header.start)[0])
    with pytest.raises(MaplError, match=r"history.jsonl', line 1, has values"):
        mapl.load(folder)


# Versions


def test_a_newer_recipe_and_a_newer_folder_are_named_as_such(bench: Bench, folder: Path) -> None:
    text = (folder / "recipe.toml").read_text()
    assert text.startswith(f"version = {mapl.recipe.VERSION}\n")
    first = json.loads((folder / "history.jsonl").read_text().splitlines()[0])
    assert first["run"]["version"] == mapl.runs.chain.VERSION
    edit("history.jsonl", lambda lines: [lines[0].replace('"version":1', '"version":7'), *lines[1:]])(folder, bench)
    for look in (mapl.load, mapl.resume):
        with pytest.raises(MaplError, match=r"history.jsonl' was written by a newer mapl.*version 7"):
            look(folder)
    (folder / "recipe.toml").write_text(text.replace("version = 1", "version = 8\nfuture = true", 1))
    with pytest.raises(MaplError, match=r"recipe.toml\) was written by a newer mapl.*version 8"):
        mapl.load(folder)


def test_an_older_folder_is_named_as_such(bench: Bench, folder: Path) -> None:
    edit("recipe.toml", lambda lines: lines[1:-1])(folder, bench)
    edit("history.jsonl", lambda lines: [re.sub(r',"(run|graph|chain)":.*', "}", line) for line in lines])(
        folder, bench
    )
    with pytest.raises(MaplError, match="older version of mapl"):
        mapl.load(folder)


# What a process can know of the data


GREY = {"augment": {"contrastive": {"saturation": 0, "hue": 0}}}


def test_the_digest_of_data_is_that_of_its_contents_and_the_same_in_every_part() -> None:
    data = made_of([0, 1, 2, 3] * 30, [0, 1, 2, 3] * 10, 4)
    recipe = small(data="python", partition={"sharding": "random", "test_shots": 2}, **GREY)
    whole = build_part(recipe, data).data
    assert set(whole) == {0, 1, 2, 3}
    assert build_part(recipe, data, holds=[2]).data == {2: whole[2]}
    assert build_part(recipe.model_copy(update={"seed": 5}), data).data == whole
    assert replace(data, name="other").digest() == data.digest()
    pixels, labels = data.test.pixels.clone(), data.test.labels.clone()
    pixels[7, 0, 1, 1] ^= 1
    labels[7] = (labels[7] + 1) % 4
    others = [
        replace(data, test=Images(pixels, data.test.labels)),
        replace(data, test=Images(data.test.pixels, labels)),
        replace(data, train=data.test, test=data.train),
        replace(data, mean=(0.4,)),
        replace(data, classes=5),
    ]
    assert len({one.digest() for one in [data, *others]}) == 6


def test_data_of_each_client_count_by_client() -> None:
    one, other = (made_of(labels * 30, labels * 10, 2) for labels in ([0, 1], [1, 0]))
    recipe = small(data="python", clients=2, partition={"sharding": "random"}, **GREY)
    whole = build_part(recipe, {0: one, 1: other}).data
    assert build_part(recipe, {1: other}, holds=[1]).data == {1: whole[1]}
    given: list[Data] = [{0: one, 1: other}, {0: other, 1: one}, {0: one, 1: one}, one]
    assert len({combined(build_part(recipe, data).data) for data in given}) == 4
