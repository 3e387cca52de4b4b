"""The fused kernels give the views that Augmentation.apply gives: on a GPU themselves, elsewhere by their interpreter."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor

from mapl.data.augment import NONE, PLAIN, RELEASED, Augmentation, AugmentSettings, blur_kernel_size

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    # Read by Triton itself as it is first imported, and again by every kernel as it is defined and called.
    os.environ["TRITON_INTERPRET"] = "1"
triton = pytest.importorskip("triton", reason="the kernels need Triton: pip install triton")
if DEVICE == "cpu" and isinstance(triton.language.sum, triton.runtime.JITFunction):
    pytest.skip("Triton was imported before this file could ask for its interpreter", allow_module_level=True)

from mapl.engine.cuda.views import Views  # noqa: E402 - after the interpreter is chosen

Shape = tuple[int, int, int]
PAPER = RELEASED.model_copy(update={"blur": 0.5})
"""The augmentation in the paper's appendix."""
WITHIN = 2e-5
few = hypothesis_settings(deadline=None, max_examples=15 if DEVICE == "cpu" else 100)


def augmentation(settings: AugmentSettings, shape: Shape) -> Augmentation:
    mean, std = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
    return Augmentation(settings, shape, mean[: shape[0]], std[: shape[0]], device=DEVICE)


def photographs(shape: Shape, n: int, seed: int = 0) -> Tensor:
    """n images with all that pixels can be: noise, flat patches, black and white, greys."""
    pick = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (n, *shape), generator=pick, dtype=torch.uint8)
    half = shape[1] // 2
    images[0::3, :, :half] = images[0::3, :, :1, :1]
    images[1::3, :, half:] = images[1::3, :1, half:]
    images[2::3] = (images[2::3] > 127) * torch.tensor(255, dtype=torch.uint8)
    return images.to(DEVICE)


def both(
    settings: AugmentSettings, shape: Shape, uniforms: Tensor | None = None, *, n: int = 4, dtype: Any = torch.float32
) -> tuple[Tensor, Tensor]:
    """What the kernels make of n images of a pool of five, and what the reference does; (n, H, W, C) each."""
    reference = augmentation(settings, shape)
    pool = photographs(shape, 5)
    index = torch.tensor([3, 0, 4, 1, 3, 2])[torch.arange(n) % 6].to(DEVICE)
    if uniforms is None:
        uniforms = reference.draw(torch.Generator().manual_seed(1), n)
    uniforms = uniforms.to(DEVICE)
    out = torch.full((n, *shape[1:], shape[0]), torch.nan, dtype=dtype, device=DEVICE)
    Views(reference, DEVICE).make(pool, index, uniforms, out)
    return out, reference.apply(pool[index], uniforms).permute(0, 2, 3, 1)


def assert_same(settings: AugmentSettings, shape: Shape, uniforms: Tensor | None = None, **over: Any) -> None:
    ours, theirs = both(settings, shape, uniforms, **over)
    assert ours.isfinite().all()
    assert (ours - theirs).abs().max() <= WITHIN


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 28, 28), (3, 20, 36), (3, 40, 44), (1, 8, 8)])
@pytest.mark.parametrize("settings", [RELEASED, PAPER, PLAIN, NONE], ids=["released", "paper", "plain", "none"])
def test_presets(settings: AugmentSettings, shape: Shape) -> None:
    assert_same(settings, shape, n=4)


@pytest.mark.parametrize("shape", [(3, 16, 24), (1, 16, 24)])
@pytest.mark.parametrize(
    "alone",
    [
        {"crop_scale": (0.1, 0.9)},
        {"crop_scale": (0.3, 1.0), "crop_ratio": (0.2, 0.5)},
        {"crop_padding": 3},
        {"flip": 0.5},
        {"brightness": 0.9},
        {"contrast": 0.9},
        {"saturation": 0.9},
        {"hue": 0.5},
        {"greyscale": 0.5},
        {"blur": 1.0},
        {"blur": 0.5, "blur_sigma": (0.01, 0.02)},
    ],
    ids=str,
)
def test_each_operation_alone(alone: dict[str, Any], shape: Shape) -> None:
    assert_same(AugmentSettings(jitter_probability=0.7, **alone), shape, n=6)


@pytest.mark.parametrize(("shape", "radius"), [((3, 40, 44), 2), ((1, 60, 60), 3)])
def test_wide_blurs(shape: Shape, radius: int) -> None:
    assert blur_kernel_size(*shape[1:]) == 2 * radius + 1
    assert_same(AugmentSettings(blur=1.0), shape, n=2)


@pytest.mark.parametrize("shape", [(3, 1, 1), (1, 1, 9), (3, 2, 7), (1, 64, 64)])
def test_odd_sizes(shape: Shape) -> None:
    assert_same(PAPER.model_copy(update={"blur": 1.0}), shape, n=3)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 9, 30), (3, 30, 9)])
@pytest.mark.parametrize("ratio", [(4.0, 5.0), (0.1, 0.2), (1 / 50, 1 / 40)])
def test_a_crop_that_never_fits_falls_back_on_the_middle(ratio: tuple[float, float], shape: Shape) -> None:
    """The whole area at these ratios is longer than the image on one axis, whatever is drawn."""
    assert_same(AugmentSettings(crop_scale=(0.9, 1.0), crop_ratio=ratio), shape)


def test_halves_are_rounded_to_even_lengths() -> None:
    """Squares whose sides are exactly 1.5, 2.5, … pixels: after an even number a half is rounded down."""
    for half in (1.5, 2.5, 3.5, 4.5, 12.5, 13.5):
        part = half * half / 256
        assert_same(AugmentSettings(crop_scale=(part, part), crop_ratio=(1, 1)), (1, 16, 16), n=2)


