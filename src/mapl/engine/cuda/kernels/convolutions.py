"""Triton kernels for the convolutions of a group of G clients: each member's own filters, one launch for all of them.

A convolution is a matrix product with what a filter sees at each place. Here that matrix is never written down: a
program reads the pixels that it needs, tap by tap. Images are channels last, (G · B, C, H, W), and so are a member's
filters, (CO, K · K · C), `row` apart. Strides are powers of two, 2^shift. No sum depends on who is done first.

Numbers of channels come divided by a power of two that the compiler is told: it then knows how many it can read at a
time.
"""

# The arguments of a kernel are typed by Triton, which has no stubs:
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

GEOMETRY = ["H", "W", "HO", "WO", "shift", "P"]
"""Sizes that a kernel is not built for: building takes longer than it would gain."""


@triton.jit(do_not_specialize=["M", "c_by_align", "co_by_align", *GEOMETRY])
def forward(
    x, w, y, M, row, c_by_align, co_by_align, H, W, HO, WO, shift, P, ALIGN_C: tl.constexpr, ALIGN_CO: tl.constexpr,
    K: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """y at BLOCK_M of the M = B · HO · WO places of a member, and BLOCK_N of its CO channels."""
    C, CO = c_by_align * ALIGN_C, co_by_align * ALIGN_CO
    g = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(CO, BLOCK_N)
    m = tl.program_id(0) // across * BLOCK_M + tl.arange(0, BLOCK_M)
    o = tl.program_id(0) % across * BLOCK_N + tl.arange(0, BLOCK_N)
    x += g * (M // (HO * WO)) * H * W * C
    w += g * row
    top, left = (m // WO % HO << shift) - P, (m % WO << shift) - P
    base = ((m // WO // HO * H + top) * W + left) * C
    pieces = tl.cdiv(C, BLOCK_K)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for step in range(K * K * pieces):
        tap = step // pieces
        c = step % pieces * BLOCK_K + tl.arange(0, BLOCK_K)
        i, j = tap // K, tap % K
        inside = (m < M) & (top + i >= 0) & (top + i < H) & (left + j >= 0) & (left + j < W)
        seen = tl.load(x + (base + (i * W + j) * C)[:, None] + c[None, :], inside[:, None] & (c < C)[None, :], 0)
        taps = tl.load(w + o[None, :] * (K * K * C) + tap * C + c[:, None], (c < C)[:, None] & (o < CO)[None, :], 0)
        total = tl.dot(seen, taps, total, input_precision=PRECISION)
    y += g * M * CO
    tl.store(y + m[:, None] * CO + o[None, :], total.to(y.dtype.element_ty), (m < M)[:, None] & (o < CO)[None, :])


@triton.jit(do_not_specialize=["M", "c_by_align", "co_by_align", *GEOMETRY])
def inputs(
    dy, w, dx, M, row, c_by_align, co_by_align, H, W, HO, WO, shift, P, ALIGN_C: tl.constexpr, ALIGN_CO: tl.constexpr,
    K: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """dx at BLOCK_M of the M = B · H · W pixels of a member, and BLOCK_N of its C channels."""
    C, CO = c_by_align * ALIGN_C, co_by_align * ALIGN_CO
    g = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(C, BLOCK_N)
    m = tl.program_id(0) // across * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.program_id(0) % across * BLOCK_N + tl.arange(0, BLOCK_N)
    dy += g * (M // (H * W)) * HO * WO * CO
    w += g * row
    image, low, right = m // W // H * HO, m // W % H + P, m % W + P
    pieces = tl.cdiv(CO, BLOCK_K)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for step in range(K * K * pieces):
        tap = step // pieces
        o = step % pieces * BLOCK_K + tl.arange(0, BLOCK_K)
        up, left = low - tap // K, right - tap % K
        ho, wo = up >> shift, left >> shift
        # A pixel is under this tap of a filter only where the stride brings the filter there.
        under = (m < M) & (up >= 0) & (left >= 0) & (ho << shift == up) & (wo << shift == left) & (ho < HO) & (wo < WO)
        given = tl.load(dy + ((image + ho) * WO + wo)[:, None] * CO + o[None, :], under[:, None] & (o < CO)[None, :], 0)
        taps = tl.load(w + o[:, None] * (K * K * C) + tap * C + c[None, :], (o < CO)[:, None] & (c < C)[None, :], 0)
        total = tl.dot(given, taps, total, input_precision=PRECISION)
    dx += g * M * C
    tl.store(dx + m[:, None] * C + c[None, :], total.to(dx.dtype.element_ty), (m < M)[:, None] & (c < C)[None, :])


@triton.jit(do_not_specialize=["M", "c_by_align", "co_by_align", *GEOMETRY, "each"])
def filters(
    x, dy, dw, M, row, c_by_align, co_by_align, H, W, HO, WO, shift, P, each, ALIGN_C: tl.constexpr,
    ALIGN_CO: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """dw of BLOCK_M filters, BLOCK_N channels and one tap: the sum over `each` of the M = B · HO · WO places.

    dw lies as (G, splits, CO, K · K · C), its splits `row` apart; `each` is a multiple of BLOCK_K.
    """
    C, CO = c_by_align * ALIGN_C, co_by_align * ALIGN_CO
    split = tl.program_id(1)
    g = tl.program_id(2).to(tl.int64)
    across = tl.cdiv(C, BLOCK_N)
    c = tl.program_id(0) % across * BLOCK_N + tl.arange(0, BLOCK_N)
    tap = tl.program_id(0) // across % (K * K)
    o = tl.program_id(0) // across // (K * K) * BLOCK_M + tl.arange(0, BLOCK_M)
    x += g * (M // (HO * WO)) * H * W * C
    dy += g * M * CO
    down, right = tap // K - P, tap % K - P
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, each, BLOCK_K):
        m = split * each + start + tl.arange(0, BLOCK_K)
        h, wi = (m // WO % HO << shift) + down, (m % WO << shift) + right
        inside = (m < M) & (h >= 0) & (h < H) & (wi >= 0) & (wi < W)
        given = tl.load(dy + m[None, :] * CO + o[:, None], inside[None, :] & (o < CO)[:, None], 0)
        at = (m // WO // HO * H + h) * W + wi
        seen = tl.load(x + at[:, None] * C + c[None, :], inside[:, None] & (c < C)[None, :], 0)
        total = tl.dot(given, seen, total, input_precision=PRECISION)
    dw += (g * tl.num_programs(1) + split) * row
    at = o[:, None] * (K * K * C) + tap * C + c[None, :]
    tl.store(dw + at, total.to(dw.dtype.element_ty), (o < CO)[:, None] & (c < C)[None, :])


@triton.jit
def _seen(x, m, k, M, HB, WB, HO, WO, C: tl.constexpr, K: tl.constexpr):
    """What filters see at places m of images in blocks: values k of their K · K · C, of which a line's lie together."""
    corner = ((m // WO // HO * HB + m // WO % HO) * WB + m % WO) * C
    at = corner[:, None] + (k // (K * C) * WB * C + k % (K * C))[None, :]
    return tl.load(x + at, (m < M)[:, None] & (k < K * K * C)[None, :], 0)


@triton.jit(do_not_specialize=["M", "CO", "HB", "WB", "HO", "WO"])
def stem_forward(
    x, w, y, M, CO, HB, WB, HO, WO, C: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """y (G · B, HO, WO, CO) of images in blocks (G · B, HB, WB, C) and filters (G, CO, K · K · C), without padding."""
    g = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(CO, BLOCK_N)
    m = tl.program_id(0) // across * BLOCK_M + tl.arange(0, BLOCK_M)
    o = tl.program_id(0) % across * BLOCK_N + tl.arange(0, BLOCK_N)
    x += g * (M // (HO * WO)) * HB * WB * C
    w += g * CO * K * K * C
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K * K * C, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        seen = _seen(x, m, k, M, HB, WB, HO, WO, C, K)
        taps = tl.load(w + o[None, :] * (K * K * C) + k[:, None], (k < K * K * C)[:, None] & (o < CO)[None, :], 0)
        total = tl.dot(seen, taps, total, input_precision=PRECISION)
    y += g * M * CO
    tl.store(y + m[:, None] * CO + o[None, :], total.to(y.dtype.element_ty), (m < M)[:, None] & (o < CO)[None, :])


@triton.jit(do_not_specialize=["M", "CO", "HB", "WB", "HO", "WO", "each"])
def stem_filters(
    x, dy, dw, M, CO, HB, WB, HO, WO, each, C: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """dw (G, splits, CO, K · K · C): BLOCK_K values of BLOCK_N filters, the sum over `each` of the M places."""
    split = tl.program_id(1)
    g = tl.program_id(2).to(tl.int64)
    across = tl.cdiv(CO, BLOCK_N)
    k = tl.program_id(0) // across * BLOCK_K + tl.arange(0, BLOCK_K)
    o = tl.program_id(0) % across * BLOCK_N + tl.arange(0, BLOCK_N)
    x += g * (M // (HO * WO)) * HB * WB * C
    dy += g * M * CO
    total = tl.zeros([BLOCK_K, BLOCK_N], tl.float32)
    for start in range(0, each, BLOCK_M):
        m = split * each + start + tl.arange(0, BLOCK_M)
        seen = _seen(x, m, k, M, HB, WB, HO, WO, C, K)
        given = tl.load(dy + m[:, None] * CO + o[None, :], (m < M)[:, None] & (o < CO)[None, :], 0)
        total = tl.dot(tl.trans(seen), given, total, input_precision=PRECISION)
    dw += (g * tl.num_programs(1) + split) * CO * K * K * C
    inside = (k < K * K * C)[:, None] & (o < CO)[None, :]
    tl.store(dw + o[None, :] * (K * K * C) + k[:, None], total.to(dw.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["splits"])
def add_splits(parts, dw, N, row, splits, BLOCK_S: tl.constexpr, BLOCK: tl.constexpr):
    """The splits' sums (G, splits, N) added up into dw (G, N), `row` apart, in an order that is always the same."""
    g = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK_S, BLOCK], tl.float32)
    for start in range(0, splits, BLOCK_S):
        split = start + tl.arange(0, BLOCK_S)
        there = (split < splits)[:, None] & (n < N)[None, :]
        total += tl.load(parts + (g * splits + split)[:, None] * N + n[None, :], there, 0)
    tl.store(dw + g * row + n, tl.sum(total, 0).to(dw.dtype.element_ty), n < N)
