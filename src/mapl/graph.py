"""Collaborative graph learning (CGL): how much a client listens to each of the others.

Client i keeps one row w_i of the mixing matrix. From the heads it received it infers who is similar to it, takes a few
steps on the graph loss, and projects the row back onto the simplex (section "Learning the Collaboration Graph", CGL
algorithm). As everywhere, "paper" is the print and "released" is what the released program computes.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from mapl.errors import unknown
from mapl.losses import FORMS, Form, norm_or_one

ADAM_BETAS = (0.5, 0.999)
ADAM_EPS = 1e-8


class GraphSettings(BaseModel):
    """What the graph loss weighs, and how a client descends on it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    mu1: float = Field(0.5, ge=0, description="Weight μ1 of the similarity term.")
    mu2: float = Field(0.1, ge=0, description="Weight μ2 of the regulariser (norm and degree).")
    beta: float = Field(0.5, ge=0, description="Weight β of the norm inside the regulariser; it controls sparsity.")
    # The degree may be 0, and 1/ε has to be a number in float32 too.
    epsilon: float = Field(1e-6, ge=1e-12, description="The ε that keeps the logarithm of a zero degree finite.")
    norm: Literal["l1", "l2"] = Field("l2", description="Norm of the row inside the regulariser (not squared).")
    use_similarity: bool = Field(True, description="Use the similarity of heads; without it all clients are alike.")
    use_confidence: bool = Field(True, description="Weigh a client by its share of the data; without it all weigh 1.")
    steps: int = Field(1, ge=1, description="Steps E_g on the graph loss in every round.")
    step_size: float = Field(0.1, gt=0, description="Rate η of a step on the graph loss.")
    form: Form = Field("paper", description="The printed equations, or what the released program computes.")


def project_to_simplex(v: Tensor) -> Tensor:
    """The nearest point (l2) of {w : w ≥ 0, Σ w = 1} to `v`, along the last dimension; any leading dimensions.

        w = max(v − θ, 0),   θ = max_k (Σ_{r≤k} u_r − 1)/k,   u = v sorted, largest first

    The sort-based algorithm of Held, Wolfe & Crowder (1974), given as Algorithm 1 by Condat, "Fast projection onto the
    simplex and the l1 ball" (2016), and by Duchi et al. (2008). They look for the last k with u_k > θ_k; the sequence
    θ_k rises up to there and does not rise after, so its maximum is the same number.
    """
    # In float64 and relative to the maximum, so that thousands of entries, or a few huge ones, still sum to 1.
    relative = v.double()
    relative = relative - relative.amax(dim=-1, keepdim=True)
    largest_first = relative.sort(dim=-1, descending=True).values
    counts = torch.arange(1, v.shape[-1] + 1, dtype=relative.dtype, device=v.device)
    threshold = ((largest_first.cumsum(dim=-1) - 1) / counts).amax(dim=-1, keepdim=True)
    return (relative - threshold).clamp(min=0).to(v.dtype)


