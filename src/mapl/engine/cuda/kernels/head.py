"""The linear head of a model with the ReLU before it, forward and backward."""

# The arguments of a kernel are typed by Triton, which has no stubs:
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rounded(value, LOW: tl.constexpr):
    """float32 numbers as bfloat16 has them, where LOW. TF32 multiplies such numbers without a further error."""
    if LOW:
        value = value.to(tl.bfloat16).to(tl.float32)
    return value


@triton.jit(do_not_specialize=["N"])
def head_forward(
    z, weight, bias, logits, N, K, D, z_member, weight_member, bias_member, LOW: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """logits (G, N, K) = ReLU(z) Wᵀ + b for z (N, D) and W (K, D); where LOW, as autocast to bfloat16 rounds it."""
    g = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, COLUMNS)
    z += g * z_member
    weight += g * weight_member
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        a = tl.load(z + i[:, None] * D + d[None, :], (i < N)[:, None] & (d < D)[None, :], 0)
        a = tl.where(a < 0, 0.0, a)  # no maximum, which would drop a NaN
        w = tl.load(weight + k[None, :] * D + d[:, None], (d < D)[:, None] & (k < K)[None, :], 0)
        total = tl.dot(_rounded(a, LOW), _rounded(w, LOW), total, input_precision=PRECISION)
    total = _rounded(total + _rounded(tl.load(bias + g * bias_member + k, k < K, 0), LOW)[None, :], LOW)
    tl.store(logits + g * N * K + i[:, None] * K + k[None, :], total, (i < N)[:, None] & (k < K)[None, :])


@triton.jit(do_not_specialize=["N"])
def head_inputs(
    z, weight, dy, dz, N, K, D, z_member, weight_member, dy_member, LOW: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dz (G, N, D) = dy W where z > 0."""
    g = tl.program_id(2).to(tl.int64)
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    k = tl.arange(0, COLUMNS)
    inside = (i < N)[:, None] & (d < D)[None, :]
    at = i[:, None] * D + d[None, :]
    given = tl.load(dy + g * dy_member + i[:, None] * K + k[None, :], (i < N)[:, None] & (k < K)[None, :], 0)
    w = tl.load(
        weight + g * weight_member + k[:, None] * D + d[None, :], (k < K)[:, None] & (d < D)[None, :], 0
    )  # fmt: skip
    total = tl.zeros([ROWS, BLOCK_D], tl.float32)
    total = _rounded(tl.dot(_rounded(given, LOW), _rounded(w, LOW), total, input_precision=PRECISION), LOW)
    off = tl.load(z + g * z_member + at, inside, 0) <= 0
    tl.store(dz + g * N * D + at, tl.where(off, 0.0, total), inside)


@triton.jit(do_not_specialize=["N"])
def head_weights(
    z, dy, dweight, dbias, N, K, D, z_member, dy_member, LOW: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dW (G, K, D) = dyᵀ ReLU(z), BLOCK_D columns of it, and by a member's first program db (G, K) = Σ dy."""
    g = tl.program_id(1).to(tl.int64)
    d = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    k = tl.arange(0, COLUMNS)
    z += g * z_member
    dy += g * dy_member
    total = tl.zeros([COLUMNS, BLOCK_D], tl.float32)
    sums = tl.zeros([COLUMNS], tl.float32)
    for start in range(0, N, ROWS):
        i = start + tl.arange(0, ROWS)
        given = _rounded(tl.load(dy + i[None, :] * K + k[:, None], (i < N)[None, :] & (k < K)[:, None], 0), LOW)
        a = tl.load(z + i[:, None] * D + d[None, :], (i < N)[:, None] & (d < D)[None, :], 0)
        a = tl.where(a < 0, 0.0, a)
        total = tl.dot(given, _rounded(a, LOW), total, input_precision=PRECISION)
        sums += tl.sum(given, 1)
    at = g * K * D + k[:, None] * D + d[None, :]
    tl.store(dweight + at, _rounded(total, LOW), (k < K)[:, None] & (d < D)[None, :])
    tl.store(dbias + g * K + k, _rounded(sums, LOW), k < K * (tl.program_id(0) == 0).to(tl.int32))
