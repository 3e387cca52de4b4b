"""Local training is a function of (seed, client, round): never of the order, the place or the past of anything else."""

from __future__ import annotations

import random
import threading
import warnings
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from conftest import assert_same, line_with, parameters, play, small
from mapl import MaplError
from mapl.engine import channels_last
from mapl.engine.generators import draws
from mapl.engine.optimizers import Adam, Sgd, make_optimizer
from mapl.engine.settings import EngineSettings
from mapl.engine.workers import side_by_side
from mapl.methods.local import Local
from mapl.methods.mapl import Mapl
from mapl.model import build, find_backbone
from mapl.runs.part import Part, build_part, given_in_python
from mapl.runs.round import play_round
from mapl.trees import merge


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
    part = world_of(train={"optimizer": "sgd"})
    model = part.clients[0].model
    assert isinstance(make_optimizer(model, part.recipe.train), Sgd)
    adam = make_optimizer(model, world_of().recipe.train)
    assert isinstance(adam, Adam)
    ((rate, optimised),) = adam.groups
    assert rate == 1e-3
    assert {id(p) for p in optimised} == {id(p) for p in model.parameters()}
    assert id(model.prototypes) in {id(p) for p in optimised}


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
    first, last = part.lines[0].losses["cross_entropy"], part.lines[-1].losses["cross_entropy"]
    assert sum(last) < 0.7 * sum(first)
    assert sum(part.lines[-1].accuracy) / 4 > 0.5  # 0.2 by chance: each client has five classes


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


def test_tests_leave_every_tensor_in_its_place_and_lay_out_images_as_training_does(monkeypatch):
    part = mixed_world()
    before = {name: (tensor.data_ptr(), tensor.stride()) for name, tensor in parameters(part).items()}
    seen = []

    def spy(layer, inputs):
        seen.append((inputs[0].stride()[1] == 1, layer.weight.stride()[1] == 1))

    (client,) = [client for client in part.clients if client.backbone == "residual"][:1]
    inner = [layer for layer in client.model.modules() if isinstance(layer, nn.Conv2d)][1]
    hook = inner.register_forward_pre_hook(spy)
    part.engine.evaluate_all(part.clients)
    hook.remove()
    assert seen == [(True, True)]
    assert {name: (tensor.data_ptr(), tensor.stride()) for name, tensor in parameters(part).items()} == before


def test_a_loss_that_is_not_a_number_names_client_round_and_term():
    part = world_of()
    with torch.no_grad():
        part.clients[2].model.prototypes[0, 0] = torch.nan
    with pytest.raises(MaplError, match=line_with("prototype loss", "client 2", "nan", "round 7")):
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
        part = mixed_world(engine={"workers": workers}, train={"batch": 4, "reset": reset})
        parts.append(play(part.recipe, 2, part))
        assert torch.equal(torch.random.get_rng_state(), before)
    for part in parts[1:]:
        assert_same(parameters(parts[0]), parameters(part))
        assert part.lines == parts[0].lines


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


class Homemade(nn.Module):
    """A backbone of a class that torch does not know."""

    def __init__(self, image: tuple[int, int, int], embedding: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(embedding, image[0] * image[1] * image[2]))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1) @ self.weight.t()


