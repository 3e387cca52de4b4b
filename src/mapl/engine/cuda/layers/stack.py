"""What the layers of a group share: weights, gradients, buffers, and the keys of their draws."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


class CannotGroup(Exception):
    """Why clients of some kind cannot train as a group."""


@dataclass
class Keys:
    """What the draws of layers are a function of."""

    seed: Tensor
    """(G,) int64: the key of each member in this round."""
    cursor: Tensor
    """(1,) int64: steps taken in this round."""


@dataclass
class Stack:
    """What the layers of a group read and write, each (G, …), a row a member."""

    clients: int
    keys: Keys
    weights: dict[str, Tensor]
    """Parameters by name, in the precision they are computed in."""
    gradients: dict[str, Tensor]
    """Where each parameter's gradient goes; a frozen one has no entry."""
    buffers: dict[str, Tensor]
    active: Tensor
    """(G,) uint8: who takes part in this step."""
    step: Tensor
    """(G,) int64: steps that each member has taken with its optimiser."""
    called: dict[str, bool]
    """The layers that this step has trained, and whether each takes a gradient. A second call would overwrite it."""
    counted: set[str]
    """The counters of batches that a step increases; they are brought up to date once per round."""
    token: Tensor
    """An empty tensor that requires a gradient: it tells autograd that a layer has weights to go back for."""

    def call(self, layer: nn.Module, name: str) -> None:
        """Note that a step calls a layer with weights."""
        if layer.training:
            if name in self.called:
                raise CannotGroup(f"layer {name} is called twice in a step")
            self.called[name] = torch.is_grad_enabled()

    def of(self, name: str) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """A parameter as layers take it: the token, its values, and where its gradient goes.

        For a frozen one there is neither token nor place: autograd then goes back to the layer's input alone.
        """
        gradient = self.gradients.get(name)
        return None if gradient is None else self.token, self.weights[name], gradient


def grid_of(clients: int, x: Tensor) -> tuple[int, int]:
    """(R, C): rows of each member and channels of a tensor (G · B, C, …) that lies channels last."""
    channels = x.shape[1]
    return x.numel() // channels // clients, channels
