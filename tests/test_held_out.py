"""Held-out images: not trained on, not tested on, and what the courier's share is found with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

import mapl
from conftest import assert_same, made_of, parameters, play, small, stop_after, written
from mapl import Client, Dataset, MaplError, Recipe
from mapl.analysis.control import ceilings, control_of
from mapl.data.partition import PartitionSettings, draw_held_out, partition
from mapl.methods.courier import Courier, best_share
from mapl.runs.export import export_run
from mapl.runs.part import Part, build_part

SHARES = np.arange(11) / 10


def recipe(share: Any = "held-out", /, **over: Any) -> Recipe:
    """Four clients with six images of each of their five classes; two of each class are held out."""
    method = {"share": share, "held_out": 0.3, **over.pop("method", {})}
    shots = {"shots": 6, **over.pop("partition", {})}
    over = {"train": {"learning_rate": 1e-2}, "rounds": 4, "evaluate": {"moment": "mixed"}, **over}
    return small("courier", method=method, partition=shots, **over)


def probabilities(logits: Tensor) -> NDArray[np.float64]:
    raised = np.exp(logits.numpy().astype(np.float64) - logits.max(1, keepdim=True).values.numpy())
    normalised: NDArray[np.float64] = raised / raised.sum(1, keepdims=True)
    return normalised


def answers(part: Part, client: Client) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What the client's two networks say of each image in `client.test`: probabilities (n, K)."""
    model = client.model.eval()
    images = part.engine.augmentation.normalise(client.test.pixels)
    with torch.no_grad():
        return probabilities(model(images)), probabilities(model.own["courier"](images))


def losses(own: NDArray[np.float64], courier: NDArray[np.float64], labels: Tensor) -> NDArray[np.float64]:
    """The mean negative log-likelihood of the labels for each share, (11,)."""
    rows = np.arange(len(labels))
    true, theirs = own[rows, labels.numpy()], courier[rows, labels.numpy()]
    return np.array([-np.log((1 - share) * true + share * theirs).mean() for share in SHARES])


def test_every_client_answers_with_the_share_that_is_best_on_its_held_out_images() -> None:
    part, chosen = play(recipe()), []
    for client, accuracy in zip(part.clients, part.lines[-1].accuracy, strict=True):  # type: ignore[attr-defined]
        own, courier = answers(part, client)
        held = client.held
        share = SHARES[losses(own[-held:], courier[-held:], client.test.labels[-held:]).argmin()]
        said = ((1 - share) * own + share * courier)[:-held].argmax(1)
        assert accuracy == (said == client.test.labels[:-held].numpy()).mean()
        chosen.append(share)
    assert len(set(chosen)) > 1, "the shares should differ here, or this shows little"


@given(st.integers(1, 12), st.integers(2, 6), st.integers(0, 2**32 - 1), st.sampled_from([0.1, 1.0, 10.0, 30.0]))
def test_the_best_share_is_that_of_float64(images: int, classes: int, seed: int, scale: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    own, courier = (scale * torch.randn(images, classes, generator=draw) for _ in range(2))
    labels = torch.randint(classes, (images,), generator=draw)
    expected = losses(probabilities(own), probabilities(courier), labels)
    found = round(10 * float(best_share(own, courier, labels)))
    assert expected[found] <= expected.min() + 1e-12 * abs(expected.min())


def test_of_equal_shares_the_lowest_is_taken() -> None:
    logits, labels = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1])
    assert float(best_share(logits, logits, labels)) == 0
    assert float(best_share(logits, torch.full((5, 3), 100.0).scatter_(1, labels[:, None], 500.0), labels)) == 1


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.floats(0.01, 0.99), st.integers(0, 99))
def test_its_share_of_every_class_is_held_out(counts: list[int], share: float, seed: int) -> None:
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(seed))
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))[order]
    held = draw_held_out(labels, share, client=3, seed=seed)
    assert torch.equal(held, draw_held_out(labels, share, client=3, seed=seed))
    for k, count in enumerate(counts):
        taken = int(held[labels == k].sum())
        assert abs(taken - share * count) <= 1
        assert taken == 0 if count == 1 else 1 <= taken < count


def test_the_draw_is_keyed_by_client_and_seed() -> None:
    labels = torch.zeros(40, dtype=torch.int64)
    draws = [draw_held_out(labels, 0.5, client, seed) for client, seed in ((0, 0), (1, 0), (0, 1))]
    assert len({tuple(held.tolist()) for held in draws}) == 3


