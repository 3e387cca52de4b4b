"""Averages, for the methods that mix tensors. Rows are always in the order of client numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mapl.client import Client
from mapl.network import Inbox


def with_me(client: Client, inbox: Inbox) -> tuple[Tensor, int]:
    """The sorted ids of all senders and of the client itself, and the client's position among them."""
    me = int((inbox.senders < client.id).sum())
    return insert(inbox.senders, torch.tensor(client.id), me), me


def insert(rows: Tensor, row: Tensor, position: int) -> Tensor:
    """`rows` (n, …) with `row` (…) inserted at `position`: (n + 1, …)."""
    return torch.cat([rows[:position], row.detach().unsqueeze(0), rows[position:]])


def mixed(weights: Tensor, stacked: Tensor) -> Tensor:
    """Σ_j w_j x_j for weights (n,) and stacked (n, …). For a matrix of weights (m, n), one such sum per row: (m, …).

    Weights live on the CPU. `stacked` may be on a GPU, and then so is the result.
    """
    result: Tensor = torch.tensordot(weights.to(stacked), stacked, dims=1)
    return result


def row_of(client: int, clients: Tensor, rows: Tensor) -> Tensor:
    """The row of `rows` (n, …) that belongs to a client; `clients` (n,) has the client of each row."""
    return rows[int((clients == client).nonzero())]


def weighted_mean(weights: Tensor, stacked: Tensor) -> Tensor:
    """Σ_j w_j x_j / Σ_j w_j for weights (n,) with any positive sum, and stacked (n, …)."""
    return mixed(weights.double() / weights.sum(), stacked)


def shared_tensors(*modules: nn.Module) -> list[Tensor]:
    """Parameters and buffers that can be averaged: all but counters such as `num_batches_tracked`."""
    return [tensor for module in modules for tensor in module.state_dict().values() if tensor.is_floating_point()]


def flatten(*modules: nn.Module) -> Tensor:
    """All tensors of the modules that can be averaged, as one vector."""
    return torch.cat([tensor.detach().flatten() for tensor in shared_tensors(*modules)])


def load_flat(vector: Tensor, *modules: nn.Module) -> None:
    """Write such a vector back into the modules, in place."""
    tensors = shared_tensors(*modules)
    values = torch.split(vector, [tensor.numel() for tensor in tensors])
    with torch.no_grad():
        torch._foreach_copy_(tensors, [part.view_as(tensor) for part, tensor in zip(values, tensors, strict=True)])
