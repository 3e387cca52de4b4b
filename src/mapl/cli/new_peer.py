"""What `mapl peer init` says about a new peer."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.table import Table

from mapl.names import printable
from mapl.network import Letter, header_bytes, nbytes
from mapl.peer.agreement import AGREEMENT
from mapl.peer.init import NewPeer, letter_of, own_networks_sent
from mapl.shape import told
from mapl.terminal.messages import console, say

MOST_CLASSES = 40
"""How many classes are listed, each on a line of its own."""


def described(peer: NewPeer) -> None:
    """Say what was found, how others reach the peer, and what leaves the machine."""
    me = peer.identity
    say(f"{peer.path} written: {me.name}, number {me.number} of {me.clients} clients of the network {me.network}")
    for line in _data(peer):
        say(line)
    console().print(_classes(peer))
    for line in (*_network(peer), *_leaves(peer), f"next: mapl peer run {peer.path}"):
        say(line)


def _data(peer: NewPeer) -> Iterator[str]:
    where = f"your share of the recipe's data, {peer.recipe.data.name}"
    if peer.data is not None:
        where = f"your own, {peer.settings.data.path} ({peer.settings.data.name})"
    yield f"data      {where}"
    yield (
        f"          {len(peer.train):,} training and {len(peer.test):,} test {told(peer.train.shape)}, "
        f"{len(peer.class_names)} classes"
    )
    for line in peer.data.found if peer.data is not None else ():
        yield f"          {line}"


def _classes(peer: NewPeer) -> Table:
    """Images by class."""
    names = peer.class_names
    train, test = peer.train.counts(len(names)), peer.test.counts(len(names))
    table = Table("class", "name", "training", "test")
    for number, name in list(enumerate(names))[:MOST_CLASSES]:
        shown = "" if name == str(number) else printable(name)
        table.add_row(str(number), shown, f"{train[number]:,}", f"{test[number]:,}")
    if len(names) > MOST_CLASSES:
        table.add_row("…", f"{len(names) - MOST_CLASSES} more", "", "")
    return table


def _network(peer: NewPeer) -> Iterator[str]:
    client, me = peer.part.clients[0], peer.identity
    numbers = sum(parameter.numel() for parameter in client.model.backbone.parameters())
    whose = "your choice" if peer.settings.data.backbone else f"what the recipe deals to number {me.number}"
    yield f"backbone  {client.backbone}, {whose} ({numbers:,} weights)"
    yield f"reach     others find you at {', '.join(peer.reached_at())}: UDP" + (
        ", and new members TCP" if me.is_authority else ""
    )
    connect = peer.settings.net.connect
    yield f"          you connect to {', '.join(connect)}" if connect else "          others connect to you"
    if peer.new is not None:
        yield f"agreed    these classes, this shape, mean and std are the network's now ({me.folder / AGREEMENT})"
        yield "          invitations made from now on carry them; who joined before needs a copy of that file"


def _leaves(peer: NewPeer) -> Iterator[str]:
    letter = letter_of(peer.part)
    yield "what leaves this machine"
    if letter is None:
        yield f"  no letters: {peer.recipe.method.name} writes none"
    else:
        yield from _letter(peer, letter)
    yield "  for members: your name, number and hosts (in your certificate), the number of classes, the shape of an"
    yield "  image, the network's settings, that you are there, and whose letters you ask for"
    if peer.identity.agreement() is not None and peer.identity.is_authority:
        yield f"  in invitations that you make: names of classes, mean and std ({AGREEMENT})"
    yield "what stays here"
    yield f"  images, labels, accuracies, and of your own network: {_staying(peer)}"
    yield "  but letters are computed from your images, and may reveal something about them: docs/privacy.md"


def _letter(peer: NewPeer, letter: Letter) -> Iterator[str]:
    yield f"  a letter per round, for members who ask for it, {nbytes(letter):,} bytes:"
    for name, tensor in letter.tensors.items():
        shape, size = "×".join(map(str, tensor.shape)), math.prod(tensor.shape) * tensor.dtype.itemsize
        yield f"    {name}  {shape} {str(tensor.dtype).removeprefix('torch.')}, {size:,} bytes"
    architecture = f", architecture {letter.architecture}" if letter.architecture else ""
    yield (
        f"    header  run {letter.run}, sender {letter.sender}, the round, {letter.samples:,} training images"
        f"{architecture}, checksum, {header_bytes(letter):,} bytes"
    )
    if peer.part.noise is not None:
        yield "    clipped, and with Gaussian noise (network.noise)"


def _staying(peer: NewPeer) -> str:
    """The own network's parts that no letter shows. Changes the part's weights."""
    sent = own_networks_sent(peer.part)
    if not sent:
        return "all of it"
    parts = [name for name in ("backbone", "head") if name not in sent]
    return f"{', '.join(parts) or 'nothing'} (letters show its {', '.join(sent)})"
