"""Looking around: from a few contacts a client finds its kin, by a rule that knows only what a peer knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mapl
import mapl.methods
from conftest import assert_same, meet_all, parameters, play, row_of, skip_without_umap, small, stop_after, written
from mapl import MaplError, Recipe
from mapl.analysis.clusters import share_inside
from mapl.client import Peers
from mapl.methods._base import Centralised
from mapl.network import Choice, ExploreSettings, Topology, TopologySettings, explore
from mapl.plugins import known
from mapl.runs.exchange import letters_ahead, look_around
from mapl.runs.part import build_part
from mapl.runs.round import play_round
from test_transports import Faulty, all_of, in_parts

NOBODY = {"network": {"topology": {"name": "none"}}}

ids = st.lists(st.integers(0, 40), unique=True).map(lambda found: np.array(sorted(found), dtype=np.int64))
rules = st.builds(
    ExploreSettings,
    contacts=st.integers(1, 5),
    looks=st.integers(1, 4),
    keep=st.integers(1, 6),
    again=st.floats(0, 8),
)


@st.composite
def situations(draw: st.DrawFn) -> dict[str, Any]:
    """What a client knows in some round."""
    client = draw(st.integers(0, 40))
    met = np.union1d(draw(ids), [client])
    weights = np.array(draw(st.lists(st.sampled_from([0.0, 0.0, 0.1, 0.1, 0.3]), min_size=len(met), max_size=len(met))))
    return {
        "seed": draw(st.integers(0, 2**40)),
        "client": client,
        "round": draw(st.integers(0, 1000)),
        "settings": draw(rules),
        "candidates": draw(ids),
        "met": met,
        "weights": weights,
    }


def after(told: dict[str, Any], choice: Choice) -> dict[str, Any]:
    """The same situation once the client has forgotten whom it should."""
    left = ~np.isin(told["met"], choice.forget)
    return {**told, "met": told["met"][left], "weights": told["weights"][left]}


@given(situations())
def test_a_client_asks_those_it_keeps_and_a_few_strangers(told: dict[str, Any]) -> None:
    use, met, weights, others = told["settings"], told["met"], told["weights"], told["met"] != told["client"]
    choice = explore(**told)
    asked, forget = choice.neighbours.tolist(), choice.forget.tolist()
    for chosen in (asked, forget):
        assert chosen == sorted(set(chosen))
        assert told["client"] not in chosen
    assert set(asked) <= set(told["candidates"].tolist())
    assert set(forget) <= set(met.tolist())
    kin, dropped = set(met[others & (weights > 0)].tolist()), set(met[others & (weights == 0)].tolist())
    kept = kin - set(forget)
    assert len(kept) == min(len(kin), use.keep)
    near = set(told["candidates"].tolist())
    assert kept & near <= set(asked), "those that it keeps"
    assert not dropped - set(forget) & set(asked), "a method would not ask those"
    assert len(set(asked) - kept) <= max(use.contacts, use.looks)
    gone = kin & set(forget)
    of = dict(zip(met.tolist(), weights.tolist(), strict=True))
    assert all((b in near, of[b]) >= (a in near, of[a]) for a in gone for b in kept), "the strongest within reach stay"


@given(situations())
def test_the_rule_asked_again_in_a_round_says_the_same(told: dict[str, Any]) -> None:
    first = explore(**told)
    second = explore(**after(told, first))
    assert second.neighbours.tolist() == first.neighbours.tolist()
    assert not len(second.forget)


@given(situations(), st.integers(0, 3))
def test_a_client_that_lacks_kin_looks_at_as_many_strangers_as_there_are(told: dict[str, Any], kin: int) -> None:
    use = told["settings"] = ExploreSettings(keep=4, contacts=3, looks=2, again=0)
    told["met"] = told["met"][told["met"] <= told["client"]]  # strangers are left
    told["weights"] = np.where((told["met"] == told["client"]) | (np.arange(len(told["met"])) < kin), 1.0, 0.0)
    near, met = set(told["candidates"].tolist()) - {told["client"]}, set(told["met"].tolist())
    listens = {i for i, w in zip(told["met"].tolist(), told["weights"].tolist(), strict=True) if w} & near
    strangers = near - met
    wanted = use.contacts if not listens else use.looks
    assert len(set(explore(**told).neighbours.tolist()) & strangers) == min(wanted, len(strangers))


@settings(max_examples=20)
@given(situations(), st.integers(1, 12))
def test_everybody_is_asked_in_time_and_the_dropped_again(told: dict[str, Any], clients: int) -> None:
    """Whatever the graph thinks of them, and although letters are lost."""
    use = told["settings"].model_copy(update={"again": 1.0})
    draw = np.random.default_rng(told["seed"])
    peers = Peers.alone(0, 10)
    asked = np.zeros(clients, dtype=int)
    for round in range(40 * clients):
        choice = explore(told["seed"], 0, round, use, np.arange(clients), peers.ids, peers.weights)
        peers.forget(choice.forget)
        asked[choice.neighbours] += 1
        heard = choice.neighbours[draw.random(len(choice.neighbours)) < 0.8]
        strangers = heard[~peers.knows(heard)]
        peers.meet(strangers, 0.1, np.full(len(strangers), 10))
        peers.weights[peers.places(strangers)] = draw.choice([0.0, 0.1], len(strangers))
    assert (asked[1:] >= 2).all()
    assert asked[0] == 0


def test_others_are_looked_at_as_often_as_the_recipe_says() -> None:
    met = np.arange(30)
    weights = np.where(met <= 8, 1 / 9, 0.0)  # eight kin, the rest dropped
    looked = [
        explore(1, 0, t, ExploreSettings(again=0.5), met, met, weights).neighbours[8:].tolist() for t in range(4000)
    ]
    assert np.mean([len(some) for some in looked]) == pytest.approx(0.5, rel=0.1)
    counts = np.bincount([one for some in looked for one in some], minlength=30)
    assert counts[:9].sum() == 0
    assert counts[9:].min() > 0.6 * counts[9:].mean()
    quiet = ExploreSettings(again=0)
    assert all(explore(1, 0, t, quiet, met, met, weights).neighbours.tolist() == [*range(1, 9)] for t in range(50))


def test_draws_are_keyed_by_seed_client_and_round() -> None:
    def first(seed: int, client: int, round: int) -> list[int]:
        alone = np.array([client]), np.ones(1)
        return explore(seed, client, round, ExploreSettings(), np.arange(1000), *alone).neighbours.tolist()

    assert first(0, 1, 2) == first(0, 1, 2)
    assert len(first(0, 1, 2)) == 3
    assert len({tuple(first(*who)) for who in ((0, 1, 2), (1, 1, 2), (0, 2, 2), (0, 1, 3))}) == 4


def test_forgetting_a_peer_without_weight_changes_no_weight() -> None:
    third = 1 / 3
    peers = Peers(np.array([2, 4, 7, 9]), np.array([third, 0.0, third, third]), np.array([5, 6, 7, 8]))
    peers.forget(np.array([3, 4]))
    assert (peers.ids.tolist(), peers.samples.tolist()) == ([2, 7, 9], [5, 7, 8])
    assert peers.weights.tolist() == [third] * 3  # to the bit
    peers.forget(np.array([9]))
    assert peers.ids.tolist() == [2, 7]
    assert peers.weights.tolist() == [0.5, 0.5]


# In a network


def looking(name: str = "courier", /, clients: int = 8, **over: Any) -> Recipe:
    """A small run whose clients look around."""
    use = {"contacts": 2, "looks": 1, "keep": 2, "again": 0.5, **over.pop("explore", {})}
    over = mapl.recipe.merge({"network": {"topology": {"name": "explore", "explore": use}}}, over)
    return small(name, clients=clients, **{"rounds": 8, "model": {"backbones": ["mlp"]}, **over})


def test_a_client_asks_a_few_and_listens_to_those_that_it_keeps() -> None:
    part = build_part(looking(rounds=12))
    for t in range(12):
        line = play_round(part, t)[0]
        assert line.messages == sum(len(client.neighbours) for client in part.clients)
        assert max(len(client.neighbours) for client in part.clients) <= 2 + 2
        for client in part.clients:
            heard = client.peers.ids[client.peers.weights > 0].tolist()
            assert set(heard) - {client.id} <= set(client.neighbours.tolist())
        if t == 0:
            assert {len(client.neighbours) for client in part.clients} == {2}
    graph = torch.stack([row_of(client, 8) for client in part.clients])
    assert share_inside(graph, [client.cluster for client in part.clients]) == pytest.approx(1)
    assert ((graph > 0).sum(1) > 1).all(), "everybody found somebody"


@pytest.mark.parametrize("name", ["courier", "mapl"])
def test_a_message_count_is_known_before_the_round(name: str) -> None:
    """Also where a client asks nobody, because it has nobody of its kind, and others ask it."""
    sizes = {"partition": {"clusters": 3, "sizes": [4, 3, 1]}}
    part = build_part(looking(name, rounds=16, explore={"keep": 3}, **sizes))
    asked_nobody = 0
    for t in range(16):
        look_around(part.method, part.clients, part.server, part.topology, t)
        ahead = letters_ahead(part.method, part.clients, t)
        assert play_round(part, t)[0].messages == ahead
        silent = {client.id for client in part.clients if not len(client.neighbours)}
        asked_nobody += sum(len(silent & set(client.neighbours.tolist())) for client in part.clients)
    assert asked_nobody > 0 or name == "mapl"


@pytest.mark.parametrize("division", [[[0, 1, 2], [3, 4, 5]], [[1], [0, 2, 3, 5], [4]]], ids=["halves", "mixed"])
@pytest.mark.parametrize("name", ["courier", "mapl", "mapl+"])
def test_a_network_in_parts_is_the_same_network_to_the_bit(name: str, division: list[list[int]]) -> None:
    made = looking(name, clients=6)
    whole, parts = play(made), in_parts(made, division)
    together: dict[str, torch.Tensor] = {}
    for part in parts:
        together |= all_of(part)
    assert_same(dict(sorted(together.items())), dict(sorted(all_of(whole).items())))
    assert sum(part.ledger.messages for part in parts) == whole.ledger.messages


@pytest.mark.parametrize("name", ["courier", "mapl"])
def test_a_stopped_run_that_is_resumed_ends_with_the_same_bytes(name: str, tmp_path: Path) -> None:
    made = looking(name, clients=6, rounds=6)
    whole = mapl.run(made, tmp_path / "whole")
    folder = tmp_path / "stopped"
    assert not mapl.run(made, folder, stop=stop_after(3)).finished
    assert mapl.resume(folder).finished
    assert written(folder) == written(whole.folder)


def test_a_client_asks_only_those_it_can_reach_and_replaces_those_that_left() -> None:
    part = build_part(looking(rounds=24))
    play(part.recipe, rounds=8, part=part)
    client = part.clients[0]
    left = client.peers.ids[client.peers.weights > 0].tolist()
    left.remove(client.id)
    assert len(left) >= 2
    part.reachable = torch.tensor([i for i in range(8) if i not in left])
    for t in range(8, 24):
        play_round(part, t)
        assert not set(client.neighbours.tolist()) & set(left)
    heard = set(client.peers.ids[client.peers.weights > 0].tolist()) - {client.id}
    inside = {one.id for one in part.clients if one.cluster == client.cluster} - {client.id, *left}
    assert inside & heard


@pytest.mark.parametrize("name", ["courier", "mapl+"])
def test_letters_that_are_lost_late_or_repeated_stop_nobody(name: str) -> None:
    made = looking(name, rounds=12)
    part = play(made, part=build_part(made, transport=Faulty(seed=0)))
    for client in part.clients:
        assert np.isclose(client.peers.weights.sum(), 1)
        assert np.isfinite(client.peers.weights).all()
    assert all(tensor.isfinite().all() for tensor in parameters(part).values())
    nothing = play(made, part=build_part(made, transport=Faulty(seed=0, lost=1)))
    assert [client.peers.ids.tolist() for client in nothing.clients] == [[client.id] for client in nothing.clients]
    alone = play(mapl.Recipe.of(**mapl.recipe.merge(made.model_dump(mode="json"), NOBODY)))
    assert_same(parameters(nothing), parameters(alone))


def test_reach_limits_other_topologies_too() -> None:
    part = build_part(small(clients=6, network={"topology": {"name": "ring"}}))
    look_around(part.method, part.clients, None, part.topology, 0, torch.tensor([0, 1, 2]))
    assert [client.neighbours.tolist() for client in part.clients] == [[1], [0, 2], [1], [2], [], [0]]


def test_what_others_know_changes_nothing() -> None:
    part = build_part(looking())
    look_around(part.method, part.clients, None, part.topology, 3)
    before = [client.neighbours.tolist() for client in part.clients]
    for client in part.clients[1:]:
        meet_all(client, [1 / 8] * 8)
    look_around(part.method, part.clients, None, part.topology, 3)
    assert part.clients[0].neighbours.tolist() == before[0]
    assert [client.neighbours.tolist() for client in part.clients[1:]] != before[1:]


def test_letters_are_always_full_because_anybody_may_read_them_for_the_first_time() -> None:
    runs = [play(looking("mapl", network={"compress": {"kind": kind, "keep": 0.1}})) for kind in ("none", "top-k")]
    assert runs[0].ledger.bytes == runs[1].ledger.bytes
    assert_same(*map(parameters, runs))


@pytest.mark.parametrize("name", list(known(mapl.methods)))
def test_a_method_learns_a_graph_or_has_a_server_or_is_refused(name: str) -> None:
    skip_without_umap(name)
    method = known(mapl.methods)[name]
    if issubclass(method, Centralised) or method.silent:
        build_part(looking(name))
    elif name in ("courier", "mapl", "mapl+"):
        assert build_part(looking(name)).method.learns_graph()
    else:
        with pytest.raises(MaplError, match=r"network.topology: got 'explore'"):
            build_part(looking(name))


@pytest.mark.parametrize("name", ["fedavg", "local"])
def test_clients_of_a_server_and_silent_ones_do_not_look(name: str) -> None:
    wanted = play(small(name, rounds=2, model={"backbones": ["mlp"]}))
    assert_same(parameters(play(looking(name, clients=4, rounds=2))), parameters(wanted))


def test_a_graph_that_is_not_learned_is_refused() -> None:
    with pytest.raises(MaplError, match=r"network.topology: got 'explore'"):
        build_part(looking("mapl", method={"learn_graph": False}))


def test_the_topology_reaches_everybody_and_is_another_every_round() -> None:
    topology = Topology(TopologySettings(name="explore"), 5, seed=0)
    assert topology.neighbours(3, 1).tolist() == [0, 2, 3, 4]
    assert [topology.drawn_in(t) for t in range(4)] == [0, 1, 2, 3]
    assert topology.directed
    assert not Topology(TopologySettings(name="explore"), 1, seed=0).directed
    assert not Topology(TopologySettings(), 5, seed=0).directed


def test_other_runs_are_what_they_were() -> None:
    """Fingerprints from before there was anything to explore."""
    assert Recipe().fingerprint() == "555a26bacdd32ae4"
    ring = Recipe.of(network={"topology": {"name": "ring"}})
    told = Recipe.of(network={"topology": {"name": "ring", "explore": {"keep": 3}}})
    assert ring.fingerprint() == told.fingerprint()
    prints = {
        Recipe.of(network={"topology": {"name": "explore", "explore": {"keep": k}}}).fingerprint() for k in (3, 4)
    }
    assert len(prints | {Recipe().fingerprint()}) == 3


@pytest.mark.parametrize("wrong", [{"contacts": 0}, {"looks": 0}, {"keep": 0}, {"again": -1}, {"agian": 1}])
def test_bad_settings_name_their_key(wrong: dict[str, Any]) -> None:
    with pytest.raises(MaplError, match=rf"network\.topology\.explore\.{next(iter(wrong))}"):
        Recipe.of(network={"topology": {"name": "explore", "explore": wrong}})


@pytest.mark.slow
def test_twenty_clients_find_their_clusters_from_three_contacts_each() -> None:
    network = {"topology": {"name": "explore"}}
    made = Recipe.of(method="courier", clients=20, rounds=12, model={"backbones": ["mlp"]}, network=network)
    part = play(made)
    graph = torch.stack([row_of(client, 20) for client in part.clients])
    assert share_inside(graph, [client.cluster for client in part.clients]) == pytest.approx(1)
    listens = nx.from_numpy_array(graph.numpy() > 0, create_using=nx.DiGraph)
    assert sorted(map(sorted, nx.strongly_connected_components(listens))) == [[*range(10)], [*range(10, 20)]]
    assert part.ledger.messages < 20 * 19 * 12 / 2
