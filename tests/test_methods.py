"""What MAPL, MAPL+ and Local share, hear and make of it: by hand, in float64, and counted by the ledger."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from conftest import assert_same, deliver, meet_all, parameters, play, row_of, small
from mapl import Client, Inbox, Letter
from mapl.collaboration import GraphSettings
from mapl.network import header_bytes
from mapl.runs.part import Part, build_part
from mapl.runs.round import play_round
from reference import learn_weights

FULL_ROW = torch.full((4,), 0.25, dtype=torch.float64)


def letters(part: Part, round: int, among: list[int] | None = None) -> dict[int, Letter]:
    return {c.id: part.method.letter(c, round) for c in part.clients if among is None or c.id in among}


def inbox(part: Part, reader: int, senders: list[int], round: int) -> Inbox:
    return deliver(letters(part, round, senders), {reader: torch.tensor(senders)})[reader]


def by_hand(client: Client, part: Part, weights: Tensor, heard: list[int]) -> Tensor:
    """Σ_j w_j ξ_j in float64."""
    total = sum(float(weights[j]) * part.clients[j].model.prototypes.detach().double() for j in heard)
    assert isinstance(total, Tensor)
    return total


# Letters


@pytest.mark.parametrize("method", ["mapl", "mapl+"])
@pytest.mark.parametrize(
    ("round", "learn", "head"), [(2, True, False), (3, True, True), (9, True, True), (9, False, False)]
)
def test_a_letter_holds_what_the_paper_says_and_nothing_else(method, round, learn, head):
    part = build_part(small(method, method={"warmup": 3, "learn_graph": learn}))
    for client in part.clients:
        letter = part.method.letter(client, round)
        expected = {"prototypes": (10, 8)} | ({"head": (10, 12)} if head else {})
        if method == "mapl+":
            floats = [t for t in client.model.backbone.state_dict().values() if t.is_floating_point()]
            expected["backbone"] = (sum(t.numel() for t in floats),)
        assert {name: tuple(tensor.shape) for name, tensor in letter.tensors.items()} == expected
        assert all(tensor.dtype == torch.float32 and not tensor.requires_grad for tensor in letter.tensors.values())
        assert torch.equal(letter.tensors["prototypes"], client.model.prototypes)
        assert (letter.sender, letter.round, letter.samples) == (client.id, round, len(client.train))
        assert letter.architecture == (client.architecture if method == "mapl+" else "")
        if head:
            assert torch.equal(letter.tensors["head"], client.model.head.weight)


def test_a_letter_is_the_same_whatever_the_images_and_labels_are():
    """Untrained, since training is meant to look at them: nothing of the data itself may be in a letter."""
    part = build_part(small("mapl+"))
    before = letters(part, 5)
    for client in part.clients:
        client.train.pixels.random_(0, 255)
        client.train.labels.random_(0, 9)
    for i, letter in letters(part, 5).items():
        assert_same(dict(letter.tensors), dict(before[i].tensors))
        assert letter.samples == before[i].samples


def test_local_writes_no_letters_whatever_the_topology():
    part = play(small("local"))
    assert (part.ledger.messages, part.ledger.bytes) == (0, 0)
    client = part.clients[0]
    assert client.neighbours.tolist() == [1, 2, 3]
    assert not len(part.method.wants(client, 3))
    assert part.method.letter(client, 3) is None
    assert part.method.weights(client) is None


# Mixing


def test_the_first_mixing_is_the_plain_mean_of_all_prototypes():
    part = build_part(small(method={"warmup": 10}))
    client = part.clients[2]
    expected = by_hand(client, part, FULL_ROW, [0, 1, 2, 3])
    part.method.absorb(client, 0, inbox(part, 2, [0, 1, 3], 0))
    assert torch.allclose(client.model.prototypes.double(), expected, atol=1e-7)
    assert torch.equal(row_of(client, 4), FULL_ROW)


def test_after_a_round_of_the_warm_up_all_clients_have_the_same_prototypes():
    part = play(small(method={"warmup": 3}), rounds=1)
    for client in part.clients[1:]:
        assert torch.equal(client.model.prototypes, part.clients[0].model.prototypes)


@pytest.mark.parametrize("form", ["released", "paper"])
@pytest.mark.parametrize("confidence", ["share", "relative"])
@pytest.mark.parametrize("me", [0, 2, 3])
def test_after_the_warm_up_the_graph_is_learned_and_then_used(form, confidence, me):
    method = {"warmup": 1, "form": form, "graph": {"form": form, "confidence": confidence}}
    part = play(small(method=method, partition={"scenario": 3, "shots_range": [1, 5]}), rounds=1)
    client = part.clients[me]
    assert torch.equal(row_of(client, 4), FULL_ROW)
    samples = torch.tensor([c.samples for c in part.clients], dtype=torch.float64)
    assert len(samples.unique()) > 1
    heads = torch.stack([c.model.head.weight.detach() for c in part.clients]).double()
    # Prototypes all agree after a round of mixing: make them differ, as training would.
    for other in part.clients:
        other.model.prototypes.data += other.id
    everybody = torch.ones(4, dtype=torch.bool)
    settings = part.method.settings.graph
    assert settings.form == form
    gamma = samples / samples.sum() * (4 if confidence == "relative" else 1)
    row = learn_weights(FULL_ROW, me, heads, gamma, everybody, settings)
    expected = by_hand(client, part, row, [0, 1, 2, 3])
    part.method.absorb(client, 1, inbox(part, me, [j for j in range(4) if j != me], 1))
    assert torch.allclose(row_of(client, 4), row, atol=1e-6)
    assert not torch.allclose(row, FULL_ROW, atol=1e-3)
    assert torch.allclose(client.model.prototypes.double(), expected, atol=1e-5)


@pytest.mark.parametrize("form", ["released", "paper"])
def test_a_peer_that_was_not_heard_keeps_its_weight_and_the_others_share_the_rest(form):
    """Its samples still count in everybody's confidence, γ_j = n_j / Σ n."""
    over = {"partition": {"scenario": 3, "shots_range": [1, 5]}}
    graph = {"form": form, "confidence": "share", "mu1": 2}
    part = play(small(method={"warmup": 1, "form": form, "graph": graph}, **over), rounds=1)
    client = part.clients[0]
    samples = torch.tensor([c.samples for c in part.clients], dtype=torch.float64)
    meet_all(client, [0.1, 0.2, 0.3, 0.4], samples.long().tolist())
    for other in part.clients:
        other.model.prototypes.data += other.id
    heard = torch.tensor([0, 1, 3])
    heads = torch.stack([part.clients[j].model.head.weight.detach() for j in heard.tolist()]).double()
    before = torch.tensor([0.1, 0.2, 0.4], dtype=torch.float64) / 0.7
    confidence = (samples / samples.sum())[heard]
    row = learn_weights(before, 0, heads, confidence, torch.ones(3, dtype=torch.bool), part.method.settings.graph)
    expected = by_hand(client, part, dict(zip(heard.tolist(), row.tolist(), strict=True)), heard.tolist())
    part.method.absorb(client, 1, inbox(part, 0, [1, 3], 1))
    after = row_of(client, 4)
    assert after[2] == 0.3
    assert torch.allclose(after[heard], 0.7 * row, atol=1e-6)
    assert torch.isclose(after.sum(), torch.tensor(1.0, dtype=torch.float64))
    assert torch.allclose(client.model.prototypes.double(), expected, atol=1e-5)


