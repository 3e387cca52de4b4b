"""Bias and ReLU, forward and backward."""

# The arguments of a kernel are typed by Triton, which has no stubs:
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def bias_forward(
    x, y, bias, R, C, row, RELU: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    """y = ReLU(x + b)."""
    g = tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = (r < R)[:, None] & (c < C)[None, :]
    at = (g * R + r)[:, None] * C + c[None, :]
    value = tl.load(x + at, inside, 0).to(tl.float32)
    value += tl.load(bias + g * row + c, c < C, 0).to(tl.float32)[None, :]
    if RELU:
        value = tl.where(value < 0, 0.0, value)  # no maximum, which would drop a NaN
    tl.store(y + at, value.to(y.dtype.element_ty), inside)


@triton.jit
def bias_backward(
    y, dy, dx, parts, R, C, row, RELU: tl.constexpr, STEPS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    """dx = dy where y > 0, and its sums over STEPS blocks of rows: parts (G, blocks, C), members `row` apart."""
    g = tl.program_id(2).to(tl.int64)
    block = tl.program_id(1)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    for step in range(STEPS):
        r = (block * STEPS + step) * BLOCK_R + tl.arange(0, BLOCK_R)
        inside = (r < R)[:, None] & (c < C)[None, :]
        at = (g * R + r)[:, None] * C + c[None, :]
        d = tl.load(dy + at, inside, 0).to(tl.float32)
        if RELU:
            d = tl.where(tl.load(y + at, inside, 0).to(tl.float32) > 0, d, 0.0)
            tl.store(dx + at, d.to(dx.dtype.element_ty), inside)
        total += d
    tl.store(parts + g * row + block * C + c, tl.sum(total, 0).to(parts.dtype.element_ty), c < C)
