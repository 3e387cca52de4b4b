"""The schedule of the learning rate, and how many batches an epoch has: the same on every engine and after a resume."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mapl
from conftest import parameters, play, small, stop_after, written
from mapl import MaplError, Recipe
from mapl.engine.settings import TrainSettings
from mapl.methods.local import Local
from mapl.runs.part import build_part

ROUNDS = st.tuples(st.integers(0, 40), st.integers(1, 500)).map(lambda pair: (pair[0], sum(pair)))
"""Warm-up rounds, and more cosine rounds than those."""


def factors(rounds: int, **settings: int | None) -> list[float]:
    return [TrainSettings(**settings).rate_factor(t) for t in range(rounds)]


def test_by_hand():
    assert factors(4) == [1, 1, 1, 1]
    assert factors(6, warmup_rounds=4) == [0.25, 0.5, 0.75, 1, 1, 1]
    # cos 0, cos 60°, cos 120°; the rounds after the third keep its rate.
    assert factors(5, cosine_rounds=3) == pytest.approx([1, 0.75, 0.25, 0.25, 0.25], rel=1e-15)
    assert factors(6, warmup_rounds=2, cosine_rounds=4) == pytest.approx([0.5, 1, 1, 0.5, 0.5, 0.5], rel=1e-15)
    assert factors(3, warmup_rounds=1, cosine_rounds=2) == [1, 1, 1]


@given(ROUNDS)
def test_the_factor_against_the_formula_in_float64(rounds):
    warmup, end = rounds
    t = np.arange(end, dtype=np.float64)
    rising = np.minimum(1, (t + 1) / max(warmup, 1))
    falling = 0.5 + 0.5 * np.cos(np.pi * np.clip(t - warmup, 0, None) / (end - warmup))
    expected = np.where(t < warmup, rising, falling)
    np.testing.assert_allclose(factors(end, warmup_rounds=warmup, cosine_rounds=end), expected, rtol=1e-9, atol=1e-15)


@given(ROUNDS, st.integers(0, 5))
def test_the_factor_rises_then_falls_and_is_never_zero(rounds, more):
    warmup, end = rounds
    values = factors(end + more, warmup_rounds=warmup, cosine_rounds=end)
    assert all(0 < value <= 1 for value in values)
    assert values[warmup] == 1
    assert all(a < b for a, b in pairwise(values[:warmup]))
    assert all(a > b for a, b in pairwise(values[warmup:end]))
    assert values[end:] == [values[end - 1]] * more


def test_a_long_schedule_does_not_reach_zero():
    last = TrainSettings(cosine_rounds=10**9).rate_factor(10**9 - 1)
    assert last == pytest.approx((np.pi / 2e9) ** 2)


@pytest.mark.parametrize("warmup", [3, 4])
def test_a_cosine_that_ends_before_the_warm_up_is_an_error(warmup):
    with pytest.raises(MaplError, match=r"cosine_rounds \(3\).*warmup_rounds"):
        Recipe.of(train={"warmup_rounds": warmup, "cosine_rounds": 3})


class TwoRates(Local):
    """A network beside the backbone that has a learning rate of its own."""

    def modules(self, client):
        return {"beside": torch.nn.Linear(64, 10)}

    def learning_rates(self):
        return {"beside": 0.5}

    def loss(self, client, images, labels):
        beside = torch.nn.functional.cross_entropy(client.model.call("beside", images.flatten(1)), labels)
        return {**super().loss(client, images, labels), "beside": beside}


def test_every_learning_rate_follows_the_schedule():
    """One step of plain gradient descent moves a weight by its rate times the factor of the round."""
    plain = {"optimizer": "sgd", "momentum": 0, "learning_rate": 0.1, "batch": 64}
    moved = []
    for train in (plain, {**plain, "warmup_rounds": 2}):
        part = build_part(small("test_schedule:TwoRates", train=train))
        before = parameters(part)
        before = {name: value.double().clone() for name, value in before.items()}
        part.engine.train(part.clients[0], 0)
        moved.append({name: value.double() - before[name] for name, value in parameters(part).items()})
    for name in ("0.head.weight", "0.own.beside.weight"):
        assert moved[0][name].abs().max() > 1e-4
        torch.testing.assert_close(moved[1][name], moved[0][name] / 2, atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("train", [{}, {"optimizer": "adamw", "weight_decay": 0.1, "reset": False}])
def test_a_resumed_run_has_the_same_bytes(tmp_path: Path, train):
    """The rate is a function of the recipe and the round, so a run may also be extended."""
    schedule = {**train, "warmup_rounds": 2, "cosine_rounds": 4, "steps": 2, "batch": 4}
    recipe = small(rounds=5, train=schedule, engine={"device": "cpu"})
    mapl.run(recipe, tmp_path / "whole")
    mapl.run(recipe.model_copy(update={"rounds": 3}), tmp_path / "stopped", stop=stop_after(1))
    mapl.resume(tmp_path / "stopped", rounds=5)
    assert written(tmp_path / "stopped") == written(tmp_path / "whole")


def test_an_epoch_has_at_most_so_many_batches_the_first_of_its_order():
    whole = build_part(small(train={"batch": 3, "epochs": 2}))
    client = whole.clients[0]
    assert client.samples == 10
    order = whole.engine.draw(client, 4).batches
    assert order.shape == (6, 3)
    for steps, kept in ((1, [0, 3]), (2, [0, 1, 3, 4]), (3, [0, 1, 2, 3, 4, 5]), (9, [0, 1, 2, 3, 4, 5])):
        few = build_part(small(train={"batch": 3, "epochs": 2, "steps": steps}))
        draws = few.engine.draw(few.clients[0], 4)
        assert torch.equal(draws.batches, order[kept])
        assert len(draws.uniforms) == len(kept)


class Counting(Local):
    """Notes when an epoch begins and when a step is taken."""

    seen: list[str] = []  # noqa: RUF012

    def start_epoch(self, client, round, epoch):
        self.seen.append(f"epoch {epoch}")

    def loss(self, client, images, labels):
        self.seen.append("step")
        return super().loss(client, images, labels)


def test_epochs_begin_on_time_where_their_steps_are_limited():
    part = build_part(small("test_schedule:Counting", train={"batch": 3, "epochs": 2, "steps": 2}))
    Counting.seen.clear()
    part.engine.train(part.clients[0], 0)
    assert Counting.seen == ["epoch 0", "step", "step", "epoch 1", "step", "step"]


def test_defaults_are_a_constant_rate_and_whole_epochs():
    plain = play(small(rounds=2))
    explicit = play(small(rounds=2, train={"warmup_rounds": 1, "steps": 100}))
    for name, value in parameters(plain).items():
        assert torch.equal(value, parameters(explicit)[name]), name
