"""A run that is killed with SIGKILL, whenever it may be, and resumed ends with the bytes of one that was not."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import mapl
import mapl.runs.checkpoint
import mapl.runs.files
from conftest import in_child, small, told, written
from mapl import Recipe
from mapl.runs.folder import RECIPE

ROUNDS = 12


def recipe() -> Recipe:
    """One cheap architecture, so that MAPL+ mixes everything; optimisers that live on, so that they are saved too."""
    over = {"model": {"backbones": ["mlp"]}, "method": {"warmup": 4}, "train": {"reset": False}}
    return small("mapl+", rounds=ROUNDS, checkpoint={"every": 2}, **over)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    mapl.run(recipe(), folder)
    return written(folder)


def go_on(folder: Path) -> None:
    """What a person does after a crash: resume the run, or start it again where it had not begun."""
    if (folder / RECIPE).exists():
        with told() as said:
            mapl.resume(folder)
        # A crash costs rounds; it damages nothing.
        assert all("played again" in sentence for sentence in said), said
    else:
        mapl.run(recipe(), folder, overwrite=True)


def lines(folder: Path) -> int:
    path = folder / "history.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize("repetition", [*range(3), *(pytest.param(i, marks=pytest.mark.slow) for i in range(3, 10))])
def test_killed_at_a_random_moment_and_resumed(repetition, whole, tmp_path):
    """In a random round, a random part of a round later; the first is killed anywhere before its second round."""
    draw = random.Random(repetition)
    child = in_child(mapl.run, recipe(), tmp_path / "run")
    if repetition:
        at = draw.randrange(ROUNDS - 1)
        while lines(tmp_path / "run") <= at and child.is_alive():
            time.sleep(0.001)
    time.sleep(draw.uniform(0, 0.1))
    child.kill()
    child.join()
    go_on(tmp_path / "run")
    assert written(tmp_path / "run") == whole


def test_killed_twice(whole, tmp_path):
    for at, start in ((3, mapl.run), (7, mapl.resume)):
        child = in_child(start, *((recipe(), tmp_path / "run") if start is mapl.run else (tmp_path / "run",)))
        while lines(tmp_path / "run") <= at and child.is_alive():
            time.sleep(0.001)
        child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL
    go_on(tmp_path / "run")
    assert written(tmp_path / "run") == whole


def dying(folder: Path, name: str, moment: str) -> None:
    """A run that is killed while it writes the file whose name begins so; `ahead`: which has since played two rounds."""
    write_parts = mapl.runs.files.write_parts

    def write(
        aside: Path, parts: Iterable[bytes | memoryview], path: Callable[[], Path], *more: Any, **rest: Any
    ) -> Path:
        if aside.name.startswith(f".{name}"):
            parts = list(parts)
            if moment in ("half", "ahead"):
                whole = b"".join(parts)
                aside.write_bytes(whole[: len(whole) // 2])
            while moment == "ahead" and lines(folder) < int(name) + 2:
                time.sleep(0.001)
            if moment == "after":
                write_parts(aside, parts, path, *more, **rest)
            os.kill(os.getpid(), signal.SIGKILL)
        return write_parts(aside, parts, path, *more, **rest)

    mapl.runs.checkpoint.write_parts = mapl.runs.files.write_parts = write
    mapl.run(recipe(), folder)


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        *itertools.product(["clients.json", "recipe.toml", "000002", f"{ROUNDS:06d}"], ["before", "half", "after"]),
        ("000002", "ahead"),
        ("000006", "ahead"),
    ],
)
def test_killed_while_a_file_is_written(name, moment, whole, tmp_path):
    child = in_child(dying, tmp_path / "run", name, moment)
    child.join()
    assert child.exitcode == -signal.SIGKILL
    found = list((tmp_path / "run").rglob(f"{name}*"))
    assert len(found) == (1 if moment == "after" else 0)
    go_on(tmp_path / "run")
    assert written(tmp_path / "run") == whole
    assert not list((tmp_path / "run" / "checkpoints").glob(".*")), "what a kill left behind is swept up"
