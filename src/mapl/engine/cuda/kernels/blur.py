"""The blur of a view, which needs the neighbours of a pixel."""

# The arguments of a kernel are typed by Triton, which has no stubs:
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from mapl.engine.cuda.kernels.views import draw, store


@triton.jit
def blur_kernel(
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
    """One program per image: blurs and normalises the images to be blurred, from `between` to `out`."""
    SIZE: tl.constexpr = HEIGHT * WIDTH
    image = tl.program_id(0).to(tl.int64)
    row = uniforms + image * P
    if draw(row, BLUR_AT) < BLUR:
        sigma = draw(row, BLUR_SIGMA_AT) * (SIGMA_HIGH - SIGMA_LOW) + SIGMA_LOW
        plane = between + image * (CHANNELS * SIZE)
        place = tl.arange(0, BLOCK)
        inside = place < SIZE
        pixel = out + image * (CHANNELS * SIZE) + place * CHANNELS
        red = _blurred(plane, place, inside, sigma, RADIUS, HEIGHT, WIDTH, BLOCK)
        store(pixel, red, RED_MEAN, RED_SCALE, inside)
        if CHANNELS == 3:
            green = _blurred(plane + SIZE, place, inside, sigma, RADIUS, HEIGHT, WIDTH, BLOCK)
            blue = _blurred(plane + 2 * SIZE, place, inside, sigma, RADIUS, HEIGHT, WIDTH, BLOCK)
            store(pixel + 1, green, GREEN_MEAN, GREEN_SCALE, inside)
            store(pixel + 2, blue, BLUE_MEAN, BLUE_SCALE, inside)


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
