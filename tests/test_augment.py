"""Augmentation: every operation against an implementation of its own, and what holds for all of them together."""

from __future__ import annotations

import colorsys
import math
import random

import kornia
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from mapl.data.augment import NONE, PLAIN, RELEASED, Augmentation, AugmentSettings, blur_kernel_size
from mapl.errors import MaplError
from mapl.keys import generator

Shape = tuple[int, int, int]
PAPER = RELEASED.model_copy(update={"blur": 0.5})
"""The augmentation in the paper's appendix."""
few = hypothesis_settings(deadline=None, max_examples=30)


def bare(settings: AugmentSettings, shape: Shape) -> Augmentation:
    """With mean 0 and deviation 1, so that the result is the augmented pixels themselves."""
    return Augmentation(settings, shape, [0.0] * shape[0], [1.0] * shape[0])


def random_images(shape: Shape, n: int, seed: int = 0) -> Tensor:
    return torch.rand((n, *shape), generator=torch.Generator().manual_seed(seed))


def random_uniforms(augmentation: Augmentation, n: int, seed: int = 1) -> Tensor:
    return augmentation.draw(torch.Generator().manual_seed(seed), n)


def windows(settings: AugmentSettings, height: int, width: int, n: int) -> tuple[Tensor, Tensor]:
    """The crops (n, 4) of n draws as (top, left, height, width), read off an image of coordinates, and the draws.

    A resized crop begins at its first pixel and ends at its last one, whatever it was stretched by.
    """
    augmentation = bare(settings, (2, height, width))
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    uniforms = random_uniforms(augmentation, n)
    seen = augmentation.apply(torch.stack([rows, columns]).float().expand(n, -1, -1, -1), uniforms)
    start, end = seen[:, :, 0, 0], seen[:, :, -1, -1]
    return torch.cat([start, end - start + 1], dim=1), uniforms


