"""How each baseline averages: against sums in float64 over what the clients had before the exchange."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import inboxes_of, row_of, small
from mapl.methods.pfedsim import personal_weights
from mapl.runs.part import Part, build_part
from mapl.runs.round import play_round

# Four clients of one architecture (with batch normalisation) and with different numbers of images and of batches.
UNEQUAL: dict[str, Any] = {
    "model": {"backbones": ["cnn"]},
    "partition": {"scenario": 3, "shots_range": [1, 9]},
    "train": {"batch": 4},
}
Snapshot = list[dict[str, Tensor]]


def prepared(name: str, /, **over: Any) -> Part:
    """A part that has trained one round, so that there is something to share, and whose models differ a lot."""
    part = build_part(small(name, **{**UNEQUAL, **over}))
    for client in part.clients:
        part.engine.train(client, 0)
        draw = torch.Generator().manual_seed(client.id)
        for name, tensor in client.model.state_dict().items():
            if tensor.is_floating_point():
                centre = client.id if name.startswith(("backbone", "head.bias")) else 0
                tensor.copy_(torch.rand(tensor.shape, generator=draw) - 0.1 + centre)
            else:
                tensor.fill_(10 + client.id)
    return part


def snapshot(part: Part) -> Snapshot:
    return [{k: v.clone() for k, v in c.model.state_dict().items()} for c in part.clients]


def swap(part: Part, round: int) -> None:
    """The exchange of a round, without its training."""
    for client, inbox in inboxes_of(part, round):
        part.method.absorb(client, round, inbox)


def assert_mixed(part: Part, before: Snapshot, rows: Sequence[Sequence[float]], parts: tuple[str, ...]) -> None:
    """Tensors of `parts` are Σ_j rows[i][j] · (what client j had); all others, and all counters, are as they were."""
    assert all(math.isclose(sum(row), 1) for row in rows)
    for client, row in zip(part.clients, rows, strict=True):
        for name, tensor in client.model.state_dict().items():
            if name.startswith(parts) and tensor.is_floating_point():
                expected = sum(w * had[name].double() for w, had in zip(row, before, strict=True))
                assert torch.allclose(tensor.double(), expected, rtol=1e-5, atol=1e-5), name
            else:
                assert torch.equal(tensor, before[client.id][name]), name
    mixed = [name for name in before[0] if name.startswith(parts)]
    assert ("backbone" in parts) == any(name.endswith("running_var") for name in mixed)
    assert ("backbone" in parts) == any(name.endswith("num_batches_tracked") for name in mixed)


def by_samples(part: Part) -> list[float]:
    samples = [len(c.train) for c in part.clients]
    assert len(set(samples)) == 4
    return [n / sum(samples) for n in samples]


def by_batches(part: Part) -> list[float]:
    batches = [len(c.train) // 4 for c in part.clients]
    assert [b / sum(batches) for b in batches] != by_samples(part)
    return [b / sum(batches) for b in batches]


WHOLE, HEAD, BACKBONE = ("backbone", "head"), ("head",), ("backbone",)


@pytest.mark.parametrize(
    ("method", "settings", "weights", "parts"),
    [
        pytest.param("fedavg", {}, by_samples, WHOLE, id="fedavg"),
        pytest.param("fedsim", {}, by_batches, HEAD, id="fedsim"),
        pytest.param("fedclassavg", {"contrast": "port"}, by_samples, HEAD, id="fedclassavg-port"),
        pytest.param("fedclassavg", {"contrast": "original"}, by_samples, HEAD, id="fedclassavg-original"),
        pytest.param("pfedsim", {"warmup": 4}, by_samples, WHOLE, id="pfedsim-warm-up"),
    ],
)
@pytest.mark.parametrize("round", [0, 3])
def test_one_average_for_all(method, settings, weights, parts, round):
    part = prepared(method, method=settings)
    before = snapshot(part)
    swap(part, round)
    assert_mixed(part, before, [weights(part)] * 4, parts)


def test_fedsim_counts_the_batches_of_its_epochs():
    """Twice the epochs are twice the batches of everybody: the weights are the same."""
    part = prepared("fedsim", train={"batch": 4, "epochs": 2})
    before = snapshot(part)
    swap(part, 0)
    assert_mixed(part, before, [by_batches(part)] * 4, HEAD)


# pFedSim


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


def pfedsim_rows(before: Snapshot) -> list[list[float]]:
    """ω_ij ∝ −ln(1 − φ_ij) with φ_ij = max(0, mean over classes of the cosine of rows), φ_ii = 0.9999."""
    heads = [had["head.weight"].double() for had in before]
    rows = []
    for i, mine in enumerate(heads):
        similarity = [
            0.9999 if i == j else max(0.0, sum(cosine(a, b) for a, b in zip(mine, other, strict=True)) / len(mine))
            for j, other in enumerate(heads)
        ]
        logs = [-math.log(1 - s) for s in similarity]
        rows.append([value / sum(logs) for value in logs])
    return rows


@pytest.mark.parametrize("round", [2, 5])
def test_pfedsim_mixes_backbones_by_the_similarity_of_heads_and_leaves_heads_at_home(round):
    part = prepared("pfedsim", method={"warmup": 2})
    before = snapshot(part)
    rows = pfedsim_rows(before)
    assert all(row[i] < 0.9 for i, row in enumerate(rows))  # or it would say little about the others' share
    assert len({f"{w:.6f}" for row in rows for w in row}) > 4
    swap(part, round)
    assert_mixed(part, before, rows, BACKBONE)


def test_pfedsim_mixes_those_who_are_there():
    part = prepared("pfedsim", method={"warmup": 0})
    part.method.wants = lambda client, round: client.neighbours[: 0 if client.id == 1 else None]
    before = snapshot(part)
    rows = [[*row[:1], 0.0, *row[1:]] for row in pfedsim_rows([before[0], *before[2:]])]
    swap(part, 0)
    assert_mixed(part, before, [rows[0], [0, 1, 0, 0], *rows[1:]], BACKBONE)


def test_pfedsim_gives_nothing_to_heads_that_point_elsewhere_and_survives_equal_ones():
    one = torch.rand(10, 12)
    weights = personal_weights(torch.stack([one, -one, one.clone()]))
    assert torch.allclose(weights, torch.tensor([[0.5, 0, 0.5], [0, 1, 0], [0.5, 0, 0.5]], dtype=torch.float64))
    assert torch.equal(personal_weights(torch.zeros(2, 10, 12)), torch.eye(2, dtype=torch.float64))


# DFedAvgM


def star(clients: int, round: int, settings: object, seed: int) -> list[tuple[int, int]]:
    """Client 0 in the middle, and 2 and 3 know each other."""
    return [(0, 1), (0, 2), (0, 3), (2, 3)]


def comes_and_goes(clients: int, round: int, settings: object, seed: int) -> list[tuple[int, int]]:
    """A line, then client 3 alone, then everybody."""
    return [[(0, 1), (1, 2), (2, 3)], [(0, 1), (0, 2)], []][round % 3]


def metropolis(part: Part, round: int) -> list[list[float]]:
    """w_ij = 1 / (1 + max(d_i, d_j)) for neighbours, and what is left for itself."""
    near = [set(part.topology.neighbours(round, i).tolist()) for i in range(4)]
    rows = [[1 / (1 + max(len(near[i]), len(near[j]))) if j in near[i] else 0 for j in range(4)] for i in range(4)]
    for i, row in enumerate(rows):
        row[i] = 1 - sum(row)
    return rows


def matrix(part: Part) -> Tensor:
    assert all(part.method.weights(c) is c.peers for c in part.clients)
    return torch.stack([row_of(c, 4) for c in part.clients])


@pytest.mark.parametrize("topology", ["full", "ring", "test_baselines:star", "none"])
def test_dfedavgm_mixes_whole_models_with_metropolis_hastings_weights(topology):
    part = prepared("dfedavgm", network={"topology": {"name": topology}})
    before = snapshot(part)
    swap(part, 0)
    rows = metropolis(part, 0)
    if topology == "full":
        assert rows == [[0.25] * 4] * 4
    if topology.endswith("star"):
        assert len({row[i] for i, row in enumerate(rows)}) == 3  # 1/4, 3/4 and 1 − 1/4 − 1/3
    assert_mixed(part, before, rows, WHOLE)
    weights = matrix(part)
    assert torch.allclose(weights, torch.tensor(rows, dtype=torch.float64))
    assert torch.allclose(weights, weights.T)
    assert torch.allclose(weights.sum(0), torch.ones(4, dtype=torch.float64))
    assert torch.allclose(weights.sum(1), torch.ones(4, dtype=torch.float64))


def test_dfedavgm_keeps_the_mean_of_all_models():
    """What a doubly stochastic matrix is for."""
    part = prepared("dfedavgm", network={"topology": {"name": "test_baselines:star"}})
    means = [sum(had[k].double() for had in snapshot(part)) / 4 for k in ("backbone.0.0.weight", "head.bias")]
    for t in range(3):
        swap(part, t)
    after = [sum(had[k].double() for had in snapshot(part)) / 4 for k in ("backbone.0.0.weight", "head.bias")]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(means, after, strict=True))


def test_dfedavgm_on_a_topology_that_changes_records_the_matrix_of_each_round():
    """A client that nobody reaches in a round mixes with nobody, whatever its row was before."""
    topology = {"name": "test_baselines:comes_and_goes", "every": 1}
    part = build_part(small("dfedavgm", **UNEQUAL, network={"topology": topology}))
    messages = []
    for t in range(3):
        messages.append(play_round(part, t)[0].messages)
        assert torch.allclose(matrix(part), torch.tensor(metropolis(part, t), dtype=torch.float64))
    assert torch.equal(matrix(part), torch.eye(4, dtype=torch.float64))
    assert messages == [6, 4, 0]


def test_dfedavgm_trains_by_heavy_ball_momentum_that_starts_anew_each_round():
    """v ← 0.9 v + g, x ← x − η v, with v = 0 at the beginning of a round (its paper's update)."""
    train = {"optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.05, "batch": 4}
    alone = {"network": {"topology": {"name": "none"}}}
    part = build_part(small("dfedavgm", **{**UNEQUAL, "train": train}, **alone))
    client = part.clients[0]
    weight = client.model.head.weight
    path, slopes = [weight.detach().double().clone()], []
    weight.register_hook(lambda grad: slopes.append(grad.double().clone()))
    for t in range(2):
        part.engine.train(client, t)
        steps = len(slopes) // (t + 1)
        expected, velocity = path[-1], torch.zeros_like(path[-1])
        for slope in slopes[-steps:]:
            velocity = 0.9 * velocity + slope
            expected = expected - 0.05 * velocity
        assert steps > 2
        assert torch.allclose(weight.double(), expected, atol=1e-6)
        path.append(weight.detach().double().clone())
