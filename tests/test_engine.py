"""Local training is a function of (seed, client, round): never of the order, the place or the past of anything else."""

from __future__ import annotations

import threading
from typing import ClassVar

import pytest
import torch
from torch import nn

from conftest import assert_same, parameters, play, small
from mapl import MaplError
from mapl.engine import channels_last
from mapl.engine.eager import make_optimizer
from mapl.engine.workers import never_draws, side_by_side
from mapl.methods.mapl import Mapl
from mapl.model import find_backbone
from mapl.recipe import merge
from mapl.runs.part import Part, build_part, given_in_python
from mapl.runs.round import play_round


def world_of(**over) -> Part:
    return build_part(small(**over))


def test_draws_are_those_of_seed_client_and_round_alone():
    part, other_seed = world_of(), world_of(seed=1)
    first = part.engine.draw(part.clients[1], 4)
    part.engine.train(part.clients[0], 0)
    torch.manual_seed(99)
    again = part.engine.draw(part.clients[1], 4)
    assert torch.equal(first.batches, again.batches)
    assert torch.equal(first.uniforms, again.uniforms)
    for engine, client, round in ((part.engine, 1, 5), (part.engine, 2, 4), (other_seed.engine, 1, 4)):
        different = engine.draw(part.clients[client], round)
        assert not torch.equal(different.batches, first.batches)
        assert not torch.equal(different.uniforms, first.uniforms)


def test_views_and_epochs_have_draws_of_their_own():
    part = world_of(train={"epochs": 2, "batch": 10}, partition={"shots": 2})
    draws = part.engine.draw(part.clients[0], 0)
    assert draws.batches.shape == (2, 10)
    assert draws.uniforms.shape[:2] == (2, 20)
    assert not torch.equal(draws.batches[0], draws.batches[1])
    assert len({tuple(row) for row in draws.uniforms.flatten(0, 1).tolist()}) == 40


def test_training_clients_in_another_order_gives_the_same_bytes():
    forward, backward = world_of(), world_of()
    one = [forward.engine.train(client, 0) for client in forward.clients]
    two = [backward.engine.train(client, 0) for client in reversed(backward.clients)]
    assert one == two[::-1]
    assert_same(parameters(forward), parameters(backward))


class Dropping(nn.Sequential):
    """A backbone that draws for itself."""

    def __init__(self, image: tuple[int, int, int], embedding: int):
        super().__init__(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, embedding))


def test_dropout_is_keyed_too_and_the_global_generator_left_alone():
    parts = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        parts.append(build_part(small(), backbones=dict.fromkeys(("mlp", "cnn", "residual", "separable"), Dropping)))
        before = torch.random.get_rng_state()
        for client in parts[-1].clients:
            parts[-1].engine.train(client, 0)
        assert torch.equal(torch.random.get_rng_state(), before)
    assert_same(parameters(parts[0]), parameters(parts[1]))


class Listening(nn.Sequential):
    """A backbone that writes down what it draws in training."""

    heard: ClassVar[list[float]] = []

    def __init__(self, image: tuple[int, int, int], embedding: int):
        super().__init__(nn.Flatten(), nn.Linear(64, embedding))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.heard.append(float(torch.rand(())))
        return super().forward(images)


def test_what_layers_draw_differs_by_client_and_round_and_comes_again():
    part = build_part(small(), backbones=dict.fromkeys(("mlp", "cnn", "residual", "separable"), Listening))
    Listening.heard.clear()
    for client, round in ((0, 0), (1, 0), (0, 1), (0, 0)):
        part.engine.train(part.clients[client], round)
    steps = len(Listening.heard) // 4
    assert steps > 0
    parts = [Listening.heard[steps * i : steps * (i + 1)] for i in range(4)]
    assert parts[0] == parts[3]
    assert len(set(parts[0] + parts[1] + parts[2])) == 3 * steps


@pytest.mark.parametrize(
    ("batch", "steps", "size"), [(4, 2, 4), (5, 2, 5), (6, 1, 6), (10, 1, 10), (11, 1, 10), (64, 1, 10)]
)
def test_a_short_last_batch_is_dropped_and_a_short_shard_is_one_batch(batch, steps, size):
    part = world_of(train={"batch": batch}, partition={"shots": 2, "clusters": 2})
    client = part.clients[0]
    assert client.samples == 10
    draws = part.engine.draw(client, 0)
    assert draws.batches.shape == (steps, size)
    assert len(set(draws.batches.flatten().tolist())) == steps * size


