"""The end of a training step: losses are added up, and the cursor moves on."""

# The arguments of a kernel are typed by Triton, which has no stubs:
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["T"])
def account(values, totals, active, step, cursor, T, G, BLOCK: tl.constexpr):
    """After a step: add the T terms (T, G) of active members to `totals`, and move all on by one. A single program.

    `step` (G,) counts the steps of each member, `cursor` (1,) those of the group.
    """
    n = tl.arange(0, BLOCK)
    ok = n < T * G
    on = tl.load(active + n % G, ok, 0) > 0
    tl.store(totals + n, tl.load(totals + n, ok, 0) + tl.load(values + n, ok & on, 0), ok)
    taken = tl.load(active + n, n < G, 0)
    tl.store(step + n, tl.load(step + n, n < G, 0) + taken, n < G)
    tl.store(cursor + n, tl.load(cursor + n, n < 1, 0) + 1, n < 1)
