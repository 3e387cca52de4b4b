"""Batches and augmentations that are drawn while the GPU is still busy with the round before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from torch import Tensor

from mapl.client import Client
from mapl.engine._base import Draws

MOST = 200
"""Clients that are drawn for ahead of time; the others' draws are made when their turn comes."""


class Ahead:
    """Draws of a round to come, in pinned memory where they go to a GPU."""

    def __init__(self, draw: Callable[[Client, int], Draws], pinned: bool):
        self._draw, self._pinned = draw, pinned
        self._drawn: dict[tuple[int, int], Future[tuple[Tensor, Tensor]]] = {}
        self._round: int | None = None
        self._workers = ThreadPoolExecutor(4)

    def begin(self, clients: Sequence[Client], round: int) -> None:
        """Start drawing for a round, unless already done."""
        if self._round == round:
            return
        self._drawn.clear()
        self._round = round
        for client in clients[:MOST]:
            self._drawn[client.id, round] = self._workers.submit(self._now, client, round)

    def of(self, client: Client, round: int) -> tuple[Tensor, Tensor]:
        """Indices (steps, B) and uniforms of a client's round."""
        ahead = self._drawn.pop((client.id, round), None)
        return ahead.result() if ahead else self._now(client, round)

    def _now(self, client: Client, round: int) -> tuple[Tensor, Tensor]:
        draws = self._draw(client, round)
        if not self._pinned:
            return draws.batches, draws.uniforms
        return draws.batches.pin_memory(), draws.uniforms.pin_memory()
