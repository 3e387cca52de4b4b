"""The exchanges of one round: between peers, or through a server that is one more node."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mapl.client import NOBODY_NEAR, Client, Server
from mapl.errors import MaplError
from mapl.methods._base import Centralised, Method
from mapl.network import (
    Compressor,
    Inbox,
    Ledger,
    Letter,
    Mail,
    Noise,
    Schema,
    Topology,
    Transport,
    explore,
    inspect,
    nbytes,
)
from mapl.network.noise import FROM_CLIENTS
from mapl.network.refused import Counts, added
from mapl.network.transport import LastRead, Leg
from mapl.runs.contract import checked_letter, checked_schema, checked_wants

NOTHING = Inbox.of([])
LARGEST = 2**32
"""The largest letter, in bytes, that is read if the recipe sets no limit."""


def look_around(
    method: Method[Any],
    clients: Sequence[Client],
    server: Server | None,
    topology: Topology,
    round: int,
    reachable: Tensor | None = None,
    present: Tensor | None = None,
) -> None:
    """Tell every node whom it can reach this round. With a server, a client reaches only the server.

    A client that is alone reaches nobody: a server could only send its own letter back.

    `reachable`: the sorted ids of the peers that can be reached at all, if not everybody can. `present`: those of the
    clients that take part, if not everybody does. Who does not reaches nobody.
    """
    if present is not None:
        there = set(present.tolist())
        for client in clients:
            client.neighbours = NOBODY_NEAR
        clients = [client for client in clients if client.id in there]
    if not isinstance(method, Centralised):
        for client in clients:
            near = topology.neighbours(round, client.id)
            for some in (reachable, present):
                near = near if some is None else near[torch.isin(near, some)]
            client.neighbours = _explored(client, round, topology, near) if topology.explores else near
        return
    everybody = torch.arange(topology.clients) if present is None else present
    connected = topology.settings.name != "none" and len(everybody) > 1
    for client in clients:
        client.neighbours = torch.tensor([topology.clients] if connected else [], dtype=torch.long)
    if server is not None:
        server.neighbours = everybody if connected else everybody[:0]


def _explored(client: Client, round: int, topology: Topology, near: Tensor) -> Tensor:
    """Whom a client asks of those near. It first forgets the peers that it no longer keeps."""
    peers = client.peers
    choice = explore(client.seed, client.id, round, topology.settings.explore, near.numpy(), peers.ids, peers.weights)
    peers.forget(choice.forget)
    return torch.from_numpy(choice.neighbours)


@dataclass
class Exchange:
    """The exchanges of one round, for the clients that this process holds and the server, if it lives here.

    All letters of an exchange are written before any is read, so nobody reads what was adjusted in the same round.
    """

    method: Method[Any]
    clients: Sequence[Client]
    server: Server | None
    transport: Transport
    ledger: Ledger
    round: int
    limit: int | None = None
    """The largest letter in bytes, as it travels."""
    noise: Noise | None = None
    compressor: Compressor | None = None
    drawn_in: int = 0
    """Since which round the topology has been what it is in this one."""
    same_since: int = 0
    """Since which round the same clients have taken part."""
    read: dict[Leg, LastRead] = field(default_factory=dict)
    """What was read in earlier rounds, and now in this one."""
    directed: bool = False
    """Whether clients that reach nobody may be asked all the same."""
    released: Counter[int] = field(default_factory=Counter)
    """How many noisy letters each client has passed to the transport, asked for or not."""
    refused: Counts = field(default_factory=dict)
    """The letters that were left out because they failed a check."""
    _own: dict[int, Letter] = field(default_factory=dict)
    """What each node last wrote to everyone, before compression. Its readers' norms are compared with it."""

    def run(self) -> list[tuple[Client, Inbox]]:
        """Every client with its inbox. Letters that did not arrive are missing from it."""
        method = self.method
        inboxes = self._through_server(method) if isinstance(method, Centralised) else self._between_peers()
        return [(client, inboxes.get(client.id, NOTHING)) for client in self.clients]

    def _between_peers(self) -> dict[int, Inbox]:
        writers = [c for c in self.clients if self.directed or len(c.neighbours)]
        letters = {c.id: self._letter(c) for c in writers}
        return self._send("letters", letters, self._requests())

    def _letter(self, client: Client) -> Letter | None:
        return checked_letter(self.method, client, "letter", self.method.letter(client, self.round))

    def _through_server(self, method: Centralised[Any]) -> dict[int, Inbox]:
        requests = self._requests()
        writers = [c for c in self.clients if len(requests[c.id])]
        if opens(method, self.round):
            self._open(method, writers, requests)
        inbox = self._to_server("letters", {c.id: self._letter(c) for c in writers})
        replies = self._replies(method, inbox) if self.server and len(inbox) else {}
        personal = replies if method.personal else {}
        common = {} if method.personal else replies
        return self._send("replies", common, {c.id: requests[c.id] for c in writers}, personal)

    def _requests(self) -> dict[int, Tensor]:
        """Whose letters each client asks for: some of its neighbours."""
        method = self.method
        return {client.id: checked_wants(method, client, method.wants(client, self.round)) for client in self.clients}

    def _replies(self, method: Centralised[Any], inbox: Inbox) -> dict[int, Letter | None]:
        """The server's letter, by sender; for a personal method, its letters by reader."""
        assert self.server is not None
        server, readers = self.server, inbox.senders.tolist() if method.personal else [self.server.id]
        aggregate = method.aggregate(server, self.round, inbox)
        replies = {i: method.reply(server, i, self.round, aggregate) for i in readers}
        return {i: checked_letter(method, server, "reply", letter) for i, letter in replies.items()}

    def _open(self, method: Centralised[Any], clients: Sequence[Client], requests: Mapping[int, Tensor]) -> None:
        """The letters that some methods exchange once: one to each client, one back."""
        first = {}
        if self.server and len(self.server.neighbours):
            first[self.server.id] = checked_letter(method, self.server, "opening", method.opening(self.server))
        heard = self._send("opening", first, {c.id: requests[c.id] for c in clients})
        heard_by = [c for c in clients if len(heard[c.id])]
        answers = {c.id: checked_letter(method, c, "answer", method.answer(c, heard[c.id])) for c in heard_by}
        inbox = self._to_server("answers", answers)
        if self.server and len(inbox):
            method.settle(self.server, inbox)

    def _to_server(self, leg: Leg, letters: Mapping[int, Letter | None]) -> Inbox:
        """The server's inbox; empty in a process that does not hold the server."""
        requests = {self.server.id: self.server.neighbours} if self.server else {}
        inboxes = self._send(leg, letters, requests)
        return inboxes[self.server.id] if self.server else NOTHING

    def _send(
        self,
        leg: Leg,
        letters: Mapping[int, Letter | None],
        requests: Mapping[int, Tensor],
        personal: Mapping[int, Letter | None] | None = None,
    ) -> dict[int, Inbox]:
        nodes: dict[int, Client | Server] = {client.id: client for client in self.clients}
        if self.server:
            nodes[self.server.id] = self.server

        @functools.cache
        def expects(reader: int) -> Schema:
            return self._schema(nodes[reader], leg)

        mail = Mail(
            self.round,
            leg,
            _written(letters),
            requests,
            expects,
            _written(personal or {}),
            self._anew(),
            rounds=getattr(self.transport, "rounds", Mail.rounds),
            read=self.read.setdefault(leg, {}),
        )
        if self.noise is not None:
            mail = self._noisy(self.noise, mail)
        self._own |= mail.letters  # with their noise: clipping changes norms
        carried = mail if self.compressor is None else self.compressor.outgoing(mail)
        for letter in [*carried.letters.values(), *carried.personal.values()] if self.limit is not None else ():
            check_size(letter, self.limit)
        inboxes = self.transport.exchange(carried)
        self.ledger.record(inboxes.values(), mail.refused)
        if self.compressor is not None:
            inboxes = self.compressor.incoming(carried, inspect(carried, inboxes, own=None))
        inboxes = inspect(mail, inboxes, self._own)
        mail.note(inboxes)
        self.refused = added(self.refused, mail.refused.by_sender)
        return inboxes if self.noise is None else self.noise.incoming(inboxes)

    def _noisy(self, noise: Noise, mail: Mail) -> Mail:
        if mail.leg in FROM_CLIENTS:
            self.released.update(mail.letters.keys())
        return noise.outgoing(mail)

    def _anew(self) -> int:
        """The last round in which nodes could read letters of senders whose previous letter they did not read."""
        if self.method.reads_anew(self.round):
            return self.round
        drawn_in = 0 if isinstance(self.method, Centralised) else self.drawn_in  # a server always reaches everyone
        return max(drawn_in, self.same_since)

    def _schema(self, node: Client | Server, leg: Leg) -> Schema:
        method, opening = self.method, leg in ("opening", "answers")
        if opening and isinstance(method, Centralised):
            tensors = checked_schema(method, node, "opening_schema", method.opening_schema(node))
        else:
            tensors = checked_schema(method, node, "schema", method.schema(node, self.round))
        architecture = method.architecture(node) if isinstance(node, Client) else ""
        fewest = 0 if leg in ("replies", "opening") else 1  # those are a server's, which has no samples
        limit = self.limit or LARGEST
        return Schema(node.run, limit, tensors, round=self.round, architecture=architecture, fewest=fewest)


def _written(letters: Mapping[int, Letter | None]) -> dict[int, Letter]:
    return {node: letter for node, letter in letters.items() if letter is not None}


def check_size(letter: Letter, limit: int | None) -> None:
    """Refuse to send a letter that is too large."""
    if limit is not None and (size := nbytes(letter)) > limit:
        raise MaplError(
            f"network.letter_limit: got {limit:,} bytes, but the letter of client {letter.sender} has {size:,}; "
            "raise the limit, compress letters (network.compress), or use smaller backbones"
        )


def opens(method: Method[Any], round: int) -> bool:
    """Whether this round begins with an opening and its answers."""
    return isinstance(method, Centralised) and method.opens and round == 0


def letters_ahead(method: Method[Any], clients: Sequence[Client], round: int) -> int:
    """How many letters this round will carry."""
    asked = sum(len(checked_wants(method, client, method.wants(client, round))) for client in clients)
    if isinstance(method, Centralised):  # letter and reply, and before them an opening and its answer
        return 4 * asked if opens(method, round) else 2 * asked
    return asked
