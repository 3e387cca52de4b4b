"""A run leaves the same bytes whenever and however often it is carried out, stopped, resumed or made longer."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

import mapl
from conftest import (
    REAL_LASTING,
    assert_same,
    in_silence,
    line_with,
    made_of,
    parameters,
    play,
    row_of,
    small,
    stop_after,
    told,
    written,
)
from mapl import MaplError, Recipe
from mapl.methods.local import Local
from mapl.recipe import to_toml
from mapl.runs.chain import Round
from mapl.runs.checkpoint import Checkpoint
from mapl.runs.folder import load
from mapl.runs.part import build_part
from mapl.runs.run import restored_part
from mapl.runs.saving import restore, saved_state


@pytest.mark.parametrize("method", ["mapl", "mapl+", "local"])
def test_two_runs_of_one_recipe_leave_the_same_bytes(method, tmp_path):
    recipe = small(method)
    mapl.run(recipe, tmp_path / "a")
    torch.manual_seed(1234)
    mapl.run(recipe, tmp_path / "b")
    assert written(tmp_path / "a") == written(tmp_path / "b")
    assert (tmp_path / "a" / "recipe.toml").read_bytes() == (tmp_path / "b" / "recipe.toml").read_bytes()


def test_another_seed_is_another_run(tmp_path):
    histories = {seed: mapl.run(small(seed=seed), tmp_path / str(seed)).rounds for seed in (0, 1)}
    assert histories[0] != histories[1]


def test_what_is_written_is_what_happened(tmp_path):
    recipe = small()
    record = mapl.run(recipe, tmp_path / "run")
    part = play(recipe)
    assert record.rounds == part.lines
    assert record.recipe == recipe
    assert record.finished
    assert (record.messages, record.bytes) == (part.ledger.messages, part.ledger.bytes)
    assert torch.equal(record.weights(), torch.stack([row_of(c, 4) for c in part.clients]))
    assert torch.equal(record.weights(0), torch.full((4, 4), 0.25, dtype=torch.float64))
    assert all(torch.equal(matrix, record.weights(line.round)) for line, matrix in record.graphs())
    with pytest.raises(MaplError, match=rf"no round {len(record.rounds)}; it has rounds 0 to {len(record.rounds) - 1}"):
        record.weights(len(record.rounds))
    accuracy = torch.tensor(part.lines[-1].accuracy, dtype=torch.float64)
    assert record.mean == pytest.approx(float(accuracy.mean()))
    assert record.std == pytest.approx(float(accuracy.numpy().std()))
    assert [t["round"] for t in record.times] == [0, 1, 2]
    assert record.seconds > 0
    for card, client in zip(record.clients, part.clients, strict=True):
        assert card.classes == sorted(set(client.train.labels.tolist()))
        assert (card.samples, card.tests) == (len(client.train), len(client.test))
        assert (card.backbone, card.cluster) == (client.backbone, client.cluster)
    again = restored_part(tmp_path / "run")
    assert again is not None
    assert_same(parameters(again), parameters(part))
    assert_same(saved_state(again), saved_state(part))
    assert (again.ledger, again.round) == (part.ledger, 3)


def test_the_reported_accuracy_is_the_last_and_never_the_best(tmp_path):
    record = mapl.run(small(rounds=6), tmp_path / "run")
    means = [sum(r.accuracy) / 4 for r in record.rounds]
    assert record.mean == means[-1]


# Tests


@pytest.mark.parametrize(("every", "rounds", "tested"), [(1, 3, [0, 1, 2]), (2, 5, [1, 3, 4]), (9, 3, [2])])
def test_rounds_are_tested_at_their_interval_and_the_last_always(every, rounds, tested):
    part = play(small("local", rounds=rounds, evaluate={"every": every}))
    assert [line.round for line in part.lines if line.accuracy is not None] == tested


def test_the_moment_of_the_test_is_before_or_after_mixing():
    """One architecture and MAPL+, so that mixing changes the accuracy; the training before it is the same."""
    over = {"model": {"backbones": ["cnn"]}, "rounds": 1, "partition": {"shots": 6, "test_shots": "all"}}
    alone = play(small("mapl+", **over, network={"topology": {"name": "none"}}))
    trained = play(small("mapl+", **over, evaluate={"moment": "trained"}))
    mixed = play(small("mapl+", **over, evaluate={"moment": "mixed"}))
    assert trained.lines[0].accuracy == alone.lines[0].accuracy
    assert mixed.lines[0].accuracy != trained.lines[0].accuracy
    assert mixed.lines[0].accuracy == [float(mixed.engine.evaluate(c).double().mean()) for c in mixed.clients]
    assert_same(parameters(trained), parameters(mixed))


# Stopping, resuming, going on


@pytest.mark.parametrize(
    "over",
    [
        {"method": {"name": "mapl"}},
        {"method": {"name": "mapl+"}},
        {"train": {"reset": False}},
        {"train": {"reset": False, "optimizer": "sgd"}},
        {"network": {"topology": {"name": "erdos-renyi", "every": 1, "probability": 0.6}}},
        {"evaluate": {"every": 3}},
    ],
    ids=str,
)
def test_a_stopped_run_that_is_resumed_ends_with_the_bytes_of_one_that_never_stopped(over, tmp_path):
    recipe = small(rounds=5, checkpoint={"every": 10}, **over)
    mapl.run(recipe, tmp_path / "whole")
    record = mapl.run(recipe, tmp_path / "stopped", stop=stop_after(2))
    assert len(record.rounds) == 2
    assert not record.finished
    record = mapl.resume(tmp_path / "stopped", stop=stop_after(1))
    assert len(record.rounds) == 3
    record = mapl.resume(tmp_path / "stopped")
    assert record.finished
    assert written(tmp_path / "stopped") == written(tmp_path / "whole")
    assert [t["round"] for t in record.times] == [0, 1, 2, 3, 4]


def test_what_is_restored_is_put_where_it_was_and_what_a_method_added_later_is_put_beside_it():
    """Recorded training steps hold on to tensors, so these must stay the same ones."""
    part = play(small("mapl+"))
    part.clients[1].state["later"] = torch.arange(3)
    state = {name: tensor.clone() for name, tensor in saved_state(part).items()}
    again = build_part(small("mapl+"))
    places = {**parameters(again), **{f"{c.id}.state.{k}": v for c in again.clients for k, v in c.state.items()}}
    before = {name: tensor.data_ptr() for name, tensor in places.items()}
    restore(again, Checkpoint(3, state))
    after = {**parameters(again), **{f"{c.id}.state.{k}": v for c in again.clients for k, v in c.state.items()}}
    assert after.pop("1.state.later").tolist() == [0, 1, 2]
    assert {name: tensor.data_ptr() for name, tensor in after.items()} == before
    assert_same(saved_state(again), state)


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    mapl.run(small(), tmp_path / "run")
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    mapl.resume(tmp_path / "run")
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before


def test_a_run_without_a_checkpoint_is_resumed_from_its_first_round(tmp_path):
    mapl.run(small(), tmp_path / "run")
    before = written(tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        path.unlink()
    (tmp_path / "run" / "history.jsonl").write_text("damaged\n")
    mapl.resume(tmp_path / "run")
    assert written(tmp_path / "run") == before


@pytest.mark.parametrize("every", [1, 2])
def test_a_run_made_longer_is_a_run_of_that_length(every, tmp_path):
    """Also where the last round of the short run was tested only for being the last."""
    over = {"evaluate": {"every": every}, "train": {"reset": False}}
    mapl.run(small(rounds=5, **over), tmp_path / "long")
    mapl.run(small(rounds=3, **over), tmp_path / "grown")
    record = mapl.resume(tmp_path / "grown", rounds=5)
    assert record.recipe.rounds == 5
    assert written(tmp_path / "grown") == written(tmp_path / "long")
    assert load(tmp_path / "grown").recipe == load(tmp_path / "long").recipe


def test_a_run_is_not_made_shorter(tmp_path):
    mapl.run(small(), tmp_path / "run")
    with pytest.raises(MaplError, match=line_with("rounds: got 2", "run'", "3")):
        mapl.resume(tmp_path / "run", rounds=2)


def test_a_recipe_that_was_changed_under_a_run_is_noticed(tmp_path):
    mapl.run(small(), tmp_path / "run")
    (tmp_path / "run" / "recipe.toml").write_text(to_toml(small(train={"learning_rate": 0.5})))
    with pytest.raises(MaplError, match=line_with("recipe.toml", "not the recipe", "began")):
        mapl.resume(tmp_path / "run")
    (tmp_path / "run" / "recipe.toml").write_text(to_toml(small(name="other", checkpoint={"keep": 5})))
    with pytest.raises(MaplError, match=r"recipe.toml. was edited"):
        load(tmp_path / "run")
    with told() as said:
        assert mapl.resume(tmp_path / "run").recipe.name == "other"
    assert ["recipe.toml" in sentence for sentence in said] == [True]
    with in_silence():
        mapl.resume(tmp_path / "run")


def test_observers_see_every_round_and_every_second(tmp_path):
    seen = []
    record = mapl.run(small(), tmp_path / "run", observers=[lambda *args: seen.append(args)] * 2)
    assert [line for _, line, _ in seen[::2]] == record.rounds == [line for _, line, _ in seen[1::2]]
    assert all(recipe == record.recipe for recipe, _, _ in seen)
    assert {"train", "evaluate", "exchange", "checkpoint"} <= set(seen[0][2])


def test_an_observers_own_trouble_is_not_taken_for_a_full_disk(tmp_path):
    def broken(*_):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        mapl.run(small(), tmp_path / "run", observers=[broken])
    assert len(mapl.resume(tmp_path / "run").rounds) == 3


def test_a_line_of_the_history_is_encoded_once(tmp_path, monkeypatch):
    encoded = []
    to_json = mapl.runs.chain.to_json
    monkeypatch.setattr("mapl.runs.chain.to_json", lambda values: encoded.append(values["round"]) or to_json(values))
    record = mapl.run(small(rounds=5), tmp_path / "run")
    assert encoded == [0, 1, 2, 3, 4]
    with (tmp_path / "run" / "history.jsonl").open() as file:
        assert [Round.of_line(line) for line in file] == record.rounds


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1), st.lists(st.floats(0, 1), min_size=1))
def test_numbers_of_a_line_come_back_to_the_last_bit(numbers, shares):
    line = Round(3, {"prototype": numbers}, shares, 7, 10**15, shares)
    back = Round.of_line(line.line())
    assert back == line
    assert [math.copysign(1, x) for x in back.losses["prototype"]] == [math.copysign(1, x) for x in numbers]


# Where a run is written


def test_a_run_has_one_writer_at_a_time(tmp_path):
    """Whoever comes second changes nothing; whoever comes later goes on."""
    refused = []

    def second(*_):
        for start in (mapl.resume, lambda folder: mapl.run(small(), folder, overwrite=True)):
            with pytest.raises(MaplError, match=line_with("somebody else is writing", "run'")) as error:
                start(tmp_path / "run")
            refused.append(error.value.status)

    record = mapl.run(small(), tmp_path / "run", observers=[second])
    assert refused == [1] * 6
    assert record.finished
    assert mapl.resume(tmp_path / "run", rounds=4).finished


def test_a_run_that_exists_is_not_overwritten_unless_asked(tmp_path):
    mapl.run(small(), tmp_path / "run")
    before = written(tmp_path / "run")
    folder = str(tmp_path / "run")
    with pytest.raises(MaplError) as same:
        mapl.run(small(), folder)
    start = f"{folder!r} exists already; continue it with "
    assert str(same.value) == f"{start}mapl.resume({folder!r}), choose another folder, or give overwrite=True"
    assert same.value.shell == f"{start}mapl resume {folder}, choose another --name, or give --overwrite"
    with pytest.raises(MaplError) as other:
        mapl.run(small(seed=1), folder)
    start = f"{folder!r} is a run of another recipe (differs in seed); choose another"
    assert str(other.value) == f"{start} folder, or give overwrite=True"
    assert other.value.shell == f"{start} --name, or give --overwrite"
    assert written(tmp_path / "run") == before
    mapl.run(small(seed=1), tmp_path / "run", overwrite=True)
    assert written(tmp_path / "run") != before
    assert load(tmp_path / "run").recipe.seed == 1


def test_a_bad_recipe_does_not_cost_the_run_that_it_would_overwrite(tmp_path):
    mapl.run(small(), tmp_path / "run")
    before = written(tmp_path / "run")
    with pytest.raises(MaplError, match=r"topology\.degree"):
        mapl.run(small(network={"topology": {"name": "regular", "degree": 9}}), tmp_path / "run", overwrite=True)
    assert written(tmp_path / "run") == before


def test_a_folder_that_is_no_run_is_never_overwritten(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(MaplError, match=line_with("not the folder of a run", "not overwritten")):
            mapl.run(small(), tmp_path / "thesis", overwrite=overwrite)
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"
    with pytest.raises(MaplError, match="is a file; choose another"):
        mapl.run(small(), tmp_path / "thesis" / "chapter.tex", overwrite=True)


def test_a_run_killed_before_it_had_a_recipe_can_be_started_anew(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "clients.json").write_text("[]")
    (tmp_path / "run" / ".recipe.toml.77").write_text("half")
    assert mapl.run(small(), tmp_path / "run", overwrite=True).finished


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(MaplError, match=r"could not be written .*choose another folder"):
        mapl.run(small(), tmp_path / "file" / "run")


def test_a_run_goes_to_the_folder_of_its_title_by_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert mapl.run(small(rounds=1)).folder == Path("runs/digits-s1-mapl-full-m4-seed0")


# What a run refuses to begin


@pytest.mark.parametrize(
    ("over", "sentence"),
    [
        ({"network": {"topology": {"name": "rng"}}}, r"unknown topology 'rng'; known: .*ring.* Did you mean 'ring'\?"),
        ({"network": {"topology": {"name": "regular", "degree": 4}}}, r"topology.degree is 4, but with 4 clients .* most 3"),
        ({"clients": 5, "network": {"topology": {"name": "regular", "degree": 3}}}, r"degree is 3, but .* takes an even number"),
        ({"network": {"topology": {"name": "file"}}}, r"topology.path is not set"),
        ({"model": {"backbones": ["mpl"]}}, r"unknown backbone 'mpl'; known: .*mlp.* Did you mean 'mlp'\?"),
        ({"partition": {"clusters": 11}, "clients": 12}, r"partition.clusters: got 11, but the data has 10 classes"),
        ({"method": {"name": "mapl+"}, "network": {"letter_limit": 5000}},
         r"network.letter_limit: got 5,000 bytes, but the letter of client 0 has [\d,]+; raise the limit"),
    ],
)  # fmt: skip
def test_what_cannot_be_carried_out_is_refused_before_anything_is_written(over, sentence, tmp_path):
    with pytest.raises(MaplError, match=sentence):
        mapl.run(small(**over), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_letter_limit_that_is_kept_changes_nothing(tmp_path):
    free = mapl.run(small(), tmp_path / "a")
    limited = mapl.run(small(network={"letter_limit": 5000}), tmp_path / "b")
    assert free.rounds == limited.rounds


# From Python


class Tiny(nn.Sequential):
    def __init__(self, image: tuple[int, int, int], embedding: int):
        super().__init__(nn.Flatten(), nn.Linear(image[0] * image[1] * image[2], embedding))


def test_data_and_backbones_given_in_python(tmp_path):
    data = made_of([0, 1, 2, 3] * 30, [0, 1, 2, 3] * 10, 4, image=(3, 6, 6))
    given = {"data": data, "backbones": {"tiny": Tiny}}
    recipe = small(augment={"contrastive": {"saturation": 0.4, "hue": 0.1}})
    whole = mapl.run(recipe, tmp_path / "whole", **given)
    assert {card.backbone for card in whole.clients} == {"tiny"}
    assert whole.recipe.data.name == "python"
    mapl.run(recipe, tmp_path / "stopped", **given, stop=stop_after(1))
    with pytest.raises(MaplError, match=r"given in Python: pass it again, as mapl.resume\(folder, data=…\)"):
        mapl.resume(tmp_path / "stopped")
    with pytest.raises(MaplError, match="unknown backbone 'tiny'"):
        mapl.resume(tmp_path / "stopped", data=data)
    mapl.resume(tmp_path / "stopped", **given)
    assert written(tmp_path / "stopped") == written(tmp_path / "whole")


PAIRS = TensorDataset(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"recipe": {"clients": 2}}, r"recipe: got a dict; .*Recipe\.of"),
        ({"recipe": PAIRS}, "recipe: got a TensorDataset"),
        ({"data": PAIRS}, r"data has one class only \('0'\)"),
        ({"data": {"train": PAIRS, "test": 5}}, "data, test: got something of type int; give samples and labels"),
        ({"data": dict.fromkeys(range(4), small)}, "data of '0': got something of type function"),
        ({"backbones": [Tiny]}, "backbones: got a list"),
        (
            {"backbones": {"mine": lambda image: Tiny(image, 12)}},
            r"'mine' cannot be called with \(shape, embedding\)",
        ),
        ({"backbones": {"mine": nn.Linear(2, 2)}}, "'mine' is a network"),
        ({"backbones": {"mine": "mlp"}}, "'mine' cannot be called"),
        ({"backbones": {"mine": lambda image, embedding: 3}}, "'mine' returned a int"),
    ],
)
def test_what_is_given_in_python_and_of_the_wrong_kind_is_one_sentence(given, sentence, tmp_path):
    with pytest.raises(MaplError, match=sentence) as error:
        mapl.run(**{"recipe": small(rounds=1), "folder": tmp_path / "run", **given})
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


class Returning(Local):
    """A method whose loss returns what a test wants."""

    result: ClassVar[Callable[[torch.Tensor], object]]

    def loss(self, client, images, labels):
        return Returning.result(super().loss(client, images, labels)["cross_entropy"])


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        (lambda ce: ce, r"loss of Returning returned a Tensor; .*by name"),
        (lambda ce: {}, "returned an empty dict"),
        (lambda ce: {"ce": ce, "extra": 0.0}, "term 'extra' .* type float"),
        (lambda ce: {"ce": ce.expand(3)}, r"term 'ce' .* shape \(3,\)"),
    ],
)
def test_a_loss_of_the_wrong_kind_is_one_sentence(result, sentence, tmp_path, monkeypatch):
    monkeypatch.setattr(Returning, "result", staticmethod(result), raising=False)
    recipe = small("local", rounds=1, method={"name": f"{__name__}:Returning"}, model={"backbones": ["mlp"]})
    with pytest.raises(MaplError, match=sentence):
        mapl.run(recipe, tmp_path / "run")


def test_a_given_backbone_may_take_the_place_of_a_known_one():
    part = build_part(small(), backbones={"mlp": Tiny})
    assert isinstance(part.clients[0].model.backbone, Tiny)
    assert not isinstance(part.clients[1].model.backbone, Tiny)


def test_the_three_lines_of_the_package_documentation(tmp_path):
    record = mapl.run(Recipe.of(method="mapl", clients=2, rounds=1), tmp_path / "run")
    assert 0 <= record.mean <= 1
    assert record.weights().shape == (2, 2)
    assert json.loads((tmp_path / "run" / "history.jsonl").read_text())["round"] == 0


def test_what_a_run_begins_with_is_no_business_of_the_garbage_collector_until_it_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("mapl.runs.run.lasting", REAL_LASTING)
    frozen = []
    mapl.run(small("mapl", rounds=2), tmp_path / "run", observers=[lambda *_: frozen.append(gc.get_freeze_count())])
    assert min(frozen) > 0
    assert gc.get_freeze_count() == 0
