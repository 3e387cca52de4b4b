"""The engine for GPUs, against the eager one. Without a GPU its kernels run in Triton's interpreter, step by step."""

import re
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

pytest.importorskip("triton")

from conftest import line_with, skip_without_umap
from mapl import Dataset, Features, Images, Tokens
from mapl.data.dataset import DataSettings
from mapl.data.sources.digits import Digits
from mapl.engine._base import make_deterministic
from mapl.engine.cuda import GroupedEngine
from mapl.engine.cuda.builder import Builder
from mapl.engine.cuda.families import operations_of
from mapl.engine.cuda.kernels import launch
from mapl.engine.settings import EngineSettings
from mapl.errors import MaplError
from mapl.losses import cross_entropy
from mapl.methods.local import Local
from mapl.recipe import Recipe, compose, read
from mapl.runs.part import Part, build_part, given_in_python
from mapl.runs.round import play_round

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")
DIGITS = Digits().load(DataSettings(name="digits"))
SMALL = {
    "clients": 2,
    "rounds": 1,
    "partition": {"shots": 2, "test_shots": 1},
    # Adam's first steps are signs: where a gradient is zero but for rounding, they are rounding made large.
    "train": {"batch": 5, "optimizer": "sgd", "learning_rate": 1e-2},
}


def recipe(**settings):
    settings = {**SMALL, **settings}
    settings["model"] = {
        "hidden": 16,
        "embedding": 12,
        "projection": 8,
        "backbones": ["cnn"],
        **settings.get("model", {}),
    }
    return Recipe.of(**settings)


@pytest.fixture(autouse=True)
def _few_tests_at_a_time(monkeypatch):
    """A batch of tests is filled up to its full size, which the interpreter takes long for."""
    if not CUDA:
        monkeypatch.setattr("mapl.engine.cuda.engine.TEST_BATCH", 5)


def eager_world(made: Recipe, backbones, data=None) -> Part:
    made = given_in_python(made.model_copy(update={"engine": EngineSettings(device="cpu")}), data, backbones)
    return build_part(made, data, backbones=backbones)


def grouped_world(made: Recipe, backbones, data=None, **engine) -> Part:
    """The run with its engine replaced by the one for GPUs, in float32."""
    part = eager_world(made, backbones, data)
    lanes = engine.pop("lanes", None)
    settings = EngineSettings(**{"precision": "fp32", **engine})
    old = part.engine
    part.engine = GroupedEngine(part.method, old.settings, old.augmentation, old.seed, settings, DEVICE)
    part.engine.adopt(part.clients)
    if lanes is not None:
        part.engine.lanes = lanes
    return part


def assert_equal_models(one: Part, two: Part, atol=2e-5):
    for a, b in zip(one.clients, two.clients, strict=True):
        for (name, x), y in zip(a.model.state_dict().items(), b.model.state_dict().values(), strict=True):
            torch.testing.assert_close(
                y.cpu(), x, atol=atol, rtol=1e-4, msg=lambda m, n=name, c=a: f"client {c.id} {n}: {m}"
            )
        for name, x in a.state.items():
            torch.testing.assert_close(b.state[name].cpu(), x, atol=atol, rtol=1e-4)


class Tiny(nn.Module):
    """Every layer that a group has a version of: stem, depthwise and 1×1 convolutions, normalisation, pooling, …"""

    def __init__(self, image, embedding):
        super().__init__()
        self.stem = nn.Conv2d(image[0], 4, 3, stride=2, padding=1)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True)
        self.deep = nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.point = nn.Conv2d(4, 4, 1)
        self.norm2 = nn.BatchNorm2d(4)
        self.mean = nn.AdaptiveAvgPool2d((2, 2))
        self.drop = nn.Dropout(0.0)
        self.wide = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.single = nn.Conv2d(8, 4, 3, stride=2, padding=1)
        self.end = nn.Linear(8 * 2 * 2 + 4, embedding)

    def forward(self, x):
        x = self.wide(self.pool(torch.relu(self.stem(x))))
        left, right = torch.relu(self.norm(self.deep(x))), self.norm2(self.point(x))
        both = torch.stack((left, x + right), dim=2).flatten(1, 2)
        pixel = self.single(torch.nn.functional.adaptive_avg_pool2d(both, 1))
        return self.end(torch.cat((torch.flatten(self.mean(both), 1), torch.flatten(self.drop(pixel), 1)), dim=1))


