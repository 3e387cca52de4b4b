"""Both test protocols from one run: the recipe's own test images, and all of each client's classes."""

from __future__ import annotations

import pytest
import torch

import mapl
from conftest import assert_same, parameters, play, small, stop_after, written
from mapl.analysis.compare import group
from mapl.runs.chain import Round
from mapl.runs.client_data import load_data
from mapl.runs.part import Part

BOTH = {"every": 1, "all_images": True}


def alone(part: Part, i: int) -> float:
    """An independent evaluation: one image at a time, of all test images of the client's classes."""
    data, client = load_data(part.recipe), part.clients[i]
    held = torch.isin(data.test.labels, torch.unique(client.train.labels))
    client.model.eval()
    with torch.no_grad():
        said = [
            int(client.model(part.engine.augmentation.normalise(image[None])).argmax())
            for image in data.test.pixels[held]
        ]
    return float((torch.tensor(said) == data.test.labels[held]).double().mean())


def test_what_is_trained_and_the_own_test_stay_the_same_to_the_bit():
    plain, both = play(small()), play(small(evaluate=BOTH))
    assert_same(parameters(plain), parameters(both))
    for ours, theirs in zip(plain.clients, both.clients, strict=True):
        assert torch.equal(plain.engine.embed(ours), both.engine.embed(theirs)[: ours.tests])
    assert [line.accuracy for line in plain.lines] == [line.accuracy for line in both.lines]
    assert plain.recipe.fingerprint() == both.recipe.fingerprint()
    assert all(line.all_images is None and "all_images" not in line.line() for line in plain.lines)
    assert all(line.all_images is not None for line in both.lines)


@pytest.mark.parametrize("scheme", ["scenario", "dirichlet"])
def test_all_images_are_all_of_the_clients_classes(scheme):
    over = {"scheme": scheme, "test_shots": 3, "fewest": 1}
    part = play(small(rounds=1, partition=over, evaluate=BOTH))
    every = play(small(rounds=1, partition={**over, "test_shots": "all"}))
    assert part.lines[0].all_images == every.lines[0].accuracy
    assert part.lines[0].all_images[1] == alone(part, 1)
    assert [c.tests for c in part.clients] < [c.tests for c in every.clients]


def test_a_run_that_was_stopped_goes_on_with_both(tmp_path):
    recipe = small(evaluate=BOTH)
    mapl.run(recipe, tmp_path / "whole")
    mapl.run(recipe, tmp_path / "stopped", stop=stop_after(1))
    record = mapl.resume(tmp_path / "stopped")
    assert written(tmp_path / "stopped") == written(tmp_path / "whole")
    assert record.all_images.tolist() == record.rounds[-1].all_images
    assert all(card.tests == 5 * 5 for card in record.clients)
    longer = mapl.resume(tmp_path / "stopped", rounds=4)
    assert [line.all_images is not None for line in longer.rounds] == [True] * 4


def test_a_last_round_that_was_tested_for_that_alone_is_untested_in_a_longer_run(tmp_path):
    mapl.run(small(evaluate={"every": 2, "all_images": True}), tmp_path / "run")
    longer = mapl.resume(tmp_path / "run", rounds=4)
    assert [line.all_images is not None for line in longer.rounds] == [False, True, False, True]


def test_runs_with_and_without_are_one_arm(tmp_path):
    records = [mapl.run(small(seed=i, evaluate={"all_images": bool(i)}), tmp_path / str(i)) for i in range(2)]
    assert records[0].all_images is None
    assert [len(runs) for runs in group(records).values()] == [2]


def test_a_line_of_the_history_comes_back():
    line = Round(round=0, losses={"a": [1.0]}, accuracy=[0.5], messages=0, bytes=0, all_images=[0.25])
    assert Round.of_line(line.line()) == line


def test_writers_log_it(tmp_path):
    from mapl.runs.writers import open_writers

    mapl.run(small(evaluate=BOTH), tmp_path / "run", observers=open_writers(["csv"], tmp_path / "run"))
    for name in ("rounds.csv", "clients.csv"):
        assert "all_images" in (tmp_path / "run" / name).read_text().splitlines()[0]