def test_one_training_image_is_too_few_for_one_view_and_the_error_says_so():
    part = build_part(small("local", clients=10, partition={"clusters": 10, "shots": 1}))
    with pytest.raises(MaplError, match=r"client 3 has a single training image.*raise partition\.shots"):
        part.engine.train(part.clients[3], 0)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_reset_optimiser_forgets_and_a_living_one_does_not(optimizer):
    """With an optimiser made anew, a round depends on the models it starts from alone."""
    for reset in (True, False):
        trained = world_of(train={"reset": reset, "optimizer": optimizer, "batch": 4})
        fresh = world_of(train={"reset": reset, "optimizer": optimizer, "batch": 4})
        client, other = trained.clients[0], fresh.clients[0]
        trained.engine.train(client, 0)
        other.model.load_state_dict(client.model.state_dict())
        trained.engine.train(client, 1)
        fresh.engine.train(other, 1)
        same = all(torch.equal(a, b) for a, b in zip(client.model.parameters(), other.model.parameters(), strict=True))
        assert same is reset
        assert bool(trained.engine.state()) is not reset


def test_the_optimisers_are_those_of_the_settings():
    part = world_of(train={"optimizer": "sgd", "momentum": 0.7, "weight_decay": 0.1, "learning_rate": 0.3})
    sgd = make_optimizer(part.clients[0], part.recipe.train)
    assert isinstance(sgd, torch.optim.SGD)
    assert [sgd.defaults[k] for k in ("lr", "momentum", "weight_decay")] == [0.3, 0.7, 0.1]
    adam = make_optimizer(part.clients[0], world_of().recipe.train)
    assert isinstance(adam, torch.optim.Adam)
    assert [adam.defaults[k] for k in ("lr", "betas", "weight_decay")] == [1e-3, (0.5, 0.999), 0]
    optimised = {id(p) for group in adam.param_groups for p in group["params"]}
    assert id(part.clients[0].model.prototypes) in optimised


def test_a_step_of_sgd_by_hand():
    part = world_of(train={"optimizer": "sgd", "momentum": 0, "learning_rate": 0.1, "batch": 64}, method={"terms": []})
    client, engine = part.clients[0], part.engine
    draws = engine.draw(client, 0)
    batch = draws.batches[0]
    images = engine.augmentation.apply(client.train.pixels[batch].repeat(2, 1, 1, 1), draws.uniforms[0])
    logits = client.model(images)
    nn.functional.cross_entropy(logits, client.train.labels[batch].repeat(2)).backward()
    expected = client.model.head.weight.detach() - 0.1 * client.model.head.weight.grad
    # The pass above moved the batch-normalisation statistics, which a training step does not read.
    engine.train(client, 0)
    assert torch.allclose(client.model.head.weight, expected, atol=1e-6)


def test_training_lowers_the_loss_and_reaches_an_accuracy_above_chance():
    part = play(small(rounds=15, partition={"shots": 10, "test_shots": 20}, network={"topology": {"name": "none"}}))
    first, last = part.rounds[0].losses["cross_entropy"], part.rounds[-1].losses["cross_entropy"]
    assert sum(last) < 0.7 * sum(first)
    assert sum(part.rounds[-1].accuracy) / 4 > 0.5  # 0.2 by chance: each client has five classes


def test_accuracy_is_the_share_of_test_images_classified_rightly_in_evaluation_mode():
    part = play(small(), rounds=2)
    client = part.clients[1]
    client.model.train()
    statistics = {k: v.clone() for k, v in client.model.state_dict().items()}
    answers = part.engine.evaluate(client)
    assert_same(dict(client.model.state_dict()), statistics)
    client.model.eval()
    with torch.no_grad():
        guesses = [
            int(client.model(part.engine.augmentation.normalise(image[None])).argmax()) for image in client.test.pixels
        ]
    right = [guess == label for guess, label in zip(guesses, client.test.labels.tolist(), strict=True)]
    assert answers.tolist() == right


