"""The runs that a report shows moving: what the page is told of them, and that it stays small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mapl
from mapl.report import frozen as room
from mapl.report.frozen import frozen, spread, strongest
from mapl.report.lines import lines, most_interesting
from mapl.runs.folder import load
from mapl.runs.graph import Row
from mapl.runs.record import Record
from shown_runs import ShownRun
from test_watch import ALONE, weights_of


def told(records: list[Record]) -> list[dict[str, Any]]:
    """What the page's script reads."""
    arms = lines(records)
    scene = frozen(arms, most_interesting(arms))
    assert scene is not None
    tree: list[dict[str, Any]] = json.loads(json.dumps(scene.told))["runs"]
    return tree


def unfolded(changes: list[Any]) -> dict[int, dict[str, Any]]:
    """W by round, as the page puts it together."""
    rows: dict[str, Any] = {}
    return {round: (rows := {**rows, **changed}) for round, changed in changes}


def compact(tree: Any) -> str:
    """As the page has it."""
    return json.dumps(tree, separators=(",", ":"))


def played(folder: Path, rounds: int = 5, **settings: Any) -> Record:
    run = ShownRun(folder, rounds=rounds, **settings)
    run.play(rounds)
    return load(folder)


def test_w_of_every_round_and_the_control_are_those_of_the_runs(tmp_path: Path) -> None:
    ours, alone = played(tmp_path / "ours"), played(tmp_path / "alone", **ALONE)
    first, second = told([alone, ours])
    assert first["run"]["name"] == "ours"
    assert [line["a"] for line in first["lines"]] == [[round(a, 6) for a in one.accuracy or ()] for one in ours.rounds]
    assert first["control"]["lines"] == [[round(a, 6) for a in one.accuracy or ()] for one in alone.rounds]
    graphs = unfolded(first["changes"])
    for t in graphs:
        assert torch.equal(weights_of(graphs[t], 6), ours.weights(t))
    assert list(graphs) == list(range(len(ours.rounds)))
    assert first["sampled"] == ""
    assert second["run"]["name"] == "alone"
    assert (second["changes"], "control" in second) == ([], False)


def test_a_row_that_did_not_change_is_told_once(tmp_path: Path) -> None:
    record = mapl.run(
        mapl.Recipe.of(clients=4, rounds=3, method={"name": "fedavg"}, partition={"shots": 2}), tmp_path / "run"
    )
    changes = told([record])[0]["changes"]
    assert sum(len(changed) for _, changed in changes) <= 4
    for t, rows in unfolded(changes).items():
        assert torch.equal(weights_of(rows, 4), record.weights(t))


@pytest.mark.parametrize(("clients", "rounds"), [(20, 120), (150, 12), (150, 3)])
def test_a_page_stays_small_and_says_what_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clients: int, rounds: int
) -> None:
    monkeypatch.setattr(room, "GRAPHS", 2**18)
    monkeypatch.setattr(room, "TESTS", 2**13)
    record = played(tmp_path / "run", rounds, clients=clients, clusters=2)
    (run,) = told([record])
    kept = [t for t, _ in run["changes"]]
    assert len(compact(run["changes"])) < 1.1 * 2**18
    assert len(compact(run["lines"])) < 1.1 * 2**13 + 50 * rounds
    assert (kept[0], kept[-1]) == (0, rounds - 1)
    assert len(kept) >= min(room.FEWEST, rounds)
    tests = [t for t, line in enumerate(run["lines"]) if line["a"]]
    assert tests[-1] == rounds - 1
    assert (f"This page has {len(tests)} of its {rounds} tests." in run["sampled"]) == (len(tests) < rounds)
    assert f"W of {len(kept)} rounds of {rounds}" in run["sampled"]
    graphs = unfolded(run["changes"])
    for t in kept:
        matrix = weights_of(graphs[t], clients)
        whole = record.weights(t)
        assert torch.equal(matrix[matrix > 0], whole[matrix > 0]), "what is kept is exact"
        if clients == 20:
            assert torch.equal(matrix, whole)
    if clients == 150:
        largest = len(graphs[kept[-1]]["3"][0])
        assert f"of each client the {largest} largest weights" in run["sampled"]


def test_the_strongest_weights_keep_the_clients_own() -> None:
    row = Row(np.arange(5), np.array([0.3, 0.05, 0.4, 0.2, 0.05]))
    kept = strongest(row, 1, 3)
    assert kept.ids.tolist() == [0, 1, 2]
    assert kept.weights.tolist() == [0.3, 0.05, 0.4]
    assert strongest(row, 1, 5) is row


def test_spread_has_both_ends() -> None:
    assert spread(range(10), 4) == [0, 3, 6, 9]
    assert spread(range(10), 0) == [0, 9]
    assert spread(range(3), 9) == [0, 1, 2]
    assert spread([], 5) == []


def test_the_most_interesting_arm_is_shown_first_by_its_middle_run(tmp_path: Path) -> None:
    """Not the first that was given, which has no letters."""
    alone = [mapl.run(small(seed, **ALONE), tmp_path / f"alone-{seed}") for seed in range(3)]
    ours = [mapl.run(small(seed), tmp_path / f"ours-{seed}") for seed in range(3)]
    arms = lines([*alone, *ours])
    shown = most_interesting(arms)
    assert shown is arms[1]
    middle = sorted(ours, key=lambda run: run.mean)[1]
    assert shown.typical.folder == middle.folder
    first = told([*alone, *ours])[0]
    assert first["run"]["name"] == middle.folder.name
    assert first["about"] == f"folder {middle.folder.name}, the middle one of 3 by accuracy"
    assert first["control"]["name"] == f"alone-{middle.recipe.seed}"


def small(seed: int, **settings: Any) -> mapl.Recipe:
    tiny: dict[str, Any] = {"partition": {"shots": 2, "test_shots": 5}, "model": {"backbones": ["mlp"]}}
    return mapl.Recipe.of(clients=4, rounds=2, seed=seed, evaluate={"every": 1}, **tiny, **settings)


def test_runs_without_a_round_have_nothing_that_moves(tmp_path: Path) -> None:
    ShownRun(tmp_path / "run")
    arms = lines([load(tmp_path / "run")])
    assert frozen(arms, most_interesting(arms)) is None
