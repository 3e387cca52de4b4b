"""The losses of `mapl.losses`, in a few kernels each, for one client or for all of a group.

They are functions of one client's tensors, as a method calls them. Under `torch.vmap` the calls of all members become
one. A loss computes its gradient in the forward pass, where all it needs is at hand; the backward pass only scales it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
import triton
from torch import Tensor
from triton.runtime.jit import JITFunction

from mapl.engine.cuda.kernels import losses as kernels
from mapl.engine.cuda.kernels.launch import launch, once, precision
from mapl.losses import FORMS, Form, Way

MOST_ROWS = 1024
"""Samples of a batch: a program holds the logits of a few of them with all others."""
MOST_CLASSES = 256

COMPILED = isinstance(kernels.scores, JITFunction)
"""Otherwise Triton's interpreter runs the kernels, and does so on a CPU."""


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor | None:
    """`mapl.losses.cross_entropy`: one kernel, and one for the backward pass."""
    if not fits(logits, labels=labels) or not small(classes=logits.shape[1]):
        return None
    return _loss(_cross_entropy, logits, labels)


def supervised_contrastive(projections: Tensor, labels: Tensor, temperature: float, form: Form) -> Tensor | None:
    """`mapl.losses.supervised_contrastive`: two kernels, and one for the backward pass."""
    if not fits(projections, labels=labels) or not small(rows=len(labels)) or not _plain(temperature, form):
        return None
    return _loss(partial(_contrastive, temperature=temperature, paper=form == "paper"), projections, labels)


def prototype_contrastive(
    projections: Tensor, labels: Tensor, prototypes: Tensor, temperature: float, form: Form
) -> Tensor | None:
    """`mapl.losses.prototype_contrastive`: two kernels, and one for the backward pass."""
    if not fits(projections, prototypes, labels=labels) or not _plain(temperature, form):
        return None
    if not small(len(projections), len(prototypes)) or projections.shape[1] != prototypes.shape[1]:
        return None
    paper = form == "paper"
    work = partial(_prototypes, temperature=temperature if paper else 1.0, paper=paper)
    return _loss(work, projections, labels, prototypes)


def prototype_uniformity(prototypes: Tensor, temperature: float, form: Form) -> Tensor | None:
    """`mapl.losses.prototype_uniformity`: two kernels, and one for the backward pass."""
    if not fits(prototypes) or not small(classes=len(prototypes)) or not _plain(temperature, form):
        return None
    paper = form == "paper"
    return _loss(partial(_uniformity, temperature=1.0 if paper else temperature, paper=paper), prototypes)