def plays_like_eager(made: Recipe, backbones, atol=2e-5, data=None, **engine) -> Part:
    eager, grouped = eager_world(made, backbones, data), grouped_world(made, backbones, data, **engine)
    for t in range(made.rounds):
        a, _ = play_round(eager, t)
        b, _ = play_round(grouped, t)
        for term, values in a.losses.items():
            trained = [place for place, value in enumerate(values) if value is not None]
            assert [place for place, value in enumerate(b.losses[term]) if value is not None] == trained
            assert [b.losses[term][i] for i in trained] == pytest.approx(
                [values[i] for i in trained], rel=1e-4, abs=1e-5
            )
        assert b.accuracy == pytest.approx(a.accuracy)
    assert_equal_models(eager, grouped, atol)
    return grouped


cpu_only = pytest.mark.skipif(CUDA, reason="the tests further down run on the GPU itself")


def interpreted(test):
    """A test that takes seconds in Triton's interpreter, where there is no GPU."""
    return pytest.mark.slow(cpu_only(test))


@interpreted
def test_a_group_learns_what_its_members_learn_alone():
    grouped = plays_like_eager(recipe(partition={"shots": 1, "test_shots": 1}), {"tiny": Tiny})
    (family,) = grouped.engine.families
    assert family.group
    assert family.size == 2
    assert len(family.slots) == 1


def flat(image, embedding):
    """A network whose kernels the interpreter is quick with."""
    pixels = image[0] * image[1] * image[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, embedding))


def pooled(image, embedding):
    return nn.Sequential(nn.MaxPool2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(image[0], embedding))


@interpreted
def test_setting_up_and_learning_do_without_torchs_algebra(monkeypatch):
    """It takes seconds to load; torch does so where a tensor has no memory, or `backward` is given gradients."""
    monkeypatch.setitem(sys.modules, "torch.fx.experimental.symbolic_shapes", None)
    grouped = grouped_world(recipe(), {"pooled": pooled})
    play_round(grouped, 0)
    assert grouped.engine.families[0].group
    assert grouped.engine.families[0].slots


def other(image, embedding):
    pixels = image[0] * image[1] * image[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, 5), nn.ReLU(), nn.Linear(5, embedding))


WITH_COURIER = ("courier", "mutual", "proxyfl", "fml")
METHODS = [
    "local",
    "mapl",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            "mapl+",
            "fedavg",
            "fedsim",
            "fedproto",
            "fedclassavg",
            "pfedsim",
            "dfedavgm",
            "courier",
            "mutual",
            "proxyfl",
            "fml",
        )
    ),
]


@cpu_only
@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_the_same_in_groups(method):
    """FLT trains as FedAvg does; what else it does is no engine's business."""
    warmup = {"warmup": 1} if method in ("mapl", "mapl+", "pfedsim") else {}
    warmup = {"courier": "test_cuda:flat", "features": 6} if method in WITH_COURIER else warmup
    alike = method in ("fedavg", "pfedsim", "dfedavgm")
    one_batch = {"shots": 1, "test_shots": 1}  # several take long, and are looked at below
    made = recipe(method={"name": method, **warmup}, clients=2 if alike else 4, rounds=2, partition=one_batch)
    grouped = plays_like_eager(made, {"flat": flat} if alike else {"flat": flat, "other": other})
    assert all((family.group, family.size) == (True, 2) for family in grouped.engine.families)


