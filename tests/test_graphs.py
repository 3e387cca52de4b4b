"""The engine for GPUs, against the eager one. Without a GPU its kernels run in Triton's interpreter, step by step."""

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from mapl.engine.graphs import GraphEngine  # noqa: E402
from mapl.engine.settings import EngineSettings  # noqa: E402
from mapl.recipe import Recipe  # noqa: E402
from mapl.round import play_round  # noqa: E402
from mapl.world import World, build_world  # noqa: E402

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")
SMALL = {"clients": 3, "rounds": 1, "partition": {"shots": 2}, "train": {"batch": 4, "learning_rate": 1e-3}}


def recipe(**settings):
    settings = {**SMALL, **settings}
    settings["model"] = {"hidden": 16, "embedding": 12, "projection": 8, "backbones": ["cnn"], **settings.get("model", {})}
    return Recipe.of(**settings)


def graph_world(made: Recipe, backbones=None, **engine) -> World:
    """The run with its engine replaced by the one for GPUs, in float32."""
    world = build_world(made.model_copy(update={"engine": EngineSettings(device="cpu")}), backbones=backbones)
    settings = EngineSettings(precision="fp32", **engine)
    old = world.engine
    world.engine = GraphEngine(world.method, old.settings, old.augmentation, old.seed, settings, DEVICE)
    world.engine.adopt(world.clients)
    return world


def both(made: Recipe, backbones=None, **engine) -> tuple[World, World]:
    eager = build_world(made.model_copy(update={"engine": EngineSettings(device="cpu")}), backbones=backbones)
    return eager, graph_world(made, backbones, **engine)


def assert_equal_models(one: World, two: World, atol=2e-5):
    for a, b in zip(one.clients, two.clients, strict=True):
        for (name, x), y in zip(a.model.state_dict().items(), b.model.state_dict().values(), strict=True):
            torch.testing.assert_close(y.cpu(), x, atol=atol, rtol=1e-4, msg=lambda m, n=name, c=a: f"client {c.id} {n}: {m}")
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


def plays_like_eager(made: Recipe, backbones=None, atol=2e-5, **engine) -> World:
    eager, graphs = both(made, backbones, **engine)
    for t in range(made.rounds):
        a, _ = play_round(eager, t)
        b, _ = play_round(graphs, t)
        for term, values in a.losses.items():
            assert b.losses[term] == pytest.approx(values, rel=1e-4, abs=1e-5)
        assert b.accuracy == pytest.approx(a.accuracy)
    assert_equal_models(eager, graphs, atol)
    return graphs


def test_a_group_learns_what_its_members_learn_alone():
    graphs = plays_like_eager(recipe(train={**SMALL["train"], "optimizer": "sgd"}), {"tiny": Tiny})
    (family,) = graphs.engine.families
    assert family.group
    assert family.size == 3
    assert len(family.slots) == 1
