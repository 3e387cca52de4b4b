"""What the parts of a network recorded, as if one process had held all clients; and the way back for their state."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from mapl.errors import MaplError
from mapl.network.refused import Counts, added
from mapl.runs.chain import Round

T = TypeVar("T")
K = TypeVar("K", bound=str)
Held = Sequence[Sequence[int]]
"""The clients of each part."""

COLUMNS = {"ids": torch.int64, "weights": torch.float64, "samples": torch.int64}
"""What is saved of every peer of every client."""


# The history


def joined_line(held: Held, lines: Sequence[Round]) -> Round:
    """One round of all parts: lists in the order of the clients, and sums of what was counted.

    The lines have the same entries (`alike`).
    """
    clients = [client for part in held for client in part]
    order = sorted(range(len(clients)), key=clients.__getitem__)
    ways = [line.ways for line in lines if line.ways is not None]
    measures = [line.measures for line in lines if line.measures is not None]
    refused: Counts = functools.reduce(added, (line.refused for line in lines), {})
    return Round(
        round=lines[0].round,
        losses=_by_name(order, _losses(held, lines)),
        accuracy=_if_all(order, [line.accuracy for line in lines]),
        messages=sum(line.messages for line in lines),
        bytes=sum(line.bytes for line in lines),
        all_images=_if_all(order, [line.all_images for line in lines]),
        ways=_by_name(order, ways) if len(ways) == len(lines) else None,
        measures=_by_name(order, measures) if len(measures) == len(lines) else None,
        released=_if_all(order, [line.released for line in lines]),
        refused=refused or None,
    )


def alike(one: Round, other: Round) -> bool:
    """Whether two lines of one round have the same entries, as those of one recipe do."""
    ways = {frozenset(line.ways) for line in (one, other) if line.ways is not None}
    measures = {frozenset(line.measures) for line in (one, other) if line.measures is not None}
    terms = not (one.losses and other.losses) or one.losses.keys() == other.losses.keys()
    return terms and len(ways) <= 1 and len(measures) <= 1 and (one.released is None) == (other.released is None)


def _losses(held: Held, lines: Sequence[Round]) -> list[Mapping[str, Sequence[float | None]]]:
    """The losses of each part. One of which no client took part has none."""
    terms = next((list(line.losses) for line in lines if line.losses), [])
    return [
        line.losses or {term: [None] * len(clients) for term in terms}
        for clients, line in zip(held, lines, strict=True)
    ]


def _merged(order: Sequence[int], lists: Sequence[Sequence[T]]) -> list[T]:
    values = [value for one in lists for value in one]
    return [values[place] for place in order]


def _if_all(order: Sequence[int], lists: Sequence[Sequence[T] | None]) -> list[T] | None:
    """The values of all clients; None if a part has none."""
    given = [one for one in lists if one is not None]
    return _merged(order, given) if len(given) == len(lists) else None


def _by_name(order: Sequence[int], lists: Sequence[Mapping[K, Sequence[T]]]) -> dict[K, list[T]]:
    return {name: _merged(order, [one[name] for one in lists]) for name in lists[0]}


# The state


def joined_state(held: Held, saved: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """What one process with all clients would have saved (`mapl.runs.saving`), but for rounds, ledger and recipe.

    Of what readers believe (`network.compress`), the newest is taken: nobody builds on an older one.
    """
    tensors: dict[str, Tensor] = {}
    peers: dict[int, list[Tensor]] = {}
    for clients, state in zip(held, saved, strict=True):
        peers |= _peers(clients, state)
        own = {str(client) for client in clients}
        for name, tensor in state.items():
            section, _, rest = name.partition(".")
            if section == "server" or (section in ("client", "optimizer") and rest.partition(".")[0] in own):
                if name in tensors:
                    raise MaplError(f"two parts have {name!r}")
                tensors[name] = tensor
    by_client = [peers[client] for client in sorted(peers)]
    tensors["peers.counts"] = torch.tensor([len(columns[0]) for columns in by_client])
    for place, name in enumerate(COLUMNS):
        tensors[f"peers.{name}"] = torch.cat([columns[place] for columns in by_client])
    tensors |= _joined_beliefs(saved)
    return tensors


def share_of_state(tensors: Mapping[str, Tensor], held: Held, number: int) -> dict[str, Tensor]:
    """The state of one part, the inverse of `joined_state`. The first part has the server, and the whole ledger."""
    own, first = {str(client) for client in held[number]}, number == 0
    share = {}
    for name, tensor in tensors.items():
        section, _, rest = name.partition(".")
        mine = rest.partition(".")[0] in own if section in ("client", "optimizer") else first or section != "server"
        if mine and section != "peers":
            share[name] = tensor
    everyone = sorted(client for clients in held for client in clients)
    peers = _peers(everyone, tensors)
    columns = [peers[client] for client in held[number]]
    share["peers.counts"] = torch.tensor([len(one[0]) for one in columns])
    share |= {f"peers.{name}": torch.cat([one[place] for one in columns]) for place, name in enumerate(COLUMNS)}
    if not first:
        share["ledger"] = torch.zeros_like(tensors["ledger"])
    for name in [name for name in share if name.startswith("compress.held.") and name.endswith(".pairs")]:
        readers = torch.tensor([*held[number], len(everyone)] if first else held[number])  # the server is one, too
        kept = torch.isin(share[name] >> 32, readers)
        for column in (name, name.removesuffix("pairs") + "rounds"):
            share[column] = share[column][kept]
    return share


def _joined_beliefs(saved: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The replicas of all parts, the newest of each stream, and which reader has which (`mapl.network.topk`)."""
    newest: dict[str, tuple[int, int]] = {}
    for number, state in enumerate(saved):
        for name, tensor in state.items():
            if name.startswith("compress.rounds."):
                stream = name.removeprefix("compress.rounds.")
                newest[stream] = max(newest.get(stream, (-1, 0)), (int(tensor[0]), -number))
    tensors: dict[str, Tensor] = {}
    for stream, (_, place) in newest.items():
        state, prefix = saved[-place], f"compress.replica.{stream}."
        tensors[f"compress.rounds.{stream}"] = state[f"compress.rounds.{stream}"]
        tensors |= {name: tensor for name, tensor in state.items() if name.startswith(prefix)}
    legs = {name.split(".")[2] for state in saved for name in state if name.startswith("compress.held.")}
    for leg in sorted(legs):
        holding = [state for state in saved if f"compress.held.{leg}.pairs" in state]
        pairs, rounds = (
            torch.cat([state[f"compress.held.{leg}.{column}"] for state in holding]) for column in ("pairs", "rounds")
        )
        order = torch.from_numpy(np.argsort(pairs.numpy(), kind="stable"))
        tensors |= {f"compress.held.{leg}.pairs": pairs[order], f"compress.held.{leg}.rounds": rounds[order]}
    return tensors


def has_peers(clients: Sequence[int], state: Mapping[str, Tensor]) -> bool:
    """Whether a state has the peers of these clients, in a form that can be joined."""
    counts = state.get("peers.counts", torch.empty(0))
    if counts.dtype != torch.int64 or counts.shape != (len(clients),) or bool((counts < 0).any()):
        return False
    columns = {name: state.get(f"peers.{name}", torch.empty(0)) for name in COLUMNS}
    return all(
        columns[name].dtype == dtype and columns[name].shape == (int(counts.sum()),) for name, dtype in COLUMNS.items()
    )


def _peers(clients: Sequence[int], state: Mapping[str, Tensor]) -> dict[int, list[Tensor]]:
    """By client: the ids, weights and samples of its peers."""
    counts = state["peers.counts"].tolist()
    columns = [torch.split(state[f"peers.{name}"], counts) for name in COLUMNS]
    return {client: [column[place] for column in columns] for place, client in enumerate(clients)}
