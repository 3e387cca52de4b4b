"""Batch normalisation, forward and backward."""

# The arguments of a kernel are typed by Triton, which has no stubs:
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

WHOLE = tl.constexpr(0)
"""A normalisation in one kernel: all rows of a channel fit into one block."""
PARTS = tl.constexpr(1)
"""The first of two kernels: sums of each block of rows."""
FINISH = tl.constexpr(2)
"""The second of two: the blocks' sums are put together, in order, by every program that needs them."""


@triton.jit(do_not_specialize=["R", "C_BY_ALIGN", "relu"])
def norm_forward(
    x, y, weight, bias, running_mean, running_var, mean, scale, parts, active, R, C_BY_ALIGN, row, momentum, eps, relu,
    ALIGN: tl.constexpr, STAGE: tl.constexpr, TRAIN: tl.constexpr, SPLITS: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Batch normalisation of each member by itself, then ReLU; keeps mean and 1/σ for the backward pass.

    The blocks' means and squares are merged as Chan et al. (1979) do, so that no digits are lost to a large mean.
    """
    C = C_BY_ALIGN * ALIGN  # so that the compiler knows how many bytes it can read at a time
    split = tl.program_id(1)
    g = tl.program_id(2).to(tl.int64)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    r = split * BLOCK_R + tl.arange(0, BLOCK_R)
    ok = c < C
    inside = (r < R)[:, None] & ok[None, :]
    at = (g * R + r)[:, None] * C + c[None, :]
    parts += g * tl.num_programs(1) * 2 * C
    value = tl.load(x + at, inside, 0).to(tl.float32)
    if TRAIN:
        if STAGE == FINISH:
            k = tl.arange(0, SPLITS)
            counts = tl.minimum(tl.maximum(R - k * BLOCK_R, 0), BLOCK_R).to(tl.float32)
            there = (k < tl.num_programs(1))[:, None] & ok[None, :]
            means = tl.load(parts + k[:, None] * 2 * C + c[None, :], there, 0)
            m = tl.sum(means * counts[:, None], 0) / R
            away = (means - m[None, :]) * (means - m[None, :]) * counts[:, None]
            squares = tl.sum(tl.load(parts + (k[:, None] * 2 + 1) * C + c[None, :], there, 0) + away, 0)
        else:
            m = tl.sum(value, 0) / tl.minimum(R - split * BLOCK_R, BLOCK_R)
            away = tl.where(inside, value - m[None, :], 0.0)
            squares = tl.sum(away * away, 0)
        variance = squares / R
    else:
        m = tl.load(running_mean + g * row + c, ok, 0)
        variance = tl.load(running_var + g * row + c, ok, 0)
    if STAGE == PARTS:
        tl.store(parts + split * 2 * C + c, m, ok)
        tl.store(parts + (split * 2 + 1) * C + c, squares, ok)
    else:
        s = 1 / tl.sqrt(variance + eps)
        if TRAIN:
            first = c < C * (split == 0).to(tl.int32)
            remembers = c < C * (split == 0).to(tl.int32) * tl.load(active + g).to(tl.int32)
            old_mean = tl.load(running_mean + g * row + c, remembers, 0)
            old_var = tl.load(running_var + g * row + c, remembers, 0)
            unbiased = variance * (R / (R - 1.0))
            tl.store(running_mean + g * row + c, (1 - momentum) * old_mean + momentum * m, remembers)
            tl.store(running_var + g * row + c, (1 - momentum) * old_var + momentum * unbiased, remembers)
            tl.store(mean + g * C + c, m, first)
            tl.store(scale + g * C + c, s, first)
        w = tl.load(weight + g * row + c, ok, 0)
        b = tl.load(bias + g * row + c, ok, 0)
        value = (value - m[None, :]) * s[None, :] * w[None, :] + b[None, :]
        value = tl.where((relu > 0) & (value < 0), 0.0, value)  # no maximum, which would drop a NaN
        tl.store(y + at, value.to(y.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["R", "C_BY_ALIGN", "relu"])
def norm_backward(
    x, dy, dx, weight, bias, mean, scale, dweight, dbias, parts, R, C_BY_ALIGN, row, drow, relu,
    ALIGN: tl.constexpr, STAGE: tl.constexpr, SPLITS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The backward pass: dx = w/σ · (dy − mean(dy) − x̂ · mean(dy · x̂)), with dy masked where the ReLU was off."""
    C = C_BY_ALIGN * ALIGN  # so that the compiler knows how many bytes it can read at a time
    split = tl.program_id(1)
    g = tl.program_id(2).to(tl.int64)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    r = split * BLOCK_R + tl.arange(0, BLOCK_R)
    ok = c < C
    inside = (r < R)[:, None] & ok[None, :]
    at = (g * R + r)[:, None] * C + c[None, :]
    parts += g * tl.num_programs(1) * 2 * C
    s = tl.load(scale + g * C + c, ok, 0)
    w = tl.load(weight + g * row + c, ok, 0)
    b = tl.load(bias + g * row + c, ok, 0)
    unit = (tl.load(x + at, inside, 0).to(tl.float32) - tl.load(mean + g * C + c, ok, 0)[None, :]) * s[None, :]
    d = tl.load(dy + at, inside, 0).to(tl.float32)
    d = tl.where((relu > 0) & (unit * w[None, :] + b[None, :] <= 0), 0.0, d)
    if STAGE == FINISH:
        k = tl.arange(0, SPLITS)
        there = (k < tl.num_programs(1))[:, None] & ok[None, :]
        sum_d = tl.sum(tl.load(parts + k[:, None] * 2 * C + c[None, :], there, 0), 0)
        sum_p = tl.sum(tl.load(parts + (k[:, None] * 2 + 1) * C + c[None, :], there, 0), 0)
    else:
        sum_d = tl.sum(d, 0)
        sum_p = tl.sum(tl.where(inside, d * unit, 0.0), 0)
    if STAGE == PARTS:
        tl.store(parts + split * 2 * C + c, sum_d, ok)
        tl.store(parts + (split * 2 + 1) * C + c, sum_p, ok)
    else:
        first = c < C * (split == 0).to(tl.int32)
        tl.store(dbias + g * drow + c, sum_d, first)
        tl.store(dweight + g * drow + c, sum_p, first)
        d = (d - (sum_d / R)[None, :] - unit * (sum_p / R)[None, :]) * (w * s)[None, :]
        tl.store(dx + at, d.to(dx.dtype.element_ty), inside)
