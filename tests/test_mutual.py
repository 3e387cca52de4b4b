"""Methods with a second network beside every client's own: ProxyFL, FML, and mutual learning without letters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from conftest import assert_same, deliver, inboxes_of, parameters, play, row_of, small
from mapl import Client, Images
from mapl.analysis.control import control_of, is_control
from mapl.methods._courier import COURIER, courier_of
from mapl.methods.proxyfl import MASS, ProxyFL, ProxyFLSettings
from mapl.model import ClientModel
from mapl.network import Topology, TopologySettings
from mapl.recipe import has_letters
from mapl.runs.part import Part, build_part

Array = NDArray[np.float64]
ALONE = {"network": {"topology": {"name": "none"}}}
TINY: dict[str, Any] = {"courier": "mlp", "features": 5}


# Losses


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: Array = powers / powers.sum(axis=1, keepdims=True)
    return result


def cross_entropy(logits: Array, labels: list[int]) -> float:
    return float(np.mean([-math.log(row[y]) for row, y in zip(softmax(logits), labels, strict=True)]))


def divergence(teacher: Array, student: Array, temperature: float = 1.0) -> float:
    """T² · the mean of KL(teacher ‖ student)."""
    p, q = softmax(teacher / temperature), softmax(student / temperature)
    return float(temperature**2 * (p * np.log(p / q)).sum(axis=1).mean())


def step(part: Part, views: int) -> tuple[dict[str, Tensor], Array, Array, list[int]]:
    """The loss of one batch, the logits of the own network and of the courier, and the labels."""
    client, labels = part.clients[0], [0, 3, 3, 7, 1] * views
    images = 3 * torch.rand(len(labels), 1, 8, 8, generator=torch.Generator().manual_seed(0))
    terms = part.method.loss(client, images, torch.tensor(labels))
    with torch.no_grad():
        own, courier = client.model(images).double().numpy(), client.model.call(COURIER, images).double().numpy()
    assert np.abs(softmax(own) - softmax(courier)).max() > 0.01  # or their divergence would say little
    return terms, own, courier, labels


@pytest.mark.parametrize("name", ["proxyfl", "fml"])
@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.5), (0.3, 0.9)])
def test_both_networks_learn_from_labels_and_from_each_other(name: str, alpha: float, beta: float) -> None:
    part = build_part(small(name, method={"alpha": alpha, "beta": beta}))
    assert (part.method.views, part.method.augmentation) == (1, "plain")
    terms, own, courier, labels = step(part, 1)
    expected = {
        "cross_entropy": (1 - alpha) * cross_entropy(own, labels),
        "distillation": alpha * divergence(courier, own),
        "courier": (1 - beta) * cross_entropy(courier, labels),
        "courier_distillation": beta * divergence(own, courier),
    }
    assert {term: float(value.detach()) for term, value in terms.items()} == pytest.approx(expected, rel=1e-4)


def test_mutual_learning_adds_distillation_both_ways_to_mapls_losses() -> None:
    part = build_part(small("mutual", method={"distil": 0.4, "distil_temperature": 3.0}))
    mapl = build_part(small("mapl"))
    assert (part.method.views, part.method.augmentation) == (mapl.method.views, mapl.method.augmentation)
    terms, own, courier, labels = step(part, 2)
    of_courier = {
        "distillation": 0.4 * divergence(courier, own, 3),
        "courier": cross_entropy(courier, labels),
        "courier_distillation": 0.4 * divergence(own, courier, 3),
    }
    assert {term: float(terms[term].detach()) for term in of_courier} == pytest.approx(of_courier, rel=1e-4)
    theirs = step_of_mapl(mapl, part)
    assert {term: terms[term] for term in theirs} == theirs
    assert terms.keys() == theirs.keys() | of_courier.keys()


def step_of_mapl(mapl: Part, part: Part) -> dict[str, Tensor]:
    """MAPL's loss of the same batch, with the same weights."""
    client = mapl.clients[0]
    client.model.load_state_dict(part.clients[0].model.state_dict(), strict=False)
    labels = torch.tensor([0, 3, 3, 7, 1] * 2)
    images = 3 * torch.rand(len(labels), 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return mapl.method.loss(client, images, labels)


@pytest.mark.parametrize("name", ["proxyfl", "fml", "mutual"])
def test_no_gradient_goes_into_a_teacher(name: str) -> None:
    part = build_part(small(name))
    model = part.clients[0].model
    own, courier = [*model.backbone.parameters(), *model.head.parameters()], [*model.own[COURIER].parameters()]
    for term, learner, teacher in (("distillation", own, courier), ("courier_distillation", courier, own)):
        model.zero_grad()
        step(part, part.method.views)[0][term].backward()
        assert all(p.grad is not None and p.grad.any() for p in learner[-2:])
        assert all(p.grad is None for p in teacher)


# PushSum


def crowd(method: ProxyFL, count: int, masses: Iterable[float] = (), seed: int = 0) -> list[Client]:
    """Clients with a proxy of six numbers, which differ."""
    torch.manual_seed(seed)
    clients = []
    for i in range(count):
        model = ClientModel(nn.Identity(), nn.Linear(2, 2))
        model.add_own({COURIER: nn.Linear(2, 2)})
        images = Images(torch.zeros(i + 1, 1, 1, 1, dtype=torch.uint8), torch.zeros(i + 1, dtype=torch.int64))
        clients.append(
            Client(
                id=i, run="0" * 16, seed=0, model=model, backbone="none", architecture="0" * 16,
                train=images, test=images, tests=1, cluster=0,
            )
        )  # fmt: skip
        method.prepare(clients[-1])
    for client, mass in zip(clients, masses, strict=False):
        client.state[MASS].fill_(mass)
    return clients


Lost = Callable[[int, int], bool]


def push(method: ProxyFL, clients: list[Client], round: int, topology: str = "full", lost: Lost | None = None) -> None:
    """One exchange; `lost(round, reader)` says whose letter does not arrive."""
    drawn = Topology(TopologySettings(name=topology, degree=4, rewire=0, probability=0.4), len(clients), seed=1)
    for client in clients:
        client.neighbours = drawn.neighbours(round, client.id)
    letters = {c.id: method.letter(c, round) for c in clients if len(c.neighbours)}
    requests = {c.id: method.wants(c, round)[: 0 if lost and lost(round, c.id) else None] for c in clients}
    inboxes = deliver(letters, requests, round)
    for client in clients:
        method.absorb(client, round, inboxes[client.id])


def masses_of(clients: list[Client]) -> Array:
    return np.array([float(c.state[MASS]) for c in clients])


def proxies_of(clients: list[Client]) -> Array:
    return np.stack([courier_of(c).double().numpy() for c in clients])


def mean_of(clients: list[Client]) -> Array:
    masses = masses_of(clients)
    result: Array = masses @ proxies_of(clients) / masses.sum()
    return result


@pytest.mark.parametrize("keep", [0.5, 0.2])
@pytest.mark.parametrize("count", [2, 3, 5, 8, 11])
def test_proxies_are_the_ratio_of_two_products_with_column_stochastic_matrices(count: int, keep: float) -> None:
    method = ProxyFL(ProxyFLSettings(keep=keep))
    clients = crowd(method, count, masses=np.linspace(0.5, 2, count))
    weights = masses_of(clients)
    numerators = weights[:, None] * proxies_of(clients)
    jumps = [jump for jump in (1, 2, 4, 8) if jump < count]
    for t in range(2 * len(jumps) + 1):
        matrix = keep * np.eye(count)
        for sender in range(count):
            matrix[(sender + jumps[t % len(jumps)]) % count, sender] += 1 - keep
        assert np.allclose(matrix.sum(axis=0), 1)
        before = weights
        numerators, weights = matrix @ numerators, matrix @ weights
        push(method, clients, t)
        assert np.allclose(masses_of(clients), weights, rtol=1e-12)
        assert np.allclose(proxies_of(clients), numerators / weights[:, None], atol=1e-5)
        for client in clients:  # the record has the weights of this round's mean
            assert np.allclose(row_of(client, count), matrix[client.id] * before / weights[client.id])
            assert method.weights(client).samples.tolist() == [i + 1 for i in client.peers.ids.tolist()]


@given(
    count=st.integers(1, 10),
    keep=st.floats(0, 0.95),
    masses=st.lists(st.floats(0.01, 100), min_size=10, max_size=10),
    start=st.integers(0, 1000),
    topology=st.sampled_from(["full", "ring", "small-world"]),
)
def test_no_mass_is_created_or_lost_and_the_mean_is_kept(
    count: int, keep: float, masses: list[float], start: int, topology: str
) -> None:
    """Also on a ring, and where everyone has its four nearest as neighbours (a small world without rewiring)."""
    method = ProxyFL(ProxyFLSettings(keep=keep))
    clients = crowd(method, count, masses)
    total, mean = masses_of(clients).sum(), mean_of(clients)
    for t in range(start, start + 6):
        push(method, clients, t, topology if count > 4 else "full")
        assert math.isclose(masses_of(clients).sum(), total, rel_tol=1e-9)
        assert np.allclose(mean_of(clients), mean, atol=1e-4)


@given(
    count=st.integers(2, 8),
    keep=st.floats(0, 0.95),
    lost=st.lists(st.booleans(), min_size=48, max_size=48),
    topology=st.sampled_from(["full", "erdos-renyi"]),
)
def test_lost_letters_stop_nobody(count: int, keep: float, lost: list[bool], topology: str) -> None:
    """Whatever is lost and whoever knows whom, a proxy is a mean of earlier ones."""
    method = ProxyFL(ProxyFLSettings(keep=keep))
    clients = crowd(method, count)
    for t in range(6):
        before, mass = proxies_of(clients), masses_of(clients).sum()
        push(method, clients, t, topology, lambda t, reader: lost[8 * t + reader])
        after, masses = proxies_of(clients), masses_of(clients)
        assert (masses > 0).all()
        assert np.isfinite(after).all()
        assert ((after >= before.min(axis=0) - 1e-6) & (after <= before.max(axis=0) + 1e-6)).all()
        for client in clients:
            if lost[8 * t + client.id]:
                assert np.array_equal(after[client.id], before[client.id])
                assert row_of(client, count)[client.id] == 1
        if topology == "full":
            assert masses.sum() <= mass * (1 + 1e-12) + 1e-290  # a mass never falls below the least positive one


def test_a_client_that_never_gets_a_letter_still_has_mass_after_many_rounds() -> None:
    method = ProxyFL(ProxyFLSettings())
    clients = crowd(method, 2)
    for t in range(1200):
        push(method, clients, t, lost=lambda t, reader: True)
    before = proxies_of(clients)
    push(method, clients, 1200)
    assert (masses_of(clients) > 0).all()
    assert np.isfinite(proxies_of(clients)).all()
    assert np.linalg.norm(np.subtract(*proxies_of(clients))) < 0.6 * np.linalg.norm(np.subtract(*before))


def test_on_an_empty_network_a_client_keeps_everything() -> None:
    method = ProxyFL(ProxyFLSettings())
    clients = crowd(method, 3, masses=[0.5, 1, 2])
    before = proxies_of(clients)
    push(method, clients, 0, "none")
    assert masses_of(clients).tolist() == [0.5, 1, 2]
    assert np.array_equal(proxies_of(clients), before)


def test_with_nothing_kept_proxies_travel_whole_as_in_the_authors_program() -> None:
    method = ProxyFL(ProxyFLSettings(keep=0))
    clients = crowd(method, 6)
    for t, jump in enumerate([1, 2, 4, 1]):
        before = proxies_of(clients)
        push(method, clients, t)
        assert np.array_equal(proxies_of(clients), np.roll(before, jump, axis=0))
        assert np.allclose(masses_of(clients), 1)


@pytest.mark.parametrize("count", [2, 3, 4, 7, 16, 33])
def test_after_log2_rounds_everybody_has_heard_of_everybody(count: int) -> None:
    method = ProxyFL(ProxyFLSettings())
    heard = np.eye(count, dtype=bool)
    clients = crowd(method, count)
    for t in range(math.ceil(math.log2(count))):
        assert not heard.all()
        push(method, clients, t)
        heard = np.stack([row_of(c, count).numpy() > 0 for c in clients]) @ heard
    assert heard.all()


# In a run


def test_proxyfl_trains_what_was_mixed_and_sends_one_message_per_client_and_round() -> None:
    part = play(small("proxyfl", clients=6, rounds=4, method=TINY))
    assert [line.messages for line in part.lines] == [6] * 4
    assert masses_of(part.clients).tolist() == [1] * 6
    assert all(sorted(c.peers.weights.tolist()) == [0.5, 0.5] for c in part.clients)
    alone = play(small("proxyfl", clients=6, rounds=4, method=TINY, **ALONE))
    private = [name for name in parameters(part) if ".backbone" in name and COURIER not in name]
    # Private networks are not sent, but they learn from proxies that are.
    assert any(not torch.equal(parameters(part)[name], parameters(alone)[name]) for name in private)


def test_fml_averages_couriers_plainly_and_leaves_own_networks_at_home() -> None:
    part = build_part(small("fml", partition={"scenario": 3, "shots_range": [1, 9]}))
    assert len({c.samples for c in part.clients}) > 1
    for client in part.clients:
        part.engine.train(client, 0)
    before = {name: tensor.clone() for name, tensor in parameters(part).items()}
    for client, inbox in inboxes_of(part, 0):
        part.method.absorb(client, 0, inbox)
    courier = part.clients[0].model.own[COURIER].state_dict()
    averaged = {f"own.{COURIER}.{name}" for name, tensor in courier.items() if tensor.is_floating_point()}
    assert any(name.endswith("running_var") for name in averaged)
    for name, tensor in parameters(part).items():
        inner = name.partition(".")[2]
        if inner in averaged:
            expected = sum(before[f"{c.id}.{inner}"].double() for c in part.clients) / len(part.clients)
            assert torch.allclose(tensor.double(), expected, atol=1e-6), name
            assert not torch.equal(tensor, before[name])
        else:
            assert torch.equal(tensor, before[name]), name
    assert part.ledger.messages == 2 * len(part.clients)


def test_mutual_learning_is_the_same_on_every_network() -> None:
    full, alone = play(small("mutual", method=TINY)), play(small("mutual", method=TINY, **ALONE))
    assert full.ledger.messages == 0
    assert_same(parameters(full), parameters(alone))


@pytest.mark.parametrize(("name", "default"), [("proxyfl", 0.0), ("fml", 0.0), ("mutual", 0.5)])
def test_what_answers(name: str, default: float) -> None:
    draw = torch.Generator().manual_seed(2)
    embedding, logits = torch.randn(7, 12, generator=draw), torch.randn(7, 10, generator=draw)
    shares = {"own": 0.0, "courier": 1.0, "both": 0.3}
    choices = [({}, default), *(({"answer": answer, "share": 0.3}, share) for answer, share in shares.items())]
    for use, share in choices:
        part = build_part(small(name, method={**TINY, **use}))
        client = part.clients[0]
        own = softmax(client.model.classify(embedding).detach().double().numpy())
        scores = part.method.scores(client, {"backbone": embedding, COURIER: logits}).detach()
        assert np.allclose(scores, (1 - share) * own + share * softmax(logits.double().numpy()), atol=1e-6)


def test_couriers_start_alike_and_learn_at_their_own_rate() -> None:
    part = build_part(small("proxyfl", method={**TINY, "courier_rate": 0.01}))
    assert all(torch.equal(courier_of(c), courier_of(part.clients[0])) for c in part.clients)
    assert part.method.learning_rates() == {COURIER: 0.01}
    assert build_part(small("mutual", method=TINY)).method.learning_rates() == {}


def test_which_runs_are_controls() -> None:
    assert [has_letters(small(name)) for name in ("proxyfl", "fml", "mutual", "local")] == [True, True, False, False]
    assert is_control(small("mutual"))
    # Without letters FML is ProxyFL, whatever ProxyFL keeps.
    controls = [control_of(small("proxyfl", method={"keep": keep, "alpha": 0.2})) for keep in (0.5, 0.0)]
    assert control_of(small("fml", method={"alpha": 0.2})) == controls[0] == controls[1]
    assert controls[0].method.name == "proxyfl"