def distillation(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor | None:
    """`mapl.losses.distillation`: one kernel, and one for the backward pass."""
    if not fits(logits, teacher) or not small(classes=logits.shape[1]) or logits.shape != teacher.shape:
        return None
    if not _number(temperature):
        return None
    return _loss(partial(_distillation, temperature=float(temperature)), logits, teacher.detach())


FUSED: Mapping[str, Way] = MappingProxyType(
    {
        "cross_entropy": cross_entropy,
        "supervised_contrastive": supervised_contrastive,
        "prototype_contrastive": prototype_contrastive,
        "prototype_uniformity": prototype_uniformity,
        "distillation": distillation,
    }
)
"""What `mapl.losses.computed_by` takes."""


def fits(*matrices: Tensor, labels: Tensor | None = None) -> bool:
    """Whether these are matrices that kernels can read, and labels one for each row of the first."""
    place = "cuda" if COMPILED else "cpu"
    fit = all(m.ndim == 2 and m.dtype == torch.float32 and m.device.type == place and m.numel() for m in matrices)
    if labels is None or not fit:
        return fit
    whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    return whole and labels.device.type == place and labels.shape == matrices[0].shape[:1]


def small(rows: int = 1, classes: int = 1) -> bool:
    return rows <= MOST_ROWS and classes <= MOST_CLASSES


# One function for one client and for many


Work = Callable[..., tuple[Tensor, Tensor]]
"""From tensors (G, …): the losses (G,), and the gradients of those that are no labels, flat and in a row, (G, n).

Tensors without a gradient, such as a teacher's, come last: the row ends before them."""


def _loss(work: Work, *tensors: Tensor) -> Tensor:
    loss, _ = _Loss.apply(None, work, *tensors)  # type: ignore[no-untyped-call]
    return loss  # type: ignore[no-any-return]


class _Loss(torch.autograd.Function):
    """A loss of one client (`members` is None), or those of as many at once."""

    @staticmethod
    def forward(members: int | None, work: Work, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        if members is not None:
            return work(*tensors)
        loss, gradients = work(*(tensor.unsqueeze(0) for tensor in tensors))
        return loss.squeeze(0), gradients.squeeze(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1])
        ctx.shapes = [tensor.shape if tensor.is_floating_point() else None for tensor in inputs[2:]]
        ctx.members = inputs[0]

    @staticmethod
    @once
    def backward(ctx: Any, d: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        """One product for all gradients, each of which is a part of the whole."""
        (gradients,) = ctx.saved_tensors
        found: list[Tensor | None] = [None, None]
        scaled = None if d is None else gradients * d.unsqueeze(-1)
        first = 0
        for shape in ctx.shapes:
            if shape is None or scaled is None or first == scaled.shape[-1]:
                found.append(None)
                continue
            size = shape.numel() // (ctx.members or 1)
            found.append(scaled[..., first : first + size].view(shape))
            first += size
        return tuple(found)

    @staticmethod
    def vmap(info: Any, in_dims: Any, members: None, work: Work, *tensors: Tensor) -> Any:
        stacked = stack_members(info.batch_size, in_dims[2:], tensors)
        return _Loss.apply(info.batch_size, work, *stacked), (0, 0)  # type: ignore[no-untyped-call]


def stack_members(members: int, dims: tuple[int | None, ...], tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """What vmap gives, as (G, …); what is the same for all members is repeated, without a copy."""
    return [
        tensor.expand(members, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(tensors, dims, strict=True)
    ]


def _plain(temperature: Any, form: Form) -> bool:
    """A temperature that is a tensor may want a gradient; a form that does not exist is refused elsewhere."""
    return _number(temperature) and form in FORMS


def _number(temperature: Any) -> bool:
    return isinstance(temperature, int | float)


def dense(x: Tensor) -> Tensor:
    """A tensor (G, …) of which each member's part is dense; members may lie apart, as parameters do."""
    return x if x[0].is_contiguous() else x.contiguous()


def block_of(size: int, most: int) -> int:
    """A power of two, of at least the 16 that matrix units want."""
    return int(min(most, max(16, triton.next_power_of_2(size))))


# The losses of members (G, …)


def _cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    logits, labels = dense(logits), dense(labels)
    members, b, k = logits.shape
    loss, gradient = logits.new_empty(members), logits.new_empty((members, b * k))
    columns = block_of(k, MOST_CLASSES)
    launch(
        kernels.cross_entropy, (members,), logits, labels, loss, gradient, b, k, logits.stride(0),
        labels.stride(0), ROWS=block_of(b, 2048 // columns), COLUMNS=columns, num_warps=8,
    )  # fmt: skip
    return loss, gradient


def _distillation(logits: Tensor, teacher: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logits, teacher = dense(logits), dense(teacher)
    members, b, k = logits.shape
    loss, gradient = logits.new_empty(members), logits.new_empty((members, b * k))
    columns = block_of(k, MOST_CLASSES)
    launch(
        kernels.distillation, (members,), logits, teacher, loss, gradient, b, k, temperature, logits.stride(0),
        teacher.stride(0), ROWS=block_of(b, 1024 // columns), COLUMNS=columns, num_warps=8,
    )  # fmt: skip
    return loss, gradient


def _contrastive(projections: Tensor, labels: Tensor, temperature: float, paper: bool) -> tuple[Tensor, Tensor]:
    return _of_each_other(projections, labels, temperature, kernels.CONTRASTIVE.value, paper, unit=True)


def _uniformity(prototypes: Tensor, temperature: float, paper: bool) -> tuple[Tensor, Tensor]:
    none = prototypes.new_empty((len(prototypes), 0), dtype=torch.int64)
    return _of_each_other(prototypes, none, temperature, kernels.UNIFORMITY.value, paper, unit=paper)


def _of_each_other(
    x: Tensor, labels: Tensor, temperature: float, loss: int, paper: bool, unit: bool
) -> tuple[Tensor, Tensor]:
    """A loss of vectors x (G, N, D) that are compared with each other."""
    x = dense(x)
    made = _Scores(x, x, labels, temperature, loss, paper, unit, unit)
    (members, n, d), gradient = x.shape, torch.empty_like(x, memory_format=torch.contiguous_format)
    rows, block = block_of(n, 32), block_of(d, 64)
    launch(
        kernels.pull, (triton.cdiv(n, rows), triton.cdiv(d, block), members), made.slopes, made.logits, x,
        made.x_scale, made.row_loss, made.loss, gradient, n, d, x.stride(0), temperature, UNIT=unit,
        PRECISION=precision(), ALL=block_of(n, MOST_ROWS), ROWS=rows, COLUMNS=block_of(n, 32), BLOCK_D=block,
    )  # fmt: skip
    return made.loss, gradient.flatten(1)


def _prototypes(
    projections: Tensor, labels: Tensor, prototypes: Tensor, temperature: float, paper: bool
) -> tuple[Tensor, Tensor]:
    x, y = dense(projections), dense(prototypes)
    made = _Scores(x, y, labels, temperature, kernels.PROTOTYPE.value, paper, True, paper)
    (members, n, d), m = x.shape, y.shape[1]
    gradients = x.new_empty((members, (n + m) * d))
    x_rows, y_rows, block = block_of(n, 32), block_of(m, 32), block_of(d, 64)
    x_blocks = triton.cdiv(n, x_rows)
    launch(
        kernels.pull_both, (x_blocks + triton.cdiv(m, y_rows), triton.cdiv(d, block), members), made.slopes,
        made.logits, x, y, made.x_scale, made.y_scale, made.row_loss, made.loss, gradients, gradients[:, n * d :], n, m,
        d, x.stride(0), y.stride(0), gradients.stride(0), x_blocks, temperature, UNIT_X=True, UNIT_Y=paper,
        PRECISION=precision(), ALL=block_of(n, MOST_ROWS), X_ROWS=x_rows, X_COLUMNS=block_of(m, 32), Y_ROWS=y_rows,
        Y_COLUMNS=block_of(n, 32), BLOCK_D=block,
    )  # fmt: skip
    return made.loss, gradients


class _Scores:
    """What the first kernel of a loss tells the second; shapes as in `kernels.scores`."""

    ROWS = 16

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        labels: Tensor,
        temperature: float,
        loss: int,
        paper: bool,
        unit_x: bool,
        unit_y: bool,
    ):
        (members, n, d), m, labels = x.shape, y.shape[1], dense(labels)
        self.slopes, self.logits = x.new_empty((2, members, n, m))
        self.x_scale, self.row_loss = x.new_empty((2, members, n))
        self.y_scale, self.loss = x.new_empty((members, m)), x.new_empty(members)
        columns = block_of(m, MOST_ROWS)
        # A program holds the logits of its rows with all columns, and BLOCK_D numbers of every vector y.
        wide = columns > 256
        blocks = {"ROWS": self.ROWS, "COLUMNS": columns, "BLOCK_D": min(block_of(d, 64), max(16, 8192 // columns))}
        launch(
            kernels.scores, (triton.cdiv(n, self.ROWS), members), x, y, labels, self.slopes, self.logits,
            self.x_scale, self.y_scale, self.row_loss, n, m, d, x.stride(0), y.stride(0), labels.stride(0), temperature,
            LOSS=loss, PAPER=paper, UNIT_X=unit_x, UNIT_Y=unit_y, PRECISION=precision(), **blocks,
            num_warps=8 if wide else 4, num_stages=1 if wide else 2,
        )  # fmt: skip