@interpreted
@pytest.mark.parametrize(
    "settings",
    [
        {"method": "local", "train": {"batch": 5, "optimizer": "adam", "learning_rate": 1e-3}},
        {"method": "local", "train": {"batch": 5, "optimizer": "adam", "epochs": 2, "reset": False}},
        {"train": {**SMALL["train"], "reset": False, "weight_decay": 0.01}},
        {
            "method": "local",
            "train": {
                "batch": 5,
                "optimizer": "adamw",
                "learning_rate": 1e-3,
                "weight_decay": 0.5,
                "warmup_rounds": 1,
                "cosine_rounds": 3,
                "reset": False,
            },
            "rounds": 3,
        },
        {
            "method": "local",
            "train": {
                **SMALL["train"],
                "learning_rate": 0.1,
                "warmup_rounds": 2,
                "cosine_rounds": 4,
                "epochs": 2,
                "steps": 1,
            },
            "rounds": 4,
        },
        {"partition": {"scenario": 3, "shots_range": (1, 4), "test_shots": 1}, "clients": 3, "rounds": 1},
        {"partition": {"scenario": 3, "shots_range": (1, 4), "test_shots": 1}, "method": "fedproto", "clients": 3},
        {"augment": {"contrastive": {"blur": 0.5, "crop_scale": (0.5, 1.0)}}, "rounds": 1},
    ],
    ids=[
        "Adam",
        "Adam that lives on",
        "momentum and decay",
        "AdamW, schedule",
        "schedule, steps",
        "unequal shards",
        "unequal shards, state",
        "augmented",
    ],
)
def test_what_a_recipe_says_about_training_holds_in_groups(settings):
    adam = settings.get("train", {}).get("optimizer", "sgd") != "sgd"
    plays_like_eager(recipe(**{"rounds": 2, **settings}), {"other": other} if adam else {"flat": flat})


@interpreted
def test_pooled_clients_share_their_images_in_a_group():
    """Two clusters, so that places in the shared tensor matter; as many steps as without the others' images."""
    made = recipe(
        method="local",
        clients=4,
        partition={"shots": 1, "test_shots": 1, "pooled": True},
        train={**SMALL["train"], "steps": 1},
    )
    grouped = plays_like_eager(made, {"flat": flat})
    pool = grouped.engine.train_pool
    assert (pool.start, len(pool.labels)) == ({0: 0, 1: 0, 2: 10, 3: 10}, 20)


@interpreted
def test_a_round_writes_its_rate_where_a_captured_step_reads_it():
    made = recipe(method="local", partition={"shots": 1, "test_shots": 1}, train={"batch": 5, "warmup_rounds": 4})
    grouped = grouped_world(made, {"other": other})
    grouped.engine.warm_up(grouped.clients)
    (slot,) = grouped.engine.families[0].slots
    place = slot.factor.data_ptr()
    for t, factor in enumerate((0.25, 0.5)):
        grouped.engine.train_all(grouped.clients, t)
        assert (slot.factor.data_ptr(), slot.factor.tolist()) == (place, [factor])


@interpreted
def test_groups_train_those_who_take_part():
    """In a slot for three, of which others take part in each round; and one that joins late. Optimisers last."""
    network = {"participation": 0.6, "joiners": {"clients": 1, "round": 1}}
    made = recipe(clients=5, rounds=3, method="courier", train={**SMALL["train"], "reset": False}, network=network)
    grouped = plays_like_eager(made, {"flat": flat}, together=3, lanes=1)
    assert grouped.engine.families[0].slots
    assert grouped.ledger.messages


def a_table(shape=(6,)):
    """Features of this shape, whose class moves them."""
    values = torch.randn(40, *shape, generator=torch.Generator().manual_seed(0))
    samples = Features(values + (torch.arange(40) % 4).view(-1, *[1] * len(shape)), torch.arange(40) % 4)
    return Dataset("table", samples, samples, 4)


def texts():
    ids = torch.randint(1, 9, (40, 5), generator=torch.Generator().manual_seed(0))
    samples = Tokens(ids + 8 * (torch.arange(40) % 4).view(-1, 1) * (ids > 2), torch.arange(40) % 4, 40)
    return Dataset("texts", samples, samples, 4)


OWN = {"partition": {"shots": 2, "test_shots": 1, "sharding": "random", "clusters": 1}, "data": "python"}


@interpreted
@pytest.mark.parametrize("method", ["local", pytest.param("mapl", marks=pytest.mark.slow), "courier"])
def test_tables_learn_the_same_in_groups(method):
    made = recipe(method=method, model={"backbones": ["mlp"]}, **OWN)
    grouped = plays_like_eager(made, None, data=a_table())
    assert [(family.group, family.eager) for family in grouped.engine.families] == [(True, False)]


@interpreted
def test_signals_learn_the_same_in_groups():
    grouped = plays_like_eager(recipe(method="local", model={"backbones": ["mlp"]}, **OWN), None, data=a_table((2, 5)))
    assert grouped.engine.families[0].group


