"""The engine for GPUs, against the eager one. Without a GPU its kernels run in Triton's interpreter, step by step."""

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from mapl import Dataset, Images
from mapl.data.dataset import DataSettings
from mapl.data.sources.digits import Digits
from mapl.engine.graphs import GraphEngine
from mapl.engine.settings import EngineSettings
from mapl.recipe import Recipe
from mapl.round import play_round
from mapl.world import World, build_world, given_in_python

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")
DIGITS = Digits().load(DataSettings(name="digits"))
SMALL = {
    "clients": 2,
    "rounds": 1,
    "partition": {"shots": 1, "test_shots": 1},
    "train": {"batch": 2, "learning_rate": 1e-3},
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
        monkeypatch.setattr("mapl.engine.graphs.engine.TEST_BATCH", 5)


def eager_world(made: Recipe, backbones) -> World:
    made = given_in_python(made.model_copy(update={"engine": EngineSettings(device="cpu")}), None, backbones)
    return build_world(made, backbones=backbones)


def graph_world(made: Recipe, backbones, **engine) -> World:
    """The run with its engine replaced by the one for GPUs, in float32."""
    world = eager_world(made, backbones)
    settings = EngineSettings(precision="fp32", **engine)
    old = world.engine
    world.engine = GraphEngine(world.method, old.settings, old.augmentation, old.seed, settings, DEVICE)
    world.engine.adopt(world.clients)
    return world


def assert_equal_models(one: World, two: World, atol=2e-5):
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
        self.single = nn.Conv2d(8, 4, 3, stride=2, padding=1)
        self.end = nn.Linear(8 * 2 * 2 + 4, embedding)

    def forward(self, x):
        x = self.pool(torch.relu(self.stem(x)))
        left, right = torch.relu(self.norm(self.deep(x))), self.norm2(self.point(x))
        both = torch.stack((left, x + right), dim=2).flatten(1, 2)
        pixel = self.single(torch.nn.functional.adaptive_avg_pool2d(both, 1))
        return self.end(torch.cat((torch.flatten(self.mean(both), 1), torch.flatten(self.drop(pixel), 1)), dim=1))


def plays_like_eager(made: Recipe, backbones, atol=2e-5, **engine) -> World:
    eager, graphs = eager_world(made, backbones), graph_world(made, backbones, **engine)
    for t in range(made.rounds):
        a, _ = play_round(eager, t)
        b, _ = play_round(graphs, t)
        for term, values in a.losses.items():
            assert b.losses[term] == pytest.approx(values, rel=1e-4, abs=1e-5)
        assert b.accuracy == pytest.approx(a.accuracy)
    assert_equal_models(eager, graphs, atol)
    return graphs


@pytest.mark.skipif(CUDA, reason="the tests below run on the GPU itself")
def test_a_group_learns_what_its_members_learn_alone():
    graphs = plays_like_eager(recipe(train={**SMALL["train"], "optimizer": "sgd"}), {"tiny": Tiny})
    (family,) = graphs.engine.families
    assert family.group
    assert family.size == 2
    assert len(family.slots) == 1


def on_gpu(kind: str, method: str, backbones: list[str]) -> World:
    """Two clients of each backbone, three rounds in float32 with deterministic kernels."""
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
    images = [torch.nn.functional.interpolate(i.pixels.float(), (32, 32)).byte() for i in (DIGITS.train, DIGITS.test)]
    data = Dataset(
        "digits at 32 pixels", Images(images[0], DIGITS.train.labels), Images(images[1], DIGITS.test.labels), 10
    )
    world = build_world(made, data)
    for t in range(made.rounds):
        play_round(world, t)
    return world


PAPERS = ["resnet18", "shufflenet", "googlenet", "alexnet"]
MIXED = [(name, PAPERS) for name in ("local", "mapl", "mapl+", "fedsim", "fedproto", "fedclassavg")]
ALIKE = [(name, [backbone]) for name in ("fedavg", "dfedavgm", "pfedsim", "flt") for backbone in PAPERS]


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
@pytest.mark.parametrize(("method", "backbones"), MIXED + ALIKE, ids=lambda v: v if isinstance(v, str) else "+".join(v))
def test_on_a_gpu_graphs_learn_what_eager_steps_learn(method, backbones):
    """Normalisation and optimiser are other kernels, which round otherwise: 1e-7 of a value, that training amplifies.

    The tolerance is relative to the largest value of each tensor; a parameter that starts at zero is as large as its
    few steps of 1e-3 made it, so that 1e-5 stands for a hundredth of a step.
    """
    if method == "flt":
        pytest.importorskip("umap")
    eager, graphs = on_gpu("eager", method, backbones), on_gpu("graphs", method, backbones)
    assert all(family.slots for family in graphs.engine.families)
    worst = 0.0
    for a, b in zip(eager.clients, graphs.clients, strict=True):
        for name, x in a.model.state_dict().items():
            y = b.model.state_dict()[name]
            if not x.is_floating_point():
                assert torch.equal(x, y), name
                continue
            worst = max(worst, float((x - y).abs().max() / (x.abs().max() + 1e-2)))
    print(f"{method} {'+'.join(backbones)}: worst {worst:.1e}")
    assert worst < 2e-3


class Branching(nn.Module):
    """What it does depends on what it sees: no graph can be recorded of it."""

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
    world = build_world(given_in_python(made, None, backbones), backbones=backbones)
    with pytest.warns(UserWarning, match="'branching' with method 'mapl' cannot be captured") as caught:
        lines = [play_round(world, t)[0] for t in range(2)]
    assert len([w for w in caught if "captured" in str(w.message)]) == 1
    assert [bool(family.slots) for family in world.engine.families] == [False, True]
    assert all(accuracy is not None for accuracy in lines[-1].accuracy)


@pytest.mark.skipif(CUDA, reason="the tests above run on the GPU itself")
def test_a_network_that_branches_on_its_data_is_not_grouped():
    world = graph_world(recipe(), {"branching": Branching})
    play_round(world, 0)
    (family,) = world.engine.families
    assert not family.group
    assert family.size == 1
