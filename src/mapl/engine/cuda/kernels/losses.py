"""Triton kernels for the losses and the heads of a group of G clients: one launch for all members.

A member's matrices are dense, (rows, D), and members lie `…_member` elements apart, so that parameters are read where
they are. A loss of cosines takes two kernels: `scores` makes the logits of all pairs, what each row adds to the loss,
and the slopes A = ∂loss/∂logits; `pull` or `pull_both` makes the gradient of the vectors from these, and adds up the
loss. No sum depends on who is done first.
"""

# The arguments of a kernel are typed by Triton, which has no stubs:
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from mapl import losses

CONTRASTIVE = tl.constexpr(0)
"""Samples with samples: `losses.supervised_contrastive`."""
PROTOTYPE = tl.constexpr(1)
"""Samples with prototypes: `losses.prototype_contrastive`."""
UNIFORMITY = tl.constexpr(2)
"""Prototypes with prototypes: `losses.prototype_uniformity`."""

SHORTEST = tl.constexpr(losses.SHORTEST)
LOWEST = tl.constexpr(-3.4e38)
"""Stands for log 0: with −∞ a row that is excluded as a whole would pass through NaN."""


@triton.jit
def _softmax(values, among):
    """Of each row, over the columns `among`: the softmax (0 elsewhere), the maximum m, and log Σ exp(value − m).

    A row may have no such column. The maximum may drop a NaN, the sum does not.
    """
    values = tl.where(among, values, LOWEST)
    top = tl.max(values, 1)
    powers = tl.where(among, tl.exp(values - top[:, None]), 0.0)
    total = tl.sum(powers, 1)
    total = tl.where(total == 0, 1.0, total)
    return powers / total[:, None], top, tl.log(total)


@triton.jit
def _cross_entropy(values, inside, label, column, K):
    """Of each row: −log softmax at its label, and the slope of that. A label that is no class makes it NaN."""
    softmax, top, log_sum = _softmax(values, inside)
    chosen = inside & (label[:, None] == column[None, :])
    loss = log_sum - tl.sum(tl.where(chosen, values - top[:, None], 0.0), 1)
    loss = tl.where((label >= 0) & (label < K), loss, float("nan"))
    return loss, softmax - tl.where(chosen, 1.0, 0.0)


@triton.jit(do_not_specialize=["B"])
def cross_entropy(
    logits, labels, loss, gradient, B, K, member, label_member, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """The mean of −log softmax(logits)_label over the B rows of a member, and its gradient (G, B, K)."""
    g = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, COLUMNS)
    logits += g * member
    labels += g * label_member
    gradient += g * B * K
    total = tl.zeros([ROWS], tl.float32)
    for start in range(0, B, ROWS):
        r = start + tl.arange(0, ROWS)
        at = r[:, None] * K + k[None, :]
        inside = (r < B)[:, None] & (k < K)[None, :]
        label = tl.load(labels + r, r < B, 0).to(tl.int32)
        found, slope = _cross_entropy(tl.load(logits + at, inside, 0), inside, label, k, K)
        tl.store(gradient + at, slope / B, inside)
        total += tl.where(r < B, found, 0.0)
    tl.store(loss + g, tl.sum(total, 0) / B)


@triton.jit(do_not_specialize=["B"])
def distillation(
    logits, teacher, loss, gradient, B, K, temperature, member, teacher_member, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """T² times the mean KL(softmax(teacher / T) ‖ softmax(logits / T)) over the B rows of a member, and its gradient
    (G, B, K) with respect to the logits."""
    g = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, COLUMNS)
    logits += g * member
    teacher += g * teacher_member
    gradient += g * B * K
    total = tl.zeros([ROWS], tl.float32)
    for start in range(0, B, ROWS):
        r = start + tl.arange(0, ROWS)
        at = r[:, None] * K + k[None, :]
        inside = (r < B)[:, None] & (k < K)[None, :]
        ours = tl.load(logits + at, inside, 0) / temperature
        theirs = tl.load(teacher + at, inside, 0) / temperature
        p, p_top, p_log_sum = _softmax(theirs, inside)
        q, q_top, q_log_sum = _softmax(ours, inside)
        gap = (theirs - p_top[:, None] - p_log_sum[:, None]) - (ours - q_top[:, None] - q_log_sum[:, None])
        tl.store(gradient + at, (q - p) * (temperature / B), inside)
        total += tl.sum(tl.where(inside, p * gap, 0.0), 1)
    tl.store(loss + g, tl.sum(total, 0) * (temperature * temperature / B))