@interpreted
@pytest.mark.parametrize("method", ["local", pytest.param("courier", marks=pytest.mark.slow)])
def test_texts_learn_the_same_one_at_a_time_in_captured_steps(method):
    made = recipe(method=method, model={"backbones": ["transformer"]}, **OWN)
    grouped = plays_like_eager(made, None, data=texts())
    assert [(family.group, family.eager) for family in grouped.engine.families] == [(False, False)]
    assert all(slot.images.dtype == torch.int64 for slot in grouped.engine.families[0].slots)


@interpreted
def test_images_of_16_bits_learn_the_same_in_groups():
    pixels = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    images = Images(pixels, torch.arange(40) % 4)
    made = recipe(method="local", data="python", partition={"shots": 2, "test_shots": 1, "sharding": "random"})
    grouped = plays_like_eager(made, {"flat": flat}, data=Dataset("deep", images, images, 4))
    assert grouped.engine.families[0].group


@interpreted
def test_clients_take_turns_in_a_slot_that_is_too_small_for_all():
    grouped = plays_like_eager(recipe(clients=5, rounds=2, method="local"), {"flat": flat}, together=2, lanes=1)
    (family,) = grouped.engine.families
    assert family.size == 2
    assert [len(turn) for turn in family.turns({0, 1, 2, 3, 4})] == [1, 1, 1]


@interpreted
def test_an_optimiser_that_lives_on_is_saved_as_torchs_own_are():
    made = recipe(rounds=2, method="local", train={"batch": 5, "reset": False})
    eager, grouped = eager_world(made, {"other": other}), grouped_world(made, {"other": other})
    for part in (eager, grouped):
        play_round(part, 0)
    one, two = eager.engine.state(), grouped.engine.state()
    for name, value in one.items():
        torch.testing.assert_close(two[name], value.to(two[name].dtype), atol=1e-6, rtol=1e-3)
    never = [value for name, value in two.items() if name not in one and "exp" in name]  # had a gradient
    assert not any(value.any() for value in never)
    again = grouped_world(made, {"other": other})
    again.engine.load_state(again.clients, one)
    for name, value in one.items():
        torch.testing.assert_close(again.engine.state()[name], value.to(torch.float32))


class WholeModel(Local):
    """A method whose loss reads every parameter of the client's model."""

    def loss(self, client, images, labels):
        size = sum(parameter.square().sum() for parameter in client.model.parameters())
        return {**super().loss(client, images, labels), "size": 1e-3 * size}


class OneNetwork(Local):
    """A method whose loss reads the parameters of the backbone."""

    def loss(self, client, images, labels):
        size = sum(parameter.square().sum() for parameter in client.model.backbone.parameters())
        return {**super().loss(client, images, labels), "size": 1e-3 * size}


class TwoCalls(Local):
    """A method that calls the network twice in a step."""

    def loss(self, client, images, labels):
        terms = super().loss(client, images, labels)
        return {**terms, "again": client.model(images.flip(0)).square().mean()}


class AtTheStart(Local):
    """A method that looks into the network before an epoch."""

    def prepare(self, client):
        client.state["first"] = client.model.backbone[1].weight.detach().clone()

    def start_epoch(self, client, round, epoch):
        client.state["first"].copy_(client.model.backbone[1].weight.detach())


@interpreted
@pytest.mark.parametrize(
    ("method", "group"), [(WholeModel, False), (OneNetwork, False), (TwoCalls, False), (AtTheStart, True)]
)
def test_a_method_whose_loss_looks_into_networks_is_not_given_a_group(method, group):
    made = recipe(method="local")
    eager, grouped = eager_world(made, {"flat": flat}), grouped_world(made, {"flat": flat})
    for part in (eager, grouped):
        part.method = part.engine.method = method(made.method)
        for client in part.clients:
            part.method.prepare(client)
        play_round(part, 0)
    assert grouped.engine.families[0].group == group
    assert grouped.engine.families[0].slots
    assert_equal_models(eager, grouped)


class OwnNumbers(Local):
    """A method whose loss reads a number of the client: recorded, it would be the first client's for all."""

    def loss(self, client, images, labels):
        return {name: term * client.samples for name, term in super().loss(client, images, labels).items()}


