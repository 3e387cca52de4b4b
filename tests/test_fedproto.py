"""FedProto: class means of embeddings go to a server, and embeddings are drawn to the means that come back."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from conftest import play, small
from mapl import Client
from mapl.runs.part import Part, build_part
from mapl.runs.round import play_round

UNEQUAL: dict[str, Any] = {"partition": {"scenario": 4, "shots_range": [1, 7]}, "train": {"batch": 4}}


def sent(part: Part, i: int) -> dict[str, Tensor]:
    return dict(part.method.letter(part.clients[i], 0).tensors)


# Loss


def given(client: Client, known: list[int]) -> None:
    """Prototypes of those classes, as if they had come from the server."""
    client.state["prototypes"].copy_(torch.rand(10, 12, generator=torch.Generator().manual_seed(3)))
    client.state["known"].copy_(torch.tensor([float(k in known) for k in range(10)]))


@pytest.mark.parametrize("strength", [0.1, 2.0])
@pytest.mark.parametrize("known", [list(range(10)), [1, 4], []])
def test_the_loss_is_the_mean_square_distance_to_the_prototype_of_the_class_and_0_without_one(strength, known):
    part = build_part(small("fedproto", method={"strength": strength}))
    client = part.clients[1]
    given(client, known)
    images, labels = torch.rand(6, 1, 8, 8), torch.tensor([1, 4, 4, 0, 9, 1])
    embedding = copy.deepcopy(client.model).embed(images).detach()
    terms = {name: term.detach() for name, term in part.method.loss(client, images, labels).items()}
    total = 0.0
    for z, label in zip(embedding.double(), labels.tolist(), strict=True):
        if label in known:
            total += (
                sum((float(a) - float(b)) ** 2 for a, b in zip(z, client.state["prototypes"][label], strict=True)) / 12
            )
    assert float(terms["prototype"]) == pytest.approx(strength * total / 6, rel=1e-4)
    logits = client.model.head(torch.relu(embedding))
    assert torch.allclose(terms["cross_entropy"], cross_entropy(logits, labels))
    assert set(terms) == {"cross_entropy", "prototype"}


def test_a_class_without_a_prototype_pulls_at_nothing():
    part = build_part(small("fedproto"))
    client = part.clients[0]
    given(client, [1])
    for labels, pulled in ((torch.tensor([2, 3, 2]), False), (torch.tensor([1, 3, 2]), True)):
        client.model.zero_grad()
        part.method.loss(client, torch.rand(3, 1, 8, 8), labels)["prototype"].backward()
        slopes = [p.grad for p in client.model.backbone.parameters()]
        assert any(bool(slope.any()) for slope in slopes) is pulled
        assert all(bool(slope.isfinite().all()) for slope in slopes)
    assert client.model.head.weight.grad is None or not client.model.head.weight.grad.any()


# What a client says


def watched(part: Part, client: Client) -> list[Tensor]:
    """The embeddings of every training step, as they are made."""
    seen: list[Tensor] = []
    client.model.backbone.register_forward_hook(lambda module, args, output: seen.append(output.detach().double()))
    return seen


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("average", ["clients", "samples"])
def test_a_prototype_is_the_mean_embedding_of_the_last_local_epoch(epochs, average):
    over = {**UNEQUAL, "train": {"batch": 4, "epochs": epochs}}
    part = build_part(small("fedproto", **over, method={"average": average}))
    for client in part.clients:
        seen = watched(part, client)
        for t in range(2):
            seen.clear()
            part.engine.train(client, t)
            batches = part.engine.draw(client, t).batches
            steps = len(batches) // epochs
            assert len(seen) == len(batches)
            embeddings = torch.cat(seen[-steps:])
            labels = client.train.labels[batches[-steps:].flatten()]
            letter = sent(part, client.id)
            for k in range(10):
                rows = embeddings[labels == k]
                held = len(rows) if average == "samples" else min(len(rows), 1)
                mean = rows.mean(0) if len(rows) else torch.zeros(12, dtype=torch.float64)
                assert int(letter["held"][k]) == held
                assert torch.allclose(letter["prototypes"][k].double(), mean, atol=1e-5)


# What the server makes of it


@pytest.mark.parametrize("average", ["clients", "samples"])
def test_a_global_prototype_is_the_mean_over_the_clients_or_the_samples_that_have_the_class(average):
    part = build_part(small("fedproto", **UNEQUAL, method={"average": average}))
    for client in part.clients:
        part.engine.train(client, 0)
    letters = [sent(part, i) for i in range(4)]
    # Played again from the start, so that the letters are those of the round.
    part = play(small("fedproto", **UNEQUAL, method={"average": average}), rounds=1)
    shared = 0
    for k in range(10):
        held = [int(letter["held"][k]) for letter in letters]
        shared += len(set(held) - {0}) > 1
        if sum(held):
            expected = sum(h * letter["prototypes"][k].double() for h, letter in zip(held, letters, strict=True)) / sum(
                held
            )
        else:
            expected = torch.zeros(12, dtype=torch.float64)
        for client in part.clients:
            assert torch.allclose(client.state["prototypes"][k].double(), expected, atol=1e-5)
            assert client.state["known"][k] == (sum(held) > 0)
    assert (shared > 0) == (average == "samples")  # unequal counts, or the two averages could not be told apart


def test_a_client_learns_prototypes_of_classes_that_it_has_not():
    part = play(small("fedproto"), rounds=1)
    for client in part.clients:
        assert len(client.train.labels.unique()) == 5
        assert client.state["known"].tolist() == [1] * 10


def test_a_class_that_nobody_met_this_round_has_no_prototype():
    """A short last batch is dropped, so a class may go unseen."""
    part = build_part(small("fedproto"))
    for client in part.clients:
        part.engine.train(client, 0)
        client.state["sums"][3], client.state["counts"][3] = 0, 0
    part.engine.train = lambda client, round: {"cross_entropy": 0.0}  # type: ignore[method-assign]
    play_round(part, 0)
    for client in part.clients:
        assert client.state["known"].tolist() == [float(k != 3) for k in range(10)]
        assert not client.state["prototypes"][3].any()
        assert client.state["prototypes"].isfinite().all()


# Inference


def test_inference_by_the_nearest_prototype_that_is_known():
    part = build_part(small("fedproto", method={"inference": "prototype"}))
    client = part.clients[0]
    embedding = torch.rand(40, 12, generator=torch.Generator().manual_seed(1))
    assert torch.equal(part.method.scores(client, {"backbone": embedding}), client.model.classify(embedding))
    given(client, [0, 2, 5, 9])
    guessed = part.method.scores(client, {"backbone": embedding}).argmax(1).tolist()
    prototypes = client.state["prototypes"].double()
    nearest = [
        min((0, 2, 5, 9), key=lambda k: math.dist(z.tolist(), prototypes[k].tolist())) for z in embedding.double()
    ]
    assert guessed == nearest
    assert len(set(guessed)) == 4


def test_inference_by_the_head_does_not_look_at_prototypes():
    part = build_part(small("fedproto"))
    client = part.clients[0]
    given(client, list(range(10)))
    embedding = torch.rand(5, 12)
    assert torch.equal(part.method.scores(client, {"backbone": embedding}), client.model.classify(embedding))


def test_the_kind_of_inference_changes_what_is_tested_and_nothing_else():
    rounds = {kind: play(small("fedproto", method={"inference": kind})).lines for kind in ("head", "prototype")}
    assert [line.losses for line in rounds["head"]] == [line.losses for line in rounds["prototype"]]
    assert [line.accuracy for line in rounds["head"]] != [line.accuracy for line in rounds["prototype"]]
