"""Which clients each shard holds: about the same work for all."""

from __future__ import annotations

from collections.abc import Sequence


def divide(costs: Sequence[float], shards: int) -> tuple[tuple[int, ...], ...]:
    """Divide clients 0, 1, … with these costs among shards. Each shard has at least one client.

    The most expensive client that is left goes to the shard with the least work. That shard's work is then at most 4/3
    of what the best division has (Graham 1969).
    """
    held: list[list[int]] = [[] for _ in range(shards)]
    work = [0.0] * shards
    for client in sorted(range(len(costs)), key=lambda client: (-costs[client], client)):
        number = min(range(shards), key=lambda number: (work[number], len(held[number]), number))
        held[number].append(client)
        work[number] += costs[client]
    return tuple(tuple(sorted(clients)) for clients in held)
