"""A small transformer for texts, after A. Vaswani et al., *Attention is all you need*, 2017."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from mapl.errors import MaplError
from mapl.shape import told, vocabulary

__all__ = ["Transformer"]

HEADS = 4
PADDING = 0


class Transformer(nn.Module):
    """A small transformer for token ids: two layers, 64 wide, four heads, learned positions.

    Normalisation comes before attention and before the two linear layers. Padding (id 0) is neither looked at nor part
    of the mean over tokens, from which a linear layer makes the embedding. There is no dropout.
    """

    name = "transformer"

    def __init__(self, shape: Sequence[int], embedding: int, width: int = 64, layers: int = 2):
        super().__init__()
        if not vocabulary(shape):
            raise MaplError(f"backbone 'transformer' takes token ids, not {told(shape)}")
        self.tokens = nn.Embedding(vocabulary(shape), width)
        self.positions = nn.Parameter(torch.randn(shape[0], width) * 0.02)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.last = nn.Linear(width, embedding)

    def forward(self, ids: Tensor) -> Tensor:
        seen = ids != PADDING
        # A text of nothing looks at its first place, since there must be something to look at.
        visible = (seen | (torch.arange(ids.shape[1], device=ids.device) == 0))[:, None, None, :]
        x = self.tokens(ids) + self.positions
        for layer in self.layers:
            x = layer(x, visible)
        counted = seen.unsqueeze(2).to(x.dtype)
        mean = (self.norm(x) * counted).sum(1) / counted.sum(1).clamp_min(1)
        embedding: Tensor = self.last(mean)
        return embedding


class Layer(nn.Module):
    """x + attention(norm(x)), then x + linear(GELU(linear(norm(x))))."""

    def __init__(self, width: int):
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.looking = nn.Linear(width, 3 * width)
        self.seen = nn.Linear(width, width)
        self.between = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        looking = self.looking(self.before(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        found = scaled_dot_product_attention(looking[0], looking[1], looking[2], attn_mask=visible)
        x = x + self.seen(found.transpose(1, 2).flatten(2))
        added: Tensor = x + self.narrow(nn.functional.gelu(self.wide(self.between(x))))
        return added
