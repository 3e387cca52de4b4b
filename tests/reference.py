"""Graph learning for one client, from its heads: the tests compare it with the equations and with whole runs."""

from __future__ import annotations

import torch
from torch import Tensor

from mapl.collaboration import GraphSettings, head_similarity, learn_rows


def learn_weights(
    weights: Tensor, me: int, heads: Tensor, confidence: Tensor, neighbours: Tensor, settings: GraphSettings
) -> Tensor:
    """The row of client `me` after one round of CGL: E_g steps on the graph loss, each followed by the projection.

        paper     w ← Proj(w − η ∇)
        released  a step of a new Adam (betas 0.5 and 0.999) at every call: the first step moves every w_j by η
                  against the sign of its gradient

    Only the client itself and its neighbours take part. All others get weight 0, and their entries in `heads`,
    `weights` and `confidence` are not used: nothing was received from them. A client without neighbours keeps all the
    weight.

    Args:
        weights: (M,), the present row. The projection makes up for the share of missing neighbours.
        me: the client's own position in the row.
        heads: (M, K, D), the weights of the received heads and its own; on any device. The rest is on one device.
        confidence: (M,), γ_j = n_j / Σ n, or that times M (`GraphSettings.confidence`).
        neighbours: (M,) booleans, whose letters arrived; the value at `me` does not matter.

    Returns:
        (M,), a new row ≥ 0 that sums to 1.
    """
    similarity = torch.ones_like(weights)
    if settings.use_similarity:
        similarity = head_similarity(heads[me], heads, settings.form).to(weights)
    return learn_rows(weights, torch.tensor(me), similarity, confidence, neighbours, settings)
