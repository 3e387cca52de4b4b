"""Clients get the classes and the numbers of images that the scenario promises, and nothing else."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from conftest import made_of, small
from mapl import Dataset, MaplError
from mapl.data.partition import PartitionSettings, Share, cluster_classes, partition
from mapl.runs.part import build_part


def mixed_up(per_class: int, classes: int) -> list[int]:
    """Labels in an order that has nothing to do with the classes."""
    order = torch.randperm(per_class * classes, generator=torch.Generator().manual_seed(0))
    return (order % classes).tolist()


def dataset(per_class: int, classes: int, tests: int = 6) -> Dataset:
    return made_of(mixed_up(per_class, classes), mixed_up(tests, classes), classes)


def counts(data: Dataset, share: Share) -> dict[int, int]:
    labels = data.train.labels[share.train].tolist()
    return {k: labels.count(k) for k in set(labels)}


@st.composite
def settings(draw: st.DrawFn) -> tuple[PartitionSettings, int, int]:
    """Settings that can be met, with a number of classes and of clients."""
    classes = draw(st.integers(2, 13))
    clusters = draw(st.integers(1, classes - 1))
    clients = draw(st.integers(clusters, clusters + 7))
    return (
        PartitionSettings(
            scenario=draw(st.sampled_from([1, 2, 3, 4])),
            clusters=clusters,
            overlap=draw(st.integers(1, classes - clusters)),
            shots=draw(st.integers(1, 5)),
            shots_range=(2, 2 + draw(st.integers(0, 3))),
            test_shots=draw(st.sampled_from([1, 2, "all"])),
            sharding=draw(st.sampled_from(["paper", "random"])),
            stride=draw(st.integers(0, 5)),
        ),
        classes,
        clients,
    )


@given(settings())
def test_the_clusters_cover_all_classes_evenly_and_share_exactly_the_overlap(case):
    chosen, classes, _ = case
    clusters = cluster_classes(chosen, classes)
    assert len(clusters) == chosen.clusters
    assert sorted({k for cluster in clusters for k in cluster}) == list(range(classes))
    sizes = [len(cluster) for cluster in clusters]
    assert max(sizes) - min(sizes) <= 1
    for left, right in pairwise(clusters):
        assert list(left) == list(range(left[0], left[-1] + 1))
        assert len(set(left) & set(right)) == (0 if chosen.scenario in (1, 3) else chosen.overlap)
        assert set(right) - set(left)


@given(settings(), st.integers(0, 3))
def test_every_client_has_the_promised_number_of_images_of_its_clusters_classes(case, seed):
    chosen, classes, clients = case
    data = dataset(5 * clients + 10, classes, 2 * clients)
    shares = partition(data, chosen, clients, seed)
    assert len(shares) == clients
    held = cluster_classes(chosen, classes)
    for share in shares:
        assert share.classes == held[share.cluster]
        found = counts(data, share)
        assert set(found) == set(share.classes)
        low, high = (chosen.shots, chosen.shots) if chosen.scenario in (1, 2) else chosen.shots_range
        assert all(low <= number <= high for number in found.values())
        assert len(set(share.train.tolist())) == len(share.train)
        tests = data.test.labels[share.test].tolist()
        each = 2 * clients if chosen.test_shots == "all" else chosen.test_shots
        assert {k: tests.count(k) for k in tests} == dict.fromkeys(share.classes, each)


@given(st.integers(1, 6), st.integers(0, 14))
def test_the_clusters_of_clients_are_as_even_as_can_be_and_in_order(clusters, more):
    clients = clusters + more
    chosen = PartitionSettings(clusters=clusters, shots=1, test_shots="all", stride=0)
    found = [share.cluster for share in partition(dataset(2, 6), chosen, clients, 0)]
    assert found == sorted(found)
    sizes = [found.count(c) for c in range(clusters)]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [(4, [tuple(range(7)), tuple(range(3, 10))]), (2, [tuple(range(6)), tuple(range(4, 10))])],
)
@pytest.mark.parametrize("scenario", [2, 4])
def test_the_papers_overlaps(scenario, overlap, expected):
    assert cluster_classes(PartitionSettings(scenario=scenario, overlap=overlap), 10) == expected


def test_the_papers_disjoint_clusters():
    assert cluster_classes(PartitionSettings(), 10) == [tuple(range(5)), tuple(range(5, 10))]


def test_paper_sharding_takes_images_in_order_so_that_neighbours_share_a_hundred():
    data = dataset(1200, 3)
    shares = partition(data, PartitionSettings(clusters=1, test_shots="all"), 5, seed=7)
    for klass in range(3):
        in_order = [i for i, label in enumerate(data.train.labels.tolist()) if label == klass]
        mine = [[i for i in share.train.tolist() if data.train.labels[i] == klass] for share in shares]
        for client, images in enumerate(mine):
            assert images == in_order[200 * client : 200 * client + 300]
        for left, right in pairwise(mine):
            assert len(set(left) & set(right)) == 100
    assert not set(shares[0].train.tolist()) & set(shares[2].train.tolist())


def test_paper_sharding_takes_the_tests_from_fifteen_times_the_clients_number_on():
    data = dataset(20, 2, tests=60)
    shares = partition(data, PartitionSettings(clusters=1, shots=1, stride=1), 4, seed=0)
    zeros = [i for i, label in enumerate(data.test.labels.tolist()) if label == 0]
    assert [i for i in shares[2].test.tolist() if i in zeros] == zeros[30:45]


@given(settings(), st.integers(0, 3))
def test_random_sharding_never_gives_an_image_to_two_clients(case, seed):
    chosen, classes, clients = case
    assume(chosen.test_shots != "all")
    data = dataset(5 * clients, classes, 2 * clients)
    shares = partition(data, chosen.model_copy(update={"sharding": "random"}), clients, seed)
    for split in ("train", "test"):
        dealt = [i for share in shares for i in getattr(share, split).tolist()]
        assert len(dealt) == len(set(dealt))


def test_random_sharding_depends_on_the_seed_and_on_nothing_else():
    data, chosen = dataset(50, 4), PartitionSettings(shots=5, test_shots=1, sharding="random")
    first, again, other = (partition(data, chosen, 4, seed) for seed in (0, 0, 1))
    assert all(torch.equal(a.train, b.train) for a, b in zip(first, again, strict=True))
    assert any(not torch.equal(a.train, b.train) for a, b in zip(first, other, strict=True))


def test_drawn_shots_use_their_whole_range_and_a_clients_draw_is_its_own():
    data = dataset(400, 10)
    chosen = PartitionSettings(scenario=3, shots_range=(2, 5), stride=6, test_shots="all")
    few, many = (partition(data, chosen, clients, 0) for clients in (20, 40))
    assert {n for share in many for n in counts(data, share).values()} == {2, 3, 4, 5}
    assert sorted(counts(data, few[0]).values()) == sorted(counts(data, many[0]).values())


@pytest.mark.parametrize(
    ("over", "sentence"),
    [
        ({}, r"class 0 has 10 training images, but client 3 needs number 9 to 12 of them: 3 are missing; "
             r"lower partition\.shots or partition\.stride, or take fewer clients"),
        ({"sharding": "random"}, r"class 0 .* client 2 needs number 8 to 11 .*: 2 are missing; lower partition\.shots, or"),
        ({"scenario": 3, "shots_range": (4, 4)}, r"lower partition\.shots_range or partition\.stride"),
        ({"shots": 1, "test_shots": 3}, r"class 0 has 6 test images, but client 2 .*: 3 are missing; lower partition\.test_"),
    ],
)  # fmt: skip
def test_a_share_that_cannot_be_filled_says_which_class_and_how_many_are_missing(over, sentence):
    chosen = PartitionSettings(**{"clusters": 1, "shots": 4, "stride": 3, "test_shots": "all", **over})
    with pytest.raises(MaplError, match=sentence):
        partition(dataset(10, 2), chosen, 4, 0)


@pytest.mark.parametrize(
    ("over", "clients", "sentence"),
    [
        ({"clusters": 11}, 20, r"partition\.clusters: got 11, but the data has 10 classes; take at most 10"),
        ({"clusters": 4}, 3, r"partition\.clusters: got 4, but there are 3 clients; take at most 3"),
        ({"scenario": 2, "overlap": 9}, 4, r"partition\.overlap: got 9, but with 10 classes 2 clusters can share at most 8"),
        ({"scenario": 4, "shots_range": (5, 3)}, 4, r"partition\.shots_range: got \[5, 3\]; it takes two numbers, 1 ≤"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_met_say_so(over, clients, sentence):
    with pytest.raises(MaplError, match=sentence):
        partition(dataset(30, 10), PartitionSettings(**{"shots": 1, "stride": 1, **over}), clients, 0)


def test_a_client_without_a_single_test_image_is_an_error():
    data = made_of([0, 1] * 4, [0, 0], 2)
    with pytest.raises(MaplError, match=r"no test images of client 1's classes \(1,\)"):
        partition(data, PartitionSettings(shots=1, stride=1, test_shots="all"), 2, 0)


@given(settings(), st.integers(0, 3))
def test_pooled_clients_train_on_their_whole_cluster_and_are_tested_as_before(case, seed):
    chosen, classes, clients = case
    data = dataset(5 * clients + 10, classes, 2 * clients)
    apart = partition(data, chosen, clients, seed)
    pooled = partition(data, chosen.model_copy(update={"pooled": True}), clients, seed)
    for mine, own in zip(pooled, apart, strict=True):
        expected = [image for other in apart if other.cluster == own.cluster for image in other.train.tolist()]
        assert mine.train.tolist() == expected
        assert (mine.cluster, mine.classes) == (own.cluster, own.classes)
        assert torch.equal(mine.test, own.test)


def test_pooled_in_a_recipe():
    alone = small(partition={"pooled": True}, network={"topology": {"name": "none"}})
    assert alone.title() == "digits-s1-pooled-mapl-none-m4-seed0"
    assert alone.fingerprint() != alone.model_copy(update={"partition": small().partition}).fingerprint()
    part, plain = build_part(alone), build_part(small())
    assert [client.samples for client in part.clients] == [2 * client.samples for client in plain.clients]
    # One copy per cluster, however many clients it has.
    assert len({client.train.pixels.data_ptr() for client in part.clients}) == 2
    for ours, theirs in zip(part.clients, plain.clients, strict=True):
        assert torch.equal(ours.test.pixels, theirs.test.pixels)
        assert torch.equal(ours.model.head.weight, theirs.model.head.weight)


def test_data_of_clients_own_cannot_be_pooled():
    own = {client: dataset(4, 2) for client in range(4)}
    with pytest.raises(MaplError, match=r"partition\.pooled"):
        build_part(small(partition={"pooled": True}), own)
