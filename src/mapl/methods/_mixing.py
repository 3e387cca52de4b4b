"""Averages, for the methods that mix tensors. Rows are always in the order of client numbers.

A method passes its `mixing`, so that every average follows the recipe's `network.mixing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mapl.client import Client
from mapl.mixing import MixingSettings, robust_mean
from mapl.network import Inbox


def with_me(client: Client, inbox: Inbox) -> tuple[Tensor, int]:
    """The sorted ids of all senders and of the client itself, and the client's position among them."""
    me = int((inbox.senders < client.id).sum())
    return insert(inbox.senders, torch.tensor(client.id), me), me


def insert(rows: Tensor, row: Tensor, position: int) -> Tensor:
    """`rows` (n, …) with `row` (…) inserted at `position`: (n + 1, …)."""
    return torch.cat([rows[:position], row.detach().unsqueeze(0), rows[position:]])


def mixed(rule: MixingSettings, weights: Tensor, stacked: Tensor, me: int | Tensor | None = None) -> Tensor:
    """Σ_j w_j x_j for weights (n,) and stacked (n, …), or what a robust rule has in its place.

    For a matrix of weights (m, n), one such mix per row: (m, …). `me` is the position of the reader's own tensor among
    the n, for a matrix (m,); None if it has none. Only robust rules use it.

    Weights live on the CPU. `stacked` may be on a GPU, and then so is the result.
    """
    if rule.kind == "mean":
        result: Tensor = torch.tensordot(weights.to(stacked), stacked, dims=1)
        return result
    rows = weights.reshape(-1, len(stacked))
    own = None if me is None else torch.as_tensor(me).reshape(-1)
    index = torch.arange(len(stacked)).expand_as(rows)
    robust = robust_mean(rule, stacked.flatten(1), index, rows, own)
    return robust.view(*weights.shape[:-1], *stacked.shape[1:])


def row_of(client: int, clients: Tensor, rows: Tensor) -> Tensor:
    """The row of `rows` (n, …) that belongs to a client; `clients` (n,) has the client of each row."""
    return rows[int((clients == client).nonzero())]


def weighted_mean(rule: MixingSettings, weights: Tensor, stacked: Tensor, me: int | None = None) -> Tensor:
    """`mixed` for weights (n,) with any positive sum: Σ_j w_j x_j / Σ_j w_j."""
    return mixed(rule, weights.double() / weights.sum(), stacked, me)


def shared_tensors(*modules: nn.Module) -> list[Tensor]:
    """Parameters and buffers that can be averaged: all but counters such as `num_batches_tracked`."""
    return [tensor.detach() for tensor in _averaged(*modules)]


def length_of(*modules: nn.Module) -> int:
    """How many numbers `flatten` returns."""
    return sum(tensor.numel() for tensor in _averaged(*modules))


def _averaged(*modules: nn.Module) -> list[Tensor]:
    # As state_dict() has them and in its order, but several times as fast.
    parts = [part for module in modules for part in _parts(module)]
    return [tensor for part in parts for tensor in _kept(part) if tensor is not None and tensor.is_floating_point()]


def _parts(module: nn.Module) -> list[nn.Module]:
    """The module and all inside, in the order of `named_modules(remove_duplicate=False)`, which takes much longer."""
    found = [module]
    for child in module._modules.values():
        if child is not None:
            found += _parts(child)
    return found


def _kept(part: nn.Module) -> list[Tensor | None]:
    """The tensors of a module itself, without its children's, that state_dict() has."""
    passing = part._non_persistent_buffers_set
    buffers = (
        [tensor for name, tensor in part._buffers.items() if name not in passing] if passing else part._buffers.values()
    )
    return [*part._parameters.values(), *buffers]


def flatten(*modules: nn.Module) -> Tensor:
    """All tensors of the modules that can be averaged, as one vector."""
    return torch.cat([tensor.flatten() for tensor in shared_tensors(*modules)])


def load_flat(vector: Tensor, *modules: nn.Module) -> None:
    """Write such a vector back into the modules, in place. A variance below 0, as noise may leave, becomes 0."""
    load_all_flat([(vector, modules)])


@torch.no_grad()
def load_all_flat(pairs: Iterable[tuple[Tensor, Sequence[nn.Module]]]) -> None:
    """`load_flat` for many networks in a few calls: on a GPU a call takes longer than the numbers that it moves."""
    moves: list[tuple[Tensor, Tensor]] = []
    variances: list[Tensor] = []
    for vector, modules in pairs:
        tensors = shared_tensors(*modules)
        values = torch.split(vector, [tensor.numel() for tensor in tensors])
        moves += [(tensor, part.view_as(tensor)) for part, tensor in zip(values, tensors, strict=True)]
        variances += _variances(modules)
    # A GPU takes one call for many tensors only if the two of every pair lie alike in memory; filters may not.
    for alike in (True, False):
        some = [(to, part) for to, part in moves if (to.stride() == part.stride()) == alike]
        if some:
            torch._foreach_copy_([to for to, _ in some], [part for _, part in some])
    # Letters with noise may bring a variance below 0, whose root would be NaN.
    if variances:
        torch._foreach_clamp_min_(variances, 0.0)


def _variances(modules: Sequence[nn.Module]) -> list[Tensor]:
    norms = [part for module in modules for part in dict.fromkeys(_parts(module)) if isinstance(part, _BatchNorm)]
    return [norm.running_var for norm in norms if norm.running_var is not None]


@torch.no_grad()
def copy_networks(pairs: Sequence[tuple[nn.Module, nn.Module]]) -> None:
    """Write what can be averaged of the first network of each pair into the second, all in one call."""
    if pairs:
        torch._foreach_copy_(shared_tensors(*(b for _, b in pairs)), shared_tensors(*(a for a, _ in pairs)))
