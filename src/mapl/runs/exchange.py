"""How the letters of a round travel: from peer to peer, or through a server that is one more node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from mapl.client import Client, Server
from mapl.methods._base import Centralised, Method
from mapl.network import Inbox, Post, Topology


def exchange(
    method: Method[Any], clients: Sequence[Client], server: Server | None, topology: Topology, post: Post, round: int
) -> Iterator[tuple[Client, Inbox]]:
    """Every client with its inbox. All letters are written before anybody reads, so nobody reads what was adjusted."""
    if isinstance(method, Centralised) and server is not None:
        yield from _through_server(method, clients, server, topology, post, round)
    else:
        yield from _between_peers(method, clients, topology, post, round)


def _between_peers(
    method: Method[Any], clients: Sequence[Client], topology: Topology, post: Post, round: int
) -> Iterator[tuple[Client, Inbox]]:
    requests = {c.id: method.wants(c, round, reachable(c, None, topology, round)) for c in clients}
    askers = torch.bincount(torch.cat(list(requests.values())), minlength=topology.clients).tolist()
    letters = {c.id: method.letter(c, round) for c in clients if askers[c.id]}
    inboxes = post.deliver(letters, requests)
    for client in clients:
        yield client, inboxes[client.id]


def _through_server(
    method: Centralised[Any],
    clients: Sequence[Client],
    server: Server,
    topology: Topology,
    post: Post,
    round: int,
) -> Iterator[tuple[Client, Inbox]]:
    requests = {c.id: method.wants(c, round, reachable(c, server, topology, round)) for c in clients}
    writers = [c for c in clients if len(requests[c.id])]
    opened = _opens(method, round) and bool(writers)
    if opened:
        _open(method, writers, server, post)
    letters = {c.id: method.letter(c, round) for c in writers}
    asked = {server.id: torch.tensor(sorted(letters), dtype=torch.long)}
    inbox = post.deliver(letters, asked, same_round=opened)[server.id]
    nothing = inbox.select(torch.empty(0, dtype=torch.long))
    yield from ((c, nothing) for c in clients if not len(requests[c.id]))
    if not writers:
        return
    aggregate = method.aggregate(server, round, inbox)
    # One delivery for all who get the same letter, one each for those who get a personal one.
    groups = [[c] for c in writers] if method.personal else [writers]
    for group in groups:
        reply = {server.id: method.reply(server, group[0].id, round, aggregate)}
        inboxes = post.deliver(reply, {c.id: requests[c.id] for c in group}, same_round=True)
        for client in group:
            yield client, inboxes[client.id]


def _opens(method: Centralised[Any], round: int) -> bool:
    return method.opens and round == 0


def _open(method: Centralised[Any], clients: Sequence[Client], server: Server, post: Post) -> None:
    """The letters that some methods exchange once: one to each client, one from it."""
    to_all = post.deliver(
        {server.id: method.opening(server)}, {c.id: torch.tensor([server.id], dtype=torch.long) for c in clients}
    )
    answers = {c.id: method.answer(c, to_all[c.id]) for c in clients}
    asked = torch.tensor(sorted(answers), dtype=torch.long)
    method.settle(server, post.deliver(answers, {server.id: asked}, same_round=True)[server.id])


def reachable(client: Client, server: Server | None, topology: Topology, round: int) -> Tensor:
    """Whom a client can reach: its neighbours, or the server alone where there is one; on the empty network nobody."""
    if server is None:
        return topology.neighbours(round, client.id)
    return torch.tensor([] if topology.settings.name == "none" else [server.id], dtype=torch.long)


def letters_ahead(
    method: Method[Any], clients: Sequence[Client], server: Server | None, topology: Topology, round: int
) -> int:
    """How many letters this round will carry."""
    asked = sum(len(method.wants(c, round, reachable(c, server, topology, round))) for c in clients)
    if isinstance(method, Centralised):  # there and back, and before that an opening and its answer
        return 4 * asked if _opens(method, round) else 2 * asked
    return asked
