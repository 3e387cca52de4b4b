"""A number that is no longer finite is explained by its cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import mapl.runs.round
from conftest import play, small
from mapl import Inbox, MaplError
from mapl.recipe import Recipe
from mapl.runs.client_data import load_data
from mapl.runs.diagnosis import watching_letters, why_not_finite
from mapl.runs.part import build_part

MLP = {"model": {"backbones": ["mlp"]}}


def failing(recipe: Recipe, **changed: Any) -> str:
    """What a run says when it fails; `changed`: in its data set."""
    part = build_part(recipe, replace(load_data(recipe), **changed) if changed else None)
    with pytest.raises(MaplError) as error:
        play(recipe, part=part)
    return str(error.value)


@pytest.mark.parametrize(
    ("changed", "setting", "value"),
    [
        ({"mean": (float("nan"),)}, "mean", "nan"),
        ({"mean": (float("inf"),)}, "mean", "inf"),
        ({"std": (float("nan"),)}, "std", "nan"),
        ({"std": (1e-39,)}, "std", "1e-39"),
    ],
)
def test_the_mean_or_the_std_of_the_data(changed, setting, value):
    said = failing(small("local", **MLP), **changed)
    assert f"the {setting} of the data set is {value}" in said
    assert "learning_rate" not in said


@pytest.mark.parametrize(
    ("method", "setting", "value"),
    [("mapl", "temperature", 1e-4), ("fedclassavg", "temperature", 1e-40), ("courier", "distil_temperature", 1e-40)],
)
def test_a_temperature(method, setting, value):
    said = failing(small(method, method={setting: value}, **MLP))
    assert f"method.{setting} is {value:g}" in said
    assert "learning_rate" not in said


def test_a_usual_temperature_and_usual_data_are_not_suspected():
    assert "train.learning_rate" in why_not_finite(build_part(small(**MLP)))


@pytest.mark.parametrize(("method", "rate"), [("mapl", 1e4), ("mapl", 1e30), ("mapl+", 1e30), ("fedavg", 1e30)])
def test_the_learning_rate_also_where_letters_spread_what_it_did(method, rate):
    said = failing(small(method, rounds=8, train={"learning_rate": rate}, **MLP))
    assert f"train.learning_rate (it is {rate:g})" in said


@pytest.mark.parametrize("number", [3e38, torch.inf])
def test_letters_that_spoil_who_reads_them(number, monkeypatch):
    """Client 0 writes numbers that are huge or infinite; its own parameters are as they were."""
    part = build_part(small("mapl+", method={"warmup": 0}, **MLP))
    letter = part.method.letter

    def huge(client, round):
        written = letter(client, round)
        if client.id != 0:
            return written
        return replace(written, tensors={k: torch.full_like(v, number) for k, v in written.tensors.items()})

    monkeypatch.setattr(part.method, "letter", huge)
    monkeypatch.setattr("mapl.runs.exchange.inspect", lambda mail, inboxes, own: inboxes)  # as if no check caught it
    with pytest.raises(MaplError) as error:
        play(part.recipe, part=part)
    assert "letters" in str(error.value)
    assert "round 0" in str(error.value)
    assert "learning_rate" not in str(error.value)


def test_who_read_nothing_and_what_was_never_finite_is_left_alone():
    part = build_part(small(**MLP))
    pairs = [(client, Inbox.of([])) for client in part.clients]
    with watching_letters(part, pairs, 0), torch.no_grad():
        part.clients[0].model.prototypes.fill_(torch.nan)  # by its own doing
    mapl.runs.round.look_around(part.method, part.clients, part.server, part.topology, 0)
    inbox = Inbox.of([part.method.letter(part.clients[1], 0)])
    with watching_letters(part, [(part.clients[0], inbox)], 0):
        pass


def test_a_letter_that_breaks_the_state_of_a_method_is_noticed():
    part = build_part(small("fedproto", **MLP))
    reader, writer = part.clients[:2]
    inbox = Inbox.of([writer.letter(0, {"prototypes": torch.ones(2)})])
    with (
        pytest.raises(MaplError, match=r"client 0 .*letters.*round 3 \(from 1\)"),
        watching_letters(part, [(reader, inbox)], 3),
    ):
        reader.state["prototypes"].fill_(torch.inf)
