"""Triton kernels for a group of G clients of one architecture, whose batches lie one after another.

Activations are channels-last, so that a group's tensor (G · B, C, H, W) is G matrices of R = B · H · W rows and C
columns. Parameters of all members lie in one tensor (G, …), a row a client; `row` is the distance between two clients.

`active` (G,) says which members take part in this step; what the others remember stays as it is.
"""

# The arguments of a kernel are typed by Triton, which has no stubs:
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mapl.engine.workers import cores

_builders: Builders | None = None


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Start a kernel; or while kernels are being built, have it built."""
    if _builders is not None:
        _builders.add(kernel, grid, arguments, constants)
        return
    kernel[grid](*arguments, **constants)


class Builders:
    """Threads that build kernels: most of that is done outside of Python, so that many can at a time.

    The first kernel goes ahead of the others: Triton then reads itself, a file of hundreds of megabytes, to tell its
    versions apart, and would in every thread that begins before that is done.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(cores(), "kernels", *_on_this_gpu())
        self._known: set[Any] = set()
        self._first: Future[None] | None = None

    def add(self, kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
        """Have a kernel built for such arguments, unless it is being already."""
        plain = [parameter.do_not_specialize for parameter in kernel.params]
        kinds = [_kind(value, plain[i]) for i, value in enumerate(arguments)]
        what = id(kernel), *kinds, *constants.items()
        if what not in self._known:
            self._known.add(what)
            job = self._threads.submit(self._build, kernel, grid, arguments, constants, self._first)
            self._first = self._first or job

    @staticmethod
    def _build(
        kernel: Any,
        grid: tuple[int, ...],
        arguments: tuple[Any, ...],
        constants: dict[str, Any],
        first: Future[None] | None,
    ) -> None:
        """A kernel, and the program on the host that starts it, which Triton has a C compiler make."""
        if first is not None:
            wait([first])
        _ = kernel.warmup(*arguments, grid=grid, **constants).run

    def wait(self) -> None:
        """What could not be built says so when it is launched."""
        self._threads.shutdown()


def _on_this_gpu() -> tuple[Any, ...]:
    """What a new thread begins with, so that it works for the GPU that this one does."""
    return (torch.cuda.set_device, (torch.cuda.current_device(),)) if torch.cuda.is_available() else ()


def _kind(value: Any, plain: bool) -> Any:
    """What a kernel is built anew for."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, int) and not plain:
        return value == 1, value % 16 == 0
    return type(value)


@contextmanager
def building() -> Iterator[None]:
    """Kernels that are launched inside are built, many at a time, and not run."""
    global _builders
    _builders = builders = Builders()
    try:
        yield
    finally:
        _builders = None
        builders.wait()


def once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """For a way back that is made of kernels, and has none of its own: who wants that gets an error, and not a zero.

    Torch's `once_differentiable` looks at the gradient that comes in alone, not at what the forward pass was given.
    """

    @wraps(backward)
    def guarded(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("its loss is differentiated twice")
        return backward(ctx, *gradients)

    return guarded


GEOMETRY = ["H", "W", "HO", "WO", "SHIFT", "P"]
"""Sizes that a kernel is not built for: building takes longer than it would gain."""
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
    """Batch normalisation of each member by itself, then ReLU; remembers mean and 1/σ for the way back.

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
    """The way back: dx = w/σ · (dy − mean(dy) − x̂ · mean(dy · x̂)), with dy masked where the ReLU was off."""
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


@triton.jit
def _places(total, C, H, W, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
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


@triton.jit(do_not_specialize=["total", "C_BY_ALIGN", *GEOMETRY])
def pool_forward(
    x, y, which, total, C_BY_ALIGN, H, W, HO, WO, SHIFT, P,
    ALIGN: tl.constexpr, K: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Maximum over windows of K × K, 2^SHIFT apart, and which of its places it stood at (the first of equals)."""
    C = C_BY_ALIGN * ALIGN
    first, n, ho, wo, c, ok = _places(total, C, HO, WO, BLOCK_P, BLOCK_C)
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
    first, n, h, w, c, ok = _places(total, C, H, W, BLOCK_P, BLOCK_C)
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


@triton.jit(do_not_specialize=["total", "C_BY_ALIGN", *GEOMETRY])
def depthwise_forward(
    x, weight, y, total, row, C_BY_ALIGN, H, W, HO, WO, SHIFT, P,
    ALIGN: tl.constexpr, K: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """One K × K filter a channel, at `total` places of each member."""
    C = C_BY_ALIGN * ALIGN
    first, n, ho, wo, c, ok = _places(total, C, HO, WO, BLOCK_P, BLOCK_C)
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
    first, n, h, w, c, ok = _places(total, C, H, W, BLOCK_P, BLOCK_C)
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


@triton.jit
def optimise(
    flat, low, grad_low, grad_high, first, second, learns, step, active, row, n_low, n, lr, eps, decay,
    DECAYS: tl.constexpr, ADAM: tl.constexpr, BETA1: tl.constexpr, BETA2: tl.constexpr, LOG1: tl.constexpr,
    LOG2: tl.constexpr, COPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step of Adam, or of SGD with momentum BETA1, on all parameters of every member.

    The first `n_low` parameters of a member have their gradient in `grad_low` and, where COPY, a copy in lower
    precision to write; the other n − n_low have theirs in `grad_high`. LOG1 and LOG2 are the betas' logarithms: powers
    are taken in float64, since 1 − β^t loses most digits of float32.
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
    end = n * tl.load(active + g).to(tl.int32)
    for start in range(tl.program_id(0) * BLOCK, end, tl.num_programs(0) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        ok = i < end
        is_low = ok & (i < n_low)
        d = tl.load(grad_low + i, is_low, 0).to(tl.float32)
        d += tl.load(grad_high + i - n_low, ok & (i >= n_low), 0).to(tl.float32)
        p = tl.load(flat + i, ok, 0)
        if DECAYS:  # what has no gradient does not decay either
            d += decay * p * tl.load(learns + i, ok, 0)
        m = tl.load(first + i, ok, 0)
        if ADAM:
            m = BETA1 * m + (1 - BETA1) * d
            v = BETA2 * tl.load(second + i, ok, 0) + (1 - BETA2) * d * d
            tl.store(second + i, v, ok)
            p -= lr / correction1 * m / (tl.sqrt(v) / correction2 + eps)
        else:
            m = BETA1 * m + d
            p -= lr * m
        tl.store(first + i, m, ok)
        tl.store(flat + i, p, ok)
        if COPY:
            tl.store(low + i, p.to(low.dtype.element_ty), is_low)
