"""Reading the letters of many clients at once is reading them client by client, to the bit, for every method."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mapl.methods
from conftest import assert_same, deliver, inboxes_of, meet_all, parameters, skip_without_umap, small
from mapl import Client, Images, Inbox
from mapl.collaboration import GraphSettings, _add_gathered, _add_sampled, head_similarity, learn_rows, similarities
from mapl.losses import FORMS
from mapl.methods import _circles
from mapl.methods._circles import Circles, groups
from mapl.methods.mapl import Mapl, MaplSettings
from mapl.model import ClientModel
from mapl.plugins import known
from mapl.runs.part import build_part

SIZES = [1, 2, 7, 50]


# Every method, through the exchange itself


def state(clients: list[Client]) -> dict[str, Tensor]:
    """What clients keep between rounds, beside their models."""
    peers = {
        f"{c.id}.peers.{key}": torch.from_numpy(getattr(c.peers, key))
        for c in clients
        for key in ("ids", "weights", "samples")
    }
    return peers | {f"{c.id}.{key}": tensor for c in clients for key, tensor in c.state.items()}


@pytest.mark.parametrize("topology", ["full", "ring"])
@pytest.mark.parametrize("name", known(mapl.methods))
def test_all_at_once_is_client_by_client(name: str, topology: str) -> None:
    skip_without_umap(name)
    over: dict[str, Any] = {"network": {"topology": {"name": topology}}}
    if name.startswith("mapl"):
        over["method"] = {"warmup": 1, "graph": {"step_size": 0.02}}
    alike = {"model": {"backbones": ["mlp"]}} if known(mapl.methods)[name].homogeneous else {}
    parts = [build_part(small(name, clients=6, **over, **alike)) for _ in range(2)]
    for t in range(3):
        for part, together in zip(parts, (True, False), strict=True):
            part.engine.train_all(part.clients, t)
            pairs = inboxes_of(part, t)
            if together:
                part.method.absorb_all(t, pairs)
            else:
                for client, inbox in pairs:
                    part.method.absorb(client, t, inbox)
    assert_same(*(parameters(part) | state(part.clients) for part in parts))
    assert parts[0].ledger == parts[1].ledger


# MAPL, with inboxes of all sizes


def crowd(method: Mapl, count: int, classes: int = 3, width: int = 40, seed: int = 0) -> list[Client]:
    torch.manual_seed(seed)
    common, clients = torch.randn(classes, width), []
    for i in range(count):
        prototypes = nn.Parameter(torch.rand(classes, 17) - 0.5)
        model = ClientModel(nn.Identity(), nn.Linear(width, classes), prototypes=prototypes)
        model.head.weight.data.add_(0.1 * common)
        shots = 2 + i % 5
        images = Images(torch.zeros(shots, 1, 1, 1, dtype=torch.uint8), torch.zeros(shots, dtype=torch.int64))
        clients.append(
            Client(
                id=i, run="0" * 16, seed=0, model=model, backbone="none", architecture="0" * 16,
                train=images, test=images, tests=shots, cluster=0,
            )
        )  # fmt: skip
        method.prepare(clients[-1])
    return clients


def delivered(method: Mapl, clients: list[Client], round: int, density: float) -> dict[int, Inbox]:
    rng = np.random.default_rng(round)
    wanted = {c.id: np.flatnonzero(rng.random(len(clients)) < density * rng.random()) for c in clients}
    requests = {i: torch.from_numpy(ids[ids != i]) for i, ids in wanted.items()}
    asked = set(torch.cat(list(requests.values())).tolist())
    return deliver({i: method.letter(clients[i], round) for i in asked}, requests)


def tensors(clients: list[Client]) -> dict[str, Tensor]:
    return state(clients) | {f"{c.id}.prototypes": c.model.prototypes.detach() for c in clients}


@pytest.mark.parametrize("density", [0.1, 1.5], ids=["sparse", "dense"])
@pytest.mark.parametrize(
    "use",
    [{"form": "released"}, {"form": "paper", "norm": "l1", "steps": 3}, {"form": "paper", "use_similarity": False}],
)
def test_the_bits_do_not_depend_on_how_many_read_at_once(use: dict[str, Any], density: float) -> None:
    method = Mapl(MaplSettings(warmup=1, graph=GraphSettings(step_size=0.02, **use)))
    results = []
    for size in SIZES:
        clients = crowd(method, 50)
        for t in range(3):
            inboxes = delivered(method, clients, t, density)
            pairs = [(c, inboxes[c.id]) for c in clients]
            for first in range(0, len(pairs), size):
                method.absorb_all(t, pairs[first : first + size])
        results.append(tensors(clients))
    rows = [results[0][f"{i}.peers.weights"] for i in range(50)]
    assert len({int((row > 0).sum()) for row in rows}) > 5, "circles of many sizes, or this would say little"
    for other in results[1:]:
        assert_same(other, results[0])


def test_nor_on_how_the_work_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    method = Mapl(MaplSettings(warmup=0, graph=GraphSettings(form="released", step_size=0.02)))
    results = []
    # Heads of 3 classes × 150 numbers whole, two classes and then one, and a class in three pieces.
    for most, cached, numbers in ((2**20, 2**18, 2**20), (2**20, 2**18, 30 * 300), (30, 64, 128)):
        monkeypatch.setattr(_circles, "MOST", most)
        monkeypatch.setattr(_circles, "CACHED", cached)
        monkeypatch.setattr("mapl.collaboration.NUMBERS", numbers)
        clients = crowd(method, 30, width=150)
        inboxes = delivered(method, clients, 0, 1.0)
        method.absorb_all(0, [(c, inboxes[c.id]) for c in clients])
        results.append(tensors(clients))
    for other in results[1:]:
        assert_same(other, results[0])


def test_a_client_is_touched_by_its_own_inbox_alone() -> None:
    method = Mapl(MaplSettings(warmup=0, graph=GraphSettings(form="released", step_size=0.02)))
    results = []
    for changed in (False, True):
        clients = crowd(method, 6)
        if changed:  # the letters of 4 and 5, which 0 and 1 do not read
            for other in clients[4:]:
                other.model.prototypes.data.mul_(-3)
                other.model.head.weight.data.neg_()
        ids = {0: [1, 2], 1: [2, 3], 2: [4, 5], 3: [0, 5], 4: [5], 5: [0, 1, 2]}
        letters = {c.id: method.letter(c, 0) for c in clients}
        inboxes = deliver(letters, {i: torch.tensor(sent) for i, sent in ids.items()})
        method.absorb_all(0, [(c, inboxes[c.id]) for c in clients])
        results.append(tensors(clients[:2]))
        assert not torch.equal(clients[2].model.prototypes, clients[0].model.prototypes)
    assert_same(*results)


def test_inboxes_of_several_deliveries_can_be_read_in_one_go() -> None:
    method = Mapl(MaplSettings(warmup=0, graph=GraphSettings(step_size=0.02)))
    results = []
    for together in (True, False):
        clients = crowd(method, 4)
        pairs = [
            (c, deliver({j: method.letter(clients[j], 0)}, {c.id: torch.tensor([j])})[c.id])
            for c, j in zip(clients, (1, 0, 3, 2), strict=True)
        ]
        assert len(list(groups(pairs))) == 4
        if together:
            method.absorb_all(0, pairs)
        else:
            for client, inbox in pairs:
                method.absorb(client, 0, inbox)
        results.append(tensors(clients))
    assert_same(*results)


def test_a_client_whose_circle_has_no_weight_stays_as_it_is_and_the_others_go_on() -> None:
    method = Mapl(MaplSettings(warmup=0))
    clients = crowd(method, 3)
    letters = {c.id: method.letter(c, 0) for c in clients}
    inboxes = deliver(letters, {0: torch.tensor([1]), 2: torch.tensor([1])})
    meet_all(clients[0], [0.0, 0.0, 1.0], samples=5)
    before = copy.deepcopy(tensors(clients))
    method.absorb_all(0, [(clients[i], inboxes[i]) for i in (0, 2)])
    after = tensors(clients)
    for i, touched in ((0, False), (2, True)):
        assert torch.equal(after[f"{i}.prototypes"], before[f"{i}.prototypes"]) is not touched
        assert torch.equal(after[f"{i}.peers.weights"], before[f"{i}.peers.weights"]) is not touched


# Its parts


def test_a_circle_is_everybody_it_heard_and_itself_in_order() -> None:
    method = Mapl(MaplSettings(warmup=0))
    clients = crowd(method, 40)
    inboxes = delivered(method, clients, 3, 0.5)
    pairs = [(c, inboxes[c.id]) for c in clients if len(inboxes[c.id])]
    circles = Circles(pairs)
    for b, ((client, start, end), (_, inbox)) in enumerate(zip(circles.spans(), pairs, strict=True)):
        assert circles.ids[start:end].tolist() == sorted([*inbox.senders.tolist(), client.id])
        assert circles.ids[start + circles.me[b]] == client.id
        assert circles.is_me[start:end].sum() == 1
    heads = circles.table("head", lambda client: client.model.head.weight)
    everywhere = circles.spread(heads.theirs, heads.mine)
    for client, place in zip(circles.ids.tolist(), everywhere.tolist(), strict=True):
        assert torch.equal(heads.stack[place], clients[client].model.head.weight)
    for rows in circles.widths():
        flat = np.zeros(len(circles.ids))
        numbered = np.arange(len(circles.ids)) + 1.0
        rows.write(flat, rows.rectangle(numbered))
        assert set(flat) <= {0.0, *numbered}
        assert (rows.rectangle(numbered)[~rows.members] == 0).all()


@pytest.mark.parametrize("classes", [1, 10, 100])
@pytest.mark.parametrize("form", FORMS)
def test_similarities_are_those_of_heads_and_exact_in_whatever_way(form: Any, classes: int) -> None:
    torch.manual_seed(classes)
    heads = torch.randn(30, classes, 70) + torch.randn(classes, 70)
    heads[3], heads[4, 0], heads[5] = 0, 0, 1e-6 * heads[6]
    mine = torch.arange(0, 30, 2)
    starts = torch.arange(0, 15 * 30 + 1, 30)
    dense = similarities(heads, mine, (starts, torch.arange(30).repeat(15)), form)
    expected = torch.stack([head_similarity(heads[i].double(), heads.double(), form) for i in mine.tolist()])
    torch.testing.assert_close(dense.view(15, 30), expected, rtol=0, atol=1e-6)
    few = torch.arange(0, 30, 29)  # one pair in fifteen, and then again by the third way
    pairs = torch.arange(0, 31, 2), few.repeat(15)
    assert torch.equal(similarities(heads, mine, pairs, form).view(15, 2), dense.view(15, 30)[:, few])
    part = (heads.flatten(1) * 2**10).round().double()
    sampled = _add_sampled(torch.zeros(30, dtype=torch.float64), part, mine, pairs)
    gathered = torch.zeros(30, dtype=torch.float64)
    _add_gathered(gathered, part, mine, pairs)
    assert torch.equal(sampled, gathered)


@pytest.mark.parametrize("width", [1, 2, 11, 16, 128, 1024])
@pytest.mark.parametrize("form", FORMS)
def test_a_row_learns_the_same_bits_in_any_company(form: Any, width: int) -> None:
    draw = torch.Generator().manual_seed(width)
    weights, similarity, confidence = torch.rand(3, 50, width, generator=draw, dtype=torch.float64)
    weights /= weights.sum(dim=1, keepdim=True)
    members = torch.rand(50, width, generator=draw) < 0.7
    me = torch.randint(0, width, (50,), generator=draw)
    settings = GraphSettings(form=form, steps=2, step_size=0.02)

    def learned(some: slice) -> Tensor:
        return learn_rows(weights[some], me[some], similarity[some], confidence[some], members[some], settings)

    together = learned(slice(0, 50))
    torch.testing.assert_close(together.sum(dim=1), torch.ones(50, dtype=torch.float64))
    for size in SIZES:
        parts = [learned(slice(first, first + size)) for first in range(0, 50, size)]
        assert torch.equal(torch.cat(parts), together), size


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("narrow", [64, 8], ids=["rows on the CPU", "wide rows on the GPU"])
@pytest.mark.parametrize("density", [0.1, 1.5], ids=["sparse", "dense"])
def test_on_a_gpu_it_is_the_same_but_for_rounding(monkeypatch: pytest.MonkeyPatch, density: float, narrow: int) -> None:
    monkeypatch.setattr("mapl.methods.mapl.NARROW", narrow)
    method = Mapl(MaplSettings(warmup=1, graph=GraphSettings(form="paper", step_size=0.02)))
    results = []
    for device in ("cpu", "cuda"):
        clients = crowd(method, 50)
        for client in clients:
            client.model.to(device)
        for t in range(3):
            inboxes = delivered(method, clients, t, density)
            method.absorb_all(t, [(c, inboxes[c.id]) for c in clients])
        results.append({key: tensor.cpu() for key, tensor in tensors(clients).items()})
    for key, tensor in results[1].items():
        torch.testing.assert_close(tensor, results[0][key], rtol=1e-4, atol=1e-6, msg=key)
