"""Dropout."""

# The arguments of a kernel are typed by Triton, which has no stubs:
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def dropout(x, y, seed, cursor, member, layer, rate, BLOCK: tl.constexpr):
    """Zeroes a share of the values, by a draw that is a function of (client's key, step, layer, place) alone."""
    g = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < member
    key = tl.load(seed + g) + tl.load(cursor) * 1000003 + layer * 7919
    kept = tl.rand(key, i) >= rate
    value = tl.load(x + g * member + i, ok, 0).to(tl.float32)
    tl.store(y + g * member + i, tl.where(kept, value / (1 - rate), 0.0).to(y.dtype.element_ty), ok)
