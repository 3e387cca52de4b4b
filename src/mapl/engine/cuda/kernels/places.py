"""Where a program works in a group's images."""

# The arguments of a kernel are typed by Triton, which has no stubs:
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

GEOMETRY = ["H", "W", "HO", "WO", "SHIFT", "P"]
"""Sizes that a kernel is not built for: building takes longer than it would gain."""


@triton.jit
def places_of(total, C, H, W, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """A program's places in a member's images: (image, row, column), channels, where in memory, and a mask.

    Images are counted from the program's first, whose number among all is returned too: so places fit into 32 bits.
    """
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    first = tl.program_id(0) * BLOCK_P // (H * W)
    ok = (p < total)[:, None] & (c < C)[None, :]
    n, h, w = p // W // H - first, p // W % H, p % W
    return (
        (tl.program_id(2).to(tl.int64) * (total // (H * W)) + first),
        n[:, None],
        h[:, None],
        w[:, None],
        c[None, :],
        ok,
    )
