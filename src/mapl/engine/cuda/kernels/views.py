"""One kernel for a view: crop, flip and colours.

A constant takes the type of the tensor it meets: next to a float64 it is the reference's own float64.
"""

# The arguments of a kernel are typed by Triton, which has no stubs:
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from mapl.data.augment import GREY_WEIGHTS, HUE_PHASES

# A kernel sees those globals alone that are Triton's own constants.
RED_PART, GREEN_PART, BLUE_PART = (tl.constexpr(part) for part in GREY_WEIGHTS)
RED_PHASE, GREEN_PHASE, BLUE_PHASE = (tl.constexpr(phase) for phase in HUE_PHASES)


@triton.jit
def view_kernel(
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
    """One program per image: all of `Augmentation.apply`, except that an image to be blurred is left in `between`."""
    SIZE: tl.constexpr = HEIGHT * WIDTH
    image = tl.program_id(0).to(tl.int64)
    row = uniforms + image * P
    source = pool + tl.load(index + image) * (CHANNELS * SIZE)
    place = tl.arange(0, BLOCK)
    inside = place < SIZE
    y, x = place // WIDTH, place % WIDTH
    if FLIP_AT >= 0:
        x = tl.where(draw(row, FLIP_AT) < FLIP, WIDTH - 1 - x, x)

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
            y += (draw(row, CROP_TOP_AT) * (2 * PADDING + 1)).to(tl.int32) - PADDING
            x += (draw(row, CROP_LEFT_AT) * (2 * PADDING + 1)).to(tl.int32) - PADDING
            shown = inside & (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
        red = _pixels(source + y * WIDTH + x, shown) * (1 / 255)
        green = _pixels(source + GREEN_PLANE + y * WIDTH + x, shown) * (1 / 255)
        blue = _pixels(source + 2 * GREEN_PLANE + y * WIDTH + x, shown) * (1 / 255)

    if JITTER_AT >= 0:
        jittered = draw(row, JITTER_AT) < JITTER
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
        chosen = draw(row, GREYSCALE_AT) < GREYSCALE
        grey = _grey(red, green, blue, CHANNELS)
        red, green, blue = tl.where(chosen, grey, red), tl.where(chosen, grey, green), tl.where(chosen, grey, blue)

    sharp = inside
    if BLUR_AT >= 0:
        plane = between + image * (CHANNELS * SIZE) + place
        waiting = tl.where(draw(row, BLUR_AT) < BLUR, SIZE, 0)  # how many pixels are: all of them or none
        blurred, sharp = place < waiting, place < SIZE - waiting
        tl.store(plane, red, mask=blurred)
        if CHANNELS == 3:
            tl.store(plane + SIZE, green, mask=blurred)
            tl.store(plane + 2 * SIZE, blue, mask=blurred)
    pixel = out + image * (CHANNELS * SIZE) + place * CHANNELS
    store(pixel, red, RED_MEAN, RED_SCALE, sharp)
    if CHANNELS == 3:
        store(pixel + 1, green, GREEN_MEAN, GREEN_SCALE, sharp)
        store(pixel + 2, blue, BLUE_MEAN, BLUE_SCALE, sharp)


@triton.jit
def draw(row, AT: tl.constexpr):
    """One uniform of the image, float64 like the reference's: a choice then never falls differently."""
    return tl.load(row + AT).to(tl.float64)


@triton.jit
def store(pixel, values, MEAN: tl.constexpr, SCALE: tl.constexpr, mask):
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
    start = tl.where(central, tl.floor(room * 0.5), tl.floor(draw(row, START_AT) * (room + 1)))
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
    return tl.where(jittered, draw(row, AT) * (2 * AMOUNT) - AMOUNT, 0.0).to(tl.float32)


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