@triton.jit
def _inverse_length(squares):
    """1/‖v‖ of vectors whose sums of squares these are, and 1 for one that is as good as zero (`norm_or_one`)."""
    length = tl.sqrt(squares)
    return 1 / tl.where(length < SHORTEST, 1.0, length)


@triton.jit(do_not_specialize=["N"])
def scores(
    x, y, labels, slopes, logits, x_scale, y_scale, row_loss, N, M, D, x_member, y_member, label_member, temperature,
    LOSS: tl.constexpr, PAPER: tl.constexpr, UNIT_X: tl.constexpr, UNIT_Y: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """What ROWS of the N vectors x (N, D) of a member make with all M ≤ COLUMNS vectors y (M, D).

        logits s_ij = ⟨x_i, y_j⟩ · x_scale_i · y_scale_j / τ, where a scale is 1/‖v‖, or 1 where vectors are not UNIT
        row_loss_i, whose mean over the N rows is the loss, and slopes A_ij = ∂loss/∂s_ij

    slopes and logits are (G, N, M), x_scale and row_loss (G, N), y_scale (G, M).
    """
    g = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.arange(0, COLUMNS)
    x += g * x_member
    y += g * y_member
    products = tl.zeros([ROWS, COLUMNS], tl.float32)
    x_squares = tl.zeros([ROWS], tl.float32)
    y_squares = tl.zeros([COLUMNS], tl.float32)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        a = tl.load(x + i[:, None] * D + d[None, :], (i < N)[:, None] & (d < D)[None, :], 0)
        b = tl.load(y + j[None, :] * D + d[:, None], (d < D)[:, None] & (j < M)[None, :], 0)
        products = tl.dot(a, b, products, input_precision=PRECISION)
        if UNIT_X:
            x_squares += tl.sum(a * a, 1)
        if UNIT_Y:
            y_squares += tl.sum(b * b, 0)
    # One after the other: the product of two lengths may leave the range of float32 where neither does.
    if UNIT_X:
        of_x = _inverse_length(x_squares)
        products *= of_x[:, None]
        tl.store(x_scale + g * N + i, of_x, i < N)
    if UNIT_Y:
        of_y = _inverse_length(y_squares)
        products *= of_y[None, :]
        tl.store(y_scale + g * M + j, of_y, j < M * (tl.program_id(0) == 0).to(tl.int32))
    s = products / temperature

    inside = (i < N)[:, None] & (j < M)[None, :]
    other = inside & (i[:, None] != j[None, :])
    if LOSS == CONTRASTIVE:
        mine = tl.load(labels + g * label_member + i, i < N, 0)
        theirs = tl.load(labels + g * label_member + j, j < M, 0)
        positive = other & (mine[:, None] == theirs[None, :])
        count = tl.sum(tl.where(positive, 1.0, 0.0), 1)
        softmax, top, log_sum = _softmax(s, other)
        if PAPER:
            share = 1 / tl.where(count == 0, 1.0, count)
            target = tl.where(positive, share[:, None], 0.0)
            loss = log_sum - tl.sum(tl.where(positive, s - top[:, None], 0.0), 1) * share
        else:
            target, nearest, log_positive = _softmax(s, positive)
            loss = log_sum - log_positive + (top - nearest)
        loss = tl.where(count > 0, loss, 0.0)
        slope = tl.where((count > 0)[:, None], softmax - target, 0.0)
    elif LOSS == PROTOTYPE:
        label = tl.load(labels + g * label_member + i, i < N, 0).to(tl.int32)
        loss, slope = _cross_entropy(s, inside, label, j, M)
    else:
        if PAPER:
            pairs = tl.where(other, s, 0.0)
            slope = tl.where(other, 1.0, 0.0)
        else:
            # Masked before the exponential: a long prototype may overflow with itself.
            pairs = tl.where(other, tl.exp(tl.where(other, s, 0.0)), 0.0)
            slope = pairs
        loss = tl.sum(pairs, 1)
    at = g * N * M + i[:, None] * M + j[None, :]
    tl.store(slopes + at, slope / N, inside)
    tl.store(logits + at, s, inside)
    tl.store(row_loss + g * N + i, loss, i < N)


@triton.jit
def _add_up(row_loss, loss, N, ALL: tl.constexpr):
    """The mean of a member's N ≤ ALL rows, by its first program."""
    g = tl.program_id(2).to(tl.int64)
    r = tl.arange(0, ALL)
    mean = tl.sum(tl.load(row_loss + g * N + r, r < N, 0), 0) / N
    tl.store(loss + g, mean, (tl.program_id(0) == 0) & (tl.program_id(1) == 0))


@triton.jit
def _pull(
    slopes, logits, x, y, x_scale, y_scale, gradient, block, N, M, D, down, across, temperature,
    UNIT_X: tl.constexpr, UNIT_Y: tl.constexpr, SYMMETRIC: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """ROWS × BLOCK_D of the gradient of one member's vectors x (N, D), whose logits with y (M, D) have slopes A:

        ∂loss/∂x_i = x_scale_i (Σ_j A_ij ŷ_j / τ − x̂_i Σ_j A_ij s_ij)

    where the second part, the one along x_i, which a normalisation takes out, is that of UNIT vectors alone. A_ij lies
    at i · down + j · across. SYMMETRIC: x and y are the same vectors, and both their roles count, A_ij + A_ji.
    """
    i = block * ROWS + tl.arange(0, ROWS)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    total = tl.zeros([ROWS, BLOCK_D], tl.float32)
    along = tl.zeros([ROWS], tl.float32)
    for start in range(0, M, COLUMNS):
        j = start + tl.arange(0, COLUMNS)
        inside = (i < N)[:, None] & (j < M)[None, :]
        at = i[:, None] * down + j[None, :] * across
        slope = tl.load(slopes + at, inside, 0)
        if SYMMETRIC:
            slope += tl.load(slopes + i[:, None] * across + j[None, :] * down, inside, 0)
        if UNIT_X:
            along += tl.sum(slope * tl.load(logits + at, inside, 0), 1)
        if UNIT_Y:
            slope *= tl.load(y_scale + j, j < M, 0)[None, :]
        vectors = tl.load(y + j[:, None] * D + d[None, :], (j < M)[:, None] & (d < D)[None, :], 0)
        total = tl.dot(slope, vectors, total, input_precision=PRECISION)
    total = total / temperature
    at = i[:, None] * D + d[None, :]
    inside = (i < N)[:, None] & (d < D)[None, :]
    if UNIT_X:
        scale = tl.load(x_scale + i, i < N, 0)
        total = (total - tl.load(x + at, inside, 0) * (scale * along)[:, None]) * scale[:, None]
    tl.store(gradient + at, total, inside)


@triton.jit
def pull(
    slopes, logits, x, scale, row_loss, loss, gradient, N, D, x_member, temperature,
    UNIT: tl.constexpr, PRECISION: tl.constexpr, ALL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The gradient (G, N, D) of vectors that were paired with each other, and the loss (G,)."""
    g = tl.program_id(2).to(tl.int64)
    x += g * x_member
    scale += g * N
    _add_up(row_loss, loss, N, ALL)
    _pull(
        slopes + g * N * N, logits + g * N * N, x, x, scale, scale, gradient + g * N * D, tl.program_id(0), N, N, D, N,
        1, temperature, UNIT, UNIT, True, PRECISION, ROWS, COLUMNS, BLOCK_D,
    )  # fmt: skip


@triton.jit(do_not_specialize=["N", "x_blocks"])
def pull_both(
    slopes, logits, x, y, x_scale, y_scale, row_loss, loss, x_gradient, y_gradient, N, M, D, x_member, y_member,
    gradient_member, x_blocks, temperature,
    UNIT_X: tl.constexpr, UNIT_Y: tl.constexpr, PRECISION: tl.constexpr, ALL: tl.constexpr, X_ROWS: tl.constexpr,
    X_COLUMNS: tl.constexpr, Y_ROWS: tl.constexpr, Y_COLUMNS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The gradients of vectors x (N, D) and y (M, D) that were paired, and the loss (G,).

    The first `x_blocks` programs along the first dimension are for x, the others for y.
    """
    g = tl.program_id(2).to(tl.int64)
    block = tl.program_id(0)
    slopes += g * N * M
    logits += g * N * M
    x += g * x_member
    y += g * y_member
    x_scale += g * N
    y_scale += g * M
    x_gradient += g * gradient_member
    y_gradient += g * gradient_member
    _add_up(row_loss, loss, N, ALL)
    if block < x_blocks:
        _pull(
            slopes, logits, x, y, x_scale, y_scale, x_gradient, block, N, M, D, M, 1, temperature, UNIT_X, UNIT_Y,
            False, PRECISION, X_ROWS, X_COLUMNS, BLOCK_D,
        )  # fmt: skip
    else:
        _pull(
            slopes, logits, y, x, y_scale, x_scale, y_gradient, block - x_blocks, M, N, D, 1, M, temperature, UNIT_Y,
            UNIT_X, False, PRECISION, Y_ROWS, Y_COLUMNS, BLOCK_D,
        )  # fmt: skip