def test_without_graph_learning_the_graph_stays_uniform_after_the_warm_up():
    part = play(small(method={"warmup": 0, "learn_graph": False}))
    assert all(torch.allclose(row_of(c, 4), FULL_ROW) for c in part.clients)


def test_an_empty_inbox_changes_nothing():
    part = play(small(), rounds=1)
    before = {k: v.clone() for k, v in parameters(part).items()}
    client = part.clients[0]
    row = row_of(client, 4)
    part.method.absorb(client, 1, deliver({}, {0: torch.empty(0, dtype=torch.long)})[0])
    assert_same(parameters(part), before)
    assert torch.equal(row_of(client, 4), row)


def test_edges_at_zero_are_no_longer_asked_for_and_strangers_are():
    part = build_part(small())
    client = part.clients[1]
    client.neighbours = torch.tensor([0, 2, 3])
    assert part.method.wants(client, 0).tolist() == [0, 2, 3]
    meet_all(client, [0.0, 0.5, 0.5], samples=4)  # it has not met client 3
    assert part.method.wants(client, 5).tolist() == [2, 3]
    client.neighbours = torch.tensor([0])
    assert part.method.wants(client, 5).tolist() == []


def changing(clients: int, round: int, settings: object, seed: int) -> list[tuple[int, int]]:
    """0–1 and 2–3, then 1–2 alone, in turn."""
    return [(0, 1), (2, 3)] if round % 2 == 0 else [(1, 2)]


