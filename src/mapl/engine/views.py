"""Augmented training images on a GPU: what `Augmentation.apply` gives, by one kernel a batch, or two with a blur.

Taken one operation after another, a batch travels to memory and back some forty times. Here a program makes one image:
it reads the bytes, keeps the pixels of the three channels in registers through crop, flip and colours, and writes the
normalised image once. A blur needs the neighbours of a pixel, so the images that are blurred go through memory once
more, to a second kernel. All settings are constants of the compiled kernel: what is switched off is not in it.

`Augmentation` stays the reference; the tests hold the two together. The names here are those of its steps.
"""
# The arguments of a kernel are typed by Triton, which has no stubs:
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from mapl.data.augment import CROP_TRIES, GREY_WEIGHTS, HUE_PHASES, Augmentation, blur_kernel_size

LARGEST_IMAGE = 4096
"""Pixels of the largest image that a program holds in its registers."""

# A kernel sees those globals alone that are Triton's own constants.
RED_PART, GREEN_PART, BLUE_PART = (tl.constexpr(part) for part in GREY_WEIGHTS)
RED_PHASE, GREEN_PHASE, BLUE_PHASE = (tl.constexpr(phase) for phase in HUE_PHASES)


class Views:
    """Augmented training images, made by one or two kernels a batch; equal to `Augmentation.apply`.

    Within 2e-5 in float32 (for deviations of 0.2 and more: the difference grows as they shrink).

    Args:
        augmentation: the reference, whose settings, shape, mean and deviation are taken over; one that `fits`.
        device: where `make` will be given its tensors: the current CUDA device.

    The first `make` of a process compiles the kernels, so it should run once before it is captured in a CUDA graph.
    The memory between the two kernels of a blur is kept for every number of images that was ever asked for, so that
    what was captured stays valid; two streams at a time need a Views each.
    """

    def __init__(self, augmentation: Augmentation, device: torch.device | str) -> None:
        if not self.fits(augmentation):
            raise ValueError(f"images of the shape {augmentation.shape} are left to Augmentation.apply")
        channels, height, width = augmentation.shape
        block = 1 << (height * width - 1).bit_length()
        self._augmentation = augmentation
        self._device = torch.device(device)
        self._between = torch.empty((0, *augmentation.shape), device=device)
        self._blurs = "blur" in augmentation._slots
        self._common = {
            "P": augmentation.uniforms_per_image,
            "CHANNELS": channels,
            "HEIGHT": height,
            "WIDTH": width,
            "BLOCK": block,
            **_columns(augmentation, "blur"),
            **_normal(augmentation),
            "BLUR": augmentation.settings.blur,
        }
        # Eight pixels a thread: enough loads under way to hide their latency, few enough to stay in registers. A blur
        # keeps the places of its taps besides, so four of them.
        self._view = _view_constants(augmentation) | {"num_warps": max(1, min(16, block // 256))}
        low, high = augmentation.settings.blur_sigma
        self._blur = _columns(augmentation, "blur_sigma") | {
            "SIGMA_LOW": low,
            "SIGMA_HIGH": high,
            "RADIUS": blur_kernel_size(height, width) // 2,
            "num_warps": max(1, min(16, block // 128)),
        }

    @staticmethod
    def fits(augmentation: Augmentation) -> bool:
        """Whether the kernels can do it: 1 or 3 channels and at most 4096 pixels. All settings are supported."""
        channels, height, width = augmentation.shape
        return channels in (1, 3) and height * width <= LARGEST_IMAGE

    def make(self, pool: Tensor, index: Tensor, uniforms: Tensor, out: Tensor) -> None:
        """Writes `augmentation.apply(pool[index], uniforms)` into `out`, channels last.

        `pool` uint8 (N, C, H, W) holds the images; `index` int64 (n,) says which one of them each view is of;
        `uniforms` float32 (n, P) comes from `Augmentation.draw`; `out` (n, H, W, C) is float32 or bfloat16. All are
        contiguous and on the device. An index is not checked: that would wait for the device.
        """
        self._check(pool, index, uniforms, out)
        n = len(index)
        if n == 0:
            return
        between = self._memory(n) if self._blurs else uniforms  # without a blur it is never read, nor written
        _view_kernel[(n,)](pool, index, uniforms, between, out, **self._view, **self._common)
        if self._blurs:
            _blur_kernel[(n,)](between, uniforms, out, **self._blur, **self._common)

    def _memory(self, n: int) -> Tensor:
        """Where n images wait for their blur, float32 (n, C, H, W)."""
        if n > len(self._between):
            self._between = torch.empty((n, *self._augmentation.shape), dtype=torch.float32, device=self._device)
        return self._between[:n]

    def _check(self, pool: Tensor, index: Tensor, uniforms: Tensor, out: Tensor) -> None:
        """A kernel reads whatever lies where it looks, so what it is given has to be right."""
        channels, height, width = self._augmentation.shape
        n, draws = len(index), self._augmentation.uniforms_per_image
        expected = {
            "pool": (pool, (len(pool), channels, height, width), (torch.uint8,)),
            "index": (index, (n,), (torch.int64,)),
            "uniforms": (uniforms, (n, draws), (torch.float32,)),
            "out": (out, (n, height, width, channels), (torch.float32, torch.bfloat16)),
        }
        for name, (tensor, shape, dtypes) in expected.items():
            if tensor.shape != shape or tensor.dtype not in dtypes or not tensor.is_contiguous():
                kinds = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
                given = f"{tensor.dtype} {tuple(tensor.shape)}".removeprefix("torch.")
                raise ValueError(f"{name} should be {kinds} {shape} and contiguous, not {given}")


def _columns(augmentation: Augmentation, *names: str) -> dict[str, int]:
    """Where in a row of uniforms each purpose begins, as the constants NAME_AT; −1 for what is switched off."""
    slots = augmentation._slots
    return {f"{name.upper()}_AT": slots[name].start if name in slots else -1 for name in names}


def _normal(augmentation: Augmentation) -> dict[str, float]:
    """What is taken off a channel and what the rest is multiplied with; a single channel counts as red."""
    mean, std = augmentation._mean.flatten().tolist(), augmentation._std.flatten().tolist()
    names = ("RED", "GREEN", "BLUE")
    means = {f"{name}_MEAN": mean[i % len(mean)] for i, name in enumerate(names)}
    return means | {f"{name}_SCALE": 1 / std[i % len(std)] for i, name in enumerate(names)}


def _view_constants(augmentation: Augmentation) -> dict[str, float]:
    """The settings as `_view_kernel` takes them."""
    settings, (_, height, width) = augmentation.settings, augmentation.shape
    smallest, largest = settings.crop_ratio
    scale_low, scale_high = settings.crop_scale or (1.0, 1.0)
    places = ("crop_area", "crop_ratio", "crop_top", "crop_left", "flip")
    colours = ("jitter", "brightness", "contrast", "saturation", "hue", "greyscale")
    return {
        **_columns(augmentation, *places, *colours),
        "TRIES": CROP_TRIES,
        "SCALE_LOW": scale_low,
        "SCALE_HIGH": scale_high,
        "RATIO_LOW": math.log(smallest),
        "RATIO_HIGH": math.log(largest),
        "LAST_HEIGHT": max(1, min(height, round(width / smallest))),
        "LAST_WIDTH": max(1, min(width, round(height * largest))),
        "PADDING": settings.crop_padding,
        "FLIP": settings.flip,
        "JITTER": settings.jitter_probability,
        "BRIGHTNESS": settings.brightness,
        "CONTRAST": settings.contrast,
        "SATURATION": settings.saturation,
        "HUE": settings.hue,
        "GREYSCALE": settings.greyscale,
    }


# The kernels. A constant takes the type of the tensor it meets: next to a float64 it is the reference's own float64.


@triton.jit
def _view_kernel(
    pool,
    index,
    uniforms,
    between,
    out,
    P: tl.constexpr,
    CHANNELS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    CROP_AREA_AT: tl.constexpr,
    CROP_RATIO_AT: tl.constexpr,
    CROP_TOP_AT: tl.constexpr,
    CROP_LEFT_AT: tl.constexpr,
    FLIP_AT: tl.constexpr,
    JITTER_AT: tl.constexpr,
    BRIGHTNESS_AT: tl.constexpr,
    CONTRAST_AT: tl.constexpr,
    SATURATION_AT: tl.constexpr,
    HUE_AT: tl.constexpr,
    GREYSCALE_AT: tl.constexpr,
    BLUR_AT: tl.constexpr,
    TRIES: tl.constexpr,
    SCALE_LOW: tl.constexpr,
    SCALE_HIGH: tl.constexpr,
    RATIO_LOW: tl.constexpr,
    RATIO_HIGH: tl.constexpr,
    LAST_HEIGHT: tl.constexpr,
    LAST_WIDTH: tl.constexpr,
    PADDING: tl.constexpr,
    FLIP: tl.constexpr,
    JITTER: tl.constexpr,
    BRIGHTNESS: tl.constexpr,
    CONTRAST: tl.constexpr,
    SATURATION: tl.constexpr,
    HUE: tl.constexpr,
    GREYSCALE: tl.constexpr,
    BLUR: tl.constexpr,
    RED_MEAN: tl.constexpr,
    GREEN_MEAN: tl.constexpr,
    BLUE_MEAN: tl.constexpr,
    RED_SCALE: tl.constexpr,
    GREEN_SCALE: tl.constexpr,
    BLUE_SCALE: tl.constexpr,
):
    """One program an image: all of `Augmentation.apply`, save that an image to be blurred is left in `between`."""
    SIZE: tl.constexpr = HEIGHT * WIDTH
    image = tl.program_id(0).to(tl.int64)
    row = uniforms + image * P
    source = pool + tl.load(index + image) * (CHANNELS * SIZE)
    place = tl.arange(0, BLOCK)
    inside = place < SIZE
    y, x = place // WIDTH, place % WIDTH
    if FLIP_AT >= 0:
        x = tl.where(_draw(row, FLIP_AT) < FLIP, WIDTH - 1 - x, x)

    # A single channel is read once: green and blue are then red under other names, and cost nothing.
    GREEN_PLANE: tl.constexpr = SIZE if CHANNELS == 3 else 0
    if CROP_AREA_AT >= 0:
        heights, widths, first = _tries(
            row, CROP_AREA_AT, CROP_RATIO_AT, TRIES, SCALE_LOW, SCALE_HIGH, RATIO_LOW, RATIO_HIGH, HEIGHT, WIDTH
        )
        top, height = _window(row, heights, first, CROP_TOP_AT, TRIES, LAST_HEIGHT, HEIGHT)
        left, width = _window(row, widths, first, CROP_LEFT_AT, TRIES, LAST_WIDTH, WIDTH)
        upper, lower, down = _neighbours(y, top, height, HEIGHT)
        before, after, across = _neighbours(x, left, width, WIDTH)
        upper, lower = upper * WIDTH, lower * WIDTH
        red = _mixed(source, upper, lower, before, after, down, across, inside)
        green = _mixed(source + GREEN_PLANE, upper, lower, before, after, down, across, inside)
        blue = _mixed(source + 2 * GREEN_PLANE, upper, lower, before, after, down, across, inside)
    else:
        shown = inside
        if PADDING > 0:
            y += (_draw(row, CROP_TOP_AT) * (2 * PADDING + 1)).to(tl.int32) - PADDING
            x += (_draw(row, CROP_LEFT_AT) * (2 * PADDING + 1)).to(tl.int32) - PADDING
            shown = inside & (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
        red = _pixels(source + y * WIDTH + x, shown) * (1 / 255)
        green = _pixels(source + GREEN_PLANE + y * WIDTH + x, shown) * (1 / 255)
        blue = _pixels(source + 2 * GREEN_PLANE + y * WIDTH + x, shown) * (1 / 255)

    if JITTER_AT >= 0:
        jittered = _draw(row, JITTER_AT) < JITTER
        if BRIGHTNESS_AT >= 0:
            change = _change(row, jittered, BRIGHTNESS_AT, BRIGHTNESS)
            red, green, blue = _blended(red, green, blue, 0.0, change)
        if CONTRAST_AT >= 0:
            grey = tl.where(inside, _grey(red, green, blue, CHANNELS), 0.0)
            change = _change(row, jittered, CONTRAST_AT, CONTRAST)
            red, green, blue = _blended(red, green, blue, tl.sum(grey, axis=0) / SIZE, change)
        if SATURATION_AT >= 0:
            change = _change(row, jittered, SATURATION_AT, SATURATION)
            red, green, blue = _blended(red, green, blue, _grey(red, green, blue, CHANNELS), change)
        if HUE_AT >= 0:
            red, green, blue = _hue_rotated(red, green, blue, _change(row, jittered, HUE_AT, HUE))
    if GREYSCALE_AT >= 0:
        chosen = _draw(row, GREYSCALE_AT) < GREYSCALE
        grey = _grey(red, green, blue, CHANNELS)
        red, green, blue = tl.where(chosen, grey, red), tl.where(chosen, grey, green), tl.where(chosen, grey, blue)

    sharp = inside
    if BLUR_AT >= 0:
        plane = between + image * (CHANNELS * SIZE) + place
        waiting = tl.where(_draw(row, BLUR_AT) < BLUR, SIZE, 0)  # how many pixels are: all of them or none
        blurred, sharp = place < waiting, place < SIZE - waiting
        tl.store(plane, red, mask=blurred)
        if CHANNELS == 3:
            tl.store(plane + SIZE, green, mask=blurred)
            tl.store(plane + 2 * SIZE, blue, mask=blurred)
    pixel = out + image * (CHANNELS * SIZE) + place * CHANNELS
    _store(pixel, red, RED_MEAN, RED_SCALE, sharp)
    if CHANNELS == 3:
        _store(pixel + 1, green, GREEN_MEAN, GREEN_SCALE, sharp)
        _store(pixel + 2, blue, BLUE_MEAN, BLUE_SCALE, sharp)


@triton.jit
def _draw(row, AT: tl.constexpr):
    """One uniform of the image, float64 like the reference's: a choice then never falls differently."""
    return tl.load(row + AT).to(tl.float64)


@triton.jit
def _store(pixel, values, MEAN: tl.constexpr, SCALE: tl.constexpr, mask):
    """Normalises and writes one channel."""
    tl.store(pixel, ((values - MEAN) * SCALE).to(pixel.dtype.element_ty), mask=mask)


# Crops.


@triton.jit
def _tries(
    row,
    AREA_AT: tl.constexpr,
    RATIO_AT: tl.constexpr,
    TRIES: tl.constexpr,
    SCALE_LOW: tl.constexpr,
    SCALE_HIGH: tl.constexpr,
    RATIO_LOW: tl.constexpr,
    RATIO_HIGH: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The heights and widths (16,) of a resized crop's tries, and the first that fits the image; TRIES if none does."""
    attempt = tl.arange(0, 16)
    made = attempt < TRIES
    part = tl.load(row + AREA_AT + attempt, mask=made, other=0.0).to(tl.float64)
    slant = tl.load(row + RATIO_AT + attempt, mask=made, other=0.0).to(tl.float64)
    area = (part * (SCALE_HIGH - SCALE_LOW) + SCALE_LOW) * (HEIGHT * WIDTH)
    ratio = tl.exp(slant * (RATIO_HIGH - RATIO_LOW) + RATIO_LOW)
    heights = _rounded(tl.sqrt(area / ratio))
    widths = _rounded(tl.sqrt(area * ratio))
    valid = made & (heights > 0) & (heights <= HEIGHT) & (widths > 0) & (widths <= WIDTH)
    return heights, widths, tl.min(tl.where(valid, attempt, TRIES), axis=0)


@triton.jit
def _rounded(values):
    """The nearest whole numbers, from halves the even ones, as torch.round gives them; for values of 0 and more."""
    whole = tl.floor(values)
    part = values - whole
    odd = whole != 2 * tl.floor(whole * 0.5)
    return tl.where((part > 0.5) | ((part == 0.5) & odd), whole + 1, whole)


@triton.jit
def _window(row, lengths, first, START_AT: tl.constexpr, TRIES: tl.constexpr, LAST: tl.constexpr, SIZE: tl.constexpr):
    """Where a resized crop begins on one axis and how long it is, float64; central, of length LAST, if no try fits."""
    central = first == TRIES
    length = tl.sum(tl.where(tl.arange(0, 16) == first, lengths, 0.0), axis=0)
    length = tl.where(central, LAST, length)
    room = SIZE - length
    start = tl.where(central, tl.floor(room * 0.5), tl.floor(_draw(row, START_AT) * (room + 1)))
    return start, length


@triton.jit
def _neighbours(place, start, length, SIZE: tl.constexpr):
    """The two pixels of the image's axis that the place is read between, and how far it is from the first one."""
    middle = (place.to(tl.float64) + 0.5) * (length / SIZE) - 0.5
    exact = (start + tl.minimum(tl.maximum(middle, 0.0), length - 1)).to(tl.float32)
    first = exact.to(tl.int32)
    # Past the last pixel there is none, and it would count nothing.
    return first, tl.minimum(first + 1, SIZE - 1), exact - first.to(tl.float32)


@triton.jit
def _mixed(plane, upper, lower, before, after, down, across, inside):
    """One channel in [0, 1], read between four pixels."""
    above = _pixels(plane + upper + before, inside) * (1 - across) + _pixels(plane + upper + after, inside) * across
    below = _pixels(plane + lower + before, inside) * (1 - across) + _pixels(plane + lower + after, inside) * across
    return (above * (1 - down) + below * down) * (1 / 255)


@triton.jit
def _pixels(pointers, mask):
    return tl.load(pointers, mask=mask, other=0).to(tl.float32)


# Colours.


@triton.jit
def _change(row, jittered, AT: tl.constexpr, AMOUNT: tl.constexpr):
    """A change in ±AMOUNT, 0 for an image that is left alone, float32."""
    return tl.where(jittered, _draw(row, AT) * (2 * AMOUNT) - AMOUNT, 0.0).to(tl.float32)


@triton.jit
def _blended(red, green, blue, other, change):
    """The colours moved away from `other` by `change`, or towards it, clamped to [0, 1]."""
    return (
        _clamped(red * (1 + change) - other * change),
        _clamped(green * (1 + change) - other * change),
        _clamped(blue * (1 + change) - other * change),
    )


@triton.jit
def _clamped(values):
    return tl.minimum(tl.maximum(values, 0.0), 1.0)


@triton.jit
def _grey(red, green, blue, CHANNELS: tl.constexpr):
    grey = red
    if CHANNELS == 3:
        grey = red * RED_PART + green * GREEN_PART + blue * BLUE_PART
    return grey


@triton.jit
def _hue_rotated(red, green, blue, shift):
    """The colours with their hue shifted by a part of a turn; see `_rotate_hue` of the reference for the formula."""
    largest = tl.maximum(tl.maximum(red, green), blue)
    smallest = tl.minimum(tl.minimum(red, green), blue)
    chroma = largest - smallest
    sixth = 1 / (tl.maximum(chroma, 1e-12) * 6)
    near_green_or_blue = tl.where(largest == green, (blue - red) * sixth + 1 / 3, (red - green) * sixth + 2 / 3)
    hue = tl.where(largest == red, (green - blue) * sixth, near_green_or_blue) + shift
    return (
        smallest + chroma * _shown(hue + RED_PHASE),
        smallest + chroma * _shown(hue + GREEN_PHASE),
        smallest + chroma * _shown(hue + BLUE_PHASE),
    )


@triton.jit
def _shown(turns):
    """How much of the chroma a channel shows, where the colour circle is turned so far; turns are above 0."""
    return _clamped(tl.abs((turns - tl.floor(turns)) * 6 - 3) - 1)


# Blur.


@triton.jit
def _blur_kernel(
    between,
    uniforms,
    out,
    P: tl.constexpr,
    CHANNELS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    BLUR_AT: tl.constexpr,
    BLUR_SIGMA_AT: tl.constexpr,
    BLUR: tl.constexpr,
    SIGMA_LOW: tl.constexpr,
    SIGMA_HIGH: tl.constexpr,
    RADIUS: tl.constexpr,
    RED_MEAN: tl.constexpr,
    GREEN_MEAN: tl.constexpr,
    BLUE_MEAN: tl.constexpr,
    RED_SCALE: tl.constexpr,
    GREEN_SCALE: tl.constexpr,
    BLUE_SCALE: tl.constexpr,
):
    """One program an image: blurs and normalises those that are to be blurred, from `between` to `out`."""
    SIZE: tl.constexpr = HEIGHT * WIDTH
    image = tl.program_id(0).to(tl.int64)
    row = uniforms + image * P
    if _draw(row, BLUR_AT) < BLUR:
        sigma = _draw(row, BLUR_SIGMA_AT) * (SIGMA_HIGH - SIGMA_LOW) + SIGMA_LOW
        plane = between + image * (CHANNELS * SIZE)
        place = tl.arange(0, BLOCK)
        inside = place < SIZE
        pixel = out + image * (CHANNELS * SIZE) + place * CHANNELS
        red = _blurred(plane, place, inside, sigma, RADIUS, HEIGHT, WIDTH, BLOCK)
        _store(pixel, red, RED_MEAN, RED_SCALE, inside)
        if CHANNELS == 3:
            green = _blurred(plane + SIZE, place, inside, sigma, RADIUS, HEIGHT, WIDTH, BLOCK)
            blue = _blurred(plane + 2 * SIZE, place, inside, sigma, RADIUS, HEIGHT, WIDTH, BLOCK)
            _store(pixel + 1, green, GREEN_MEAN, GREEN_SCALE, inside)
            _store(pixel + 2, blue, BLUE_MEAN, BLUE_SCALE, inside)


@triton.jit
def _blurred(
    plane,
    place,
    inside,
    sigma,
    RADIUS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One channel's weighted sum over (2 · RADIUS + 1)² pixels around each, reflected at the image's borders."""
    # Images are small here, so the radius is at most 3: all taps at once cost less than a pass a direction.
    total = _weight(0, sigma)
    for tap in tl.static_range(1, RADIUS + 1):
        total += 2 * _weight(tap, sigma)
    blurred = tl.zeros((BLOCK,), tl.float32)
    for i in range(2 * RADIUS + 1):  # unrolled as well, the loads of 49 taps would be in flight and fill the registers
        line = tl.zeros((BLOCK,), tl.float32)
        start = plane + _reflected(place // WIDTH + (i - RADIUS), HEIGHT) * WIDTH
        for j in tl.static_range(2 * RADIUS + 1):
            pixels = tl.load(start + _reflected(place % WIDTH + (j - RADIUS), WIDTH), mask=inside, other=0.0)
            line += pixels * (_weight(j - RADIUS, sigma) / total).to(tl.float32)
        blurred += line * (_weight(i - RADIUS, sigma) / total).to(tl.float32)
    return blurred


@triton.jit
def _weight(tap, sigma):
    """The Gaussian's height at so many pixels from its middle, float64."""
    far = tap / sigma
    return tl.exp(far * far * -0.5)


@triton.jit
def _reflected(place, SIZE: tl.constexpr):
    """The pixel that a place up to SIZE − 1 past the ends of an axis shows; a lone pixel shows everywhere."""
    away = tl.abs(place)
    return tl.maximum(tl.minimum(away, 2 * (SIZE - 1) - away), 0)
