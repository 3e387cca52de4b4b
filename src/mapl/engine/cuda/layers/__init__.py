"""Layers for a group of G clients of one architecture: each member's own weights, one launch for all where possible.

A group's activations are (G · B, C, H, W), channels last, member after member. All layers that treat every sample by
itself (ReLU, pooling, concatenation, …) work on that as they are. Those with weights, or with statistics of a batch,
are here. Their gradients are written straight into the group's flat gradient: autograd never holds them. A frozen
network's weights have no place for a gradient: a layer that finds none passes the gradient of its input on, no more.
"""

from mapl.engine.cuda.layers.convolution import GroupConv
from mapl.engine.cuda.layers.dropout import KeyedDropout, dropout_number, keyed
from mapl.engine.cuda.layers.linear import GroupLinear
from mapl.engine.cuda.layers.norm import GroupNorm
from mapl.engine.cuda.layers.pooling import AveragePool, MaxPool
from mapl.engine.cuda.layers.stack import CannotGroup, Keys, Stack

__all__ = [
    "AveragePool",
    "CannotGroup",
    "GroupConv",
    "GroupLinear",
    "GroupNorm",
    "KeyedDropout",
    "Keys",
    "MaxPool",
    "Stack",
    "dropout_number",
    "keyed",
]