def test_a_topology_that_changes_every_round():
    part = build_part(small(network={"topology": {"name": "test_methods:changing", "every": 1}}, rounds=4))
    play_round(part, 0)
    assert part.clients[0].peers.ids.tolist() == [0, 1]
    assert part.clients[0].peers.weights.tolist() == [0.5, 0.5]
    assert torch.equal(part.clients[2].model.prototypes, part.clients[3].model.prototypes)
    before = [row_of(client, 4) for client in part.clients]
    line, _ = play_round(part, 1)
    assert line.messages == 2
    moved = [not torch.equal(row_of(client, 4), row) for client, row in zip(part.clients, before, strict=True)]
    assert moved == [False, True, True, False]
    one = row_of(part.clients[1], 4)
    assert one[2] > 0
    # Client 0 was not heard in round 1: its share of the row is what it was, scaled for the newcomer.
    assert torch.isclose(one[0], torch.tensor(1 / 3, dtype=torch.float64))
    line, _ = play_round(part, 2)
    assert line.messages == 4
    # Nobody has met a client that it never heard.
    assert [client.peers.ids.tolist() for client in part.clients] == [[0, 1], [0, 1, 2], [1, 2, 3], [2, 3]]


# MAPL+


def spread(part: Part) -> None:
    """Weights and statistics that differ a lot from client to client, and counters too."""
    for client in part.clients:
        draw = torch.Generator().manual_seed(client.id)
        for tensor in client.model.backbone.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=draw) + client.id)
            else:
                tensor.fill_(10 + client.id)


def test_mapl_plus_mixes_backbones_and_their_statistics_and_leaves_counters_alone():
    part = build_part(small("mapl+", model={"backbones": ["cnn"]}, method={"learn_graph": False}))
    spread(part)
    before = [{k: v.clone() for k, v in c.model.backbone.state_dict().items()} for c in part.clients]
    client = part.clients[1]
    # Everybody was met already, with these weights.
    row = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    meet_all(client, row.tolist())
    part.method.absorb(client, 5, inbox(part, 1, [0, 2, 3], 5))
    assert any(name.endswith("running_var") for name in before[0])
    for name, tensor in client.model.backbone.state_dict().items():
        if tensor.is_floating_point():
            expected = sum(w * b[name].double() for w, b in zip(row.tolist(), before, strict=True))
            assert torch.allclose(tensor.double(), expected, rtol=1e-5), name
        else:
            assert name.endswith("num_batches_tracked")
            assert int(tensor) == 11


def test_mapl_plus_mixes_only_what_is_alike():
    """Clients 0 and 2 have an MLP, 1 a CNN, 3 a residual network."""
    part = build_part(small("mapl+", model={"backbones": ["mlp", "cnn", "mlp", "residual"]}))
    spread(part)
    before = [{k: v.clone() for k, v in c.model.backbone.state_dict().items()} for c in part.clients]
    row = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    inboxes = {i: inbox(part, i, [j for j in range(4) if j != i], 0) for i in range(4)}
    for client in part.clients:
        meet_all(client, row.tolist())
        part.method.absorb(client, 0, inboxes[client.id])
    for i in (1, 3):
        assert_same(dict(part.clients[i].model.backbone.state_dict()), before[i])
    for i in (0, 2):
        for name, tensor in part.clients[i].model.backbone.state_dict().items():
            if tensor.is_floating_point():
                expected = 0.25 * before[0][name].double() + 0.75 * before[2][name].double()
                assert torch.allclose(tensor.double(), expected, rtol=1e-5), name


def test_on_the_empty_network_mapl_plus_is_mapl_to_the_bit():
    alone = {"network": {"topology": {"name": "none"}}}
    mapl, plus = play(small("mapl", **alone)), play(small("mapl+", **alone))
    assert_same(parameters(mapl), parameters(plus))
    assert (plus.ledger.messages, plus.ledger.bytes) == (0, 0)
    assert [line.accuracy for line in mapl.lines] == [line.accuracy for line in plus.lines]


def test_letters_change_the_models():
    alone = play(small("mapl", network={"topology": {"name": "none"}}))
    together = play(small("mapl"))
    assert any(not torch.equal(v, parameters(alone)[k]) for k, v in parameters(together).items())


# Losses


@pytest.mark.parametrize(
    "terms", [[], ["contrastive"], ["prototype", "uniformity"], ["contrastive", "prototype", "uniformity"]]
)
@pytest.mark.parametrize("form", ["released", "paper"])
def test_the_ablation_of_the_loss_terms(terms, form):
    part = build_part(small(method={"terms": terms, "form": form}))
    losses = part.engine.train(part.clients[0], 0)
    assert set(losses) == {"cross_entropy", *terms}
    assert all(abs(value) > 0 for value in losses.values())