class Branching(Homemade):
    """Draws from Python's generator, or from numpy's."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        noise = random.random() if self.weight.shape[0] % 2 else np.random.rand()
        return super().forward(images) * (1 + noise if self.training else 1)


class Meeting(Homemade):
    """Passes in training only once as many clients as there are parties are training at the same time."""

    parties = threading.Barrier(2, timeout=20)
    waiting = False

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training and Meeting.waiting:
            Meeting.parties.wait()
        return super().forward(images)


def given_world(backbones, **over) -> Part:
    recipe = given_in_python(small(**over), None, backbones)
    return build_part(recipe, backbones=backbones)


def test_a_backbone_class_of_ones_own_trains_side_by_side(monkeypatch):
    part = given_world({"meeting": Meeting}, engine={"workers": 2})
    monkeypatch.setattr(Meeting, "waiting", True)
    part.engine.train_all(part.clients, 0)  # in turns, the barrier would break
    monkeypatch.setattr(Meeting, "waiting", False)
    alone = given_world({"meeting": Meeting}, engine={"workers": 1})
    alone.engine.train_all(alone.clients, 0)
    assert_same(parameters(part), parameters(alone))


def test_who_draws_is_found_by_trying():
    quiet = {name for name in MIXED if name != "dropping"} | {"resnet18", "shufflenet"}
    settings = small().model
    for name in (*MIXED, "resnet18", "shufflenet", "googlenet", "alexnet"):
        image = (1, 8, 8) if name in MIXED else (3, 32, 32)
        model = build(name, MIXED.get(name) or find_backbone(name), settings, image, 10, 0, 0)
        before = {k: v.clone() for k, v in model.state_dict().items()}
        state = torch.random.get_rng_state()
        assert draws(model, image) is (name not in quiet), name
        assert_same(dict(model.state_dict()), before)
        assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("embedding", [12, 13])
def test_draws_from_numpy_and_python_are_found_and_keyed_too(embedding):
    parts = []
    for workers in (1, 3):
        random.seed(workers)
        np.random.seed(workers)
        part = given_world({"branching": Branching}, engine={"workers": workers}, model={"embedding": embedding})
        assert not part.engine._quiet
        part.engine.train_all(part.clients, 0)
        parts.append(part)
    assert_same(parameters(parts[0]), parameters(parts[1]))


def said(part: Part) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        part.engine.warm_up(part.clients)
        for t in range(2):
            play_round(part, t)
    return [str(warning.message) for warning in caught]


def test_clients_that_take_turns_on_several_workers_say_so_once():
    (line,) = said(mixed_world(engine={"workers": 2}))
    assert "dropping" in line
    assert "cnn" not in line
    (line,) = said(build_part(small(method={"name": "test_engine:Noisy"}, engine={"workers": 2})))
    assert "Noisy" in line
    assert not said(mixed_world(engine={"workers": 1}))
    assert not said(world_of(engine={"workers": 2}))


class Undeclared(Mapl):
    """A method of somebody's own, whose loss draws from the global generator."""

    def loss(self, client, images, labels):
        return super().loss(client, images + 0.1 * torch.randn(images.shape), labels)


class Noisy(Undeclared):
    draws = True


def test_a_method_that_draws_is_keyed_too():
    parts = []
    for workers in (1, 4):
        parts.append(build_part(small(method={"name": "test_engine:Noisy"}, engine={"workers": workers})))
        torch.manual_seed(workers)
        play_round(parts[-1], 0)
    assert_same(parameters(parts[0]), parameters(parts[1]))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_method_that_draws_and_does_not_declare_it_is_refused(workers):
    part = build_part(small(method={"name": "test_engine:Undeclared"}, engine={"workers": workers}))
    with pytest.raises(MaplError, match=r"Undeclared.*draws = True"):
        play_round(part, 0)


class TwoNetworks(Local):
    """Cross-entropy of two networks, one with a learning rate of its own; a third one is frozen."""

    answers_with = ("backbone", "second", "still")
    rates: ClassVar[dict[str, float]] = {"second": 0.5, "still": 0.0}
    seen: ClassVar[list[tuple[int, ...]]] = []

    def modules(self, client):
        return {
            "second": nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(108, 10)),
            "still": nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10)),
        }

    def learning_rates(self):
        return self.rates

    def loss(self, client, images, labels):
        model = client.model
        both = model(images) + model.call("second", images) + model.call("still", images)
        return {"cross_entropy": nn.functional.cross_entropy(both, labels)}

    def scores(self, client, outputs):
        self.seen.append(tuple(outputs[name].shape for name in self.answers_with))
        return client.model.classify(outputs["backbone"]) + outputs["second"] + outputs["still"]


class SameRates(TwoNetworks):
    rates: ClassVar[dict[str, float]] = {"second": 0.1, "still": 0.0}


def two_networks(name: str = "TwoNetworks", **over) -> Part:
    train = {"optimizer": "sgd", "momentum": 0, "learning_rate": 0.1, "batch": 64}
    return build_part(small("local", **merge({"method": {"name": f"test_engine:{name}"}, "train": train}, over)))