@interpreted
def test_a_loss_that_reads_a_number_of_its_client_trains_eagerly_and_says_so():
    made = recipe(method="local", partition={"scenario": 3, "shots_range": (2, 6), "test_shots": 1})
    eager, grouped = eager_world(made, {"flat": flat}), grouped_world(made, {"flat": flat})
    assert len({client.samples for client in grouped.clients}) > 1
    grouped.engine.eager.method = grouped.engine.method = OwnNumbers(made.method)
    eager.method = eager.engine.method = grouped.method = grouped.engine.method
    with pytest.warns(UserWarning, match=r"its loss reads client\.samples"):
        theirs = grouped.engine.train_all(grouped.clients, 0)
    assert [losses["cross_entropy"] for losses in theirs] == pytest.approx(
        [losses["cross_entropy"] for losses in eager.engine.train_all(eager.clients, 0)], rel=1e-5
    )


class Penalty(Local):
    """A method with a slope in its loss, which has to be differentiated twice."""

    def loss(self, client, images, labels):
        embedding = client.model.embed(images)
        loss = cross_entropy(client.model.classify(embedding), labels)
        (slope,) = torch.autograd.grad(loss, embedding, create_graph=True)
        return {"cross_entropy": loss, "penalty": 10 * slope.square().sum()}


class Detached(Local):
    """A method that learns nothing, by mistake."""

    def loss(self, client, images, labels):
        return {name: term.detach() for name, term in super().loss(client, images, labels).items()}


@interpreted
def test_a_loss_that_has_a_slope_in_it_learns_what_it_learns_eagerly():
    made = recipe(method="local")
    eager, grouped = eager_world(made, {"flat": flat}), grouped_world(made, {"flat": flat})
    for part in (eager, grouped):
        part.method = part.engine.method = Penalty(made.method)
    grouped.engine.eager.method = grouped.method
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        grouped.engine.train_all(grouped.clients, 0)
    eager.engine.train_all(eager.clients, 0)
    assert_equal_models(eager, grouped)


@interpreted
def test_a_loss_that_nothing_can_be_learned_from_is_an_error():
    made = recipe(method="local")
    grouped = grouped_world(made, {"flat": flat})
    grouped.engine.eager.method = grouped.engine.method = Detached(made.method)
    with pytest.warns(UserWarning, match="no term of the loss"), pytest.raises(RuntimeError, match="require grad"):
        grouped.engine.train_all(grouped.clients, 0)


class Misnamed(nn.Module):
    """A layer that is called like another."""

    def __init__(self, image, embedding):
        super().__init__()
        self.first = nn.Linear(image[0] * image[1] * image[2], 8)
        self.relu = nn.LeakyReLU(0.5)
        self.last = nn.Linear(8, embedding)

    def forward(self, x):
        return self.last(self.relu(self.first(torch.flatten(x, 1))))


@interpreted
def test_a_layer_is_what_it_is_and_not_what_it_is_called():
    assert plays_like_eager(recipe(method="local"), {"misnamed": Misnamed}).engine.families[0].group


class Stochastic(nn.Module):
    """A network that drops a layer by a draw of its own."""

    def __init__(self, image, embedding):
        super().__init__()
        self.first = nn.Linear(image[0] * image[1] * image[2], embedding)
        self.second = nn.Linear(embedding, embedding)

    def forward(self, x):
        x = self.first(torch.flatten(x, 1))
        return x if self.training and torch.rand(()) < 0.5 else x + self.second(x)


@interpreted
def test_a_network_that_draws_for_itself_trains_eagerly():
    with pytest.warns(UserWarning, match="it draws random numbers of its own"):
        grouped = plays_like_eager(recipe(method="local"), {"stochastic": Stochastic})
    assert grouped.engine.families[0].eager


class Forgetful(nn.Module):
    """A network for texts or tables that drops what it reads by a draw of its own."""

    def __init__(self, shape, embedding):
        super().__init__()
        self.words = nn.Embedding(shape.vocabulary, 4) if shape.vocabulary else nn.Linear(shape[0], 4)
        self.end = nn.Linear(4, embedding)

    def forward(self, x):
        x = self.words(x).mean(1) if x.dtype == torch.int64 else self.words(x)
        return self.end(x * (torch.rand(()) < 0.9) if self.training else x)


@interpreted
@pytest.mark.parametrize("data", [texts, a_table])
def test_a_table_or_a_text_whose_network_cannot_be_captured_trains_eagerly_and_one_notice_says_so(data):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        grouped = plays_like_eager(recipe(method="local", **OWN), {"forgetful": Forgetful}, data=data())
    assert grouped.engine.families[0].eager
    notices = [str(each.message) for each in said if "cannot be captured" in str(each.message)]
    assert len(notices) == 1
    assert re.search(line_with("random numbers", "2 clients", "one after another"), notices[0])


