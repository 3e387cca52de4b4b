"""Maximum pooling, forward and backward."""

# The arguments of a kernel are typed by Triton, which has no stubs:
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from mapl.engine.cuda.kernels.places import GEOMETRY, places_of


@triton.jit(do_not_specialize=["total", "C_BY_ALIGN", *GEOMETRY])
def pool_forward(
    x, y, which, total, C_BY_ALIGN, H, W, HO, WO, SHIFT, P,
    ALIGN: tl.constexpr, K: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Maximum over windows of K × K, 2^SHIFT apart, and which of its places it stood at (the first of equals)."""
    C = C_BY_ALIGN * ALIGN
    first, n, ho, wo, c, ok = places_of(total, C, HO, WO, BLOCK_P, BLOCK_C)
    x += first * H * W * C
    at = first * HO * WO * C + ((n * HO + ho) * WO + wo) * C + c
    best = tl.full([BLOCK_P, BLOCK_C], float("-inf"), tl.float32)
    place = tl.zeros([BLOCK_P, BLOCK_C], tl.int32)
    for tap in range(K * K):
        h = (ho << SHIFT) - P + tap // K
        w = (wo << SHIFT) - P + tap % K
        inside = ok & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        value = tl.load(x + ((n * H + h) * W + w) * C + c, inside, float("-inf")).to(tl.float32)
        larger = (value > best) | (value != value)  # a NaN stays, as it does in torch
        place = tl.where(larger, tap, place)
        best = tl.where(larger, value, best)
    tl.store(y + at, best.to(y.dtype.element_ty), ok)
    tl.store(which + at, place.to(tl.uint8), ok)


@triton.jit(do_not_specialize=["total", "C_BY_ALIGN", *GEOMETRY])
def pool_backward(
    dy, which, dx, total, C_BY_ALIGN, H, W, HO, WO, SHIFT, P,
    ALIGN: tl.constexpr, K: tl.constexpr, WINDOWS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Each place gathers from the windows in which it was the largest: no two programs write to one place.

    At most WINDOWS = ⌈K / 2^SHIFT⌉ windows a direction have a place in them.
    """
    C = C_BY_ALIGN * ALIGN
    first, n, h, w, c, ok = places_of(total, C, H, W, BLOCK_P, BLOCK_C)
    dy += first * HO * WO * C
    which += first * HO * WO * C
    gathered = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for back in range(WINDOWS * WINDOWS):
        ho = (h + P >> SHIFT) - back // WINDOWS
        wo = (w + P >> SHIFT) - back % WINDOWS
        down, right = h + P - (ho << SHIFT), w + P - (wo << SHIFT)  # the place in that window
        there = ok & (ho >= 0) & (ho < HO) & (wo >= 0) & (wo < WO) & (down < K) & (right < K)
        at = ((n * HO + ho) * WO + wo) * C + c
        mine = tl.load(which + at, there, 255).to(tl.int32) == down * K + right
        gathered += tl.where(mine, tl.load(dy + at, there, 0).to(tl.float32), 0.0)
    tl.store(dx + first * H * W * C + ((n * H + h) * W + w) * C + c, gathered.to(dx.dtype.element_ty), ok)
