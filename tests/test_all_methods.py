"""What holds for every method that there is: what it sends, and that order, interruption and an empty network are harmless."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import mapl
import mapl.cli
import mapl.methods
from conftest import assert_same, parameters, play, small, stop_after, written
from mapl import Letter, MaplError
from mapl.methods._base import Centralised
from mapl.network import MemoryPost, header_bytes
from mapl.plugins import known
from mapl.runs.folder import load
from mapl.runs.part import build_part
from mapl.runs.round import play_round
from mapl.runs.saving import saved_state

METHODS = known(mapl.methods)
TWINS = {name: method.without_letters for name, method in METHODS.items() if method.without_letters}
WRITING = [name for name, method in METHODS.items() if not method.silent]
HOMOGENEOUS = [name for name, method in METHODS.items() if method.homogeneous]
CENTRALISED = [name for name, method in METHODS.items() if issubclass(method, Centralised)]
QUICK: dict[str, dict[str, Any]] = {"flt": {"latent": 6, "encoder_epochs": 1}, "pfedsim": {"warmup": 1}}
ALONE = {"network": {"topology": {"name": "none"}}}
M, T, K, D_Z = 4, 3, 10, 12


def quick(name: str, /, **over: Any) -> mapl.Recipe:
    """A short run with one architecture for all."""
    if name in QUICK:
        over["method"] = {**QUICK[name], **over.get("method", {})}
    return small(name, **{"model": {"backbones": ["mlp"]}, **over})


def test_these_are_the_ten_methods_of_the_paper_and_those_with_a_courier():
    assert set(METHODS) == {
        "dfedavgm", "fedavg", "fedclassavg", "fedproto", "fedsim", "flt", "local", "mapl", "mapl+", "pfedsim",
        "courier", "fml", "mutual", "proxyfl",
    }  # fmt: skip
    assert set(CENTRALISED) == {"fedavg", "fedclassavg", "fedproto", "fedsim", "flt", "fml", "pfedsim"}
    assert set(HOMOGENEOUS) == {"dfedavgm", "fedavg", "flt", "pfedsim"}


# What is sent


@dataclass
class Sent:
    letter: Letter
    to: int


@pytest.fixture
def sent(monkeypatch) -> list[Sent]:
    """Every letter that reaches somebody."""
    seen: list[Sent] = []
    exchange = MemoryPost.exchange

    def watched(self, mail):
        inboxes = exchange(self, mail)
        for to, inbox in inboxes.items():
            letters = {**mail.letters, **({mail.personal[to].sender: mail.personal[to]} if to in mail.personal else {})}
            seen.extend(Sent(letters[sender], to) for sender in inbox.senders.tolist())
        return inboxes

    monkeypatch.setattr(MemoryPost, "exchange", watched)
    return seen


Shapes = dict[str, tuple[int, ...]]
PHI = K * D_Z + K
ENCODER = 64 * 256 + 256 + 256 * 6 + 6


def contents(method: str, round: int, theta: int) -> tuple[Shapes, Shapes]:
    """What a client writes in a round, and what it is written back."""
    model = {"model": (theta + PHI,)}
    head = {"head.weight": (K, D_Z), "head.bias": (K,)}
    prototypes = {"prototypes": (K, D_Z), "held": (K,)}
    cases: dict[str, tuple[Shapes, Shapes]] = {
        "fedavg": (model, model),
        "flt": (model, model),
        "fedsim": ({"head": (PHI,), "batches": (1,)}, {"head": (PHI,)}),
        "fedclassavg": ({"head": (PHI,)}, {"head": (PHI,)}),
        "fedproto": (prototypes, prototypes),
        "pfedsim": ({"backbone": (theta,), **head}, {"backbone": (theta,), **(head if round < 1 else {})}),
        "dfedavgm": ({**model, "degree": (1,)}, {}),
    }
    return cases[method]


INTEGERS = {"batches", "held", "degree", "count"}
"""The only tensors of a letter that are no weights, embeddings or centres: counts, of 8 bytes each."""

# Numbers of 4 bytes and integers of 8 in a whole run, as the paper's table of communication complexity has them (θ, φ, d
# and K for what a message holds; 2M messages a round, 2N_e between peers), and what ours add to it or leave out.
COMPLEXITY: dict[str, Callable[[int], tuple[int, int]]] = {
    "fedsim": lambda theta: (2 * M * PHI * T, M * T),
    "fedclassavg": lambda theta: (2 * M * PHI * T, 0),
    "fedproto": lambda theta: (2 * M * D_Z * K * T, 2 * M * K * T),
    "fedavg": lambda theta: (2 * M * (theta + PHI) * T, 0),
    "flt": lambda theta: (M * ENCODER + M * 6 * K + 2 * M * (theta + PHI) * T, M),
    # After the warm-up (here one round) heads stay at home, so they are not sent back: less than the table says.
    "pfedsim": lambda theta: (2 * M * (theta + PHI) * T - M * PHI * (T - 1), 0),
    "dfedavgm": lambda theta: (M * (M - 1) * (theta + PHI) * T, M * (M - 1) * T),
}


@pytest.mark.parametrize("method", COMPLEXITY)
def test_letters_hold_what_the_method_says_and_nothing_else(method, sent):
    part = play(quick(method))
    theta = sum(t.numel() for t in part.clients[0].model.backbone.state_dict().values() if t.is_floating_point())
    opening = sent[: 2 * M] if method == "flt" else []
    for one in opening:
        expected = {"centres": (K, 6), "count": (1,)} if one.to == M else {"encoder": (ENCODER,)}
        assert shapes(one.letter) == expected
    for one in sent[len(opening) :]:
        up, down = contents(method, one.letter.round, theta)
        assert shapes(one.letter) == (up if one.letter.sender < M else down)
        whole = METHODS[method].homogeneous and one.letter.sender < M
        assert one.letter.architecture == (part.clients[0].architecture if whole else "")
    for one in sent:
        assert one.letter.samples == (len(part.clients[one.letter.sender].train) if one.letter.sender < M else 0)
        for name, tensor in one.letter.tensors.items():
            assert tensor.dtype == (torch.int64 if name in INTEGERS else torch.float32)
            assert not tensor.requires_grad


def shapes(letter: Letter) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in letter.tensors.items()}


@pytest.mark.parametrize("method", COMPLEXITY)
def test_messages_and_bytes_are_those_of_the_papers_table(method, sent):
    part = play(quick(method))
    theta = sum(t.numel() for t in part.clients[0].model.backbone.state_dict().values() if t.is_floating_point())
    peers = method == "dfedavgm"
    first = 4 * M if method == "flt" else 2 * M
    messages = [M * (M - 1)] * T if peers else [first, 2 * M, 2 * M]
    assert [line.messages for line in part.lines] == messages
    assert part.ledger.messages == sum(messages) == len(sent)
    numbers, integers = COMPLEXITY[method](theta)
    headers = sum(header_bytes(one.letter) for one in sent)
    assert part.ledger.bytes == 4 * numbers + 8 * integers + headers == sum(line.bytes for line in part.lines)
    if not peers:
        pairs = {(one.letter.sender, one.to) for one in sent}
        assert pairs == {(i, M) for i in range(M)} | {(M, i) for i in range(M)}


@pytest.mark.parametrize("topology", ["ring", "test_baselines:star"])
def test_dfedavgm_sends_two_messages_an_edge_a_round(topology):
    part = play(quick("dfedavgm", network={"topology": {"name": topology}}))
    assert part.ledger.messages == 2 * 4 * T  # both have four edges


@pytest.mark.parametrize("method", CENTRALISED)
def test_a_server_reaches_everybody_whatever_the_topology(method):
    messages = play(quick(method)).ledger.messages
    assert play(quick(method, network={"topology": {"name": "ring"}})).ledger.messages == messages


@pytest.mark.parametrize("method", CENTRALISED)
@pytest.mark.parametrize("absent", [0, 1])
def test_a_client_that_stays_away_for_a_round_is_not_written_to_and_keeps_what_it_trained(method, absent, sent):
    part = build_part(quick(method))
    wants = part.method.wants
    part.method.wants = lambda c, round: wants(c, round)[: 0 if (c.id, round) == (1, absent) else None]
    for t in range(T):
        sent.clear()
        trained = {}
        train = type(part.engine).train

        def watched(client, round, train=train, trained=trained):
            losses = train(part.engine, client, round)
            trained[client.id] = {k: v.clone() for k, v in client.model.state_dict().items()}
            return losses

        part.engine.train = watched
        play_round(part, t)
        here = [0, 2, 3] if t == absent else [0, 1, 2, 3]
        assert sorted({one.to for one in sent if one.letter.sender == M}) == here
        assert sorted({one.letter.sender for one in sent if one.to == M}) == here
        if t == absent:
            assert_same(dict(part.clients[1].model.state_dict()), trained[1])
        if method == "fedavg":
            alike = [c.id for c in part.clients if torch.equal(c.model.head.bias, part.clients[0].model.head.bias)]
            assert alike == here


@pytest.mark.parametrize("method", WRITING)
def test_a_letter_is_the_same_whatever_the_images_and_labels_are(method):
    """Untrained, since training is meant to look at them: nothing of the data itself may be in a letter."""
    part = build_part(quick(method))
    before = {c.id: part.method.letter(c, 5) for c in part.clients}
    before = {i: {name: tensor.clone() for name, tensor in letter.tensors.items()} for i, letter in before.items()}
    for client in part.clients:
        client.train.pixels.random_(0, 255)
        client.train.labels.random_(0, 9)
    for client in part.clients:
        assert_same(dict(part.method.letter(client, 5).tensors), before[client.id])


# On the empty network


@pytest.mark.parametrize("method", METHODS)
def test_on_the_empty_network_nothing_is_sent_and_nobody_mixes(method, sent):
    part = play(quick(method, **ALONE))
    assert (part.ledger.messages, part.ledger.bytes, sent) == (0, 0, [])
    for client in part.clients:
        row = part.method.weights(client)
        assert row is None or (row.ids.tolist(), row.weights.tolist()) == ([client.id], [1])


@pytest.mark.parametrize(("method", "twin"), TWINS.items())
def test_a_method_is_its_twin_to_the_bit_on_the_empty_network(method, twin):
    ours, theirs = play(quick(method, **ALONE)), play(quick(twin, **ALONE))
    assert_same(parameters(ours), parameters(theirs))
    assert [line.accuracy for line in ours.lines] == [line.accuracy for line in theirs.lines]
    assert not METHODS[twin].without_letters  # a control arm of its own


@pytest.mark.parametrize("method", WRITING)
def test_letters_make_a_difference(method):
    alone, together = parameters(play(quick(method, **ALONE))), parameters(play(quick(method)))
    assert any(not torch.equal(alone[name], together[name]) for name in alone)


# Order, interruption, the command line


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_the_nodes_does_not_matter(method):
    recipe = quick(method, partition={"scenario": 3, "shots_range": [2, 6]})
    straight = play(recipe)
    shuffled = build_part(recipe)
    for t in range(T):
        random.Random(t).shuffle(shuffled.clients)
        play_round(shuffled, t)
    assert [c.id for c in shuffled.clients] != list(range(M))
    shuffled.clients.sort(key=lambda client: client.id)
    assert_same(saved_state(shuffled), saved_state(straight))


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_was_interrupted_ends_with_the_bytes_of_one_that_was_not(method, tmp_path):
    recipe = quick(method, checkpoint={"every": 10}, train={"reset": False})
    mapl.run(recipe, tmp_path / "whole")
    assert not mapl.run(recipe, tmp_path / "stopped", stop=stop_after(1)).finished
    assert not mapl.resume(tmp_path / "stopped", stop=stop_after(1)).finished
    assert mapl.resume(tmp_path / "stopped").finished
    assert written(tmp_path / "stopped") == written(tmp_path / "whole")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_from_the_command_line(method, tmp_path, monkeypatch, capsys):
    options = ["--data", "digits", "--clients", "6", "--rounds", "2"]
    if method == "flt":
        options += ["--set", "method.encoder_epochs=1"]
    monkeypatch.setattr(
        sys, "argv", ["mapl", "run", "--method", method, *options, "--out", str(tmp_path), "--name", "run"]
    )
    with pytest.raises(SystemExit) as end:
        mapl.cli.main()
    assert end.value.code in (0, None)
    assert "accuracy" in capsys.readouterr().out
    record = load(tmp_path / "run")
    assert record.finished
    assert (record.recipe.method.name, len(record.rounds), len(record.clients)) == (method, 2, 6)
    by_method = {"local": 0, "mutual": 0, "proxyfl": 12, "flt": 36}
    by_method |= dict.fromkeys(("courier", "dfedavgm", "mapl", "mapl+"), 60)
    assert record.messages == by_method.get(method, 24)


# Architectures


@pytest.mark.parametrize("method", HOMOGENEOUS)
@pytest.mark.parametrize(
    ("backbones", "who"),
    [
        (["mlp", "cnn", "mlp", "mlp"], "client 0 has 'mlp' and these differ from it: 1 (cnn);"),
        (["cnn", "mlp"], "client 0 has 'cnn' and these differ from it: 1 (mlp), 3 (mlp), 5 (mlp), 7 (mlp), …;"),
    ],
)
def test_averages_of_whole_models_refuse_models_that_differ_and_say_whose(method, backbones, who, tmp_path):
    clients = 4 if len(backbones) == 4 else 12
    with pytest.raises(MaplError) as refusal:
        mapl.run(quick(method, clients=clients, model={"backbones": backbones}), tmp_path / "run")
    assert str(refusal.value).startswith(f"method {method!r} needs one architecture, but {who}")
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", sorted(set(METHODS) - set(HOMOGENEOUS)))
def test_the_others_run_with_backbones_that_differ(method):
    part = play(quick(method, model={"backbones": ["mlp", "cnn", "residual", "separable"]}), rounds=2)
    assert len({c.architecture for c in part.clients}) == 4
    assert all(tensor.isfinite().all() for tensor in parameters(part).values())


# A budget of messages


@pytest.mark.parametrize("moment", ["trained", "mixed"])
@pytest.mark.parametrize(
    ("method", "budget", "rounds"),
    [
        ("mapl", 12, 1),
        ("mapl", 13, 2),
        ("fedavg", 16, 2),
        ("fedavg", 1, 1),
        ("flt", 10, 1),  # an opening of 8 messages, and 8 in each round
        ("flt", 16, 1),
        ("flt", 17, 2),
        ("dfedavgm", 20, 2),
        ("local", 1, 5),  # it never sends any
    ],
)
def test_a_run_stops_after_the_round_that_spends_the_budget_and_tests_it(method, budget, rounds, moment, tmp_path):
    """Tests are only due every 50 rounds: the last one of all is tested for being the last."""
    recipe = quick(
        method, rounds=5, network={"message_budget": budget}, evaluate={"every": 50, "moment": moment}, method={}
    )
    record = mapl.run(recipe, tmp_path / "run")
    assert len(record.rounds) == rounds
    assert [line.accuracy is not None for line in record.rounds] == [False] * (rounds - 1) + [True]
    assert record.finished
    if method != "local":
        assert record.messages - record.rounds[-1].messages < budget <= record.messages
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    again = mapl.resume(tmp_path / "run")
    assert again.finished
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before


def test_a_run_that_is_stopped_before_its_budget_is_spent_goes_on(tmp_path):
    recipe = quick("fedavg", rounds=9, network={"message_budget": 24}, evaluate={"every": 50})
    assert mapl.run(recipe, tmp_path / "whole").finished
    assert not mapl.run(recipe, tmp_path / "stopped", stop=stop_after(1)).finished
    record = mapl.resume(tmp_path / "stopped")
    assert len(record.rounds) == 3
    assert record.finished
    assert written(tmp_path / "stopped") == written(tmp_path / "whole")


# Losses


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("labels", [[0] * 6, [0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 9, 9]], ids=str)
def test_gradients_are_finite_whatever_the_labels_and_for_images_that_are_all_alike(method, labels):
    part = build_part(quick(method))
    client, views = part.clients[0], part.method.views
    part.method.start_epoch(client, 0, 0)
    for images in (torch.rand(6, 1, 8, 8), torch.zeros(6, 1, 8, 8)):
        client.model.zero_grad()
        terms = part.method.loss(client, images.repeat(views, 1, 1, 1), torch.tensor(labels).repeat(views))
        torch.stack(list(terms.values())).sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in client.model.parameters())
        assert client.model.head.weight.grad.any()