NUMBERED = made_of([k for k in range(4) for _ in range(60)], [k for k in range(4) for _ in range(9)], 4)


def numbers(pixels: Tensor) -> list[int]:
    """The numbers of the images of `NUMBERED`."""
    return (256 * pixels[:, 0, 0, 0].int() + pixels[:, 0, 0, 1].int()).tolist()


def numbered(data: Dataset | dict[int, Dataset] = NUMBERED, /, **over: Any) -> Part:
    shards = {"shots": 20, "stride": 10, "sharding": "paper", "test_shots": 2, **over.pop("partition", {})}
    over = {"model": {"backbones": ["mlp"], "embedding": 12}, "augment": {"contrastive": {"crop_scale": None}}, **over}
    return build_part(recipe(partition=shards, clients=4, **over), data)


@pytest.mark.parametrize("all_images", [False, True])
@pytest.mark.parametrize("given_to_each", [False, True])
def test_held_out_images_are_neither_trained_on_nor_tests(all_images: bool, given_to_each: bool) -> None:
    data = dict.fromkeys(range(4), NUMBERED) if given_to_each else NUMBERED
    part = numbered(data, evaluate={"all_images": all_images})
    for client in part.clients:
        train, (tests, held) = numbers(client.train.pixels), np.split(numbers(client.test.pixels), [-client.held])
        labels = client.test.labels[-client.held :]
        assert client.held == len(held) == (72 if given_to_each else 12)
        assert client.samples == len(train) == (168 if given_to_each else 28)
        assert not set(train) & set(held.tolist())
        assert set(labels.tolist()) == set(client.train.labels.tolist())
        assert torch.equal(labels, NUMBERED.train.labels[held])
        assert torch.equal(client.train.labels, NUMBERED.train.labels[train])
        assert len(tests) == part.engine.evaluate_all([client])[0].predicted.shape[1] == len(part.engine.embed(client))
        assert client.tests == (36 if given_to_each else 4)
        assert set(tests.tolist()) <= set(range(36))
        assert torch.equal(client.test.labels[: len(tests)], NUMBERED.test.labels[tests])


def test_no_copy_of_a_held_out_image_is_in_a_pooled_cluster() -> None:
    """Neighbours share images here."""
    part = numbered(partition={"pooled": True})
    for client in part.clients:
        train, held = numbers(client.train.pixels), numbers(client.test.pixels[-client.held :])
        assert not set(train) & set(held)
        assert len(train) > 2 * 20
    settings = PartitionSettings(shots=10, sharding="random", test_shots=2, pooled=True)
    apart = partition(NUMBERED, settings, 4, 0, 0.3)
    assert apart[0].train is apart[1].train, "clients without a common image share one copy of their pool"


@pytest.mark.parametrize("change", [control_of, lambda made: ceilings(made)[0]])
def test_control_and_ceiling_hold_out_the_same_images(change: Any) -> None:
    made = recipe()
    for ours, theirs in zip(build_part(made).clients, build_part(change(made)).clients, strict=True):
        assert torch.equal(ours.test.pixels, theirs.test.pixels)
        assert ours.held == theirs.held == 10


def test_labels_of_held_out_images_change_answers_and_no_training() -> None:
    """So nobody trains on them."""
    plain, changed = build_part(recipe()), build_part(recipe())
    for client in changed.clients:
        labels = client.test.labels[-client.held :]
        labels.copy_(labels.roll(2))
    play(plain.recipe, part=plain)
    play(changed.recipe, part=changed)
    assert_same(parameters(plain), parameters(changed))
    ours, theirs = ([line.accuracy for line in part.lines] for part in (plain, changed))  # type: ignore[attr-defined]
    assert ours != theirs


@pytest.mark.parametrize("share", ["auto", 0.3])
def test_other_shares_hold_out_nothing(share: str | float) -> None:
    part, other = play(recipe(share)), play(recipe(share, method={"held_out": 0.8}))
    assert {client.held for client in part.clients} == {0}
    assert {client.samples for client in part.clients} == {30}
    assert_same(parameters(part), parameters(other))
    ours, theirs = ([line.line() for line in made.lines] for made in (part, other))  # type: ignore[attr-defined]
    assert ours == theirs