def test_a_loss_that_is_not_a_number_names_client_round_and_term():
    part = world_of()
    with torch.no_grad():
        part.clients[2].model.prototypes[0, 0] = torch.nan
    with pytest.raises(MaplError, match=r"the prototype loss of client 2 became nan in round 7.*train\.learning_rate"):
        part.engine.train(part.clients[2], 7)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_run_that_diverges_is_told_so_wherever_it_first_shows(optimizer):
    recipe = small(method={"warmup": 0}, train={"learning_rate": 1e30, "optimizer": optimizer})
    with pytest.raises(MaplError, match=r"client 0 .*round [01].*train\.learning_rate"):
        play(recipe)


class Viewing(nn.Sequential):
    """Convolutions, and then a `view` that takes channels before pixels for granted."""

    def __init__(self, image: tuple[int, int, int], embedding: int):
        super().__init__(nn.Conv2d(1, 4, 3, padding=1), nn.Linear(256, embedding))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self[1](self[0](images).view(len(images), 256))


MIXED = {"mlp": None, "dropping": Dropping, "cnn": None, "viewing": Viewing, "residual": None, "separable": None}


def mixed_world(**over) -> Part:
    """Clients that train side by side, and between them some that draw or want their channels first."""
    given = {name: backbone or find_backbone(name) for name, backbone in MIXED.items()}
    recipe = small(**merge({"clients": 8, "partition": {"stride": 0}, "train": {"batch": 4}}, over))
    return build_part(given_in_python(recipe, None, given), backbones=given)


@pytest.mark.parametrize("reset", [True, False])
def test_no_bit_depends_on_how_many_clients_train_at_a_time(reset):
    """Nor on what a thread did before: the global generator is left alone, and what layers draw is keyed."""
    parts = []
    for workers in (1, 2, 5):
        torch.manual_seed(workers)
        before = torch.random.get_rng_state()
        parts.append(mixed_world(engine={"workers": workers}, train={"batch": 4, "reset": reset}))
        for t in range(2):
            play_round(parts[-1], t)
        assert torch.equal(torch.random.get_rng_state(), before)
    for part in parts[1:]:
        assert_same(parameters(parts[0]), parameters(part))
        assert part.rounds == parts[0].rounds


def test_one_client_s_training_does_not_depend_on_the_others_in_its_call():
    together, alone = mixed_world(engine={"workers": 3}), mixed_world(engine={"workers": 1})
    losses = together.engine.train_all(together.clients, 0)
    assert [alone.engine.train(client, 0) for client in reversed(alone.clients)][::-1] == losses
    assert_same(parameters(together), parameters(alone))


def test_what_takes_longest_begins_first_and_results_keep_their_order():
    begun: list[int] = []
    lock = threading.Lock()

    def work(item: int) -> int:
        with lock:
            begun.append(item)
        return 10 * item

    items = [3, 1, 4, 1, 5, 9, 2, 6]
    found = side_by_side(work, items, 1 + 1, lambda item: item in (1, 2), lambda item: float(item))
    assert found == [10 * item for item in items]
    assert begun.index(9) < 2
    assert begun.index(3) > 2
    assert [item for item in begun if item in (1, 2)] == [1, 1, 2]  # one after another, in their order


def test_only_models_that_surely_never_draw_train_side_by_side():
    quiet = {name for name in MIXED if name not in ("dropping", "viewing")} | {"resnet18", "shufflenet"}
    for name in (*MIXED, "resnet18", "shufflenet", "googlenet", "alexnet"):
        model = (MIXED.get(name) or find_backbone(name))((1, 8, 8) if name in MIXED else (3, 32, 32), 12)
        assert never_draws(model) is (name in quiet), name


class Noisy(Mapl):
    """A method of somebody's own, whose loss draws from the global generator."""

    def loss(self, client, images, labels):
        return super().loss(client, images + 0.1 * torch.randn(images.shape), labels)


def test_a_method_that_draws_is_keyed_too():
    parts = []
    for workers in (1, 4):
        parts.append(build_part(small(method={"name": "test_engine:Noisy"}, engine={"workers": workers})))
        play_round(parts[-1], 0)
    assert_same(parameters(parts[0]), parameters(parts[1]))


def test_an_error_in_one_of_several_threads_is_the_first_client_s():
    part = world_of(engine={"workers": 4})
    with torch.no_grad():
        for client in part.clients[1:]:
            client.model.prototypes[0, 0] = torch.nan
    with pytest.raises(MaplError, match=r"loss of client 1 became nan"):
        part.engine.train_all(part.clients, 0)


