"""Collaborative graph learning (CGL): how much a client listens to each of the others.

Client i keeps one row w_i of the mixing matrix W. It compares the heads it received with its own, takes a few steps on
the graph loss, and projects the row back onto the simplex (section "Learning the Collaboration Graph", algorithm CGL).
"paper" is the printed equation, and "released" is what the released program computes. docs/graph.md compares them and
says why the default is the printed form with another scale of the confidence.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from mapl.errors import unknown
from mapl.losses import FORMS, Form, norm_or_one

ADAM_BETAS = (0.5, 0.999)
ADAM_EPS = 1e-8


class GraphSettings(BaseModel):
    """The graph loss and the steps on it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    mu1: float = Field(0.5, ge=0, description="Weight μ1 of the similarity term.")
    mu2: float = Field(0.1, ge=0, description="Weight μ2 of the regulariser (norm and degree).")
    beta: float = Field(0.5, ge=0, description="Weight β of the norm inside the regulariser; it controls sparsity.")
    # The degree can be 0, and 1/ε must be finite in float32.
    epsilon: float = Field(1e-6, ge=1e-12, description="ε, which keeps the logarithm of a zero degree finite.")
    norm: Literal["l1", "l2"] = Field("l2", description="Norm of the row inside the regulariser (not squared).")
    use_similarity: bool = Field(
        True, description="Use the similarity of heads; without it all clients count as equally similar."
    )
    use_confidence: bool = Field(
        True, description="Weight a client by its share of the data; without it all have weight 1."
    )
    confidence: Literal["share", "relative"] = Field(
        "relative",
        description="γ_j as a share of all samples, n_j / Σ n (the paper), or relative to their mean, n_j · M / Σ n: "
        "then the balance of similarity and regulariser does not depend on the number of clients.",
    )
    steps: int = Field(1, ge=1, description="Steps E_g on the graph loss per round.")
    step_size: float = Field(0.1, gt=0, description="Step size η on the graph loss.")
    form: Form = Field("paper", description="The printed equations, or what the released program computes.")


def project_to_simplex(v: Tensor) -> Tensor:
    """The point of {w : w ≥ 0, Σ w = 1} nearest to `v` (l2), along the last dimension; any leading dimensions.

        w = max(v − θ, 0),   θ = max_k (Σ_{r≤k} u_r − 1)/k,   u = v sorted, largest first

    The sort-based algorithm of Held, Wolfe & Crowder (1974), given as Algorithm 1 by Condat, "Fast projection onto the
    simplex and the l1 ball" (2016), and by Duchi et al. (2008). They look for the last k with u_k > θ_k. The sequence
    θ_k rises up to that k and not after it, so its maximum is the same number.
    """
    # Float64, relative to the maximum: the result sums to 1 even for thousands of entries or a few huge ones.
    relative = v.double()
    relative = relative - relative.amax(dim=-1, keepdim=True)
    largest_first = relative.sort(dim=-1, descending=True).values
    counts = torch.arange(1, v.shape[-1] + 1, dtype=relative.dtype, device=v.device)
    threshold = ((largest_first.cumsum(dim=-1) - 1) / counts).amax(dim=-1, keepdim=True)
    return (relative - threshold).clamp(min=0).to(v.dtype)


def head_similarity(head: Tensor, heads: Tensor, form: Form) -> Tensor:
    """Similarity of one head and N others, from −1 to 1, positive when similar (eq:sim).

        paper     cos(φ_i, φ_j) of the whole weight as one vector
        released  1/K Σ_k cos(Φ_i^(k), Φ_j^(k)), row by row

    The paper's s_ij is the *negative* of this; `graph_loss` negates it. The cosine with a zero row is 0.

    Args:
        head: (K, D), the weight φ_i of one head.
        heads: (N, K, D), the weights φ_j of others.

    Returns:
        (N,)
    """
    if form == "paper":
        return _cosine(heads.flatten(1) @ head.flatten(), heads.flatten(1), head.flatten())
    if form == "released":
        return _cosine(torch.einsum("nkd,kd->nk", heads, head), heads, head).mean(dim=1)
    raise unknown("form", form, FORMS)


