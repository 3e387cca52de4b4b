"""Schemes beside the paper's scenarios: every image goes to one client, the seed decides all, and files are checked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from conftest import line_with
from mapl import Dataset, Images, MaplError, Recipe
from mapl.data.partition import PartitionSettings, Share, partition
from mapl.data.schemes import dirichlet, iid, sorted_shards

seeds = st.integers(0, 2**32)


def dataset(train: Sequence[int], test: Sequence[int], classes: int = 3) -> Dataset:
    splits = [Images(torch.zeros(len(k), 1, 2, 2, dtype=torch.uint8), torch.tensor(list(k))) for k in (train, test)]
    return Dataset("some", *splits, classes=classes)


DATA = dataset([0, 1, 2] * 20, [0, 1, 2] * 4)


def divide(data: Dataset = DATA, clients: int = 4, seed: int = 0, **settings: Any) -> list[Share]:
    return partition(data, PartitionSettings(test_shots=settings.pop("test_shots", "all"), **settings), clients, seed)


def once(parts: Sequence[torch.Tensor], total: int) -> bool:
    return torch.equal(torch.cat(list(parts)).sort().values, torch.arange(total))


def same(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> bool:
    return len(ours) == len(theirs) and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@given(st.integers(0, 200), st.integers(1, 20), seeds)
def test_iid_gives_every_image_once_and_evenly(total: int, clients: int, seed: int) -> None:
    parts = iid(total, clients, 0, seed)
    assert len(parts) == clients
    assert once(parts, total)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert same(parts, iid(total, clients, 0, seed))


@given(st.integers(1, 10), st.integers(1, 10), st.integers(0, 20), seeds)
def test_iid_gives_as_many_as_asked_for_and_none_twice(images: int, clients: int, spare: int, seed: int) -> None:
    parts = iid(images * clients + spare, clients, images, seed)
    assert [len(part) for part in parts] == [images] * clients
    assert len(set(torch.cat(parts).tolist())) == images * clients


@given(st.lists(st.integers(0, 4), max_size=100), st.integers(1, 12), st.floats(1e-3, 1e6), seeds)
def test_dirichlet_gives_every_image_once(labels: list[int], clients: int, alpha: float, seed: int) -> None:
    given_labels = torch.tensor(labels, dtype=torch.int64)
    parts = dirichlet(given_labels, 5, clients, alpha, seed)
    assert len(parts) == clients
    assert once(parts, len(labels))
    assert same(parts, dirichlet(given_labels, 5, clients, alpha, seed))


@given(seeds)
def test_a_large_alpha_is_nearly_even(seed: int) -> None:
    labels = torch.arange(3).repeat(400)
    for part in dirichlet(labels, 3, 4, 1e6, seed):
        assert (torch.bincount(labels[part], minlength=3) - 100).abs().max() <= 5


@pytest.mark.parametrize("alpha", [0.05, 0.5, 5.0])
def test_shares_vary_as_those_of_a_dirichlet_distribution(alpha: float) -> None:
    labels = torch.zeros(10_000, dtype=torch.int64)
    sizes = [[len(part) for part in dirichlet(labels, 1, 4, alpha, seed)] for seed in range(400)]
    shares = torch.tensor(sizes, dtype=torch.float64) / len(labels)
    variance = 0.25 * 0.75 / (4 * alpha + 1)
    assert shares.mean(0).tolist() == pytest.approx([0.25] * 4, abs=4 * (variance / 400) ** 0.5)
    assert shares.var().item() == pytest.approx(variance, rel=0.15)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=100), st.integers(1, 8), st.integers(1, 4), seeds)
def test_shards_give_every_image_once_and_few_classes(labels: list[int], clients: int, each: int, seed: int) -> None:
    assume(clients * each <= len(labels))
    given_labels = torch.tensor(labels)
    parts = sorted_shards(given_labels, clients, each, seed)
    assert len(parts) == clients
    assert once(parts, len(labels))
    assert same(parts, sorted_shards(given_labels, clients, each, seed))
    assert max(map(len, parts)) - min(map(len, parts)) <= each


def test_two_shards_of_a_whole_class_each_are_two_classes_at_most() -> None:
    labels = torch.arange(10).repeat_interleave(20)[torch.randperm(200, generator=torch.Generator().manual_seed(1))]
    parts = sorted_shards(labels, 10, 2, seed=3)
    assert all(len(part) == 20 and len(set(labels[part].tolist())) <= 2 for part in parts)


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "shards"])
def test_another_seed_is_another_division(scheme: str) -> None:
    first, again, other = (divide(scheme=scheme, seed=seed, alpha=5.0) for seed in (0, 0, 1))
    assert same([s.train for s in first], [s.train for s in again])
    assert same([s.test for s in first], [s.test for s in again])
    assert not same([s.train for s in first], [s.train for s in other])


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "shards"])
@pytest.mark.parametrize("test_shots", [2, "all"])
def test_a_client_is_tested_on_the_classes_it_has(scheme: str, test_shots: int | str) -> None:
    for share in divide(scheme=scheme, alpha=5.0, test_shots=test_shots):
        assert share.classes == tuple(sorted(set(DATA.train.labels[share.train].tolist())))
        counts = torch.bincount(DATA.test.labels[share.test], minlength=3).tolist()
        each = 4 if test_shots == "all" else test_shots
        assert counts == [each if k in share.classes else 0 for k in range(3)]
        assert len(set(share.test.tolist())) == len(share.test)


def test_more_test_images_than_there_are() -> None:
    with pytest.raises(MaplError, match=line_with("class 0", "4 test", "client 0", "5", "partition.test_shots")):
        divide(scheme="iid", test_shots=5)


def test_clusters_of_schemes() -> None:
    assert {share.cluster for share in divide(scheme="iid")} == {0}
    assert {share.cluster for share in divide(scheme="dirichlet", alpha=5.0)} == {0}
    shares = divide(scheme="shards", clients=6, shards_per_client=1)
    by_cluster = {share.cluster: share.classes for share in shares}
    assert sorted(by_cluster) == [0, 1, 2]
    assert all(by_cluster[share.cluster] == share.classes for share in shares)
    assert shares[0].cluster == 0


@pytest.mark.parametrize("scheme", ["iid", "dirichlet"])
def test_without_clusters_all_images_are_pooled_and_tests_stay(scheme: str) -> None:
    apart = divide(scheme=scheme, alpha=5.0)
    everything = torch.cat([share.train for share in apart])
    for own, pooled in zip(apart, divide(scheme=scheme, alpha=5.0, pooled=True), strict=True):
        assert torch.equal(pooled.train, everything)
        assert torch.equal(pooled.test, own.test)
        assert pooled.classes == own.classes


def test_a_client_left_with_too_little_is_named() -> None:
    with pytest.raises(MaplError, match=r"client \d+ is left with [01] training images.*larger partition.alpha"):
        divide(scheme="dirichlet", alpha=0.001, clients=20)
    with pytest.raises(MaplError, match=line_with("client 0", "2 training", "partition.fewest", "3")):
        divide(scheme="iid", images=2, fewest=3)
    with pytest.raises(MaplError, match="client 1 is left with 0 training images"):
        divide(dataset([0], [0]), scheme="iid", clients=2, fewest=1)


def test_a_client_without_test_images_is_named() -> None:
    with pytest.raises(MaplError, match=r"client \d .*without test images.*\(2,\)"):
        divide(dataset([0, 1, 2] * 20, [0, 1]), scheme="shards", clients=3, shards_per_client=1)


def test_more_images_than_there_are() -> None:
    with pytest.raises(MaplError, match=line_with("partition.images: got 16", "4 clients", "64", "60", "at most 15")):
        divide(scheme="iid", images=16)
    with pytest.raises(MaplError, match=r"partition.shards_per_client: got 16, .*60 training images.*64 pieces"):
        divide(scheme="shards", shards_per_client=16)


TRAIN, TEST = [[0, 1, 2], [3, 4, 5]], [[0, 1], [2]]


def from_file(path: Path, content: Any, clients: int = 2) -> list[Share]:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return divide(scheme="file", file=path, clients=clients)


@pytest.mark.parametrize(
    "content",
    [
        {"train": TRAIN, "test": TEST},
        [{"train": TRAIN[0], "test": TEST[0]}, {"train": TRAIN[1], "test": TEST[1]}],
    ],
)
def test_a_file_says_who_has_what(tmp_path: Path, content: Any) -> None:
    shares = from_file(tmp_path / "who.json", content)
    assert [share.train.tolist() for share in shares] == TRAIN
    assert [share.test.tolist() for share in shares] == TEST
    assert [share.cluster for share in shares] == [0, 0]


@pytest.mark.parametrize("content", [{"train": TRAIN}, TRAIN, [{"train": TRAIN[0]}, {"train": TRAIN[1]}]])
def test_a_file_may_leave_the_test_images_to_us(tmp_path: Path, content: Any) -> None:
    shares = from_file(tmp_path / "who.json", content)
    assert [share.train.tolist() for share in shares] == TRAIN
    assert [len(share.test) for share in shares] == [12, 12]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is not JSON that can be read"),
        ({"test": TEST}, "should be .*train"),
        ({"train": TRAIN, "valid": TEST}, "should be .*train"),
        ({"train": 3}, "should be .*train"),
        (3, "should be .*train"),
        ([{"train": [0, 1]}, {"train": [2, 3], "test": [0]}], "should be .*train"),
        ({"train": TRAIN[:1]}, "has train indices of 1 clients, and there are 2"),
        ({"train": TRAIN, "test": []}, "has test indices of 0 clients, and there are 2"),
        ({"train": [[0, 1], [2, 60]]}, "train indices of client 1 contain 60; the data's run from 0 to 59"),
        ({"train": [[0, -1], [2, 3]]}, "train indices of client 0 contain -1"),
        ({"train": [[0, 1], [2, 2]]}, "train indices of client 1 contain an index twice"),
        ({"train": [[0, 1], [2, 3.0]]}, "train indices of client 1 should be a list of whole numbers"),
        ({"train": [[0, 1], [2, True]]}, "train indices of client 1 should be a list of whole numbers"),
        ({"train": [[0, 1], 5]}, "train indices of client 1 should be a list"),
        ({"train": TRAIN, "test": [[0], [12]]}, "test indices of client 1 contain 12"),
        ({"train": [[0, 1], []]}, "client 1 is left with 0 training images"),
        ({"train": TRAIN, "test": [[], [1]]}, "client 0 is left without test images"),
    ],
)
def test_a_file_that_cannot_be_meant(tmp_path: Path, content: Any, sentence: str) -> None:
    with pytest.raises(MaplError, match=sentence):
        from_file(tmp_path / "who.json", content)


def test_a_file_must_be_given_and_be_there(tmp_path: Path) -> None:
    with pytest.raises(MaplError, match=r"partition.file: not set"):
        divide(scheme="file")
    with pytest.raises(MaplError, match=r"partition.file: there is no file .*none.json"):
        divide(scheme="file", file=tmp_path / "none.json")


def test_schemes_in_a_recipe() -> None:
    recipe = Recipe.of(partition={"scheme": "dirichlet", "alpha": 0.1})
    assert recipe.partition.short() == "dirichlet0.1"
    assert Recipe.of(partition={"scheme": "iid"}).partition.short() == "iid"
    assert Recipe.of().partition.short() == "s1"
    assert Recipe.of(partition={"pooled": True}).partition.short() == "s1-pooled"
    assert recipe.partition.model_copy(update={"pooled": True}).short() == "dirichlet0.1-pooled"
    with pytest.raises(MaplError, match=r"partition.alpha: got 0"):
        Recipe.of(partition={"alpha": 0})