def test_all_tensors_are_in_their_places_and_in_the_usual_order_after_training():
    """Only inside a client's training do convolutions have another order in memory."""
    part = mixed_world()
    before = {name: tensor.data_ptr() for name, tensor in parameters(part).items()}
    part.engine.train_all(part.clients, 0)
    assert {name: tensor.data_ptr() for name, tensor in parameters(part).items()} == before
    assert all(tensor.is_contiguous() for tensor in parameters(part).values())
    assert {c.backbone for c in part.clients if c.id in part.engine._channels_last} == {
        "cnn",
        "residual",
        "separable",
    }


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_order_in_memory_changes_rounding_alone(optimizer, reset):
    train = {"batch": 4, "optimizer": optimizer, "reset": reset, "learning_rate": 1e-3}
    fast, usual = (build_part(small(model={"backbones": ["residual"]}, train=train)) for _ in range(2))
    assert len(fast.engine._channels_last) == 4
    usual.engine._channels_last = set()
    for t in range(2):
        for part in (fast, usual):
            part.engine.train_all(part.clients, t)
    ours, theirs = ({**parameters(part), **part.engine.state()} for part in (fast, usual))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value.is_contiguous(), name
        apart = (value.double() - theirs[name].double()).abs()
        if optimizer == "sgd":
            assert apart.max() < 1e-5, name
        elif value.dim() == 4:  # Adam's first steps are as long for a gradient that is rounding alone as for any other
            assert apart.mean() < 0.2 * theirs[name].abs().mean(), name


def test_a_client_that_waits_keeps_no_optimiser_and_no_gradients():
    part = build_part(small("local"))
    part.engine.train_all(part.clients, 0)
    assert not part.engine.optimizers
    assert all(parameter.grad is None for client in part.clients for parameter in client.model.parameters())


def test_images_made_for_several_steps_are_those_made_step_by_step(monkeypatch):
    part = world_of(train={"epochs": 3, "batch": 5}, partition={"shots": 2})
    client = part.clients[0]
    draws = part.engine.draw(client, 0)

    def made(numbers):
        monkeypatch.setattr("mapl.engine.eager.AT_A_TIME", numbers)
        return list(part.engine._augmented(client, client.train, draws.batches, draws.uniforms))

    at_once, singly = made(4 * 10 * 64), made(1)
    assert len(draws.batches) == len(at_once) == len(singly) == 6
    for (images, labels), (ours, theirs) in zip(at_once, singly, strict=True):
        assert torch.equal(images, ours)
        assert torch.equal(labels, theirs)
        assert labels.tolist() == labels[:5].tolist() * 2


class Scribbling(nn.Module):
    """A backbone that writes over its images, and pools with two results."""

    def __init__(self, image, embedding):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))
        self.convolution = nn.Conv2d(image[0], 4, 3, padding=1)
        self.pool = nn.MaxPool2d(2, return_indices=True)
        self.last = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, embedding))

    def forward(self, images):
        if self.gain.requires_grad and torch.is_grad_enabled():
            images = images.mul_(self.gain)
        pooled, _ = self.pool(self.convolution(images))
        return self.last(pooled)


def test_a_backbone_may_write_over_its_images_and_pool_with_two_results():
    backbones = {"scribbling": Scribbling}
    recipe = given_in_python(small("local", train={"batch": 5}, partition={"shots": 2}), None, backbones)
    part = build_part(recipe, backbones=backbones)
    for t in range(2):
        play_round(part, t)
    assert all(client.model.backbone.gain != 1 for client in part.clients)


def test_gradients_come_back_to_a_pooling_in_its_order_and_nothing_is_left_behind(monkeypatch):
    part = world_of(model={"backbones": ["cnn"]})
    client, together, seen = part.clients[0], channels_last._together, []

    def spy(gradient):
        seen.append((gradient, together(gradient)))
        return seen[-1][1]

    monkeypatch.setattr(channels_last, "_together", spy)
    part.engine.train(client, 0)
    assert len(seen) == len(part.engine.draw(client, 0).batches)
    for gradient, ours in seen:
        assert not gradient.is_contiguous(memory_format=torch.channels_last)
        assert ours.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(gradient, ours)
    assert not any(layer._forward_hooks for layer in client.model.modules())
