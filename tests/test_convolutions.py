"""Convolutions of a group against torch's own in float64, member by member."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

pytest.importorskip("triton")

from mapl.engine.cuda.layers import AveragePool, KeyedDropout, Keys, MaxPool
from mapl.engine.cuda.layers.depthwise import Depthwise
from mapl.engine.cuda.layers.geometry import Sizes
from mapl.engine.cuda.layers.linear import Matrices
from mapl.engine.cuda.layers.norm import _Blocks
from mapl.engine.cuda.layers.one_by_one import OneByOne
from mapl.engine.cuda.layers.products import Products
from mapl.engine.cuda.layers.stem import Stem

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def large(*case):
    """A case that takes seconds in Triton's interpreter."""
    return pytest.param(*case, marks=pytest.mark.slow)


def case(way, clients, batch, channels, filters, image, k, stride, padding, groups=1, dtype=torch.float32, want=True):
    """How far y, dx and dw are from float64, each relative to its size."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    draw = torch.Generator().manual_seed(channels + 7 * filters + k)
    x = torch.randn(clients * batch, channels, *image, generator=draw).to(DEVICE, dtype)
    x = x.to(memory_format=torch.channels_last)
    size = filters, k, k, channels // groups
    # In a flat vector a member's filters are followed by other parameters.
    room = torch.randn(clients, filters * k * k * size[3] + 5, generator=draw).to(DEVICE, dtype)
    weight = room[:, :-5].unflatten(1, size).movedim(4, 2)
    into = torch.full_like(room, 3.0)
    gradient = into[:, :-5].unflatten(1, size).movedim(4, 2)
    sizes = Sizes((k, k), (stride, stride), (padding, padding), (1, 1), groups)
    x = x.requires_grad_(want)
    token = torch.empty(0, device=DEVICE, requires_grad=True)
    y = way.apply(x, token, weight, gradient, sizes)
    dy = torch.randn(y.shape, generator=draw).to(DEVICE, dtype)
    y.backward(dy)
    exact, pixels, taps = [], x.detach().double().requires_grad_(), weight.double().requires_grad_()
    for images, own in zip(pixels.chunk(clients), taps, strict=True):
        exact.append(F.conv2d(images, own, None, stride, padding, 1, groups))
    torch.cat(exact).backward(dy.double())
    assert bool((into[:, -5:] == 3).all()), "it wrote past its own parameters"
    pairs = [(y, torch.cat(exact)), (gradient, taps.grad)] + ([(x.grad, pixels.grad)] if want else [])
    return max(float((a.detach().double() - b.detach()).norm() / b.detach().norm().clamp_min(1e-9)) for a, b in pairs)


SHAPES = [
    (2, 4, 16, 8, (6, 6), 3, 1, 1),
    (3, 2, 20, 24, (5, 7), 3, 2, 1),  # no channels by the sixteen, an odd image, a stride
    large((1, 3, 65, 130, (4, 4), 3, 1, 1)),  # more channels than a block has
    large((2, 2, 8, 8, (9, 9), 5, 4, 2)),
    (2, 3, 8, 16, (6, 6), 2, 2, 0),
    large((2, 300, 8, 8, (2, 2), 3, 1, 1)),  # so many places that the filters' sums are split
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_convolutions(shape):
    assert case(Products, *shape) < 2e-6


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_the_librarys_are_too(shape):
    assert case(OneByOne, *shape) < 2e-6


def test_without_a_way_back_to_the_images_filters_still_learn():
    assert case(Products, 2, 3, 8, 8, (5, 5), 3, 1, 1, want=False) < 2e-6


STEMS = [
    (2, 3, 3, 8, (9, 9), 3, 2, 1),
    (2, 2, 3, 20, (12, 10), 7, 2, 3),
    (1, 3, 1, 24, (6, 6), 3, 1, 1),
    (2, 2, 4, 8, (7, 5), 2, 1, 0),
    (1, 2, 2, 70, (8, 8), 5, 4, 0),  # rows that no filter reaches, more filters than a block has
    large((2, 40, 3, 8, (8, 8), 3, 1, 1)),  # so many places that the filters' sums are split
]


@pytest.mark.parametrize("shape", STEMS, ids=str)
def test_stems_of_few_channels(shape):
    assert case(Stem, *shape, want=False) < 2e-6


DEPTHWISE = [
    (2, 3, 12, 12, (6, 6), 3, 2, 1, 12),
    (3, 2, 10, 10, (5, 4), 3, 1, 1, 10),  # channels by the two, a program with places of several images
    large((1, 2, 70, 70, (4, 4), 5, 1, 2, 70)),
    large((2, 20, 8, 8, (6, 6), 3, 1, 1, 8)),  # so many places that the filters' sums are split
]


@pytest.mark.parametrize("shape", DEPTHWISE, ids=str)
def test_a_filter_a_channel(shape):
    assert case(Depthwise, *shape) < 2e-6


POOLS = [
    (8, (6, 6), 3, 2, 1, False),
    large(10, (5, 7), 3, 1, 1, False),
    (3, (7, 7), 2, 2, 1, True),
    large(70, (4, 4), 2, 1, 1, False),
]


@pytest.mark.parametrize(("channels", "image", "k", "stride", "padding", "ceil"), POOLS, ids=str)
def test_maximum_pooling_is_torchs(channels, image, k, stride, padding, ceil):
    draw = torch.Generator().manual_seed(channels)
    x = torch.randint(0, 5, (30, channels, *image), generator=draw).float()  # with many that are equal
    x[0, 0, 0, 0] = torch.nan
    given, exact = x.to(DEVICE, copy=True).requires_grad_(), x.double().requires_grad_()
    y = MaxPool(nn.MaxPool2d(k, stride, padding, ceil_mode=ceil))(given)
    want = F.max_pool2d(exact, k, stride, padding, ceil_mode=ceil)
    dy = torch.randn(want.shape, generator=draw, dtype=torch.float64)
    y.backward(dy.to(DEVICE, torch.float32))
    want.backward(dy)
    assert torch.equal(y.detach().cpu().double().nan_to_num(7), want.detach().nan_to_num(7))
    assert torch.allclose(given.grad.cpu().double(), exact.grad, atol=1e-6)


@pytest.mark.parametrize(
    ("image", "size"), [((17, 17), 3), ((5, 8), (2, 3)), ((4, 4), (None, 1)), ((2, 3), 4)], ids=str
)
def test_average_pooling_is_torchs(image, size):
    draw = torch.Generator().manual_seed(7)
    x = torch.randn(3, 10, *image, generator=draw)
    given, exact = x.to(DEVICE, copy=True).requires_grad_(), x.double().requires_grad_()
    y, want = AveragePool(nn.AdaptiveAvgPool2d(size))(given), F.adaptive_avg_pool2d(exact, size)
    dy = torch.randn(want.shape, generator=draw, dtype=torch.float64)
    y.backward(dy.to(DEVICE, torch.float32))
    want.backward(dy)
    for found, sure in ((y.detach(), want.detach()), (given.grad, exact.grad)):
        assert torch.allclose(found.cpu().double(), sure, atol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(DEVICE.type == "cuda", reason="each example would be compiled anew")
@settings(max_examples=25)
@given(st.data())
def test_any_plain_convolution(data):
    k = data.draw(st.integers(1, 5))
    image = data.draw(st.tuples(st.integers(k, 9), st.integers(k, 9)))
    stride, padding = data.draw(st.sampled_from([1, 2, 4])), data.draw(st.integers(0, k - 1))
    counts = [
        data.draw(st.integers(1, 3)),
        data.draw(st.integers(1, 4)),
        *data.draw(st.tuples(*[st.integers(1, 40)] * 2)),
    ]
    assert case(Products, *counts, image, k, stride, padding) < 5e-6


@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("shape", [(5, 128, 64, 64, (8, 8), 3, 1, 1), (5, 128, 96, 112, (4, 4), 3, 2, 1)], ids=str)
def test_on_a_gpu_bf16_is_as_exact_as_it_can_be(shape):
    assert case(Products, *shape, dtype=torch.bfloat16) < 4e-3  # half a unit in the last of 8 bits


def test_a_grid_of_a_test_is_never_too_large_for_a_gpu():
    assert all(_Blocks(rows, 8, 2, training=False).splits <= 65535 for rows in (1, 500, 10**6, 500 * 224 * 224))


def test_what_cannot_be_differentiated_twice_says_so():
    weight, gradient = torch.randn(1, 4, 3, device=DEVICE), torch.zeros(1, 4, 3, device=DEVICE)
    x = torch.randn(1, 2, 3, device=DEVICE, requires_grad=True)
    y = Matrices.apply(x, torch.zeros((), device=DEVICE, requires_grad=True), weight, gradient)
    with pytest.raises(RuntimeError, match="differentiated twice"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def test_dropout_can_be_differentiated_twice():
    keys = Keys(torch.tensor([7], device=DEVICE), torch.zeros(1, dtype=torch.int64, device=DEVICE))
    x = torch.randn(3, 40, device=DEVICE, requires_grad=True)
    y = KeyedDropout(keys, layer=1, rate=0.5)(x)
    (slope,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
    slope.sum().backward()
    kept = y.detach() != 0
    assert 0 < kept.sum() < kept.numel()
    # y = 2x where it is kept, so that the second derivative of y³ is 48x.
    torch.testing.assert_close(x.grad, torch.where(kept, 48 * x.detach(), 0.0))
