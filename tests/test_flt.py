"""FLT: who is related to whom, found once from what the clients wrote, and averages over relations ever after.

One test has the real UMAP, the others conftest's stand-in.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import mapl
import mapl.methods._encoder as encoders
import mapl.methods.flt as flt
from conftest import REAL_PLANE, deliver, inboxes_of, play, small
from mapl import Letter, MaplError
from mapl.client import Server
from mapl.model import Shapes
from mapl.network import MemoryPost
from mapl.runs.part import Part, build_part

OVER: dict[str, Any] = {"model": {"backbones": ["cnn"]}, "partition": {"scenario": 3, "shots_range": [2, 6]}}
LATENT = 6


def recipe(**settings: Any) -> mapl.Recipe:
    return small("flt", **OVER, method={"latent": LATENT, "encoder_epochs": 1, **settings})


def written(monkeypatch) -> list[Letter]:
    """Every letter that is delivered from now on."""
    seen: list[Letter] = []
    exchange = MemoryPost.exchange

    def watched(self, mail):
        seen.extend([*mail.letters.values(), *mail.personal.values()])
        return exchange(self, mail)

    monkeypatch.setattr(MemoryPost, "exchange", watched)
    return seen


def brute_force(a: np.ndarray, b: np.ndarray) -> float:
    """√(Σ‖·‖²) / K of the best of all ways to match the fewer points with as many of the others."""
    few, many = sorted((a.tolist(), b.tolist()), key=len)
    costs = [
        sum(math.dist(p, q) ** 2 for p, q in zip(few, chosen, strict=True))
        for chosen in itertools.permutations(many, len(few))
    ]
    return math.sqrt(min(costs)) / len(few)


coordinate = st.floats(-10, 10, width=16)
points = st.lists(st.tuples(coordinate, coordinate), min_size=1, max_size=4)


@given(st.lists(points, min_size=1, max_size=4))
def test_the_distance_of_two_clients_is_that_of_the_best_matching_of_their_centres(groups):
    arrays = [np.array(group) for group in groups]
    found = flt.distances(arrays)
    for i, j in itertools.product(range(len(arrays)), repeat=2):
        expected = brute_force(arrays[i], arrays[j]) if i != j else 0
        assert found[i, j] == pytest.approx(expected, abs=1e-9)


# The opening


def test_a_client_answers_with_the_centres_of_its_encoded_images(monkeypatch):
    """k-means: each centre is the mean of the codes that are nearer to it than to any other."""
    seen = written(monkeypatch)
    part = play(recipe(), rounds=1)
    opening, answers = seen[0], seen[1:5]
    assert set(opening.tensors) == {"encoder"}
    for client, answer in zip(part.clients, answers, strict=True):
        codes = encode(opening.tensors["encoder"], client.train.pixels.double().flatten(1) / 255)
        count = int(answer.tensors["count"])
        assert count == len(client.train.labels.unique()) == 5
        centres = answer.tensors["centres"][:count].double()
        assert not answer.tensors["centres"][count:].any()
        nearest = torch.cdist(codes, centres).argmin(1)
        for k in range(count):
            assert torch.allclose(codes[nearest == k].mean(0), centres[k], atol=1e-4)


def encode(vector: Tensor, pixels: Tensor) -> Tensor:
    """Two layers with a ReLU between, from the letter's one vector."""
    first, bias, second, last = torch.split(vector.double(), [256 * 64, 256, LATENT * 256, LATENT])
    hidden = torch.relu(pixels @ first.view(256, 64).T + bias)
    return hidden @ second.view(LATENT, 256).T + last


def test_relations_come_from_letters_alone(monkeypatch):
    seen = written(monkeypatch)
    play(recipe(), rounds=1)
    centres = [a.tensors["centres"][: int(a.tensors["count"]), :2].numpy().astype(float) for a in seen[1:5]]
    distance = {(i, j): brute_force(centres[i], centres[j]) for i, j in itertools.combinations(range(4), 2)}
    # Half of the pairs are below this, half above.
    threshold = sum(sorted(distance.values())[2:4]) / 2
    related = [[i == j or distance[min(i, j), max(i, j)] < threshold for j in range(4)] for i in range(4)]
    part = play(recipe(threshold=threshold), rounds=1)
    assert part.server.state["related"].tolist() == related
    # And again from the letters, in a part whose clients have lost their images.
    other = build_part(recipe(threshold=threshold))
    for client in other.clients:
        client.train.pixels.zero_()
    letters = {letter.sender: letter for letter in seen[1:5]}
    inbox = deliver(letters, {4: torch.arange(4)})[4]
    other.method.settle(other.server, inbox)
    assert other.server.state["related"].tolist() == related


def test_who_does_not_answer_is_related_to_itself_alone():
    part = build_part(recipe(threshold=1e9))
    without(part, 1)
    assert relations(part).int().tolist() == [[1, 0, 1, 1], [0, 1, 0, 0], [1, 0, 1, 1], [1, 0, 1, 1]]


def test_clients_may_have_different_numbers_of_classes():
    over = {**OVER, "partition": {"scenario": 2, "clusters": 3, "overlap": 2, "shots": 3}}
    part = play(small("flt", **over, clients=6, method={"latent": LATENT, "encoder_epochs": 1}), rounds=1)
    assert len({len(c.train.labels.unique()) for c in part.clients}) > 1
    related = part.server.state["related"]
    assert torch.equal(related, related.T)
    assert related.diagonal().all()


# The average


def without(part: Part, absent: int) -> None:
    """That client stays away (-1: nobody does)."""
    part.method.wants = lambda client, round: client.neighbours[: 0 if client.id == absent else None]


