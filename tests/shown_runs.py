"""Folders of runs that nobody trained, round by round as a run writes them, for tests of what is shown."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mapl import Recipe
from mapl.runs.chain import Header, Round, Writer
from mapl.runs.files import write_aside
from mapl.runs.folder import CLIENTS, HISTORY, TIMES, clients_file, times_line, write_recipe
from mapl.runs.graph import GraphWriter, Row
from mapl.runs.record import ClientCard


class ShownRun:
    """A run whose clients stand in clusters of equal size and listen ever more to their own cluster."""

    def __init__(
        self,
        folder: Path,
        clients: int = 6,
        rounds: int = 5,
        clusters: int = 3,
        held: Sequence[int] | None = None,
        **settings: object,
    ) -> None:
        self.folder, self.clients, self.clusters = folder, clients, clusters
        self.recipe = Recipe.of(clients=clients, rounds=rounds, **settings)
        self.letters = self.recipe.network.topology.name != "none"
        folder.mkdir(parents=True)
        self.cards = [
            ClientCard(i, i * clusters // clients, [2 * (i * clusters // clients)], 20, 40, "mlp", 1000, "d")
            for i in (range(clients) if held is None else held)
        ]
        write_aside(folder / CLIENTS, clients_file(self.cards))
        write_recipe(folder, self.recipe)
        header = Header.of(self.recipe.fingerprint(), clients_file(self.cards))
        self.history = Writer(folder / HISTORY, header)
        self.graph = GraphWriter(folder, [card.id for card in self.cards])
        self.played = 0

    def play(self, rounds: int = 1, seconds: float = 0.5) -> None:
        """More rounds, as a run would write them: the graph, the line of the history, the times."""
        for _ in range(rounds):
            round, before = self.played, self.history.last
            draw = np.random.default_rng([round, self.letters])
            accuracy = np.minimum(1, 0.5 + 0.08 * round + 0.2 * draw.random(len(self.cards))).tolist()
            sent = len(self.cards) * (self.clients - 1) if self.letters else 0
            digest = self.graph.append(self._rows(round)) if self.letters else ""
            self.history.append(
                Round(round, {"cross_entropy": [1.0] * len(self.cards)}, accuracy, sent, 100 * sent), digest
            )
            with (self.folder / TIMES).open("ab") as file:
                file.write(times_line(round, {"train": seconds}, before))
            self.played += 1

    def _rows(self, round: int) -> dict[int, Row]:
        cluster = np.arange(self.clients) * self.clusters // self.clients
        ids = np.arange(self.clients)
        rows = {}
        for i in (card.id for card in self.cards):
            weights = np.where(cluster == cluster[i], 1.0, 0.6**round)
            weights *= 0.5 + np.random.default_rng([7, i, round]).random(self.clients)
            weights[weights < 0.05] = 0
            rows[i] = Row(ids, weights / weights.sum())
        return rows

    def age(self, seconds: float) -> None:
        """Let its last round be so many seconds ago."""
        then = self.folder.stat().st_mtime - seconds
        for path in self.folder.iterdir():
            os.utime(path, (then, then))
