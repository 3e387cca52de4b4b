"""Every topology is an undirected graph without loops, fixed by its seed and its epoch."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from mapl.errors import MaplError
from mapl.keys import NOBODY, key
from mapl.network import TOPOLOGIES, Topology, TopologySettings
from mapl.network.topology import Sparse

RANDOM = ["regular", "erdos-renyi", "small-world"]


def rows(topology: Topology, round: int = 0) -> list[list[int]]:
    return [topology.neighbours(round, client).tolist() for client in range(topology.clients)]


def make(name: str, clients: int, seed: int = 0, **fields: object) -> Topology:
    return Topology(TopologySettings(name=name, **fields), clients, seed)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([name for name in TOPOLOGIES if name != "file"]), st.integers(5, 30), st.integers(0, 2**40))
def test_undirected_sorted_and_without_loops(name: str, clients: int, seed: int) -> None:
    found = rows(make(name, clients, seed))
    for client, row in enumerate(found):
        assert row == sorted(set(row))
        assert client not in row
        assert all(client in found[other] for other in row)
    assert found == rows(make(name, clients, seed))


@settings(deadline=None)
@given(st.data(), st.integers(1, 12))
def test_rows_are_those_of_networkx(data: st.DataObject, clients: int) -> None:
    ids = st.integers(0, clients - 1)
    pairs = [(a, b) for a, b in data.draw(st.lists(st.tuples(ids, ids), max_size=40)) if a != b]
    graph = nx.Graph(pairs)
    graph.add_nodes_from(range(clients))
    sparse = Sparse.of(np.array(pairs, dtype=np.int64).reshape(-1, 2), clients)
    assert [sparse.row(client).tolist() for client in range(clients)] == [sorted(graph[c]) for c in range(clients)]


@pytest.mark.parametrize("name", RANDOM)
def test_random_topologies_are_those_of_networkx_for_the_documented_seed(name: str) -> None:
    drawn = {
        "regular": lambda seed: nx.random_regular_graph(4, 20, seed=seed),
        "erdos-renyi": lambda seed: nx.fast_gnp_random_graph(20, 0.3, seed=seed),
        "small-world": lambda seed: nx.watts_strogatz_graph(20, 4, 0.1, seed=seed),
    }
    for epoch in range(3):
        graph = drawn[name](key(5, NOBODY, epoch, "topology"))
        assert rows(make(name, 20, seed=5, every=2), round=2 * epoch + 1) == [sorted(graph[c]) for c in range(20)]


@pytest.mark.parametrize("clients", [1, 2, 3, 7])
def test_full_and_none(clients: int) -> None:
    everyone = set(range(clients))
    assert [set(row) for row in rows(make("full", clients))] == [everyone - {client} for client in range(clients)]
    assert rows(make("none", clients)) == [[]] * clients


@pytest.mark.parametrize(("clients", "degree"), [(1, 0), (2, 1), (3, 2), (8, 2)])
def test_a_ring_is_a_circle_as_far_as_its_clients_go(clients: int, degree: int) -> None:
    found = rows(make("ring", clients))
    assert {len(row) for row in found} == {degree}
    assert all((client + 1) % clients in row for client, row in enumerate(found) if degree)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 40), st.data())
def test_regular_has_its_degree_even_when_almost_full(clients: int, data: st.DataObject) -> None:
    degree = data.draw(st.integers(1, clients - 1).filter(lambda degree: degree * clients % 2 == 0))
    assert {len(row) for row in rows(make("regular", clients, degree=degree))} == {degree}


def test_a_small_world_has_as_many_edges_as_its_ring() -> None:
    assert sum(map(len, rows(make("small-world", 30, degree=6, rewire=0.5)))) == 30 * 6
    assert rows(make("small-world", 9, degree=2, rewire=0)) == rows(make("ring", 9))


def test_the_edge_probability_of_erdos_renyi() -> None:
    edges = sum(map(len, rows(make("erdos-renyi", 200, probability=0.2)))) / 2
    assert edges == pytest.approx(0.2 * 200 * 199 / 2, rel=0.1)
    assert rows(make("erdos-renyi", 6, probability=0)) == rows(make("none", 6))
    assert rows(make("erdos-renyi", 6, probability=1)) == rows(make("full", 6))


@pytest.mark.parametrize("name", RANDOM)
def test_redrawn_every_so_many_rounds_and_never_otherwise(name: str) -> None:
    fixed = make(name, 20)
    assert rows(fixed, 0) == rows(fixed, 999)
    changing = make(name, 20, every=3)
    epochs = [rows(changing, round) for round in range(9)]
    assert epochs[0] == epochs[2] == rows(fixed)
    assert epochs[3] == epochs[5]
    assert epochs[2] != epochs[3] != epochs[6]
    assert rows(make(name, 20, every=3), 7) == epochs[7]  # what was asked before does not matter
    assert rows(make(name, 20, seed=1)) != rows(fixed)


def test_a_caller_cannot_change_the_topology() -> None:
    for name in ("full", "ring"):
        topology = make(name, 5)
        topology.neighbours(0, 1).fill_(4)
        assert topology.neighbours(0, 1).tolist() == make(name, 5).neighbours(0, 1).tolist()


def test_a_full_topology_of_many_clients_keeps_no_edges() -> None:
    topology = make("full", 1_000_000)
    assert len(topology.neighbours(0, 5)) == 999_999
    kept = [value for value in vars(topology.drawn(0)).values() if isinstance(value, torch.Tensor | np.ndarray)]
    assert kept == []


@pytest.mark.parametrize(
    ("name", "clients", "fields", "words"),
    [
        ("regular", 4, {"degree": 4}, r"topology\.degree is 4, but with 4 clients it takes at most 3"),
        ("regular", 5, {"degree": 3}, r"topology\.degree is 3, but a regular topology of 5 clients takes an even"),
        ("small-world", 4, {"degree": 4}, r"topology\.degree is 4, but with 4 clients it takes at most 3"),
        ("small-world", 9, {"degree": 3}, r"topology\.degree is 3, but a small world takes an even number"),
        ("file", 3, {}, r"topology\.path is not set"),
        ("rings", 3, {}, "unknown topology 'rings'; known: .* Did you mean 'ring'"),
        ("full", 0, {}, "no client 0"),
        ("no_such_module_here:draw", 3, {}, "no_such_module_here"),
    ],
)
def test_impossible_settings_are_told(name: str, clients: int, fields: dict[str, object], words: str) -> None:
    with pytest.raises(MaplError, match=words):
        make(name, clients, **fields).neighbours(0, 0)


@pytest.mark.parametrize(
    "fields", [{"degree": 0}, {"probability": 1.5}, {"rewire": -0.1}, {"every": -1}, {"degrees": 4}]
)
def test_values_out_of_range_are_refused_with_the_settings(fields: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(fields))):
        TopologySettings(**fields)  # type: ignore[arg-type]


def test_a_client_that_does_not_exist() -> None:
    for client in (-1, 3):
        with pytest.raises(MaplError, match=f"no client {client}"):
            make("ring", 3).neighbours(0, client)


def test_an_edge_list(tmp_path: Path) -> None:
    path = tmp_path / "edges.txt"
    path.write_text("# a comment\n0 1\n\n  2\t1  # another\n1 0\n")
    assert rows(make("file", 4, path=path)) == [[1], [0, 2], [1], []]
    path.write_text("")
    assert rows(make("file", 2, path=path)) == [[], []]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 1\n1 1\n", "line 2: client 1 is connected to itself"),
        ("0 1\n\n0 4\n", "line 3: client 4 is out of range, 0 to 3"),
        ("0 -1\n", "line 1: '0 -1' is not an edge"),
        ("0 1 2\n", "line 1: '0 1 2' is not an edge"),
        ("0,1\n", "line 1: '0,1' is not an edge"),
        ("0 ²\n", "line 1: .* is not an edge"),
        ("0 " + "9" * 5000, "line 1: .* is not an edge"),
    ],
)
def test_errors_in_an_edge_list_name_file_and_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "edges.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MaplError, match=rf"edges\.txt, {words}"):
        make("file", 4, path=path).neighbours(0, 0)


def test_an_edge_list_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("missing", "binary", "."):
        with pytest.raises(MaplError, match=r"topology\.path is .*, which cannot be read"):
            make("file", 4, path=tmp_path / name).neighbours(0, 0)


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("a_topology")
    monkeypatch.setitem(sys.modules, "a_topology", module)
    return module


def test_an_import_path_is_asked_once_an_epoch_with_its_first_round(plugin: ModuleType) -> None:
    asked = []

    def draw(clients: int, round: int, settings: TopologySettings, seed: int) -> object:
        asked.append((clients, round, settings.degree, seed))
        return ((client, (client + 1 + round) % clients) for client in range(2))

    plugin.draw = draw  # type: ignore[attr-defined]
    topology = make("a_topology:draw", 5, seed=9, every=2)
    assert rows(topology, 3) == [[3], [4], [], [0], [1]]
    assert rows(topology, 2) == rows(topology, 3)
    assert asked == [(5, 2, 4, key(9, NOBODY, 1, "topology"))]


@pytest.mark.parametrize(
    "found", [[(0, 1), (1, 2)], torch.tensor([[0, 1], [1, 2]]), np.array([[1, 0], [2, 1]], dtype=np.uint8)]
)
def test_an_import_path_returns_pairs_or_an_array(plugin: ModuleType, found: object) -> None:
    plugin.draw = lambda *_: found  # type: ignore[attr-defined]
    assert rows(make("a_topology:draw", 3)) == [[1], [0, 2], [1]]


@pytest.mark.parametrize("found", [[], torch.empty(0, 2)])
def test_an_import_path_may_return_no_edge(plugin: ModuleType, found: object) -> None:
    plugin.draw = lambda *_: found  # type: ignore[attr-defined]
    assert rows(make("a_topology:draw", 3)) == [[], [], []]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([(0, 3)], "client 3 is out of range, 0 to 2"),
        ([(0, -1)], "client -1 is out of range"),
        ([(1, 1)], "client 1 is connected to itself"),
        ([(0, 1, 2)], "whole numbers"),
        ([(0, 1), (2,)], "did not return pairs"),
        ([(0.0, 1.0)], "whole numbers"),
        (torch.eye(3), "whole numbers"),
        (None, "did not return pairs"),
    ],
)
def test_what_an_import_path_returns_is_checked(plugin: ModuleType, found: object, words: str) -> None:
    plugin.draw = lambda *_: found  # type: ignore[attr-defined]
    with pytest.raises(MaplError, match=f"'a_topology:draw'.*{words}"):
        make("a_topology:draw", 3).neighbours(0, 0)


def test_an_import_path_that_names_no_function(plugin: ModuleType) -> None:
    plugin.draw = 5  # type: ignore[attr-defined]
    with pytest.raises(MaplError, match="not a function"):
        make("a_topology:draw", 3).neighbours(0, 0)


def test_every_known_topology_says_what_it_is() -> None:
    assert all(function.__doc__ for function in TOPOLOGIES.values())
