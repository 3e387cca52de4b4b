"""What a run needs to continue: everything a part keeps, as named tensors, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from mapl.client import Client, Peers
from mapl.errors import MaplError
from mapl.network import Ledger
from mapl.runs.checking import check
from mapl.runs.checkpoint import Checkpoint
from mapl.runs.folder import RECIPE
from mapl.runs.part import Part

NOTHING = torch.empty(0, dtype=torch.uint8)
CHAIN = "chain"


def bound(tensors: dict[str, Tensor], before: str) -> dict[str, Tensor]:
    """The tensors, and the hash of the history line before the last one.

    Not that of the last: it changes if the run is made longer and its last round is no longer a tested one.
    """
    return {**tensors, CHAIN: bytes_tensor(before.encode())}


def binding(saved: Checkpoint) -> str:
    """The hash that a checkpoint was bound to; empty if it is from an older version."""
    return saved.tensors[CHAIN].numpy().tobytes().decode("ascii", "replace") if CHAIN in saved.tensors else ""


def saved_state(part: Part) -> dict[str, Tensor]:
    """Everything a run needs to resume, as named tensors. Its history stays in its folder."""
    tensors: dict[str, Tensor] = {}
    for client in part.clients:
        tensors |= {f"client.{client.id}.model.{k}": v for k, v in client.model.state_dict().items()}
        tensors |= {f"client.{client.id}.state.{k}": v for k, v in client.state.items()}
    tensors |= {f"peers.{k}": v for k, v in _saved_peers(part.clients).items()}
    if part.server is not None:
        tensors |= {f"server.{k}": v for k, v in part.server.state.items()}
    tensors |= {f"optimizer.{k}": v for k, v in part.engine.state().items()}
    if part.compressor is not None:
        tensors |= {f"compress.{k}": v for k, v in part.compressor.state().items()}
    tensors["rounds"] = torch.tensor([part.round])
    tensors["ledger"] = torch.tensor([part.ledger.messages, part.ledger.bytes])
    tensors["recipe"] = bytes_tensor(part.recipe.fingerprint().encode())
    return tensors


def _saved_peers(clients: Sequence[Client]) -> dict[str, Tensor]:
    """The peers of all clients, concatenated: four tensors for any number of clients."""
    peers = [client.peers for client in clients]
    return {
        "counts": torch.tensor([len(p.ids) for p in peers]),
        "ids": torch.from_numpy(np.concatenate([p.ids for p in peers])),
        "weights": torch.from_numpy(np.concatenate([p.weights for p in peers])),
        "samples": torch.from_numpy(np.concatenate([p.samples for p in peers])),
    }


@torch.no_grad()
def _restore_models(clients: Sequence[Client], saved: Checkpoint) -> None:
    """Copy all tensors at once: `load_state_dict` for each client takes longer than writing a checkpoint."""
    targets: list[Tensor] = []
    values: list[Tensor] = []
    for client in clients:
        tensors, section = client.model.state_dict(), saved.section(f"client.{client.id}.model")
        targets += tensors.values()
        values += (section[name] for name in tensors)
    torch._foreach_copy_(targets, values)


def _restore_peers(clients: Sequence[Client], saved: Mapping[str, Tensor]) -> None:
    ends = np.cumsum(saved["counts"].numpy())[:-1]
    columns = (np.split(saved[name].numpy().copy(), ends) for name in ("ids", "weights", "samples"))
    for client, *column in zip(clients, *columns, strict=True):
        client.peers = Peers(*column)


def bytes_tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def restore(part: Part, saved: Checkpoint) -> None:
    """Set a part to the state in a checkpoint."""
    if saved.tensors.get("recipe", NOTHING).numpy().tobytes() != part.recipe.fingerprint().encode():
        raise MaplError(
            f"the run's {RECIPE} is not the one that its checkpoint was written with: change it back, or start a new "
            "run (name, rounds and checkpoint settings may change)"
        )
    check(part, saved)
    _restore_models(part.clients, saved)
    for client in part.clients:
        for name, value in saved.section(f"client.{client.id}.state").items():
            if name in client.state:
                client.state[name].copy_(value)
            else:  # a method may add state later than in `prepare`
                client.state[name] = value
    _restore_peers(part.clients, saved.section("peers"))
    if part.server is not None:
        part.server.state |= saved.section("server")
    part.engine.load_state(part.clients, saved.section("optimizer"))
    if part.compressor is not None:
        part.compressor.load_state(saved.section("compress"))
    part.ledger = Ledger(*saved.tensors["ledger"].tolist())
    part.round = saved.rounds
