"""One client, and clusters of one: they train, are measured and reported, and nothing is divided by zero."""

from __future__ import annotations

import warnings

import pytest
import torch

import mapl
from conftest import play, skip_without_umap, small
from mapl import MaplError, Recipe
from mapl.analysis.clusters import share_by_chance, share_inside
from mapl.analysis.compare import compare
from mapl.network.topology import TOPOLOGIES
from mapl.recipe import compose
from mapl.report import write_report

MLP = {"model": {"backbones": ["mlp"]}}


def test_a_single_client_is_one_cluster_unless_told_otherwise():
    recipe, origins = compose(("Python", {"clients": 1}))
    assert recipe.partition.clusters == 1
    assert origins["partition.clusters"] == "a single client"
    assert Recipe.of(clients=2).partition.clusters == 2
    with pytest.raises(MaplError, match=r"partition\.clusters: got 2"):
        play(small(clients=1, partition={"clusters": 2}))


@pytest.mark.parametrize("method", ["mapl", "mapl+", "courier", "fedavg", "fedproto", "flt", "proxyfl", "pfedsim"])
def test_a_single_client_trains_without_letters(method):
    skip_without_umap(method)
    part = play(small(method, clients=1, rounds=2, **MLP))
    assert part.ledger.messages == 0
    assert part.lines[-1].accuracy is not None
    weights = part.method.weights(part.clients[0])
    assert weights is None or weights.weights.tolist() == [1.0]


@pytest.mark.parametrize("topology", sorted(set(TOPOLOGIES) - {"file"}))
def test_a_single_client_has_no_neighbours_in_any_topology(topology):
    assert play(small(clients=1, rounds=1, network={"topology": {"name": topology}}, **MLP)).ledger.messages == 0


@pytest.mark.usefixtures("coarse")
def test_a_run_of_one_client_says_that_there_is_nobody_to_write_to_and_can_be_reported(tmp_path):
    with pytest.warns(UserWarning, match="nobody to write to"):
        record = mapl.run(small(clients=1, rounds=2, **MLP), tmp_path / "one")
    assert record.weights().tolist() == [[1.0]]
    (arm,) = compare([record])
    assert arm.inside is None
    assert "1 client" in write_report([record], tmp_path / "report").read_text(encoding="utf-8")


@pytest.mark.parametrize(("method", "topology"), [("local", "full"), ("mapl", "none")])
def test_who_would_not_write_anyway_is_told_nothing(method, topology, tmp_path):
    recipe = small(method, clients=1, rounds=1, network={"topology": {"name": topology}}, **MLP)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mapl.run(recipe, tmp_path / "one")


def test_clusters_of_one_have_no_inside():
    uniform = torch.full((3, 3), 1 / 3, dtype=torch.float64)
    assert share_inside(uniform, [0, 1, 2]) is None
    assert share_by_chance([0, 1, 2]) is None
    assert share_inside(uniform, [0, 1, 1]) == pytest.approx(1 / 3), "one of them of one: two of six edges are inside"


@pytest.mark.usefixtures("coarse")
def test_a_run_with_clusters_of_one_can_be_reported(tmp_path):
    recipe = small(clients=3, rounds=2, partition={"clusters": 3}, **MLP)
    record = mapl.run(recipe, tmp_path / "three")
    assert compare([record])[0].inside is None
    page = write_report([record], tmp_path / "report").read_text(encoding="utf-8")
    assert "nobody listens" not in page
    assert "cluster of its own" in page