def head_similarity(head: Tensor, heads: Tensor, form: Form) -> Tensor:
    """How alike one head and N others are, from −1 to 1, positive when similar (eq:sim).

        paper     cos(φ_i, φ_j) of the whole weight as one vector
        released  1/K Σ_k cos(Φ_i^(k), Φ_j^(k)), row by row

    The paper's s_ij is the *negative* of this; `graph_loss` does the negation. The cosine with a zero row is 0.

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


def graph_loss(weights: Tensor, similarity: Tensor, confidence: Tensor, me: int, settings: GraphSettings) -> Tensor:
    """Graph loss of one client's row (section "Learning the Collaboration Graph", eq:opt5_2_reg).

        −μ1 Σ_j γ_j w_j s_j + μ2 (β‖w‖ − log(deg + ε)),   deg = Σ_{j≠me} w_j

    with s_j positive for similar clients (the paper's s_ij is −s_j). Both forms have this value; in the released form
    deg carries no gradient.

    The ablation tab:ab2 leaves a factor out of the first term. Without similarity, s_j = 1: all clients are equally
    similar, and the confidence alone decides (leaving out the paper's *negative* s_ij would instead repel the clients
    with most data). Without confidence, γ_j = 1: since Σ γ_j = 1 otherwise, the first term then also weighs about M
    times more against the regulariser.

    Args:
        weights: (..., M), the row w.
        similarity: (..., M), see `head_similarity`.
        confidence: (..., M), γ_j = n_j / Σ n.
        me: the client's own position in the row.

    Returns:
        (...), a scalar for one row.
    """
    degree = _degree(weights, me)
    if settings.form == "released":
        degree = degree.detach()
    norm: Tensor = torch.linalg.vector_norm(weights, ord=1 if settings.norm == "l1" else 2, dim=-1)
    attraction = (_merit(similarity, confidence, settings) * weights).sum(dim=-1)
    return -settings.mu1 * attraction + settings.mu2 * (settings.beta * norm - (degree + settings.epsilon).log())


def graph_gradient(weights: Tensor, similarity: Tensor, confidence: Tensor, me: int, settings: GraphSettings) -> Tensor:
    """The gradient of `graph_loss` in the weights, (..., M).

        −μ1 γ_j s_j + μ2 (β ∂‖w‖/∂w_j − [j ≠ me] / (deg + ε)),   the last term in the paper form only

    Written out because it is several times faster than automatic differentiation, and every client needs it.
    """
    norm_gradient = weights.sign() if settings.norm == "l1" else weights / norm_or_one(weights).unsqueeze(-1)
    gradient = settings.mu2 * settings.beta * norm_gradient - settings.mu1 * _merit(similarity, confidence, settings)
    if settings.form == "paper":
        pull = settings.mu2 / (_degree(weights, me) + settings.epsilon).unsqueeze(-1)
        gradient[..., :me] -= pull
        gradient[..., me + 1 :] -= pull
    return gradient


def learn_weights(
    weights: Tensor, me: int, heads: Tensor, confidence: Tensor, neighbours: Tensor, settings: GraphSettings
) -> Tensor:
    """The row of client `me` after one round of CGL: E_g steps on the graph loss, each followed by the projection.

        paper     w ← Proj(w − η ∇)
        released  the step is Adam's (betas 0.5 and 0.999), made anew at every call: the first one moves every w_j by η
                  against the sign of its gradient

    Only the client itself and its neighbours take part. All others get weight 0, and what stands in their place in
    `heads`, `weights` and `confidence` is never used: nothing was received from them. A client without neighbours
    keeps all the weight to itself.

    Args:
        weights: (M,), the present row. A neighbour's share that went missing is given back by the projection.
        me: the client's own position in the row.
        heads: (M, K, D), the head weights that were received, and its own; on any device, the rest on one.
        confidence: (M,), γ_j = n_j / Σ n.
        neighbours: (M,) booleans, whose letter arrived; its value at `me` does not matter.

    Returns:
        (M,), a new row ≥ 0 that sums to 1.
    """
    heard = neighbours.clone()
    heard[me] = True
    members = heard.nonzero().squeeze(1)
    here = int(heard[:me].sum())
    row = torch.zeros_like(weights)
    if len(members) == 1:
        row[me] = 1
        return row
    # A gather of all heads would copy every letter for nothing.
    members_heads = heads if len(members) == len(heads) else heads[members]
    similarity = _similarity_row(members_heads, here, weights.dtype, settings).to(weights.device)
    row[members] = _descend(weights[members], similarity, confidence[members], here, settings)
    return row


@torch.no_grad()
def _descend(weights: Tensor, similarity: Tensor, confidence: Tensor, me: int, settings: GraphSettings) -> Tensor:
    """E_g projected steps from `weights`."""
    beta1, beta2 = ADAM_BETAS
    mean, square = torch.zeros_like(weights), torch.zeros_like(weights)
    for step in range(1, settings.steps + 1):
        direction = graph_gradient(weights, similarity, confidence, me, settings)
        if settings.form == "released":
            mean = beta1 * mean + (1 - beta1) * direction
            square = beta2 * square + (1 - beta2) * direction.square()
            direction = mean / (1 - beta1**step) / ((square / (1 - beta2**step)).sqrt() + ADAM_EPS)
        weights = project_to_simplex(weights - settings.step_size * direction)
    return weights


@torch.no_grad()
def _similarity_row(heads: Tensor, me: int, dtype: torch.dtype, settings: GraphSettings) -> Tensor:
    """s_j of a client and its neighbours, with s_me = 1.

    The released form divides by the largest similarity among the neighbours. Where that is not positive (or so small
    that it is rounding noise) a division would turn the order around, so the similarities stay as they are.
    """
    if not settings.use_similarity:
        return heads.new_ones(len(heads), dtype=dtype)
    similarity = head_similarity(heads[me], heads, settings.form).to(dtype)
    if settings.form == "released":
        similarity[me] = -1
        largest = similarity.amax()
        similarity = similarity / torch.where(largest > torch.finfo(dtype).eps, largest, 1)
    similarity[me] = 1
    return similarity


def _merit(similarity: Tensor, confidence: Tensor, settings: GraphSettings) -> Tensor:
    """γ_j s_j, with a factor that an ablation leaves out replaced by 1."""
    s = similarity if settings.use_similarity else torch.ones_like(similarity)
    gamma = confidence if settings.use_confidence else torch.ones_like(confidence)
    return gamma * s


def _degree(weights: Tensor, me: int) -> Tensor:
    """Σ_{j≠me} w_j; not Σ w − w_me, whose rounding could be negative and larger than ε."""
    return weights[..., :me].sum(dim=-1) + weights[..., me + 1 :].sum(dim=-1)


def _cosine(products: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Inner products divided by the norms of `a` and `b` along the last dimension; 0 where one of them is zero."""
    # Divided one after the other: the product of two small norms could underflow.
    return products / norm_or_one(a) / norm_or_one(b)
