"""What a recipe cannot have, given its method. It is refused before the first round, not in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import mapl.methods
from mapl.client import Client
from mapl.errors import MaplError, warn
from mapl.methods._base import Centralised, Method
from mapl.network import Letter, float_names
from mapl.network.noise import covered
from mapl.plugins import find
from mapl.recipe import Recipe
from mapl.runs.contract import checked_letter
from mapl.runs.exchange import check_size, look_around

if TYPE_CHECKING:
    from mapl.runs.part import Part


class Architecture(NamedTuple):
    """What a client's backbone is."""

    client: int
    backbone: str
    fingerprint: str


def architectures(part: Part) -> list[Architecture]:
    """The architecture of each client of a part."""
    return [Architecture(c.id, c.backbone, c.architecture) for c in part.clients]


def check_alike(method: str, clients: Sequence[Architecture]) -> None:
    """A method that averages whole models needs a single architecture."""
    first = clients[0]
    others = [c for c in clients if c.fingerprint != first.fingerprint]
    if find("method", method, mapl.methods).homogeneous and others:
        who = ", ".join(f"{c.client} ({c.backbone})" for c in others[:4]) + (", …" if len(others) > 4 else "")
        raise MaplError(
            f"method {method!r} needs one architecture, but client {first.client} has {first.backbone!r} "
            f"and these differ from it: {who}; set model.backbones to one name"
        )


def check_method(recipe: Recipe, method: Method[Any]) -> None:
    """Refuse a network that the method has no use for."""
    _check_mixing(method)
    _check_joiners(recipe, method)
    _check_explores(recipe, method)


def _check_mixing(method: Method[Any]) -> None:
    """A robust rule needs a method that averages several letters."""
    if method.mixing.kind != "mean" and not method.averages:
        raise MaplError(
            f"network.mixing: got {method.mixing.kind!r}, but method {method.name!r} does not average several letters "
            "at a time, so there is nothing to make robust; leave it at 'mean'"
        )


def _check_joiners(recipe: Recipe, method: Method[Any]) -> None:
    """A server that sorts the clients once, in the first round, never learns of one that joins later."""
    if recipe.network.joiners.clients and isinstance(method, Centralised) and method.opens:
        raise MaplError(
            f"network.joiners: method {recipe.method.name!r} sorts all clients in its first round, so those that join "
            "later would stay alone; take another method"
        )


def _check_explores(recipe: Recipe, method: Method[Any]) -> None:
    """To look around, clients must find out whom to listen to. With a server, or without letters, they never look."""
    if recipe.network.topology.name != "explore" or isinstance(method, Centralised) or method.silent:
        return
    if not method.learns_graph():
        raise MaplError(
            f"network.topology: got 'explore', but method {method.name!r} learns no graph here, so its clients would "
            "not know whom to keep; take courier, mapl or mapl+, or another topology"
        )


def check_letters(part: Part) -> None:
    """Refuse letters that are too large, or cannot be compressed or clipped, before the first round, not in it."""
    network, compressor = part.recipe.network, part.compressor
    checked = network.letter_limit is not None or compressor is not None or part.noise is not None
    if not checked or network.topology.name == "none":
        return
    look_around(part.method, part.clients, part.server, part.topology, 0)
    for client in part.clients:
        letter = last_letter(part, client) if len(client.neighbours) else None
        if letter is None:
            continue
        if part.noise is not None and client is part.clients[0]:
            _check_noise(part, letter)
        if compressor is not None:
            if not float_names(letter):
                raise MaplError(
                    f"network.compress: got {network.compress.kind!r}, but the letters of method {part.method.name!r} "
                    "have no float32 tensor to compress; set it to 'none'"
                )
            letter = compressor.largest(letter)
        check_size(letter, network.letter_limit)


def _check_noise(part: Part, letter: Letter) -> None:
    """Refuse noise that changes nothing, and name the tensors that it does not cover."""
    bare = [name for name in letter.tensors if name not in covered(letter)]
    if len(bare) == len(letter.tensors):
        raise MaplError(
            f"network.noise: the letters of method {part.method.name!r} have no float32 tensor to add noise to; "
            "set network.noise.clip to 'none'"
        )
    if bare:
        warn(
            f"network.noise: {', '.join(map(repr, bare))} in the letters of method {part.method.name!r} travels "
            "without noise, and ε does not cover it",
            once=True,
        )


def last_letter(part: Part, client: Client) -> Letter | None:
    """A letter like the client's last one. Some methods' last letters are their largest. None if it never writes."""
    made = (part.method.letter(client, round) for round in reversed(range(part.recipe.rounds)))
    letters = (checked_letter(part.method, client, "letter", letter) for letter in made)
    return next((letter for letter in letters if letter is not None), None)
