"""Adam, AdamW, and SGD with momentum."""

# The arguments of a kernel are typed by Triton, which has no stubs:
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def optimise(
    flat, low, grad_low, grad_high, first, second, learns, rates, factor, step, active, row, n_low, n, lr, eps,
    decay,
    DECAYS: tl.constexpr, DECOUPLED: tl.constexpr, RATES: tl.constexpr, ADAM: tl.constexpr, BETA1: tl.constexpr,
    BETA2: tl.constexpr, LOG1: tl.constexpr, LOG2: tl.constexpr, COPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step of Adam, of AdamW where DECOUPLED, or of SGD with momentum BETA1, on all parameters of every member.

    The first `n_low` parameters of a member have their gradient in `grad_low` and, where COPY, a copy in lower
    precision to write; the other n − n_low have theirs in `grad_high`. The learning rate is `lr`, or where RATES each
    parameter's own in `rates` (n,). It is multiplied by `factor` (1,), which the host sets every round. LOG1 and LOG2
    are the betas' logarithms: powers are taken in float64, since 1 − β^t loses most digits of float32.
    """
    g = tl.program_id(1).to(tl.int64)
    flat += g * row
    low += g * n_low
    grad_low += g * n_low
    grad_high += g * (n - n_low)
    first += g * n
    second += g * n
    if ADAM:
        t = (tl.load(step + g) + 1).to(tl.float64)
        correction1 = (1 - tl.exp(t * LOG1)).to(tl.float32)
        correction2 = tl.sqrt(1 - tl.exp(t * LOG2)).to(tl.float32)
    scale = tl.load(factor)
    end = n * tl.load(active + g).to(tl.int32)
    for start in range(tl.program_id(0) * BLOCK, end, tl.num_programs(0) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        ok = i < end
        is_low = ok & (i < n_low)
        d = tl.load(grad_low + i, is_low, 0).to(tl.float32)
        d += tl.load(grad_high + i - n_low, ok & (i >= n_low), 0).to(tl.float32)
        p = tl.load(flat + i, ok, 0)
        rate = lr * scale
        if RATES:
            rate = tl.load(rates + i, ok, 0) * scale
        if DECAYS:  # what has no gradient does not decay either
            decayed = decay * p * tl.load(learns + i, ok, 0)
            if DECOUPLED:
                p -= rate * decayed
            else:
                d += decayed
        m = tl.load(first + i, ok, 0)
        if ADAM:
            m = BETA1 * m + (1 - BETA1) * d
            v = BETA2 * tl.load(second + i, ok, 0) + (1 - BETA2) * d * d
            tl.store(second + i, v, ok)
            p -= rate / correction1 * m / (tl.sqrt(v) / correction2 + eps)
        else:
            m = BETA1 * m + d
            p -= rate * m
        tl.store(first + i, m, ok)
        tl.store(flat + i, p, ok)
        if COPY:
            tl.store(low + i, p.to(low.dtype.element_ty), is_low)