class Broken(nn.Module):
    """A network with a NaN in the middle, before what could hide it."""

    def __init__(self, image, embedding):
        super().__init__()
        self.conv = nn.Conv2d(image[0], 4, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.norm = nn.BatchNorm2d(4)
        self.end = nn.Linear(4 * (image[1] // 2) * (image[2] // 2), embedding)
        nn.init.constant_(self.conv.bias, torch.nan)

    def forward(self, x):
        return self.end(torch.flatten(torch.relu(self.norm(self.pool(torch.relu(self.conv(x))))), 1))


@interpreted
def test_what_is_no_number_is_not_hidden():
    grouped = grouped_world(recipe(method="local"), {"broken": Broken})
    with pytest.raises(MaplError, match="became nan in round 0"):
        grouped.engine.train_all(grouped.clients, 0)
    assert grouped.engine.families[0].group


class Viewing(nn.Module):
    def __init__(self, image, embedding):
        super().__init__()
        self.conv = nn.Conv2d(image[0], 3, 3, padding=1)
        self.end = nn.Linear(3 * image[1] * image[2], embedding)

    def forward(self, x):
        x = self.conv(x)
        return self.end(x.view(x.size(0), -1))


class Drawing(nn.Sequential):
    def __init__(self, image, embedding):
        pixels = image[1] * image[2]
        super().__init__(
            nn.Conv2d(image[0], 3, 3), nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(3 * (pixels - 28), embedding)
        )


class Tied(nn.Module):
    def __init__(self, image, embedding):
        super().__init__()
        self.first = nn.Linear(image[0] * image[1] * image[2], embedding)
        self.second = nn.Linear(embedding, embedding)
        self.third = nn.Linear(embedding, embedding)
        self.third.weight = self.second.weight

    def forward(self, x):
        return self.third(torch.relu(self.second(torch.relu(self.first(torch.flatten(x, 1))))))


class Frozen(nn.Sequential):
    def __init__(self, image, embedding):
        super().__init__(nn.Flatten(), nn.Linear(image[0] * image[1] * image[2], 5), nn.ReLU(), nn.Linear(5, embedding))
        self[1].weight.requires_grad_(False)


class Indexed(nn.Sequential):
    def __init__(self, image, embedding):
        super().__init__(nn.Flatten(), nn.Linear(image[0] * image[1] * image[2], embedding))
        self.register_buffer("index", torch.arange(4))


class Modal(nn.Module):
    def __init__(self, image, embedding):
        super().__init__()
        self.linear = nn.Linear(image[0] * image[1] * image[2], embedding)

    def forward(self, x):
        x = self.linear(torch.flatten(x, 1))
        return x if self.training else 2 * x


@interpreted
@pytest.mark.filterwarnings("ignore:backbone")
@pytest.mark.parametrize(
    ("network", "eager"),
    [(Viewing, False), (Drawing, True), (Tied, False), (Frozen, False), (Indexed, True), (Modal, False)],
)
def test_a_network_that_cannot_be_grouped_learns_what_it_learns_alone(network, eager):
    made = recipe(method="local", rounds=2, train={**SMALL["train"], "weight_decay": 0.01})
    grouped = plays_like_eager(made, {"network": network})
    (family,) = grouped.engine.families
    assert not family.group or family.eager
    assert family.eager == eager


@interpreted
def test_backbones_that_differ_in_a_rate_alone_are_two_kinds():
    rates = iter((0.1, 0.3))

    def leaky(image, embedding):
        pixels = image[0] * image[1] * image[2]
        return nn.Sequential(nn.Flatten(), nn.Linear(pixels, 5), nn.LeakyReLU(next(rates)), nn.Linear(5, embedding))

    assert len(grouped_world(recipe(), {"leaky": leaky}).engine.families) == 2


@interpreted
def test_tests_may_come_before_the_first_round():
    made = recipe()
    eager, grouped = eager_world(made, {"flat": flat}), grouped_world(made, {"flat": flat})
    for ours, theirs in zip(*(w.engine.evaluate_all(w.clients) for w in (grouped, eager)), strict=True):
        assert torch.equal(ours.predicted, theirs.predicted)
        assert torch.equal(ours.labels, theirs.labels)
        torch.testing.assert_close(ours.confidence, theirs.confidence, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(grouped.engine.embed(grouped.clients[1]), eager.engine.embed(eager.clients[1]))
    assert grouped.engine.families[0].slots


def on_gpu(kind: str, method: str, backbones: list[str], exact: bool = False) -> Part:
    """Two clients of each backbone, three rounds in float32 with deterministic kernels, or in float64 (`exact`)."""
    made = Recipe.of(
        clients=2 * len(backbones),
        rounds=3,
        method={"name": method, **({"warmup": 1} if method in ("mapl", "mapl+", "pfedsim") else {})},
        data={"name": "digits"},
        model={"backbones": backbones, "hidden": 64},
        partition={"shots": 6},
        augment={"contrastive": {"crop_scale": (0.5, 1.0), "flip": 0.5, "blur": 0.5, "contrast": 0.4}},
        train={"batch": 16, "optimizer": "sgd", "learning_rate": 1e-3},
        engine={"device": "cuda", "kind": kind, "precision": "fp32", "deterministic": True},
    )
    large = [torch.nn.functional.interpolate(i.pixels.float(), (32, 32)).byte() for i in (DIGITS.train, DIGITS.test)]
    data = Dataset("large", Images(large[0], DIGITS.train.labels), Images(large[1], DIGITS.test.labels), 10)
    part = build_part(made, data)
    if exact:
        for client in part.clients:
            client.model.double()
            client.state |= {name: v.double() for name, v in client.state.items() if v.is_floating_point()}
        part.engine.augmentation = Exact(part.engine.augmentation)
    for t in range(made.rounds):
        play_round(part, t)
    return part


class Exact:
    """An augmentation whose images are float64."""

    def __init__(self, augmentation):
        self.augmentation = augmentation

    def __getattr__(self, name):
        return getattr(self.augmentation, name)

    def apply(self, *given):
        return self.augmentation.apply(*given).double()

    def normalise(self, images):
        return self.augmentation.normalise(images).double()


def distance(one: Part, two: Part) -> float:
    """Of all parameters and statistics of all clients, relative to what training changed."""
    pairs = [
        (x.double() - y.double(), y.double())
        for a, b in zip(one.clients, two.clients, strict=True)
        for x, y in zip(a.model.state_dict().values(), b.model.state_dict().values(), strict=True)
    ]
    return float(sum(d.square().sum() for d, _ in pairs).sqrt() / sum(y.square().sum() for _, y in pairs).sqrt())


PAPERS = ["resnet18", "shufflenet", "googlenet", "alexnet"]
MIXED = [(name, PAPERS) for name in ("local", "mapl", "mapl+", "fedsim", "fedproto", "fedclassavg", *WITH_COURIER)]
ALIKE = [(name, [backbone]) for name in ("fedavg", "dfedavgm", "pfedsim", "flt") for backbone in PAPERS]


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
@pytest.mark.parametrize(("method", "backbones"), MIXED + ALIKE, ids=lambda v: v if isinstance(v, str) else "+".join(v))
def test_on_a_gpu_groups_learn_what_eager_steps_learn(method, backbones):
    """As exactly as eager steps do, by the measure of the same run in float64.

    Normalisation, pooling and optimiser are other kernels, which round otherwise, and deep networks with batch
    normalisation amplify a rounding by half a layer at their first weights: of two ways in float32 neither is right.
    So both are measured against float64, and grouped may be at most twice as far from it as eager steps are.
    """
    skip_without_umap(method)
    parts = [on_gpu(kind, method, backbones, exact) for kind, exact in WAYS]
    assert all(family.slots and family.group for family in parts[1].engine.families)
    for a, b in zip(parts[0].clients, parts[1].clients, strict=True):
        for name, x in a.model.state_dict().items():
            assert x.is_floating_point() or torch.equal(x, b.model.state_dict()[name]), name
    eager, grouped = (distance(part, parts[2]) for part in parts[:2])
    print(f"{method} {'+'.join(backbones)}: eager {eager:.1e}, grouped {grouped:.1e} from float64")
    assert grouped < max(2 * eager, 1e-6)


WAYS = [("eager", False), ("grouped", False), ("eager", True)]


class NoKernels:
    """In the place of what builds kernels: they are neither built nor run."""

    def add(self, *_):
        pass


@cpu_only
@pytest.mark.parametrize("method", ["courier", "mutual"])
def test_couriers_beside_the_papers_networks_learn_in_groups(method, monkeypatch):
    """At their real sizes, without a kernel: who falls back would take several times as long, with a warning at most."""
    recipe_of_today = read(Path(__file__).parents[1] / "recipes" / "modern" / "heterogeneous.toml")
    over = {"method": {"name": method}, "clients": 8, "train": {"steps": 1}, "engine": {"device": "cpu"}}
    made = compose(("recipe", recipe_of_today), ("test", over))[0]
    labels = torch.arange(30_000) % 10
    images = [Images(torch.zeros(n, 3, 32, 32, dtype=torch.uint8), labels[:n]) for n in (30_000, 3_000)]
    part = build_part(made, Dataset("black", *images, 10, (0.5,) * 3, (0.5,) * 3))
    old, use = part.engine, EngineSettings(precision="bf16")
    engine = GroupedEngine(part.method, old.settings, old.augmentation, old.seed, use, DEVICE)
    engine.adopt(part.clients)
    builder = Builder(
        part.method, old.settings, old.augmentation, engine.homes, engine.precision, use.together, engine.lanes
    )
    plan = {f.kind.backbone: (f.group, f.eager, builder._together(f, f.group)) for f in engine.families}
    # AlexNet fills a GPU by itself.
    assert plan == {name: (True, False, 1 if name == "alexnet" else use.together) for name in PAPERS}
    # The rest does not depend on how many images there are in a batch.
    builder = replace(builder, train=old.settings.model_copy(update={"batch": 2}))
    monkeypatch.setattr(launch, "_builders", NoKernels())
    for family in engine.families:
        slot = builder._slot(family, True)
        assert (slot.size, family.size) == ((1, 1) if family.kind.backbone == "alexnet" else (2, 2))
        assert set(slot.try_all()) == {"backbone", *part.method.answers_with}
        learned = {name for name in family.layout.entries if family.layout.learns(name)}
        assert slot.networks.learned >= learned, "every parameter has a gradient"


class Branching(nn.Module):
    """What it does depends on what it sees: no step of it can be captured."""

    def __init__(self, image, embedding):
        super().__init__()
        self.flat = nn.Flatten()
        self.one = nn.Linear(image[0] * image[1] * image[2], embedding)
        self.two = nn.Linear(image[0] * image[1] * image[2], embedding)

    def forward(self, x):
        x = self.flat(x)
        return self.one(x) if float(x.mean()) > 0 else self.two(x)


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
def test_on_a_gpu_a_network_that_branches_on_its_data_trains_eagerly_and_says_so():
    made = recipe(engine={"device": "cuda"}, evaluate={"every": 1}, rounds=2)
    backbones = {"branching": Branching, "tiny": Tiny}
    part = build_part(given_in_python(made, None, backbones), backbones=backbones)
    with pytest.warns(UserWarning, match="'branching' with method 'mapl' cannot be captured") as caught:
        lines = [play_round(part, t)[0] for t in range(2)]
    assert len([w for w in caught if "captured" in str(w.message)]) == 1
    assert [bool(family.slots) for family in part.engine.families] == [False, True]
    assert all(accuracy is not None for accuracy in lines[-1].accuracy)


@interpreted
def test_a_network_that_branches_on_its_data_is_not_grouped():
    part = grouped_world(recipe(), {"branching": Branching})
    play_round(part, 0)
    (family,) = part.engine.families
    assert not family.group
    assert family.size == 1


def test_operations_of_a_backbone_are_those_that_torch_counts():
    names = ["mlp", "cnn", "residual", "separable", "resnet18", "shufflenet"]
    part = build_part(recipe(clients=len(names), model={"backbones": names}, engine={"device": "cpu"}), DIGITS)
    for client in part.clients:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            client.model.eval().embed(client.train.pixels[:1].float())
        assert operations_of(client) == counter.get_total_flops()


def test_torch_is_told_to_be_deterministic_and_no_longer_to_be():
    def told():
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    make_deterministic(EngineSettings(deterministic=True))
    assert told() == (True, True)
    make_deterministic(EngineSettings())
    assert told() == (False, False)