def test_prototypes_learn_only_where_a_term_has_them():
    """Without the last two terms nothing pulls at the prototypes."""
    for terms, moves in ((["contrastive"], False), (["prototype"], True), (["uniformity"], True)):
        part = build_part(small(method={"terms": terms}))
        before = part.clients[0].model.prototypes.detach().clone()
        part.engine.train(part.clients[0], 0)
        assert torch.equal(part.clients[0].model.prototypes, before) is not moves


def test_local_sees_one_plain_view_and_mapl_two_contrastive_ones():
    seen = {}
    for name in ("local", "mapl"):
        part = build_part(small(name, train={"batch": 4}))
        seen[name] = part.engine.draw(part.clients[0], 0).uniforms.shape[1]
        section = part.recipe.augment
        assert part.engine.augmentation.settings == (section.plain if name == "local" else section.contrastive)
    assert seen == {"local": 4, "mapl": 8}


# Order and counting


@pytest.mark.parametrize("method", ["mapl", "mapl+"])
def test_the_order_in_which_letters_arrive_never_matters(method):
    results = []
    for shuffled in (False, True):
        part = play(small(method, method={"warmup": 0}), rounds=1)
        written = list(letters(part, 1).items())
        asked = {c.id: [j for j in range(4) if j != c.id] for c in part.clients}
        if shuffled:
            for entries in (written, *asked.values()):
                random.Random(1).shuffle(entries)
            assert [i for i, _ in written] != sorted(i for i, _ in written)
        inboxes = deliver(dict(written), {i: torch.tensor(ids) for i, ids in asked.items()})
        for client in reversed(part.clients) if shuffled else part.clients:
            part.method.absorb(client, 1, inboxes[client.id])
        results.append(parameters(part) | {f"{c.id}.row": row_of(c, 4) for c in part.clients})
    assert_same(*results)


@pytest.mark.parametrize("clients", [2, 5])
def test_messages_and_bytes_of_the_warm_up_are_the_papers_formula(clients):
    """M(M − 1)T messages of d_p·K numbers each, and a stated header."""
    rounds = 3
    part = play(small(clients=clients, rounds=rounds, method={"warmup": rounds}))
    assert part.ledger.messages == clients * (clients - 1) * rounds
    header = header_bytes(part.method.letter(part.clients[0], 0))
    assert part.ledger.bytes == part.ledger.messages * (4 * 8 * 10 + header)
    assert [line.messages for line in part.lines] == [clients * (clients - 1)] * rounds
    assert sum(line.bytes for line in part.lines) == part.ledger.bytes


def test_messages_and_bytes_with_the_head_follow_the_edges_that_are_left():
    """Σ_t N_e(t) · 4(d_p K + φ) bytes, N_e the directed edges in use when the round begins, φ = d_z K; and a header."""
    rounds = 6
    graph = {"form": "released", "step_size": 0.2}  # drops edges at once
    part = build_part(small(rounds=rounds, clients=6, method={"warmup": 1, "graph": graph}))
    edges, messages = [], []
    for t in range(rounds):
        matrix = torch.stack([row_of(client, 6) for client in part.clients])
        edges.append(int((matrix.fill_diagonal_(0) > 0).sum()) if t else 6 * 5)
        messages.append(play_round(part, t)[0].messages)
    assert messages == edges
    assert min(edges) < 30  # some edges were dropped, or this would say nothing
    without, with_head = (part.method.letter(part.clients[0], t) for t in (0, 1))
    first = edges[0] * (4 * 8 * 10 + header_bytes(without))
    later = sum(edges[1:]) * (4 * (8 * 10 + 12 * 10) + header_bytes(with_head))
    assert part.ledger.bytes == first + later


@pytest.mark.parametrize("method", ["mapl", "mapl+"])
@pytest.mark.parametrize("form", ["released", "paper"])
def test_the_graph_is_the_printed_one_with_relative_confidence_whatever_form_the_losses_have(method, form):
    for over in ({}, {"graph": {"beta": 0.2}}):
        graph = small(method, method={"form": form, **over}).method.graph
        assert (graph.form, graph.confidence) == ("paper", "relative")
        assert graph == GraphSettings(**over.get("graph", {}))
    assert small(method, method={"form": form, "graph": {"form": "released"}}).method.graph.form == "released"
