"""A client's model has the parts that all clients have alike around a backbone of its own, and its own first weights."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import mapl.backbones
from mapl import MaplError
from mapl.model import ClientModel, ModelSettings, architecture, assign, build, find_backbone
from mapl.plugins import known

SETTINGS = ModelSettings(embedding=12, projection=8, hidden=16)
OURS = ("mlp", "cnn", "residual", "separable")


def made(name="mlp", settings=SETTINGS, image=(1, 8, 8), seed=0, client=0) -> ClientModel:
    return build(name, find_backbone(name), settings, image, 10, seed, client)


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("image", [(1, 8, 8), (3, 32, 32), (1, 28, 28)])
def test_shapes(name, image):
    model = made(name, image=image)
    images = torch.rand(5, *image)
    embedding = model.embed(images)
    assert embedding.shape == (5, 12)
    assert model.project(embedding).shape == (5, 8)
    assert model.classify(embedding).shape == model(images).shape == (5, 10)
    assert model.prototypes.shape == (10, 8)
    assert torch.equal(model.classify(-embedding.abs()), model.classify(torch.zeros_like(embedding)))


def test_the_four_default_backbones_are_small_and_really_different():
    assert ModelSettings().backbones == OURS
    assert set(OURS) <= set(known(mapl.backbones))
    backbones = [find_backbone(name)((1, 28, 28), 512) for name in OURS]
    assert all(sum(p.numel() for p in b.parameters()) < 300_000 for b in backbones)
    assert len({architecture(b) for b in backbones}) == 4


def test_an_architecture_is_its_tensors_whatever_their_values():
    assert architecture(made(client=0).backbone) == architecture(made(client=1).backbone)
    wider = ModelSettings(embedding=13, projection=8, hidden=16)
    assert architecture(made().backbone) != architecture(made(settings=wider).backbone)


def state(model: ClientModel) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if name != "prototypes"}


def same(a: ClientModel, b: ClientModel) -> bool:
    return all(torch.equal(x, y) for x, y in zip(state(a).values(), state(b).values(), strict=True))


def test_first_weights_depend_on_seed_and_client():
    assert same(made(), made())
    assert not same(made(), made(client=1))
    assert not same(made(), made(seed=1))


def test_common_start_is_common_to_an_architecture_but_for_the_prototypes():
    common = SETTINGS.model_copy(update={"common_start": True})
    zero, four = made(settings=common), made(settings=common, client=4)
    assert same(zero, four)
    assert not torch.equal(zero.prototypes, four.prototypes)
    assert not same(zero, made(settings=common, seed=1))
    assert torch.equal(zero.prototypes, made().prototypes)


def test_prototypes_are_uniform_within_one_over_the_root_of_their_dimension():
    wide = ModelSettings(embedding=12, projection=400, hidden=16)
    prototypes = made(settings=wide).prototypes.detach()
    bound = 1 / math.sqrt(400)
    assert prototypes.abs().max() <= bound
    assert prototypes.abs().max() > 0.99 * bound
    assert abs(float(prototypes.std()) - bound / math.sqrt(3)) < 0.05 * bound


def test_building_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    made("cnn")
    assert torch.equal(torch.rand(3), expected)


def test_the_check_of_the_output_leaves_no_trace_in_the_model():
    model = made("cnn")
    assert model.training
    counters = [v for k, v in model.state_dict().items() if k.endswith("num_batches_tracked")]
    assert counters
    assert all(int(count) == 0 for count in counters)


def test_round_robin_and_random_assignment():
    assert assign(ModelSettings(), 4, 6, 0) == [0, 1, 2, 3, 0, 1]
    random = ModelSettings(assignment="random")
    drawn = assign(random, 4, 40, 0)
    assert drawn == assign(random, 4, 40, 0) != assign(random, 4, 40, 1)
    assert set(drawn) == {0, 1, 2, 3}


class Tuple(nn.Module):
    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return images, images


@pytest.mark.parametrize(
    ("backbone", "sentence"),
    [
        (lambda image, d: nn.Sequential(nn.Flatten(), nn.Linear(64, d + 1)), r"'odd' maps images of 8×8 pixels and 1 channel to tensors "
         r"\(13,\), but model.embedding wants vectors of 12"),
        (lambda image, d: nn.Identity(), r"to tensors \(1, 8, 8\)"),
        (lambda image, d: Tuple(), r"to a tuple, but"),
        (lambda image, d: nn.Conv2d(3, d, 8), r"'odd' cannot take images of 8×8 pixels and 1 channel: .*3 channels"),
        (lambda image, d: "network", r"'odd' .* str, not a torch.nn.Module"),
    ],
)  # fmt: skip
def test_a_backbone_that_does_not_fit_is_a_clear_error(backbone, sentence):
    with pytest.raises(MaplError, match=sentence):
        build("odd", backbone, SETTINGS, (1, 8, 8), 10, 0, 0)


def test_lazy_layers_are_made_for_every_client():
    def lazy(image, embedding):
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(embedding))

    for check in (True, False):
        model = build("lazy", lazy, SETTINGS, (1, 8, 8), 10, 0, 0, check=check)
        assert all(parameter.numel() for parameter in model.parameters())
