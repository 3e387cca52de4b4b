"""Cross-entropy, the three losses that MAPL adds to it, and distillation: plain functions of tensors.

Each of MAPL's three has two forms. "paper" is the printed equation. "released" is what the authors' released program
computes: it made the published numbers and differs from the printed equation.

All tensor operations have fixed shapes, and no value is read back to Python, so a training step that calls these
functions can be captured once and replayed. They compute in the precision of their inputs. At a high temperature the
differences between logits are small (1/τ), so projections should be float32.

An engine may have faster implementations of the same functions; inside `computed_by` they are used.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Literal, ParamSpec, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from mapl.errors import unknown

Form = Literal["paper", "released"]
"""The printed equations, or what the released program computes."""

FORMS: tuple[Form, ...] = get_args(Form)

SHORTEST = 1e-12
"""A vector shorter than this counts as zero: it has no direction, and its cosine with anything is 0."""

Way = Callable[..., Tensor | None]
"""Another implementation of a loss, with the same arguments; it returns None for inputs that it does not support."""

_ways: ContextVar[Mapping[str, Way]] = ContextVar("ways", default=MappingProxyType({}))

P = ParamSpec("P")


@contextmanager
def computed_by(ways: Mapping[str, Way]) -> Iterator[None]:
    """Inside, and only in this thread, the losses named in `ways` are computed by those implementations."""
    before = _ways.set(ways)
    try:
        yield
    finally:
        _ways.reset(before)


def _replaceable(plain: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """A loss that `computed_by` may replace."""

    @functools.wraps(plain)
    def loss(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        way = _ways.get().get(plain.__name__)
        found = None if way is None else way(*args, **kwargs)
        return plain(*args, **kwargs) if found is None else found

    return loss


@_replaceable
def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """−1/|Q| Σ_q log softmax(o_q)_{y_q}, for logits o (B, K) and labels y (B,), integers below K: a scalar."""
    return F.cross_entropy(logits, labels)


@_replaceable
def supervised_contrastive(projections: Tensor, labels: Tensor, temperature: float, form: Form) -> Tensor:
    """Sample-to-sample loss l_cont (section "Peer-to-Peer Learning of Personalized Models", eq:cont).

    With Q the batch, P(q) = {r ∈ Q∖q : y_r = y_q}, and
    π_qr = exp(cos(p_q, p_r)/τ) / Σ_{m ∈ Q∖q} exp(cos(p_q, p_m)/τ):

        paper     −1/|Q| Σ_q 1/|P(q)| Σ_{r ∈ P(q)} log π_qr      (the print has no 1/|Q|; the mean is taken)
        released  −1/|Q| Σ_q log Σ_{r ∈ P(q)} π_qr

    A sample without positives contributes 0 and still counts in |Q|.

    Args:
        projections: (B, D), both views of every sample; normalised here.
        labels: (B,) integers.
        temperature: τ.

    Returns:
        A scalar.
    """
    self_pairs = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    not_positive = (labels[:, None] != labels) | self_pairs

    unit = unit_rows(projections)
    logits = unit @ unit.T / temperature
    # The lowest finite number stands for log 0: with −∞, a row without any entry would give NaN.
    log_zero = torch.finfo(logits.dtype).min
    others = logits.masked_fill(self_pairs, log_zero)
    positives = len(labels) - not_positive.sum(dim=1)
    if form == "paper":
        of_positives = F.log_softmax(others, dim=1).masked_fill(not_positive, 0).sum(dim=1)
        return -(of_positives / positives.clamp(min=1)).mean()
    if form == "released":
        # −log Σ_P π = (log Σ_{Q∖q} exp − ℓ_r) − (log Σ_P exp − ℓ_r) for any r; here r is the nearest in P. Both
        # differences are cross-entropies, which stay fast when most of a row is excluded; a log-sum-exp does not.
        in_class = logits.masked_fill(not_positive, log_zero)
        nearest = in_class.detach().argmax(dim=1)
        among_others, among_class = (F.cross_entropy(x, nearest, reduction="none") for x in (others, in_class))
        return (among_others - among_class).masked_fill(positives == 0, 0).mean()
    raise unknown("form", form, FORMS)


@_replaceable
def prototype_contrastive(
    projections: Tensor, labels: Tensor, prototypes: Tensor, temperature: float, form: Form
) -> Tensor:
    """Sample-to-prototype loss l_proto (section "Peer-to-Peer Learning of Personalized Models", eq:proto).

        paper     −1/|Q| Σ_q log( exp(cos(p_q, ξ_{y_q})/τ) / Σ_k exp(cos(p_q, ξ_k)/τ) )
        released  −1/|Q| Σ_q log( exp⟨p̂_q, ξ_{y_q}⟩ / Σ_k exp⟨p̂_q, ξ_k⟩ ),   p̂ = p/‖p‖, ξ as it is

    The released form does not use the temperature: in the released program it cancels out, which leaves τ = 1.

    Args:
        projections: (B, D); normalised here.
        labels: (B,) integers below K.
        prototypes: (K, D), row k the prototype ξ_k of class k.
        temperature: τ.

    Returns:
        A scalar.
    """
    if form == "paper":
        return F.cross_entropy(unit_rows(projections) @ unit_rows(prototypes).T / temperature, labels)
    if form == "released":
        return F.cross_entropy(unit_rows(projections) @ prototypes.T, labels)
    raise unknown("form", form, FORMS)


@_replaceable
def prototype_uniformity(prototypes: Tensor, temperature: float, form: Form) -> Tensor:
    """Uniformity loss l_uni, which keeps prototypes apart (section "Peer-to-Peer Learning…", eq:uni).

        paper     1/K Σ_k Σ_{r≠k} cos(ξ_k, ξ_r)
        released  1/K Σ_k Σ_{r≠k} exp(⟨ξ_k, ξ_r⟩/τ)

    The paper form has no temperature. With a single prototype both are 0.

    Args:
        prototypes: (K, D), row k the prototype ξ_k of class k.
        temperature: τ, 100 in the released program.

    Returns:
        A scalar.
    """
    same = torch.eye(len(prototypes), dtype=torch.bool, device=prototypes.device)
    if form == "paper":
        unit = unit_rows(prototypes)
        pairs = (unit @ unit.T).masked_fill(same, 0)
    elif form == "released":
        # Masked before the exponential: a long prototype times itself may overflow, and its gradient would be 0·∞.
        pairs = (prototypes @ prototypes.T / temperature).masked_fill(same, -math.inf).exp()
    else:
        raise unknown("form", form, FORMS)
    return pairs.sum() / len(prototypes)


@_replaceable
def distillation(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """How far a network's answers are from its teacher's (Hinton, Vinyals and Dean, 2015).

        T² · 1/B Σ_q KL(softmax(t_q / T) ‖ softmax(o_q / T))

    The factor T² makes the size of the gradient independent of T. Written out, because torch's own function cannot be
    computed for many clients at once.

    Args:
        logits: (B, K), the network's o.
        teacher: (B, K), the teacher's t; no gradient goes into it.
        temperature: T.

    Returns:
        A scalar.
    """
    ours = F.log_softmax(logits / temperature, dim=1)
    theirs = F.log_softmax(teacher.detach() / temperature, dim=1)
    return temperature**2 * (theirs.exp() * (theirs - ours)).sum(dim=1).mean()


def unit_rows(vectors: Tensor) -> Tensor:
    """The rows divided by their l2 norm. A zero row stays zero, and its gradient stays bounded."""
    return vectors / norm_or_one(vectors).unsqueeze(-1)


def norm_or_one(vectors: Tensor) -> Tensor:
    """The l2 norm along the last dimension, or 1 for a zero vector: the divisor that gives a direction."""
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return norms.masked_fill(norms < SHORTEST, 1)