@pytest.mark.parametrize("absent", [-1, 1])
def test_each_client_gets_the_average_of_its_relations_weighted_by_samples(absent):
    part = build_part(recipe())
    without(part, absent)
    for client in part.clients:
        for tensor in client.model.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape) + client.id)
            else:
                tensor.fill_(10 + client.id)
    before = [{k: v.clone() for k, v in c.model.state_dict().items()} for c in part.clients]
    related = [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]]
    part.server.state["clients"] = torch.arange(4)
    part.server.state["related"] = torch.tensor(related, dtype=torch.bool)
    samples = [len(c.train) for c in part.clients]
    assert len(set(samples)) > 2
    for client, inbox in inboxes_of(part, 1):
        part.method.absorb(client, 1, inbox)
    assert part.ledger.messages == (8 if absent < 0 else 6)  # no opening in a later round
    for i, client in enumerate(part.clients):
        if i == absent:
            related[i] = [int(i == j) for j in range(4)]
        elif absent >= 0:
            related[i][absent] = 0
        total = sum(r * n for r, n in zip(related[i], samples, strict=True))
        for name, tensor in client.model.state_dict().items():
            if name.startswith(("backbone", "head")) and tensor.is_floating_point():
                parts = zip(related[i], samples, before, strict=True)
                expected = sum(r * n * had[name].double() for r, n, had in parts) / total
                assert torch.allclose(tensor.double(), expected, rtol=1e-5), name
            else:
                assert torch.equal(tensor, before[i][name]), name


# The encoder


def server(image: tuple[int, int, int], seed: int) -> Server:
    return Server(id=4, run="0" * 16, seed=seed, shape=image, shapes=Shapes(10, 12, 0), data_folder=None)


@pytest.mark.parametrize(("source", "image"), [("synthetic", (3, 6, 6)), ("digits", (1, 8, 8))])
def test_training_the_encoder_lowers_the_error_of_reconstruction(source, image, monkeypatch):
    errors, mse = [], encoders.mse_loss

    def watched(made, images):
        errors.append(mse(made, images))
        return errors[-1]

    monkeypatch.setattr(encoders, "mse_loss", watched)
    encoders.trained_encoder(server(image, seed=1), 8, source, epochs=8)
    drawn = source == "synthetic"
    images = encoders.synthetic(image, torch.Generator()) if drawn else encoders.published(source, image, None)
    blank = float((images - images.mean(0)).square().mean())  # what the mean image is wrong by
    epoch = len(errors) // 8
    last = float(torch.stack(errors[-epoch:]).mean().detach())
    assert last < 0.8 * blank
    assert last < 0.5 * float(errors[0].detach())


def test_the_encoder_is_a_function_of_its_seed_and_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    encoded = [encoders.trained_encoder(server((1, 4, 4), seed), 3, "synthetic", 1) for seed in (1, 1, 2)]
    made = [torch.cat([p.detach().flatten() for p in one.parameters()]) for one in encoded]
    after = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), after)
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


@pytest.mark.parametrize("image", [(1, 8, 8), (3, 8, 8), (3, 12, 10), (2, 5, 5)])
def test_published_images_take_the_size_and_the_channels_at_hand(image):
    images = encoders.published("digits", image, None)
    assert images.shape == (1198, *image)
    assert 0 <= float(images.min()) < float(images.max()) <= 1
    assert torch.equal(images[:, 0], images[:, -1])


def test_the_encoder_may_be_trained_on_a_data_set_by_name():
    made = [play(recipe(encoder_data=source), rounds=1).server.state["related"] for source in ("synthetic", "digits")]
    assert all(related.diagonal().all() for related in made)


# What is refused


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "method 'flt' needs UMAP, which is not installed: pip install 'mapl[flt]'"),
        ({"encoder_data": "digit"}, "unknown data set 'digit'; known: "),
    ],
)
def test_what_the_opening_lacks_is_said_before_anything_is_trained_or_written(
    settings, sentence, monkeypatch, tmp_path
):
    monkeypatch.setitem(sys.modules, "umap", None if not settings else sys)
    with pytest.raises(MaplError, match=re.escape(sentence)):
        mapl.run(recipe(**settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("few", [1, 2])
def test_a_plane_takes_three_centres(few):
    with pytest.raises(
        MaplError, match=f"takes 3 or more, but there are {few}: it needs more clients, or clients with"
    ):
        REAL_PLANE(np.zeros((few, 4)), 1)


# The real one


def relations(part: Part) -> Tensor:
    inboxes_of(part, 0)
    return part.method.related(part.server, torch.arange(len(part.clients)))


@pytest.mark.slow
def test_with_the_real_umap(monkeypatch):
    """The two clusters are told apart, again and again; and a handful of centres is enough."""
    monkeypatch.setattr(flt, "_plane", REAL_PLANE)
    over: dict[str, Any] = {"model": {"backbones": ["mlp"]}, "partition": {"shots": 30}, "clients": 6}
    made = small("flt", **over, method={"encoder_data": "digits", "latent": 32, "threshold": 0.4})
    threads = torch.get_num_threads()
    first, second = relations(build_part(made)), relations(build_part(made))
    assert torch.get_num_threads() == threads == 1
    assert torch.equal(first, second)
    assert torch.equal(first, first.T)
    same = torch.tensor([[i // 3 == j // 3 for j in range(6)] for i in range(6)])
    assert first[same].double().mean() > 0.5 > first[~same].double().mean()
    for few in (3, 5, 9, 10, 12):
        plane = flt._plane(np.random.default_rng(0).random((few, 4)), 1)
        assert plane.shape == (few, 2)
        assert np.isfinite(plane).all()
