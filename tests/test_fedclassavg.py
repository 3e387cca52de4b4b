"""FedClassAvg: its three terms, by hand."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from conftest import small
from mapl.methods.fedclassavg import raw_contrastive
from mapl.runs.part import build_part
from mapl.runs.round import play_round


def original(embedding: Tensor, labels: Tensor, temperature: float) -> float:
    """−(τ/0.07) · mean_q 1/|P(q)| Σ_{r ∈ P(q)} log( e^{z_q·z_r/τ} / Σ_{m≠q} e^{z_q·z_m/τ} )."""
    z, y = embedding.double().tolist(), labels.tolist()
    dot = [[sum(a * b for a, b in zip(p, q, strict=True)) / temperature for q in z] for p in z]
    total = 0.0
    for q in range(len(y)):
        others = [m for m in range(len(y)) if m != q]
        positives = [r for r in others if y[r] == y[q]]
        below = math.log(sum(math.exp(dot[q][m]) for m in others))
        if positives:
            total += sum(dot[q][r] - below for r in positives) / len(positives)
    return -temperature / 0.07 * total / len(y)


def port(embedding: Tensor, labels: Tensor, temperature: float) -> float:
    """−mean_q log( Σ_{r ∈ P(q)} e^{cos/τ} / Σ_{m≠q} e^{cos/τ} )."""
    z, y = normalize(embedding.double()), labels.tolist()
    e = torch.exp(z @ z.T / temperature).tolist()
    total = 0.0
    for q in range(len(y)):
        positives = sum(e[q][r] for r in range(len(y)) if r != q and y[r] == y[q])
        if positives:
            total += math.log(positives / (sum(e[q]) - e[q][q]))
    return -total / len(y)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=9), st.sampled_from([0.5, 100.0]), st.integers(0, 9))
def test_the_original_contrast_by_loops(labels, temperature, seed):
    embedding = torch.randn(len(labels), 5, generator=torch.Generator().manual_seed(seed)).double().requires_grad_()
    loss = raw_contrastive(embedding, torch.tensor(labels), temperature)
    assert float(loss.detach()) == pytest.approx(
        original(embedding.detach(), torch.tensor(labels), temperature), rel=1e-9, abs=1e-9
    )
    loss.backward()
    assert embedding.grad.isfinite().all()


@pytest.mark.parametrize("embedding", [torch.zeros(4, 3), torch.full((4, 3), 1e3), torch.eye(4)[:, :3] * -1e3], ids=str)
def test_the_original_contrast_has_finite_gradients_where_embeddings_are_zero_equal_or_long(embedding):
    embedding = embedding.clone().requires_grad_()
    loss = raw_contrastive(embedding, torch.tensor([0, 0, 1, 2]), 100.0)
    loss.backward()
    assert loss.isfinite()
    assert embedding.grad.isfinite().all()


@pytest.mark.parametrize(("contrast", "by_hand"), [("port", port), ("original", original)])
def test_the_terms(contrast, by_hand):
    """Contrast over both views, cross-entropy of the first alone, and the pull of the head to where it started."""
    settings = {"contrast": contrast, "mu": 0.6, "temperature": 2.0}
    part = build_part(small("fedclassavg", method=settings))
    client = part.clients[1]
    start = {name: tensor + 0.1 * torch.randn(tensor.shape) for name, tensor in client.model.head.state_dict().items()}
    for name, tensor in start.items():
        client.state[f"start.{name}"].copy_(tensor)
    images, labels = torch.rand(10, 1, 8, 8), torch.tensor([0, 1, 1, 2, 4]).repeat(2)
    embedding = copy.deepcopy(client.model).embed(images).detach()
    terms = part.method.loss(client, images, labels)
    assert set(terms) == {"cross_entropy", "contrastive", "proximity"}
    assert float(terms["contrastive"].detach()) == pytest.approx(by_hand(embedding, labels, 2.0), rel=1e-4)
    logits = client.model.head(torch.relu(embedding))
    assert torch.allclose(terms["cross_entropy"], cross_entropy(logits[:5], labels[:5]))
    assert not torch.allclose(terms["cross_entropy"], cross_entropy(logits, labels))
    head = {name: tensor.double() for name, tensor in client.model.head.state_dict().items()}
    pull = sum(float(((head[name] - start[name]) ** 2).mean()) for name in ("weight", "bias"))
    assert float(terms["proximity"].detach()) == pytest.approx(0.6 / 2 * pull, rel=1e-4)
    torch.stack(list(terms.values())).sum().backward()
    slopes = [p.grad for part in (client.model.backbone, client.model.head) for p in part.parameters()]
    assert all(slope is not None and slope.isfinite().all() for slope in slopes)


def test_the_head_is_pulled_to_where_it_was_when_the_round_began():
    """So the term is zero in the first batch of a round, after the server's head was loaded, and not in later ones."""
    over: dict[str, Any] = {"train": {"batch": 5, "epochs": 2, "learning_rate": 0.01}}
    part = build_part(small("fedclassavg", **over))
    loss, pulls = part.method.loss, []

    def watched(client, images, labels):
        terms = loss(client, images, labels)
        if client.id == 2:
            pulls.append(float(terms["proximity"].detach()))
        return terms

    part.method.loss = watched
    for t in range(3):
        pulls.clear()
        before = {name: tensor.clone() for name, tensor in part.clients[2].model.head.state_dict().items()}
        play_round(part, t)
        assert len(pulls) == 4  # two epochs of two batches
        assert pulls[0] == 0
        assert min(pulls[1:]) > 0
        for name, tensor in before.items():
            assert torch.equal(part.clients[2].state[f"start.{name}"], tensor)


def test_it_sees_two_contrastive_views():
    part = build_part(small("fedclassavg", train={"batch": 4}))
    assert part.engine.draw(part.clients[0], 0).uniforms.shape[1] == 8
    assert part.engine.augmentation.settings == part.recipe.augment.contrastive
