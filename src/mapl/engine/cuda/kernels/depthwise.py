"""Depthwise convolutions, forward and backward."""

# The arguments of a kernel are typed by Triton, which has no stubs:
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from mapl.engine.cuda.kernels.places import GEOMETRY, places_of


@triton.jit(do_not_specialize=["total", "C_BY_ALIGN", *GEOMETRY])
def depthwise_forward(
    x, weight, y, total, row, C_BY_ALIGN, H, W, HO, WO, SHIFT, P,
    ALIGN: tl.constexpr, K: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """One K × K filter per channel, at `total` places of each member."""
    C = C_BY_ALIGN * ALIGN
    first, n, ho, wo, c, ok = places_of(total, C, HO, WO, BLOCK_P, BLOCK_C)
    filters = weight + tl.program_id(2).to(tl.int64) * row + c * K * K
    x += first * H * W * C
    value = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for tap in range(K * K):
        h = (ho << SHIFT) - P + tap // K
        w = (wo << SHIFT) - P + tap % K
        inside = ok & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        pixel = tl.load(x + ((n * H + h) * W + w) * C + c, inside, 0).to(tl.float32)
        value += pixel * tl.load(filters + tap, c < C, 0).to(tl.float32)
    tl.store(y + first * HO * WO * C + ((n * HO + ho) * WO + wo) * C + c, value.to(y.dtype.element_ty), ok)


@triton.jit(do_not_specialize=["total", "C_BY_ALIGN", *GEOMETRY])
def depthwise_backward(
    dy, weight, dx, total, row, C_BY_ALIGN, H, W, HO, WO, SHIFT, P,
    ALIGN: tl.constexpr, K: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """What each input gets back from the outputs that read it."""
    C = C_BY_ALIGN * ALIGN
    first, n, h, w, c, ok = places_of(total, C, H, W, BLOCK_P, BLOCK_C)
    filters = weight + tl.program_id(2).to(tl.int64) * row + c * K * K
    dy += first * HO * WO * C
    value = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for tap in range(K * K):
        up, left = h + P - tap // K, w + P - tap % K
        ho, wo = up >> SHIFT, left >> SHIFT
        # A place is under this tap of a filter only where the stride brings the filter there.
        under = ok & (up >= 0) & (left >= 0) & (ho << SHIFT == up) & (wo << SHIFT == left) & (ho < HO) & (wo < WO)
        d = tl.load(dy + ((n * HO + ho) * WO + wo) * C + c, under, 0).to(tl.float32)
        value += d * tl.load(filters + tap, c < C, 0).to(tl.float32)
    tl.store(dx + first * H * W * C + ((n * H + h) * W + w) * C + c, value.to(dx.dtype.element_ty), ok)


@triton.jit(do_not_specialize=["R", "C_BY_ALIGN", *GEOMETRY, "each"])
def depthwise_weights(
    x, dy, dweight, R, drow, C_BY_ALIGN, H, W, HO, WO, SHIFT, P, each,
    ALIGN: tl.constexpr, K: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The filters' gradient at a tap and a block of channels: the sum over `each` of the R = B · HO · WO places.

    dweight lies as (G, splits, C · K · K), its splits `drow` apart.
    """
    C = C_BY_ALIGN * ALIGN
    across = tl.cdiv(C, BLOCK_C)
    tap = tl.program_id(0) // across
    c = tl.program_id(0) % across * BLOCK_C + tl.arange(0, BLOCK_C)
    split = tl.program_id(1)
    g = tl.program_id(2).to(tl.int64)
    ok = c < C
    x += g * (R // (HO * WO)) * H * W * C
    dy += g * R * C
    total = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    for start in range(0, each, BLOCK_R):
        r = split * each + start + tl.arange(0, BLOCK_R)
        h = ((r // WO) % HO << SHIFT) - P + tap // K
        w = (r % WO << SHIFT) - P + tap % K
        n = r // WO // HO
        inside = (r < R) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        mask = inside[:, None] & ok[None, :]
        pixel = tl.load(x + ((n * H + h) * W + w)[:, None] * C + c[None, :], mask, 0).to(tl.float32)
        total += pixel * tl.load(dy + r[:, None] * C + c[None, :], mask, 0).to(tl.float32)
    dweight += (g * tl.num_programs(1) + split) * drow
    tl.store(dweight + c * K * K + tap, tl.sum(total, 0).to(dweight.dtype.element_ty), ok)
