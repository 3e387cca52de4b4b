"""What a method returned, checked for its kind: who writes a method reads one sentence that says what it should be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mapl.client import Client, Node, Peers, Server
from mapl.errors import MaplError
from mapl.methods._base import Method
from mapl.network import Letter, Spec


def checked_letter(method: Method[Any], node: Node, call: str, letter: object) -> Letter | None:
    """What `letter`, or another function that writes one, returned for this node."""
    if letter is None:
        return None
    right = f"{_kind(node)}.letter(round, {{'name': tensor}}), or None for no letter"
    if not isinstance(letter, Letter):
        raise _wrong(method, node, call, _what(letter), right)
    if (odd := _odd(letter.tensors, Tensor)) is not None:
        raise _wrong(method, node, call, f"a letter with {odd}", right)
    return letter


def checked_schema(method: Method[Any], node: Node, call: str, schema: object) -> Mapping[str, Spec]:
    """What `schema` or `opening_schema` returned for this node."""
    if not isinstance(schema, Mapping) or (odd := _odd(schema, Spec)) is not None:
        what = f"a {type(schema).__name__} with {odd}" if isinstance(schema, Mapping) else _what(schema)
        raise _wrong(method, node, call, what, "a dict from each tensor's name to its mapl.network.Spec")
    return schema


def checked_wants(method: Method[Any], client: Client, wanted: object) -> Tensor:
    """What `wants` returned for this client."""
    if not isinstance(wanted, Tensor) or wanted.dtype != torch.int64 or wanted.ndim != 1:
        raise _wrong(method, client, "wants", _what(wanted), "some of client.neighbours")
    if wanted is not client.neighbours and not torch.isin(wanted, client.neighbours).all():
        raise MaplError(
            f"method {method.name!r}: wants() asks for letters of {wanted.tolist()} for client {client.id}, which "
            f"reaches {client.neighbours.tolist()}; it should return some of client.neighbours"
        )
    return wanted


def checked_row(method: Method[Any], client: Client, row: object) -> Peers | None:
    """What `weights` returned for this client."""
    if row is not None and not isinstance(row, Peers):
        raise _wrong(method, client, "weights", _what(row), "client.peers, or None if it has no graph")
    if row is not None and (fault := next(_faults(row), None)):
        raise MaplError(f"method {method.name!r}: the row of W that weights() returned for client {client.id} {fault}")
    return row


def _faults(row: Peers) -> Iterator[str]:
    """Why a row could not be saved and restored. Whether its weights are finite is looked at where a cause is known."""
    arrays = {"ids": row.ids, "weights": row.weights, "samples": row.samples}
    for name, array in arrays.items():
        dtype = np.float64 if name == "weights" else np.int64
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != (len(row.ids),):
            yield f"has {name} that are not a numpy array of {dtype.__name__}, one for each of its ids"
    if (np.diff(row.ids) <= 0).any():
        yield "has ids that do not ascend"
    if (row.weights < 0).any():
        yield "has a weight below 0"


def check_absorbed(method: Method[Any], returned: object) -> None:
    """`absorb_all` works in place. What it returns would be lost, and a generator would not even run."""
    if returned is not None:
        raise MaplError(
            f"method {method.name!r}: absorb_all() returned {_what(returned)}; it should adjust all clients in place "
            "and return nothing"
        )


def _wrong(method: Method[Any], node: Node, call: str, what: str, right: str) -> MaplError:
    who = "the server" if isinstance(node, Server) else f"client {node.id}"
    return MaplError(f"method {method.name!r}: {call}() returned {what} for {who}; it should return {right}")


def _kind(node: Node) -> str:
    return "server" if isinstance(node, Server) else "client"


def _what(returned: object) -> str:
    if isinstance(returned, Tensor):
        return f"a tensor of {str(returned.dtype).removeprefix('torch.')} {tuple(returned.shape)}"
    return f"a {type(returned).__name__}"


def _odd(values: object, kind: type) -> str | None:
    """The first of these named values that is not of this kind, in words."""
    if not isinstance(values, Mapping):
        return f"{_what(values)} in place of named tensors"
    return next((f"{_what(value)} for {name!r}" for name, value in values.items() if not isinstance(value, kind)), None)