def test_uniforms_at_the_ends_of_their_range() -> None:
    reference = augmentation(PAPER, (3, 10, 14))
    width = reference.uniforms_per_image
    last = 1 - 2**-24
    uniforms = torch.stack([torch.zeros(width), torch.full((width,), last), torch.linspace(0, last, width)])
    assert_same(PAPER, (3, 10, 14), uniforms, n=3)


def test_a_later_try_is_taken_where_the_first_ones_do_not_fit() -> None:
    settings = AugmentSettings(crop_scale=(0.2, 1.0), crop_ratio=(0.1, 10.0))
    uniforms = augmentation(settings, (3, 12, 12)).draw(torch.Generator().manual_seed(2), 6)
    uniforms[:, :7], uniforms[:, 10:14], uniforms[:, 14:17] = 0.99, 0.01, 0.99
    assert_same(settings, (3, 12, 12), uniforms, n=6)


@pytest.mark.parametrize("settings", [RELEASED, PAPER], ids=["released", "paper"])
def test_half_precision(settings: AugmentSettings) -> None:
    ours, theirs = both(settings, (3, 16, 16), dtype=torch.bfloat16)
    torch.testing.assert_close(ours.float(), theirs, rtol=2**-7, atol=1e-4)


def test_the_same_views_serve_batches_of_several_sizes() -> None:
    reference = augmentation(PAPER, (3, 8, 8))
    views, pool = Views(reference, DEVICE), photographs((3, 8, 8), 5)
    for n in (2, 4, 0, 2):
        index = torch.arange(n, device=DEVICE)
        uniforms = reference.draw(torch.Generator().manual_seed(n), n).to(DEVICE)
        out = torch.empty((n, 8, 8, 3), device=DEVICE)
        views.make(pool, index, uniforms, out)
        assert torch.allclose(out, reference.apply(pool[index], uniforms).permute(0, 2, 3, 1), rtol=0, atol=WITHIN)


def test_what_fits() -> None:
    assert Views.fits(augmentation(PAPER, (3, 64, 64)))
    assert Views.fits(augmentation(PAPER, (1, 28, 28)))
    assert not Views.fits(augmentation(PAPER, (3, 64, 65)))
    two = Augmentation(PLAIN, (2, 8, 8), (0.5, 0.5), (0.5, 0.5))
    assert not Views.fits(two)
    with pytest.raises(ValueError, match="left to Augmentation"):
        Views(two, DEVICE)


@pytest.mark.parametrize("wrong", ["pool", "index", "uniforms", "out"])
def test_tensors_that_a_kernel_would_misread_are_refused(wrong: str) -> None:
    reference = augmentation(PLAIN, (3, 8, 8))
    given = {
        "pool": photographs((3, 8, 8), 5),
        "index": torch.arange(2, device=DEVICE),
        "uniforms": torch.zeros(2, 3, device=DEVICE),
        "out": torch.zeros(2, 8, 8, 3, device=DEVICE),
    }
    dtype, layout = given[wrong].double(), given[wrong].repeat_interleave(2, -1)[..., ::2]
    for bad in (dtype, layout):
        with pytest.raises(ValueError, match=f"{wrong} should be"):
            Views(reference, DEVICE).make(**(given | {wrong: bad}))


@pytest.mark.skipif(DEVICE == "cpu", reason="only a GPU captures")
@pytest.mark.parametrize("settings", [RELEASED, PAPER], ids=["released", "paper"])
def test_captured(settings: AugmentSettings) -> None:
    reference = augmentation(settings, (3, 32, 32))
    views, pool = Views(reference, DEVICE), photographs((3, 32, 32), 5)
    index = torch.zeros(64, dtype=torch.int64, device=DEVICE)
    uniforms = torch.zeros(64, reference.uniforms_per_image, device=DEVICE)
    out = torch.empty((64, 32, 32, 3), device=DEVICE)
    views.make(pool, index, uniforms, out)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        views.make(pool, index, uniforms, out)
    index.copy_(torch.arange(64) % 5)
    uniforms.copy_(reference.draw(torch.Generator().manual_seed(3), 64))
    captured.replay()
    assert torch.allclose(out, reference.apply(pool[index], uniforms).permute(0, 2, 3, 1), rtol=0, atol=WITHIN)


part = st.sampled_from([0.0, 0.3, 0.8, 1.0])


@st.composite
def settings_of_all_kinds(draw: st.DrawFn) -> AugmentSettings:
    def bounds(low: float, high: float) -> tuple[float, float]:
        a, b = draw(st.floats(low, high)), draw(st.floats(low, high))
        return min(a, b), max(a, b)

    crop = draw(st.sampled_from(["none", "resized", "padded"]))
    names = ("flip", "jitter_probability", "brightness", "contrast", "saturation", "greyscale", "blur")
    return AugmentSettings(
        crop_scale=bounds(0.05, 1.0) if crop == "resized" else None,
        crop_ratio=bounds(0.2, 5.0),
        crop_padding=draw(st.integers(1, 5)) if crop == "padded" else 0,
        hue=draw(st.sampled_from([0.0, 0.1, 0.5])),
        blur_sigma=bounds(0.05, 3.0),
        **{name: draw(part) for name in names},
    )


@few
@given(
    settings=settings_of_all_kinds(),
    shape=st.tuples(st.sampled_from([1, 3]), st.integers(1, 14), st.integers(1, 14)),
    seed=st.integers(0, 2**31),
)
def test_any_settings_and_uniforms(settings: AugmentSettings, shape: Shape, seed: int) -> None:
    n = 2
    uniforms = augmentation(settings, shape).draw(torch.Generator().manual_seed(seed), n)
    assert_same(settings, shape, uniforms, n=n)