def test_the_own_test_is_the_same_beside_all_images() -> None:
    plain, both = play(recipe()), play(recipe(evaluate={"moment": "mixed", "all_images": True}))
    ours, theirs = ([line.accuracy for line in part.lines] for part in (plain, both))  # type: ignore[attr-defined]
    assert ours == theirs


def test_without_two_images_of_a_class_the_share_is_automatic() -> None:
    few = {"partition": {"shots": 1}}
    held, auto = play(recipe(**few)), play(recipe("auto", **few))
    assert {client.held for client in held.clients} == {0}
    ours, theirs = ([line.line() for line in part.lines] for part in (held, auto))  # type: ignore[attr-defined]
    assert ours == theirs


@pytest.mark.parametrize(("answer", "share"), [("own", 0.0), ("courier", 1.0)])
def test_one_network_alone_needs_no_share(answer: str, share: float) -> None:
    part = play(recipe(method={"answer": answer}))
    for client, accuracy in zip(part.clients, part.lines[-1].accuracy, strict=True):  # type: ignore[attr-defined]
        said = answers(part, client)[int(share)][: client.tests].argmax(1)
        assert accuracy == (said == client.test.labels[: client.tests].numpy()).mean()


def test_a_run_that_was_stopped_goes_on_to_the_bit(tmp_path: Path) -> None:
    mapl.run(recipe(), tmp_path / "whole")
    mapl.run(recipe(), tmp_path / "stopped", stop=stop_after(1))
    record = mapl.resume(tmp_path / "stopped")
    assert written(tmp_path / "stopped") == written(tmp_path / "whole")
    assert {(card.samples, card.tests) for card in record.clients} == {(20, 25)}


def test_an_exported_program_has_the_share(tmp_path: Path) -> None:
    record = mapl.run(recipe(), tmp_path / "run")
    part = play(recipe())
    found = [best(part, client) for client in part.clients]
    client = part.clients[int(np.argmin(np.abs(np.array(found) - 0.5)))]
    path = export_run(tmp_path / "run", tmp_path, [client.id], "torch-export")[0]
    said = torch.export.load(path).module()(client.test.pixels).detach().numpy()
    own, courier = answers(part, client)
    np.testing.assert_allclose(said, (1 - found[client.id]) * own + found[client.id] * courier, atol=1e-5)
    right = said[: client.tests].argmax(1) == client.test.labels[: client.tests].numpy()
    assert right.mean() == record.accuracy[client.id]


def best(part: Part, client: Client) -> float:
    own, courier = (said[-client.held :] for said in answers(part, client))
    return float(SHARES[losses(own, courier, client.test.labels[-client.held :]).argmin()])


@pytest.mark.parametrize(("key", "value"), [("share", 1.5), ("share", "none"), ("held_out", 0), ("held_out", 1)])
def test_settings_that_make_no_sense_are_refused(key: str, value: Any) -> None:
    with pytest.raises(MaplError, match=f"method.{key}"):
        recipe(method={key: value})


def test_a_whole_number_is_a_share() -> None:
    assert recipe(1).method.model_dump()["share"] == 1.0


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="in Triton's interpreter")
def test_a_group_finds_the_shares_that_its_members_find_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of one group hold out different numbers of images."""
    pytest.importorskip("triton")
    from test_cuda import Tiny, plays_like_eager, recipe

    monkeypatch.setattr("mapl.engine.cuda.engine.TEST_BATCH", 5)
    made = recipe(
        method={"name": "courier", "share": "held-out", "held_out": 0.4, "features": 8},
        partition={"scenario": 3, "shots_range": (2, 4), "test_shots": 1, "clusters": 1},
        evaluate={"moment": "mixed"},
        train={"batch": 4, "optimizer": "sgd", "learning_rate": 1e-2, "steps": 1},
    )
    chosen: dict[int, list[float]] = {client: [] for client in range(made.clients)}
    tune = Courier.tune

    def listen(self: Courier, client: Client, outputs: Any, labels: Tensor) -> dict[str, Tensor]:
        found = tune(self, client, outputs, labels)
        chosen[client.id].append(float(found["share"]))
        return found

    monkeypatch.setattr(Courier, "tune", listen)
    part = plays_like_eager(made, {"tiny": Tiny})
    (family,) = part.engine.families
    assert (family.group, family.size) == (True, 2)
    assert len({client.held for client in part.clients}) == 2
    for client in part.clients:
        eager, grouped = chosen[client.id]
        assert grouped == eager
        assert part.engine.embed(client).shape == (client.tests, 12)
