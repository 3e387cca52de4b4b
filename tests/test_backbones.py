"""Backbones: layout, shapes and gradients of the paper's and of the small ones; models of other libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mapl.backbones
from mapl.backbones.cnn import CNN
from mapl.errors import MaplError
from mapl.model import ClientModel, ModelSettings, build, find_backbone
from mapl.plugins import known, summary

PAPER = ("resnet18", "shufflenet", "googlenet", "alexnet")
SETTINGS = ModelSettings(embedding=20, projection=8, hidden=16)

paper_backbones = pytest.mark.parametrize("name", PAPER)


def client_model(name: str, image: tuple[int, int, int], client: int = 0, seed: int = 1) -> ClientModel:
    return build(name, find_backbone(name), SETTINGS, image, classes=10, seed=seed, client=client)


# --- The public layout: the architectures once more, as functions of a dictionary of tensors with the public names. ---


class Tensors(dict[str, Tensor]):
    """A state dict that draws a tensor the first time that a forward pass asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.draw = torch.Generator().manual_seed(0)

    def tensor(self, name: str, *shape: int, mean: float = 0.0, deviation: float = 0.1) -> Tensor:
        if name not in self:
            self[name] = mean + deviation * torch.randn(*shape, generator=self.draw, dtype=torch.float64)
        return self[name]

    def conv(self, name: str, x: Tensor, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> Tensor:
        fan_in = x.shape[1] // groups * kernel * kernel
        shape = (outputs, x.shape[1] // groups, kernel, kernel)
        weight = self.tensor(f"{name}.weight", *shape, deviation=(2 / fan_in) ** 0.5)
        return F.conv2d(x, weight, stride=stride, padding=(kernel - 1) // 2, groups=groups)

    def norm(self, name: str, x: Tensor, eps: float = 1e-5) -> Tensor:
        def column(part: str, mean: float) -> Tensor:
            return self.tensor(f"{name}.{part}", x.shape[1], mean=mean)[:, None, None]

        self.setdefault(f"{name}.num_batches_tracked", torch.tensor(3))
        variance = self.tensor(f"{name}.running_var", x.shape[1], mean=1.0).abs_()[:, None, None]
        scaled = (x - column("running_mean", 0.0)) / torch.sqrt(variance + eps)
        return scaled * column("weight", 1.0) + column("bias", 0.0)


def resnet18(t: Tensors, x: Tensor) -> Tensor:
    x = F.relu(t.norm("bn1", t.conv("conv1", x, 64, 7, stride=2)))
    x = F.max_pool2d(x, 3, 2, 1)
    for layer, width in enumerate((64, 128, 256, 512), start=1):
        for block in (0, 1):
            name = f"layer{layer}.{block}"
            shrinks = layer > 1 and block == 0
            stride = 2 if shrinks else 1
            y = F.relu(t.norm(f"{name}.bn1", t.conv(f"{name}.conv1", x, width, 3, stride)))
            y = t.norm(f"{name}.bn2", t.conv(f"{name}.conv2", y, width, 3))
            if shrinks:
                x = t.norm(f"{name}.downsample.1", t.conv(f"{name}.downsample.0", x, width, 1, stride))
            x = F.relu(x + y)
    return x.mean((2, 3))


def shufflenet(t: Tensors, x: Tensor) -> Tensor:
    x = F.relu(t.norm("conv1.1", t.conv("conv1.0", x, 24, 3, stride=2)))
    x = F.max_pool2d(x, 3, 2, 1)
    for stage, width, units in ((2, 116, 4), (3, 232, 8), (4, 464, 4)):
        for unit in range(units):
            one, two = f"stage{stage}.{unit}.branch1", f"stage{stage}.{unit}.branch2"
            half = width // 2
            if unit == 0:
                stride, left, right = 2, x, x
                left = t.norm(f"{one}.1", t.conv(f"{one}.0", left, x.shape[1], 3, stride, groups=x.shape[1]))
                left = F.relu(t.norm(f"{one}.3", t.conv(f"{one}.2", left, half, 1)))
            else:
                stride, left, right = 1, x[:, :half], x[:, half:]
            right = F.relu(t.norm(f"{two}.1", t.conv(f"{two}.0", right, half, 1)))
            right = t.norm(f"{two}.4", t.conv(f"{two}.3", right, half, 3, stride, groups=half))
            right = F.relu(t.norm(f"{two}.6", t.conv(f"{two}.5", right, half, 1)))
            x = torch.cat((left, right), 1)
            x = x[:, [channel // 2 + half * (channel % 2) for channel in range(width)]]
    x = F.relu(t.norm("conv5.1", t.conv("conv5.0", x, 1024, 1)))
    return x.mean((2, 3))


INCEPTION = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
"""Table 1 of the GoogLeNet paper: #1×1, #3×3 reduce, #3×3, #5×5 reduce, #5×5, pool proj."""


def googlenet(t: Tensors, x: Tensor) -> Tensor:
    def conv(name: str, x: Tensor, outputs: int, kernel: int, stride: int = 1) -> Tensor:
        return F.relu(t.norm(f"{name}.bn", t.conv(f"{name}.conv", x, outputs, kernel, stride), eps=1e-3))

    x = F.max_pool2d(conv("conv1", x, 64, 7, 2), 3, 2, ceil_mode=True)
    x = conv("conv3", conv("conv2", x, 64, 1), 192, 3)
    x = F.max_pool2d(x, 3, 2, ceil_mode=True)
    for which, (one, three_in, three, five_in, five, pooled) in INCEPTION.items():
        name = f"inception{which}"
        parts = (
            conv(f"{name}.branch1", x, one, 1),
            conv(f"{name}.branch2.1", conv(f"{name}.branch2.0", x, three_in, 1), three, 3),
            conv(f"{name}.branch3.1", conv(f"{name}.branch3.0", x, five_in, 1), five, 3),
            conv(f"{name}.branch4.1", F.max_pool2d(x, 3, 1, 1, ceil_mode=True), pooled, 1),
        )
        x = torch.cat(parts, 1)
        if which == "3b":
            x = F.max_pool2d(x, 3, 2, ceil_mode=True)
        if which == "4e":
            x = F.max_pool2d(x, 2, 2, ceil_mode=True)
    return x.mean((2, 3))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("reference", [resnet18, shufflenet, googlenet])
def test_state_dict_in_the_public_layout_gives_the_same_outputs(
    reference: Callable[[Tensors, Tensor], Tensor], channels: int
) -> None:
    public = Tensors()
    images = torch.randn(2, channels, 75, 58, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    features = reference(public, images)
    backbone = find_backbone(reference.__name__)((channels, 75, 58), 20).double().eval()

    missing, unexpected = backbone.load_state_dict(public, strict=False)
    assert set(missing) == {"fc.weight", "fc.bias"}
    assert unexpected == []

    with torch.no_grad():
        expected = F.linear(features, backbone.get_parameter("fc.weight"), backbone.get_parameter("fc.bias"))
        torch.testing.assert_close(backbone(images), expected, rtol=1e-9, atol=1e-9)
    assert (features[0] - features[1]).abs().mean() > 1e-2, "the images are told apart: the features did not vanish"


@pytest.mark.parametrize(
    ("name", "classifier", "count"),
    [
        ("resnet18", "fc.", 11_176_512),
        ("shufflenet", "fc.", 1_253_604),
        ("googlenet", "fc.", 5_599_904),
        ("alexnet-original", "classifier.6.", 57_003_840),
    ],
)
def test_number_of_parameters_without_the_classifier_is_the_published_one(
    name: str, classifier: str, count: int
) -> None:
    with torch.device("meta"):
        backbone = find_backbone(name)((3, 224, 224), 512)
    assert sum(p.numel() for key, p in backbone.named_parameters() if not key.startswith(classifier)) == count


def test_alexnet_original_has_the_public_names() -> None:
    with torch.device("meta"):
        backbone = find_backbone("alexnet-original")((3, 224, 224), 512)
    layers = [f"features.{i}" for i in (0, 3, 6, 8, 10)] + [f"classifier.{i}" for i in (1, 4, 6)]
    assert list(backbone.state_dict()) == [f"{layer}.{part}" for layer in layers for part in ("weight", "bias")]


# --- Shapes, gradients, first weights. --------------------------------------------------------------------------------


@paper_backbones
@pytest.mark.parametrize("channels", [1, 3])
def test_embeds_small_images_into_the_size_asked_for(name: str, channels: int) -> None:
    for pixels, embedding in ((28, 7), (32, 512), (64, 33)):
        backbone = find_backbone(name)((channels, pixels, pixels), embedding).eval()
        with torch.no_grad():
            assert backbone(torch.randn(2, channels, pixels, pixels)).shape == (2, embedding)


def test_embeds_large_images() -> None:
    with torch.no_grad():
        assert find_backbone("resnet18")((3, 224, 224), 12)(torch.randn(1, 3, 224, 224)).shape == (1, 12)


def test_alexnet_original_takes_63_pixels_and_says_so_below() -> None:
    make = find_backbone("alexnet-original")
    with torch.no_grad():
        assert make((1, 63, 70), 12).eval()(torch.randn(1, 1, 63, 70)).shape == (1, 12)
    for shape in ((3, 62, 224), (3, 224, 62), (3, 32, 32)):
        with pytest.raises(MaplError, match=rf"63 pixels or more, not {shape[1]}×{shape[2]}"):
            make(shape, 12)


@paper_backbones
@pytest.mark.parametrize("image", [(1, 28, 28), (3, 32, 32)])
def test_every_weight_of_a_client_model_gets_a_finite_gradient(name: str, image: tuple[int, int, int]) -> None:
    model = client_model(name, image).train()
    embedding = model.embed(torch.randn(8, *image))
    loss = F.cross_entropy(model.classify(embedding), torch.arange(8)) + model.project(embedding).square().mean()
    loss.backward()
    gradients = {key: parameter.grad for key, parameter in model.backbone.named_parameters()}
    assert [key for key, gradient in gradients.items() if gradient is None or not gradient.isfinite().all()] == []
    assert max(float(g.abs().max()) for g in gradients.values() if g is not None) > 0


@paper_backbones
def test_first_weights_depend_on_the_key_alone(name: str) -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, again, other = (client_model(name, (3, 32, 32), client).state_dict() for client in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[key], again[key]) for key in first)
    weights = [key for key in first if key.endswith("weight") and first[key].ndim > 1]
    assert not any(torch.equal(first[key], other[key]) for key in weights)


def test_convolutions_start_with_the_deviation_of_the_public_definitions() -> None:
    resnet = find_backbone("resnet18")((3, 32, 32), 20)
    weight = resnet.get_parameter("layer4.1.conv2.weight")
    assert weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
    googlenet = find_backbone("googlenet")((3, 32, 32), 20)
    assert googlenet.get_parameter("inception5b.branch2.1.conv.weight").std().item() == pytest.approx(0.01, rel=0.01)


def test_the_lists_have_a_line_for_each() -> None:
    things = known(mapl.backbones)
    assert {*PAPER, "alexnet-original"} <= set(things)
    assert all(10 < len(summary(thing)) < 100 for thing in things.values())


# --- The small backbones: the layout once more, for small images and for large ones. ---------------------------------


def conv_bn_relu(
    t: Tensors, name: str, x: Tensor, outputs: int, stride: int = 1, groups: int = 1, kernel: int = 3
) -> Tensor:
    return F.relu(t.norm(f"{name}.1", t.conv(f"{name}.0", x, outputs, kernel, stride, groups)))


def cnn(t: Tensors, x: Tensor, large: bool) -> Tensor:
    x = conv_bn_relu(t, "0", x, 24, 4 if large else 1, kernel=5 if large else 3)
    return conv_bn_relu(t, "2", conv_bn_relu(t, "1", x, 48, 2), 64)


def residual(t: Tensors, x: Tensor, large: bool) -> Tensor:
    def block(name: str, x: Tensor) -> Tensor:
        y = conv_bn_relu(t, f"{name}.first", x, x.shape[1])
        return F.relu(x + t.norm(f"{name}.second.1", t.conv(f"{name}.second.0", y, x.shape[1], 3)))

    x = block("1", conv_bn_relu(t, "0", x, 24, 4 if large else 1, kernel=5 if large else 3))
    return block("3", conv_bn_relu(t, "2", x, 48, 2))


def separable(t: Tensors, x: Tensor, large: bool) -> Tensor:
    x = conv_bn_relu(t, "0", x, 24, 2 if large else 1)
    for name, outputs, stride in (("1", 48, 2 if large else 1), ("2", 96, 1 if large else 2), ("3", 96, 1)):
        x = conv_bn_relu(t, f"{name}.0", x, x.shape[1], stride, groups=x.shape[1])
        x = conv_bn_relu(t, f"{name}.1", x, outputs, kernel=1)
    return x


SMALL = {"cnn": (cnn, "3"), "residual": (residual, "4"), "separable": (separable, "4")}
"""Each with the name of its last part."""
SHAPES = [
    (1, 8, 8),
    (3, 15, 40),
    (2, 1, 1),
    (1, 1, 30),
    (1, 16, 16),
    (3, 17, 17),
    (1, 28, 28),
    (3, 32, 32),
    (1, 35, 16),
]


@pytest.mark.parametrize("image", SHAPES, ids=str)
@pytest.mark.parametrize("name", SMALL)
def test_small_backbones_shrink_images_of_16_pixels_or_more(name: str, image: tuple[int, int, int]) -> None:
    reference, last = SMALL[name]
    large = min(image[1:]) >= 16
    layout = Tensors()
    images = torch.randn(3, *image, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    features = F.adaptive_avg_pool2d(reference(layout, images, large), 2).flatten(1)
    backbone = find_backbone(name)(image, 20).double().eval()

    missing, unexpected = backbone.load_state_dict(layout, strict=False)
    assert set(missing) == {f"{last}.2.weight", f"{last}.2.bias"}
    assert unexpected == []

    with torch.no_grad():
        weight, bias = (backbone.get_parameter(f"{last}.2.{part}") for part in ("weight", "bias"))
        torch.testing.assert_close(backbone(images), F.linear(features, weight, bias), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("image", [(1, 8, 8), (3, 17, 16), (1, 28, 28)], ids=str)
def test_every_weight_of_a_small_backbone_learns(name: str, image: tuple[int, int, int]) -> None:
    backbone = find_backbone(name)(image, 12).train()
    backbone(torch.randn(8, *image)).square().mean().backward()
    gradients = [parameter.grad for parameter in backbone.parameters()]
    assert all(g is not None and g.isfinite().all() and g.abs().max() > 0 for g in gradients)


# --- Models of other libraries: stand-ins that are called as torchvision and timm are. --------------------------------

TORCHVISION = """
import functools
from collections import namedtuple
from torch import nn

Outputs = namedtuple("Outputs", ["logits", "aux_logits"])

class Net(nn.Sequential):
    def __init__(self, num_classes=1000, dropout=0.5):
        super().__init__(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes))

class WithHeads(nn.Module):
    def __init__(self, num_classes=1000):
        super().__init__()
        self.main, self.aux = Net(num_classes), Net(num_classes)

    def forward(self, x):
        return Outputs(self.main(x), self.aux(x)) if self.training else self.main(x)

def legacy(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper

@legacy
def resnet18(*, weights=None, progress=True, **kwargs):
    return Net(**kwargs)

def googlenet(*, weights=None, progress=True, **kwargs):
    return WithHeads(**kwargs)
"""

TIMM = """
from torch import nn

def is_model(name):
    return name == "resnet18.a1_in1k"

def create_model(model_name, pretrained=False, **kwargs):
    assert not pretrained
    conv = nn.Conv2d(kwargs["in_chans"], 4, 3)
    return nn.Sequential(conv, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, kwargs["num_classes"]))
"""

OURS = """
from mapl.backbones.cnn import CNN

def anything(*args, **kwargs):
    return CNN(*args, **kwargs)

def more(image, embedding, num_classes=3):
    return CNN(image, embedding)
"""


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").touch()
    (tmp_path / "torchvision" / "models.py").write_text(TORCHVISION)
    (tmp_path / "timm.py").write_text(TIMM)
    (tmp_path / "own_backbones.py").write_text(OURS)

    def take_out() -> dict[str, object]:
        names = [name for name in sys.modules if name.split(".")[0] in ("torchvision", "timm", "own_backbones")]
        return {name: sys.modules.pop(name) for name in names}

    installed = take_out()
    monkeypatch.syspath_prepend(tmp_path)
    yield
    take_out()
    sys.modules.update(installed)  # type: ignore[arg-type]


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("name", ["resnet18", "Net", "googlenet"])
def test_torchvision_models_are_backbones(name: str) -> None:
    grey = client_model(f"torchvision.models:{name}", (1, 28, 28)).train()
    colour = client_model(f"torchvision.models:{name}", (3, 28, 28)).train()
    image = torch.randn(4, 1, 28, 28)
    assert grey.embed(image).shape == (4, SETTINGS.embedding)
    assert torch.equal(grey.embed(image), colour.embed(image.repeat(1, 3, 1, 1))), "grey images are repeated"
    assert torch.equal(grey.train().embed(image), grey.eval().embed(image)), "auxiliary outputs are left out"


@pytest.mark.usefixtures("libraries")
def test_three_channel_models_say_so_for_other_images() -> None:
    with pytest.raises(MaplError, match="takes images of 3 channels"):
        client_model("torchvision.models:resnet18", (4, 28, 28))


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_timm_models_get_a_stem_for_the_images(channels: int) -> None:
    model = client_model("timm:resnet18.a1_in1k", (channels, 28, 28))
    assert model.embed(torch.randn(4, channels, 28, 28)).shape == (4, SETTINGS.embedding)
    stem = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    assert stem.in_channels == channels


@pytest.mark.usefixtures("libraries")
def test_timm_says_which_model_it_does_not_have() -> None:
    with pytest.raises(MaplError, match="timm has no model 'create_model'"):
        find_backbone("timm:create_model")


def test_timm_says_when_it_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MaplError, match="'timm:resnet18' needs timm"):
        find_backbone("timm:resnet18")


@pytest.mark.usefixtures("libraries")
def test_backbones_of_our_own_kind_are_called_as_ever() -> None:
    assert find_backbone("mapl.backbones.cnn:CNN") is CNN
    for name in ("anything", "more"):
        assert isinstance(find_backbone(f"own_backbones:{name}")((3, 28, 28), 20), CNN)