def graph_loss(
    weights: Tensor, similarity: Tensor, confidence: Tensor, me: int | Tensor, settings: GraphSettings
) -> Tensor:
    """Graph loss of one client's row (section "Learning the Collaboration Graph", eq:opt5_2_reg).

        −μ1 Σ_j γ_j w_j s_j + μ2 (β‖w‖ − log(deg + ε)),   deg = Σ_{j≠me} w_j

    s_j is positive for similar clients (the paper's s_ij is −s_j). Both forms have this value. In the released form,
    deg has no gradient.

    The ablation tab:ab2 leaves a factor out of the first term. Without similarity, s_j = 1: all clients are equally
    similar, and the confidence alone decides. (Leaving out the paper's *negative* s_ij would instead repel the clients
    with the most data.) Without confidence, γ_j = 1. Because shares sum to 1, the first term then weighs about M times
    as much against the regulariser.

    Args:
        weights: (..., M), the row w.
        similarity: (..., M), see `head_similarity`.
        confidence: (..., M), γ_j = n_j / Σ n, or that times M (`GraphSettings.confidence`).
        me: the client's own position in the row; for many rows, one for all or (...).

    Returns:
        (...), a scalar for one row.
    """
    degree = _degree(weights, me)
    if settings.form == "released":
        degree = degree.detach()
    norm: Tensor = torch.linalg.vector_norm(weights, ord=1 if settings.norm == "l1" else 2, dim=-1)
    attraction = (_merit(similarity, confidence, settings) * weights).sum(dim=-1)
    return -settings.mu1 * attraction + settings.mu2 * (settings.beta * norm - (degree + settings.epsilon).log())


def graph_gradient(
    weights: Tensor, similarity: Tensor, confidence: Tensor, me: int | Tensor, settings: GraphSettings
) -> Tensor:
    """The gradient of `graph_loss` in the weights, (..., M).

        −μ1 γ_j s_j + μ2 (β ∂‖w‖/∂w_j − [j ≠ me] / (deg + ε)),   the last term in the paper form only

    Written out by hand: several times faster than automatic differentiation.
    """
    norm_gradient = weights.sign() if settings.norm == "l1" else weights / norm_or_one(weights).unsqueeze(-1)
    gradient = settings.mu2 * settings.beta * norm_gradient - settings.mu1 * _merit(similarity, confidence, settings)
    if settings.form == "paper":
        pull = settings.mu2 / (_degree(weights, me) + settings.epsilon).unsqueeze(-1)
        gradient = torch.where(_own(weights, me), gradient, gradient - pull)
    return gradient


@torch.no_grad()
def learn_rows(
    weights: Tensor, me: Tensor, similarity: Tensor, confidence: Tensor, members: Tensor, settings: GraphSettings
) -> Tensor:
    """One round of CGL for many clients at once, one row each: E_g steps on the graph loss, each then projected.

        paper     w ← Proj(w − η ∇)
        released  a step of a new Adam (betas 0.5 and 0.999) at every call: the first step moves every w_j by η
                  against the sign of its gradient

    Only the client itself and its members take part. All others get weight 0, and their entries are not used: nothing
    was received from them. A client without members keeps all the weight.

    The result for a row depends on that row alone: every sum is along it, in an order that depends only on its length.
    Shorter rows are padded with entries that are not members.

    Args:
        weights: (..., n), the current rows. The projection makes up for the share of missing neighbours.
        me: (...), each client's own position in its row.
        similarity: (..., n), see `head_similarity`; the value at `me` does not matter.
        confidence: (..., n), γ_j = n_j / Σ n, or that times M (`GraphSettings.confidence`).
        members: (..., n) booleans, who takes part; the client itself always does.

    Returns:
        (..., n), rows ≥ 0 that sum to 1, with 0 for non-members.
    """
    own = _own(weights, me)
    members = members | own
    zero = weights.new_zeros(())
    weights, confidence = weights.where(members, zero), confidence.where(members, zero)
    similarity = _relative(similarity.where(members, zero), own, members, settings)
    beta1, beta2 = ADAM_BETAS
    mean, square = torch.zeros_like(weights), torch.zeros_like(weights)
    for step in range(1, settings.steps + 1):
        direction = graph_gradient(weights, similarity, confidence, me, settings)
        if settings.form == "released":
            mean = beta1 * mean + (1 - beta1) * direction
            square = beta2 * square + (1 - beta2) * direction.square()
            direction = mean / (1 - beta1**step) / ((square / (1 - beta2**step)).sqrt() + ADAM_EPS)
        # The projection turns −∞ into 0.
        moved = (weights - settings.step_size * direction).masked_fill(~members, -math.inf)
        weights = project_to_simplex(moved)
    return weights


def _relative(similarity: Tensor, own: Tensor, members: Tensor, settings: GraphSettings) -> Tensor:
    """s_j of a client and its neighbours, with s_me = 1.

    The released form divides by the largest similarity among the neighbours. If that is not positive, or so small that
    it is rounding noise, the division could reverse the order, so the similarities are left unchanged.
    """
    if settings.use_similarity and settings.form == "released":
        largest = similarity.masked_fill(own | ~members, -math.inf).amax(dim=-1, keepdim=True)
        similarity = similarity / torch.where(largest > torch.finfo(similarity.dtype).eps, largest, 1)
    return similarity.masked_fill(own, 1)


# The similarities of many heads at once

Pairs = tuple[Tensor, Tensor]
"""Whom each of B clients is compared with: where its section of the list starts (B + 1,), and the list itself (P,)."""


