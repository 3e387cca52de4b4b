"""A new peer: what its data are, and the PEER.toml that goes with them.

Nothing is written before the peer's client was built once, with the network's recipe and the peer's own images. So
what cannot be trained is refused here, and what would leave the machine is measured on a letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mapl.data.dataset import Dataset, Samples
from mapl.data.own import kind_of
from mapl.errors import MaplError
from mapl.model import PROJECTOR, PROTOTYPES
from mapl.network import Letter, encode, nbytes
from mapl.peer.agreement import AGREEMENT, Agreement
from mapl.peer.authority import agree
from mapl.peer.identity import Identity
from mapl.peer.invitations import QUIC
from mapl.peer.names import check_address, join_address, split_address
from mapl.peer.own import fitted, load_own
from mapl.peer.process import believing, own_recipe, shared_recipe
from mapl.peer.settings import VERSION, NetSection, PeerSettings, settings_of, to_toml
from mapl.recipe import Recipe, has_letters
from mapl.runs.files import write_aside
from mapl.runs.part import Part, build_part
from mapl.trees import Tree


@dataclass(frozen=True)
class NewPeer:
    """A peer that could be trained, before anything of it is written."""

    identity: Identity
    path: Path
    """Where its PEER.toml goes."""
    tree: Tree
    """What PEER.toml says."""
    settings: PeerSettings
    recipe: Recipe
    """The network's, with the peer's own backbone."""
    part: Part
    data: Dataset | None
    """Its own images; None if it takes its share of the recipe's."""
    new: Agreement | None
    """What the network agrees on from now on, if this peer is the first to say so."""

    @property
    def train(self) -> Samples:
        """All its training images, also those that the method holds out."""
        return self.part.clients[0].train if self.data is None else self.data.train

    @property
    def test(self) -> Samples:
        client = self.part.clients[0]
        if self.data is not None:
            return self.data.test
        return client.test.take(torch.arange(client.tests))

    @property
    def class_names(self) -> tuple[str, ...]:
        """Of all classes of the network."""
        names = self.data.class_names if self.data else ()
        return names or tuple(str(number) for number in range(self.part.clients[0].shapes.classes))

    def reached_at(self) -> list[str]:
        """HOST:PORT for each host in its certificate."""
        port = split_address(self.settings.net.listen)[1]
        return [join_address(host, port) for host in self.identity.own.hosts]

    def write(self) -> None:
        """Write PEER.toml, and before it what the network agrees on."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.new is not None:
                agree(self.identity, self.new)
            write_aside(self.path, to_toml(self.tree).encode())
        except (OSError, UnicodeEncodeError) as error:
            if self.new is not None:
                (self.identity.folder / AGREEMENT).unlink(missing_ok=True)
            raise MaplError(f"{str(self.path)!r} cannot be written: {error}") from error


def prepare(
    identity: Path,
    data: Path | None = None,
    *,
    backbone: str = "",
    listen: str | None = None,
    connect: Sequence[str] | None = None,
    out: Path = Path("PEER.toml"),
    overwrite: bool = False,
    trust: bool = False,
) -> NewPeer:
    """Find out all that PEER.toml says about a peer, and build its client once. Nothing is written."""
    if (out.exists() or out.is_symlink()) and not overwrite:
        raise MaplError(f"{str(out)!r} exists already: choose another file with --out, or give --overwrite")
    me = Identity.load(identity)
    tree = _tree(me, data, backbone, listen, connect, out)
    settings = settings_of(tree, out)
    with believing(settings, trust):
        shared = shared_recipe(me)
        found, new = (None, None) if data is None else _own(settings, me)
        if data is None and me.agreement() is not None:
            raise MaplError(
                f"the members of {me.network!r} bring their own data ({str(me.folder / AGREEMENT)!r} says which "
                "classes): give yours with --data"
            )
        recipe = own_recipe(shared, settings)
        own = None if found is None else {me.number: found}
        part = build_part(recipe, own, holds=[me.number], run=shared.fingerprint())
    return NewPeer(me, out, tree, settings, recipe, part, found, new)


def _tree(
    me: Identity, data: Path | None, backbone: str, listen: str | None, connect: Sequence[str] | None, out: Path
) -> Tree:
    """What PEER.toml will say. What it leaves out has its default."""
    if connect is None:
        connect = [address.removeprefix(QUIC) for address in me.addresses]
    section: dict[str, Any] = {}
    if data is not None:
        section |= {"name": kind_of(data), "path": _seen_from(data, out)}
    if backbone:
        section["backbone"] = backbone
    listen = listen or NetSection().listen
    split_address(listen, "--listen")
    return {
        "version": VERSION,
        "identity": _seen_from(me.folder, out),
        "folder": "state",
        **({"data": section} if section else {}),
        "net": {"listen": listen, "connect": [join_address(*check_address(one, "--connect")) for one in connect]},
    }


def _seen_from(path: Path, file: Path) -> str:
    """A path as a file refers to it: relative if it is in the file's own folder, so that both can be moved together."""
    absolute, base = path.expanduser().absolute(), file.expanduser().absolute().parent
    return str(absolute.relative_to(base) if absolute.is_relative_to(base) else absolute)


def _own(settings: PeerSettings, me: Identity) -> tuple[Dataset, Agreement | None]:
    """The peer's images, and what the network agrees on if this peer is the first to say so."""
    agreed = me.agreement()
    found = load_own(settings.data, agreed)
    if len(torch.unique(found.train.labels)) < 2:
        raise MaplError(f"{str(settings.data.path)!r} has training images of one class only: there is nothing to learn")
    if agreed is not None:
        return fitted(found, agreed), None
    if not me.is_authority:
        raise MaplError(
            f"nobody has said yet which classes the network {me.network!r} has: its authority runs mapl peer init "
            f"--data, and sends you {AGREEMENT} for {str(me.folder)!r}"
        )
    return found, Agreement.of(found)


# What leaves the machine


def letter_of(part: Part) -> Letter | None:
    """A letter of the largest kind that the client will write, as it travels; None if it never writes one."""
    written = _written(part)
    if not written:
        return None
    largest = max(written, key=nbytes)
    return part.compressor.largest(largest) if part.compressor else largest


def own_networks_sent(part: Part) -> list[str]:
    """Which parts of the client's own network its letters show: those whose change would change the letters.

    The weights are changed to find out, so the part is of no use afterwards.
    """
    model, sent = part.clients[0].model, []
    before = [encode(letter) for letter in _written(part)]
    for name in ("backbone", "head", PROJECTOR, PROTOTYPES):
        thing = getattr(model, name)
        if thing is None:
            continue
        _change([thing] if isinstance(thing, Tensor) else list(thing.parameters()))
        after = [encode(letter) for letter in _written(part)]
        if after != before:
            sent.append(name)
        before = after
    return sent


@torch.no_grad()
def _change(tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        tensor.add_(1)


def _written(part: Part) -> list[Letter]:
    """The first and the last letter of the client: some methods' last ones have more in them."""
    client, rounds = part.clients[0], range(part.recipe.rounds)
    if not has_letters(part.recipe):
        return []
    found = (
        next((letter for t in order if (letter := part.method.letter(client, t)) is not None), None)
        for order in (rounds, reversed(rounds))
    )
    return [letter for letter in found if letter is not None]