def test_own_networks_train_at_rates_of_their_own_and_frozen_ones_stay():
    fast, usual = two_networks(), two_networks("SameRates")
    before = parameters(fast)
    before = {name: value.clone() for name, value in before.items()}
    assert_same(before, parameters(usual))
    for part in (fast, usual):
        part.engine.train_all(part.clients, 0)  # a single step: the batch is larger than the shard
    for name, start in before.items():
        moved, ours = parameters(usual)[name].double() - start, parameters(fast)[name].double() - start
        if ".own.still." in name:
            assert not ours.any(), name
        elif start.is_floating_point() and "running" not in name:
            assert torch.allclose(ours, (5 if ".own.second." in name else 1) * moved, atol=1e-5), name
            assert ours.any(), name


@pytest.mark.parametrize("workers", [1, 3])
def test_scores_are_given_what_every_network_made_of_the_test_images(workers, monkeypatch):
    monkeypatch.setattr("mapl.engine.eager.TEST_BATCH", {"cpu": 4})
    part = two_networks(engine={"workers": workers})
    TwoNetworks.seen.clear()
    play_round(part, 0)
    client = part.clients[1]
    n = len(client.test)
    assert TwoNetworks.seen == [((n, 12), (n, 10), (n, 10))] * 4
    images = part.engine.augmentation.normalise(client.test.pixels)
    with torch.no_grad():
        model = client.model.eval()
        expected = model(images) + model.call("second", images) + model.call("still", images)
    assert part.engine.evaluate(client).tolist() == (expected.argmax(1) == client.test.labels).tolist()
    assert part.engine.embed(client).shape == (n, 12)


def test_optimisers_of_own_networks_come_back():
    over = {"train": {"optimizer": "adam", "reset": False, "batch": 4}, "rounds": 3}
    whole, begun, later = (two_networks(**over) for _ in range(3))
    for part in (whole, begun):
        part.engine.train_all(part.clients, 0)
    later_models = zip(later.clients, begun.clients, strict=True)
    for client, trained in later_models:
        client.model.load_state_dict(trained.model.state_dict())
    later.engine.load_state(later.clients, {k: v.clone() for k, v in begun.engine.state().items()})
    for part in (whole, later):
        part.engine.train_all(part.clients, 1)
    assert_same(parameters(whole), parameters(later))
    assert_same(whole.engine.state(), later.engine.state())
    names = [name for name, _ in whole.clients[0].model.named_parameters()]
    kept = {names[int(path.split(".")[1])] for path in whole.engine.state() if path.startswith("0.")}
    assert kept == {name for name in names if not name.startswith("own.still.")}


def test_precision_is_the_device_s_own_unless_it_is_said():
    assert EngineSettings().on("cuda").precision == "bf16"
    assert EngineSettings().on("cpu").precision == "fp32"
    assert EngineSettings(precision="tf32").on("cpu").precision == "fp32"
    for said in ("fp32", "tf32", "bf16"):
        assert EngineSettings(precision=said).on("cuda").precision == said


def test_a_cpu_computes_in_bf16_where_that_is_said():
    parts = {p: world_of(engine={"precision": p}, train={"batch": 4}) for p in ("auto", "fp32", "tf32", "bf16")}
    losses = {p: part.engine.train_all(part.clients, 0) for p, part in parts.items()}
    assert losses["auto"] == losses["fp32"] == losses["tf32"]
    for ours, theirs in zip(losses["bf16"], losses["fp32"], strict=True):
        assert ours != theirs
        assert ours == pytest.approx(theirs, rel=0.05)
    assert all(v.dtype != torch.bfloat16 for v in parameters(parts["bf16"]).values())
    assert_same(parameters(parts["auto"]), parameters(parts["fp32"]))


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


class Misnamed(Local):
    """Gives a learning rate to a network that it does not have."""

    def learning_rates(self):
        return {"courier": 0.1}


def test_a_learning_rate_for_an_unknown_network_is_named():
    with pytest.raises(MaplError, match="courier"):
        build_part(small("test_engine:Misnamed"))
