"""Runs in threads of one process equal runs one after the other, and leave torch as they found it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

import mapl
from conftest import small, written
from mapl import Recipe


class Dropping(nn.Sequential):
    """Its layers draw from torch's global generator, in small steps, so that two runs would meet often."""

    def __init__(self, image: tuple[int, int, int], embedding: int):
        super().__init__(
            nn.Flatten(), nn.Linear(image[0] * image[1] * image[2], 16), *(nn.Dropout(0.2) for _ in range(6)),
            nn.Linear(16, embedding),
        )  # fmt: skip


class Plain(nn.Sequential):
    def __init__(self, image: tuple[int, int, int], embedding: int):
        super().__init__(nn.Flatten(), nn.Linear(image[0] * image[1] * image[2], embedding))


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def recipes() -> list[Recipe]:
    over = {"model": {"backbones": ["dropping", "mlp"]}, "engine": {"device": "cpu"}}
    return [small(rounds=3, seed=seed, **over) for seed in range(2)]


def train(recipe: Recipe, folder: Path) -> dict[str, bytes]:
    """History, graph and every parameter (the last checkpoint), as bytes."""
    mapl.run(recipe, folder, backbones={"dropping": Dropping, "mlp": Plain})
    return written(folder)


@pytest.mark.filterwarnings("ignore:.*one after another")
def test_two_runs_in_threads_equal_two_runs_one_after_the_other(tmp_path, frequent_switches):
    alone = [train(recipe, tmp_path / f"alone{i}") for i, recipe in enumerate(recipes())]
    before = torch.random.get_rng_state()
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(train, recipe, tmp_path / f"beside{i}") for i, recipe in enumerate(recipes())]
        beside = [run.result() for run in runs]
    assert beside == alone
    assert alone[0] != alone[1]
    assert torch.equal(torch.random.get_rng_state(), before), "the caller's own draws are not disturbed"


def threads_of_a_new_thread() -> int:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_a_run_leaves_torchs_threads_as_they_were(tmp_path, three_threads):
    inside: list[int] = []
    recipe = small(rounds=1, train={"threads": 1}, model={"backbones": ["mlp"]})
    mapl.run(recipe, tmp_path / "run", observers=[lambda *_: inside.append(torch.get_num_threads())])
    assert inside == [1]
    assert (torch.get_num_threads(), threads_of_a_new_thread()) == (3, 3)
    mapl.resume(tmp_path / "run", rounds=2)
    assert (torch.get_num_threads(), threads_of_a_new_thread()) == (3, 3)

    def fail(*_: object) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        mapl.run(recipe, tmp_path / "failed", observers=[fail])
    assert torch.get_num_threads() == 3


def test_runs_in_threads_leave_torchs_threads_as_they_were(tmp_path, three_threads):
    """New threads start with the number that was set last, which may be that of a run."""
    recipe = small(rounds=2, train={"threads": 1}, model={"backbones": ["mlp"]})

    def second(*_: object) -> None:
        """A run that begins in another thread and ends before the first one."""
        if not (tmp_path / "second").exists():
            with ThreadPoolExecutor(1) as pool:
                pool.submit(mapl.run, recipe, tmp_path / "second").result()

    mapl.run(recipe, tmp_path / "first", observers=[second])
    assert (torch.get_num_threads(), threads_of_a_new_thread()) == (3, 3)