@torch.no_grad()
def similarities(heads: Tensor, mine: Tensor, pairs: Pairs, form: Form) -> Tensor:
    """`head_similarity` of B clients with some others, in float64, (P,).

    Directions are rounded to a grid so coarse that every sum of their products is exact in float64. The order of a sum
    then does not matter: a similarity has the same bits whatever the method, and however many are computed at once.

    Args:
        heads: (N, K, D), the weights of all available heads.
        mine: (B,), which of them is each client's own.
        pairs: whom each client is compared with, by position in `heads`.
    """
    starts, columns = pairs
    if len(mine) + len(columns) < len(heads):  # few clients: drop the heads that none of them needs
        wanted, places = torch.unique(torch.cat([mine, columns]), return_inverse=True)
        heads, mine, columns = heads[wanted], places[: len(mine)], places[len(mine) :]
    dense = len(mine) * len(heads) < 16 * len(columns)
    if dense:  # per pair, a matrix product is ten times as fast as reading scattered rows
        totals = heads.new_zeros(len(mine), len(heads), dtype=torch.float64)
    else:
        totals = heads.new_zeros(len(columns), dtype=torch.float64)
    for part in _directions(heads, form):
        if dense:
            totals.addmm_(part[mine], part.T)
        elif part.is_cpu and torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
            totals = _add_sampled(totals, part, mine, (starts, columns))
        else:
            _add_gathered(totals, part, mine, (starts, columns))
    products = totals[_rows(starts), columns] if dense else totals
    return products / heads.shape[1] if form == "released" else products


def _directions(heads: Tensor, form: Form) -> Iterator[Tensor]:
    """Heads divided by their norms, one slice (N, …) of the features at a time; together they give the cosines."""
    classes = heads.shape[1]
    heads = heads.detach().float()
    norms = norm_or_one(heads.flatten(1)).unsqueeze(1).expand(-1, classes) if form == "paper" else norm_or_one(heads)
    # |Σ a b| ≤ K by Cauchy-Schwarz, and each product is a multiple of 4⁻ᵇ: exact while K · 4ᵇ stays below 2⁵³.
    scale = 2.0 ** min(24, (52 - (classes - 1).bit_length()) // 2)
    features = max(64, NUMBERS // len(heads))  # small enough that the allocator reuses memory
    together = max(1, features // heads.shape[2])  # whole classes where they fit, so a few heads are one slice
    for some, sizes in zip(torch.split(heads, together, dim=1), torch.split(norms, together, dim=1), strict=True):
        for part in torch.split(some, features, dim=2):
            yield (part / sizes.unsqueeze(2)).mul_(scale).round_().div_(scale).double().flatten(1)


NUMBERS = 2**20
"""Numbers converted to float64, or gathered, at a time."""


def _rows(starts: Tensor) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(starts) - 1, device=starts.device), starts.diff())


def _add_sampled(totals: Tensor, part: Tensor, mine: Tensor, pairs: Pairs) -> Tensor:
    """`totals` (P,) plus the inner products of a slice. It reads rows in place and runs only on the CPU."""
    with warnings.catch_warnings():  # torch warns that sparse matrices are beta
        warnings.filterwarnings("ignore", message="Sparse ", category=UserWarning)
        shape = (len(mine), len(part))
        pattern = torch.sparse_csr_tensor(*pairs, totals, shape, check_invariants=False)
        sums: Tensor = torch.sparse.sampled_addmm(pattern, part[mine], part.T)
    return sums.values()


def _add_gathered(totals: Tensor, part: Tensor, mine: Tensor, pairs: Pairs) -> None:
    """The same in place, on any device."""
    starts, columns = pairs
    own = mine[_rows(starts)]
    step = max(1, 16 * NUMBERS // part.shape[1])
    for first in range(0, len(columns), step):
        some = slice(first, first + step)
        totals[some] += torch.linalg.vecdot(part[own[some]], part[columns[some]])


def _own(weights: Tensor, me: int | Tensor) -> Tensor:
    """Which entry of a row (..., n) is the client itself."""
    position = torch.as_tensor(me, device=weights.device).unsqueeze(-1)
    return torch.arange(weights.shape[-1], device=weights.device) == position


def _merit(similarity: Tensor, confidence: Tensor, settings: GraphSettings) -> Tensor:
    """γ_j s_j; a factor that an ablation leaves out is 1."""
    s = similarity if settings.use_similarity else torch.ones_like(similarity)
    gamma = confidence if settings.use_confidence else torch.ones_like(confidence)
    return gamma * s


def _degree(weights: Tensor, me: int | Tensor) -> Tensor:
    """Σ_{j≠me} w_j; not Σ w − w_me, whose rounding could be negative and larger than ε."""
    return weights.masked_fill(_own(weights, me), 0).sum(dim=-1)


def _cosine(products: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Inner products divided by the norms of `a` and `b` along the last dimension; 0 where one of them is zero."""
    # Two divisions: the product of two small norms could underflow.
    return products / norm_or_one(a) / norm_or_one(b)