def torchvision_window(u: list[float], settings: AugmentSettings, height: int, width: int) -> list[int]:
    """RandomResizedCrop for one image, from its definition; u: ten areas, ten ratios, top, left."""
    assert settings.crop_scale is not None
    low, high = settings.crop_scale
    narrow, broad = settings.crop_ratio
    for attempt in range(10):
        area = height * width * (low + u[attempt] * (high - low))
        ratio = math.exp(math.log(narrow) + u[10 + attempt] * (math.log(broad) - math.log(narrow)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return [math.floor(u[20] * (height - h + 1)), math.floor(u[21] * (width - w + 1)), h, w]
    if width / height < narrow:
        w, h = width, round(width / narrow)
    elif width / height > broad:
        w, h = round(height * broad), height
    else:
        w, h = width, height
    return [(height - h) // 2, (width - w) // 2, h, w]


# Geometry


@pytest.mark.parametrize(("height", "width"), [(32, 32), (24, 37), (40, 9), (8, 8), (1, 5)])
def test_resized_crop_is_a_bilinear_resize_of_the_slice(height: int, width: int) -> None:
    settings = AugmentSettings(crop_scale=(0.2, 1.0))
    augmentation = bare(settings, (3, height, width))
    images = random_images((3, height, width), 24)
    uniforms = random_uniforms(augmentation, 24)
    assert uniforms.shape == (24, 22)
    for image, u, result in zip(images, uniforms.tolist(), augmentation.apply(images, uniforms), strict=True):
        top, left, h, w = torchvision_window(u, settings, height, width)
        slice_ = image[None, :, top : top + h, left : left + w]
        expected = F.interpolate(slice_, size=(height, width), mode="bilinear", align_corners=False, antialias=True)
        torch.testing.assert_close(result, expected[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("ratio", "window"),
    [((2.0, 3.0), [4, 0, 8, 16]), ((1 / 3, 1 / 2), [0, 4, 16, 8]), ((0.5, 2.0), [0, 0, 16, 16])],
)
def test_resized_crop_falls_back_on_the_centre(ratio: tuple[float, float], window: list[int]) -> None:
    settings = AugmentSettings(crop_scale=(1.0, 1.0), crop_ratio=ratio)
    crops, uniforms = windows(settings, 16, 16, 50)
    expected = [torchvision_window(u, settings, 16, 16) for u in uniforms.tolist()]
    assert crops.round().tolist() == expected
    assert window in expected


def test_resized_crop_has_the_distribution_of_its_definition() -> None:
    settings = AugmentSettings(crop_scale=(0.2, 1.0))
    height, width, n = 48, 64, 2500
    crops, _ = windows(settings, height, width, n)
    dice = random.Random(7)
    rolls = [[dice.random() for _ in range(22)] for _ in range(n)]
    expected = torch.tensor([torchvision_window(roll, settings, height, width) for roll in rolls]).float()
    for crop in (crops, expected):
        area, ratio = crop[:, 2] * crop[:, 3] / (height * width), crop[:, 3] / crop[:, 2]
        assert 0.19 < area.min() < 0.22
        assert 0.95 < area.max() <= 1
        assert 0.73 < ratio.min() < 0.77
        assert 1.30 < ratio.max() < 1.37
    quantiles = torch.linspace(0.1, 0.9, 9)
    for column, size in zip(range(4), (height, width, height, width), strict=True):
        difference = crops[:, column].quantile(quantiles) - expected[:, column].quantile(quantiles)
        assert difference.abs().max() <= 0.04 * size


@pytest.mark.parametrize(("height", "width", "padding"), [(32, 32, 4), (5, 9, 2), (3, 3, 4), (1, 1, 1)])
def test_padded_crop_is_a_slice_of_the_padded_image(height: int, width: int, padding: int) -> None:
    augmentation = bare(AugmentSettings(crop_padding=padding), (3, height, width))
    images = random_images((3, height, width), 20)
    uniforms = random_uniforms(augmentation, 20)
    padded = F.pad(images, (padding,) * 4)
    for image, (u, v), result in zip(padded, uniforms.tolist(), augmentation.apply(images, uniforms), strict=True):
        top, left = math.floor(u * (2 * padding + 1)), math.floor(v * (2 * padding + 1))
        assert torch.equal(result, image[:, top : top + height, left : left + width])


def test_padded_crop_reaches_every_offset() -> None:
    augmentation = bare(AugmentSettings(crop_padding=1), (1, 1, 1))
    ends = torch.tensor([[u, v] for u in (0.0, 0.5, 1 - 2**-24) for v in (0.0, 0.5, 1 - 2**-24)])
    seen = augmentation.apply(torch.ones(9, 1, 1, 1), ends).flatten()
    assert seen.tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("probability", [0.0, 0.5, 1.0])
def test_flip_swaps_left_and_right_as_often_as_told(probability: float) -> None:
    augmentation = bare(AugmentSettings(flip=probability), (3, 6, 7))
    images = random_images((3, 6, 7), 1).expand(2000, -1, -1, -1)
    result = augmentation.apply(images, random_uniforms(augmentation, 2000))
    flipped = (result == images.flip(3)).all(dim=(1, 2, 3))
    assert torch.equal(result[~flipped], images[~flipped])
    assert abs(flipped.float().mean().item() - probability) <= (0.04 if probability == 0.5 else 0)


def test_flipping_first_equals_flipping_last() -> None:
    """The flip commutes with the colours and the blur: here it is done first, in the paper last."""
    settings = PAPER.model_copy(update={"crop_scale": None, "jitter_probability": 1.0, "blur": 1.0})
    augmentation = bare(settings, (3, 20, 30))
    images = random_images((3, 20, 30), 8)
    uniforms = random_uniforms(augmentation, 8)
    uniforms[:, 0] = 0.9
    plain = augmentation.apply(images, uniforms)
    uniforms[:, 0] = 0.1
    torch.testing.assert_close(augmentation.apply(images, uniforms), plain.flip(3), rtol=0, atol=1e-5)


# Colour


def jittered(name: str, amount: float, images: Tensor) -> tuple[Tensor, Tensor]:
    """The images with one colour operation on all of them, and the change drawn for each."""
    settings = AugmentSettings.model_validate({name: amount, "jitter_probability": 1.0})
    augmentation = bare(settings, (images.shape[1], images.shape[2], images.shape[3]))
    uniforms = random_uniforms(augmentation, len(images))
    assert uniforms.shape == (len(images), 2)
    return augmentation.apply(images, uniforms), amount * (2 * uniforms[:, 1] - 1)


def test_brightness_scales_and_clamps() -> None:
    images = random_images((3, 9, 7), 16)
    result, change = jittered("brightness", 0.4, images)
    expected = torch.stack([(image * (1 + c)).clamp(0, 1) for image, c in zip(images, change, strict=True)])
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-6)


def test_contrast_blends_with_the_mean_grey() -> None:
    images = random_images((3, 9, 7), 16)
    result, change = jittered("contrast", 0.4, images)
    for image, c, seen in zip(images, change, result, strict=True):
        mean = (0.2989 * image[0] + 0.587 * image[1] + 0.114 * image[2]).mean()
        torch.testing.assert_close(seen, ((1 + c) * image - c * mean).clamp(0, 1), rtol=0, atol=1e-6)
    oracle = kornia.enhance.adjust_contrast_with_mean_subtraction(images, 1 + change)
    torch.testing.assert_close(result, oracle, rtol=0, atol=2e-4)  # its grey weights are rounded otherwise


def test_contrast_of_one_channel_blends_with_its_mean() -> None:
    images = random_images((1, 9, 7), 16)
    result, change = jittered("contrast", 0.4, images)
    oracle = kornia.enhance.adjust_contrast_with_mean_subtraction(images, 1 + change)
    torch.testing.assert_close(result, oracle, rtol=0, atol=1e-6)


def test_saturation_blends_with_the_grey_image() -> None:
    images = random_images((3, 9, 7), 16)
    result, change = jittered("saturation", 0.4, images)
    for image, c, seen in zip(images, change, result, strict=True):
        grey = 0.2989 * image[0] + 0.587 * image[1] + 0.114 * image[2]
        torch.testing.assert_close(seen, ((1 + c) * image - c * grey).clamp(0, 1), rtol=0, atol=1e-6)
    oracle = kornia.enhance.adjust_saturation_with_gray_subtraction(images, 1 + change)
    torch.testing.assert_close(result, oracle, rtol=0, atol=2e-4)


@pytest.mark.parametrize("amount", [0.1, 0.5])
def test_hue_is_shifted_as_colorsys_and_kornia_do(amount: float) -> None:
    images = random_images((3, 6, 5), 12)
    images[0] = images[0].round()  # the corners of the colour cube: ties between channels
    images[1] = images[1, :1]  # grey: no hue at all
    images[2] = 0
    result, change = jittered("hue", amount, images)
    for image, shift, seen in zip(images, change.tolist(), result, strict=True):
        for pixel, got in zip(image.flatten(1).T.tolist(), seen.flatten(1).T.tolist(), strict=True):
            h, s, v = colorsys.rgb_to_hsv(*pixel)
            assert got == pytest.approx(colorsys.hsv_to_rgb((h + shift) % 1.0, s, v), abs=1e-5)
    oracle = kornia.enhance.adjust_hue(images, change * 2 * math.pi)
    torch.testing.assert_close(result, oracle, rtol=0, atol=1e-4)


def test_jitter_takes_a_fixed_order_and_leaves_the_others_alone() -> None:
    settings = AugmentSettings(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, jitter_probability=0.5)
    augmentation = bare(settings, (3, 8, 8))
    images = random_images((3, 8, 8), 40)
    uniforms = random_uniforms(augmentation, 40)
    result = augmentation.apply(images, uniforms)
    chosen = uniforms[:, 0] < 0.5
    assert 0 < chosen.sum() < 40
    torch.testing.assert_close(result[~chosen], images[~chosen], rtol=0, atol=2e-6)
    change = (2 * uniforms[:, 1:] - 1) * torch.tensor([0.4, 0.4, 0.4, 0.1])
    expected = kornia.enhance.adjust_brightness_accumulative(images, 1 + change[:, 0])
    expected = kornia.enhance.adjust_contrast_with_mean_subtraction(expected, 1 + change[:, 1])
    expected = kornia.enhance.adjust_saturation_with_gray_subtraction(expected, 1 + change[:, 2])
    expected = kornia.enhance.adjust_hue(expected, change[:, 3] * 2 * math.pi)
    torch.testing.assert_close(result[chosen], expected[chosen], rtol=0, atol=1e-3)


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_greyscale_as_often_as_told(probability: float) -> None:
    augmentation = bare(AugmentSettings(greyscale=probability), (3, 4, 5))
    images = random_images((3, 4, 5), 1000)
    result = augmentation.apply(images, random_uniforms(augmentation, 1000))
    grey = (result == result[:, :1]).all(dim=(1, 2, 3))
    assert torch.equal(result[~grey], images[~grey])
    expected = (images * torch.tensor([0.2989, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True).expand_as(images)
    torch.testing.assert_close(result[grey], expected[grey], rtol=0, atol=1e-6)
    assert abs(grey.float().mean().item() - probability) <= (0.05 if probability == 0.3 else 0)


# Blur


@pytest.mark.parametrize(("height", "width"), [(32, 32), (28, 28), (8, 8), (70, 90), (2, 5)])
def test_blur_is_a_gaussian_filter_with_reflected_borders(height: int, width: int) -> None:
    augmentation = bare(AugmentSettings(blur=1.0), (3, height, width))
    images = random_images((3, height, width), 6)
    uniforms = random_uniforms(augmentation, 6)
    assert uniforms.shape == (6, 2)
    size = blur_kernel_size(height, width)
    sigma = (0.1 + 1.9 * uniforms[:, 1:]).expand(-1, 2)
    expected = kornia.filters.gaussian_blur2d(images, (size, size), sigma, border_type="reflect")
    torch.testing.assert_close(augmentation.apply(images, uniforms), expected, rtol=0, atol=1e-5)


def test_blur_as_often_as_told_and_on_a_line_of_one_pixel() -> None:
    augmentation = bare(AugmentSettings(blur=0.5, blur_sigma=(1.0, 2.0)), (1, 1, 6))
    images = random_images((1, 1, 6), 1000)
    uniforms = random_uniforms(augmentation, 1000)
    same = (augmentation.apply(images, uniforms) == images).all(dim=(1, 2, 3))
    assert torch.equal(same, uniforms[:, 0] >= 0.5)
    flat = torch.full((1000, 1, 1, 6), 0.25)
    torch.testing.assert_close(augmentation.apply(flat, uniforms), flat)


def test_the_kernel_is_simclr_s_and_odd() -> None:
    assert [blur_kernel_size(side, side) for side in (1, 8, 28, 32, 64, 96, 224)] == [3, 3, 3, 3, 7, 9, 23]


# All together


def probabilities() -> st.SearchStrategy[float]:
    return st.sampled_from([0.0, 0.5, 1.0])


@st.composite
def cases(draw: st.DrawFn) -> tuple[Augmentation, Tensor, Tensor]:
    """An augmentation of any settings and shape, with a batch of bytes and its uniforms."""
    crop = draw(st.sampled_from([{}, {"crop_scale": (0.2, 1.0)}, {"crop_padding": 2}]))
    names = ("flip", "brightness", "contrast", "saturation", "greyscale", "blur", "jitter_probability")
    chances = {name: draw(probabilities()) for name in names}
    settings = AugmentSettings.model_validate({**crop, **chances, "hue": draw(st.sampled_from([0.0, 0.1, 0.5]))})
    shape = (draw(st.sampled_from([1, 3])), draw(st.integers(1, 12)), draw(st.integers(1, 12)))
    n, seed = draw(st.integers(1, 5)), draw(st.integers(0, 2**31))
    dice = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=dice)
    augmentation = bare(settings, shape)
    return augmentation, images, augmentation.draw(dice, n)


@few
@given(cases())
def test_pixels_keep_their_shape_and_range(case: tuple[Augmentation, Tensor, Tensor]) -> None:
    augmentation, images, uniforms = case
    assert uniforms.shape == (len(images), augmentation.uniforms_per_image)
    assert uniforms.dtype == torch.float32
    result = augmentation.apply(images, uniforms)
    assert result.shape == images.shape
    assert result.dtype == torch.float32
    assert result.is_contiguous()
    assert result.min() >= -1e-6
    assert result.max() <= 1 + 1e-6  # NaN would fail both


@few
@given(cases(), st.randoms(use_true_random=False))
def test_every_image_is_augmented_by_itself(case: tuple[Augmentation, Tensor, Tensor], dice: random.Random) -> None:
    augmentation, images, uniforms = case
    result = augmentation.apply(images, uniforms)
    order = dice.sample(range(len(images)), len(images))
    torch.testing.assert_close(augmentation.apply(images[order], uniforms[order]), result[order], rtol=0, atol=2e-6)
    alone = [augmentation.apply(images[i : i + 1], uniforms[i : i + 1]) for i in range(len(images))]
    torch.testing.assert_close(torch.cat(alone), result, rtol=0, atol=2e-6)


@few
@given(cases())
def test_the_same_uniforms_give_the_same_bytes_and_change_nothing(case: tuple[Augmentation, Tensor, Tensor]) -> None:
    augmentation, images, uniforms = case
    pixels = images.float() / 255
    before = images.clone(), pixels.clone(), uniforms.clone()
    result = augmentation.apply(images, uniforms)
    assert torch.equal(augmentation.apply(images, uniforms), result)
    assert torch.equal(augmentation.apply(pixels, uniforms), result)
    assert torch.equal(augmentation.normalise(pixels), pixels)
    assert all(torch.equal(*pair) for pair in zip(before, (images, pixels, uniforms), strict=True))


@few
@given(cases())
def test_apply_never_looks_at_a_value(case: tuple[Augmentation, Tensor, Tensor]) -> None:
    """Meta tensors have shapes and no values: a branch on one, a read-back, a shape that depends on one would fail."""
    augmentation, images, uniforms = case
    channels = augmentation.shape[0]
    hollow = Augmentation(augmentation.settings, augmentation.shape, [0.0] * channels, [1.0] * channels, device="meta")
    assert hollow.apply(images.to("meta"), uniforms.to("meta")).shape == images.shape


@pytest.mark.parametrize(
    "settings",
    [
        NONE,
        AugmentSettings(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, jitter_probability=0.0),
        AugmentSettings(crop_scale=(1.0, 1.0), crop_ratio=(1.0, 1.0)),
    ],
)
def test_settings_that_change_nothing_give_exactly_the_normalised_image(settings: AugmentSettings) -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    augmentation = Augmentation(settings, (3, 8, 8), mean, std)
    images = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    result = augmentation.apply(images, random_uniforms(augmentation, 5))
    expected = (images.float() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    assert torch.equal(result, expected)
    assert torch.equal(augmentation.normalise(images), expected)


def test_the_presets_say_what_the_paper_says() -> None:
    assert [bare(preset, (3, 32, 32)).uniforms_per_image for preset in (PAPER, RELEASED, PLAIN, NONE)] == [31, 29, 3, 0]
    assert PAPER.crop_scale == (0.2, 1.0)
    assert (PAPER.brightness, PAPER.contrast, PAPER.saturation, PAPER.hue) == (0.4, 0.4, 0.4, 0.1)
    assert (PAPER.jitter_probability, PAPER.greyscale, PAPER.flip) == (0.8, 0.2, 0.5)
    assert (PAPER.blur, PAPER.blur_sigma) == (0.5, (0.1, 2.0))
    assert PAPER.model_copy(update={"blur": 0.0}) == RELEASED
    assert AugmentSettings(crop_padding=4, flip=0.5) == PLAIN


def test_images_of_one_channel_have_no_colours_to_change() -> None:
    colours = AugmentSettings(saturation=0.4, hue=0.1, greyscale=1.0, jitter_probability=1.0)
    augmentation = bare(colours, (1, 8, 8))
    assert augmentation.uniforms_per_image == 0
    images = random_images((1, 8, 8), 3)
    assert torch.equal(augmentation.apply(images, random_uniforms(augmentation, 3)), images)
    assert bare(PAPER, (1, 28, 28)).uniforms_per_image == 28


def test_a_draw_is_fixed_by_its_key() -> None:
    augmentation = bare(PAPER, (3, 32, 32))
    first = augmentation.draw(generator(0, 3, 7, "views"), 16)
    assert torch.equal(first, augmentation.draw(generator(0, 3, 7, "views"), 16))
    assert not torch.equal(first, augmentation.draw(generator(0, 3, 8, "views"), 16))


# What people get wrong


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"crop_scale": (0.8, 0.2)}, "smaller one first"),
        ({"crop_scale": (0.0, 1.0)}, "above 0"),
        ({"crop_scale": (0.2, 1.5)}, "at most 1"),
        ({"crop_ratio": (2.0, 1.0)}, "smaller one first"),
        ({"blur_sigma": (0.0, 1.0)}, "above 0"),
        ({"crop_scale": (0.2, 1.0), "crop_padding": 4}, "two kinds of crop"),
        ({"crop_padding": -1}, "greater than or equal to 0"),
        ({"flip": 1.5}, "less than or equal to 1"),
        ({"greyscale": -0.1}, "greater than or equal to 0"),
        ({"hue": 0.6}, "less than or equal to 0.5"),
        ({"brightness": float("nan")}, "finite number"),
        ({"rotate": 10}, "Extra inputs"),
    ],
)
def test_wrong_settings_are_refused_with_a_reason(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        AugmentSettings.model_validate(wrong)


def test_every_setting_has_a_sentence() -> None:
    assert all(field.description for field in AugmentSettings.model_fields.values())


def test_images_that_do_not_fit_the_settings_are_refused() -> None:
    for settings in (AugmentSettings(hue=0.1), AugmentSettings(contrast=0.1), AugmentSettings(greyscale=0.1)):
        with pytest.raises(MaplError, match="these have 4"):
            bare(settings, (4, 8, 8))
    images = random_images((4, 8, 8), 2)
    for settings in (PLAIN, AugmentSettings(brightness=0.1, blur=0.5)):
        augmentation = bare(settings, (4, 8, 8))
        assert augmentation.apply(images, random_uniforms(augmentation, 2)).shape == images.shape
    with pytest.raises(MaplError, match="mean and std"):
        Augmentation(NONE, (3, 8, 8), [0.5], [0.5])
    with pytest.raises(MaplError, match="above 0"):
        Augmentation(NONE, (1, 8, 8), [0.5], [0.0])
    with pytest.raises(MaplError, match="at least one"):
        bare(NONE, (3, 0, 8))


def test_tensors_of_another_shape_are_refused() -> None:
    augmentation = bare(PLAIN, (3, 8, 8))
    with pytest.raises(ValueError, match="should be"):
        augmentation.apply(random_images((3, 8, 9), 2), random_uniforms(augmentation, 2))
    with pytest.raises(ValueError, match="should be"):
        augmentation.apply(random_images((3, 8, 8), 2), random_uniforms(augmentation, 3))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("settings", [PAPER, PLAIN])
def test_a_captured_graph_gives_what_the_cpu_gives(settings: AugmentSettings) -> None:
    shape, n = (3, 32, 32), 64
    on_cpu = bare(settings, shape)
    on_gpu = Augmentation(settings, shape, [0.0] * 3, [1.0] * 3, device="cuda")
    images = torch.zeros((n, *shape), device="cuda")
    uniforms = torch.zeros((n, on_gpu.uniforms_per_image), device="cuda")
    on_gpu.apply(images, uniforms)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = on_gpu.apply(images, uniforms)
    for seed in range(3):
        pixels, draws = random_images(shape, n, seed), random_uniforms(on_cpu, n, seed)
        images.copy_(pixels)
        uniforms.copy_(draws)
        graph.replay()
        torch.testing.assert_close(result.cpu(), on_cpu.apply(pixels, draws), rtol=0, atol=1e-5)
