"""The player of a cluster: shards of clients, as if they were one process with all of them."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mapl.clock import Clock
from mapl.cluster.packed import Packed, pack, unpack
from mapl.cluster.shard import Built, Lost, Order, Played
from mapl.recipe import Recipe
from mapl.runs.checkpoint import Checkpoint
from mapl.runs.graph import Row
from mapl.runs.history import ClientCard, Round
from mapl.runs.joined import joined_line, joined_state, share_of_state
from mapl.runs.player import CannotGoOn
from mapl.runs.saving import bytes_tensor

if TYPE_CHECKING:
    from mapl.cluster.crew import Crew  # it imports Ray

TRIES = 3
"""How often something is begun again in vain, before it is an error."""


class Shards:
    """Plays a network that is divided among the processes of a crew.

    After every round it keeps the state of all shards, in the memory of this process. If a shard is lost, a new one
    takes its place, all go back to that state, and the round is played again.
    """

    def __init__(self, crew: Crew, recipe: Recipe, order: Order, datas: Sequence[object]) -> None:
        self.recipe = recipe
        self._crew, self._order, self._datas = crew, order, datas
        self._cards: list[ClientCard] = []
        self._round = 0
        self._kept: list[Packed] | None = None
        """The state of each shard after the last round; None before the first."""
        self._counts: list[tuple[int, int]] = [(0, 0)] * len(order.held)
        """The messages and bytes that each shard has counted."""
        self._rows: dict[int, Row] = {}
        self._attempts = 0
        self._warm = False
        self._begin(Lost(n for n in range(len(order.held)) if n not in crew.handles))

    @property
    def cards(self) -> list[ClientCard]:
        return self._cards

    @property
    def round(self) -> int:
        return self._round

    @property
    def budget_is_spent(self) -> bool:
        return False  # `on_ray` refuses a budget

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")  # this process only waits

    def warm_up(self) -> None:
        self._warm = True
        self._or_begin(self._warm_up)

    def play(self, t: int, clock: Clock) -> tuple[Round, dict[str, float]]:
        seconds = clock.new_round()
        with clock.part("shards"):
            start = time.perf_counter()
            played, states = self._played(t)
            everything = time.perf_counter() - start
        self._kept = [state.copy() for state in states]
        self._round = t + 1
        self._counts = [(one.messages, one.bytes) for one in played]
        for one in played:
            self._rows |= one.rows
            _warn(one.warned)
        slowest = max((one.seconds for one in played), key=lambda parts: sum(parts.values()))
        seconds.clear()
        seconds |= slowest
        # Sending states here, and waiting for the slowest shard's letters.
        seconds["waiting"] = max(0.0, everything - sum(slowest.values()))
        return joined_line(self._order.held, [one.line for one in played]), seconds

    def rows(self) -> Mapping[int, Row]:
        return self._rows

    def state(self) -> dict[str, Tensor]:
        kept = self._kept if self._kept is not None else self._crew.ask_all("state")
        tensors = joined_state(self._order.held, [unpack(state) for state in kept])
        tensors["rounds"] = torch.tensor([self._round])
        tensors["ledger"] = torch.tensor([sum(column) for column in zip(*self._counts, strict=True)])
        tensors["recipe"] = bytes_tensor(self.recipe.fingerprint().encode())
        return tensors

    def restore(self, saved: Checkpoint) -> None:
        held = self._order.held
        self._kept = [pack(share_of_state(saved.tensors, held, number)) for number in range(len(held))]
        self._round = saved.rounds
        # A shard's ledger starts with what it is given: the first one's with that of the run.
        self._counts = [(int(saved.tensors["ledger"][0]), int(saved.tensors["ledger"][1])), *self._counts[1:]]
        if self._attempts:  # they have played
            self._begin(Lost([]))
        else:
            self._or_begin(self._restore)

    def close(self) -> None:
        self._crew.close()

    # What happens when shards are lost

    def _played(self, t: int) -> tuple[list[Played], list[Packed]]:
        """A round, played as often as it takes."""
        in_vain = 0
        while True:
            self._attempts += 1
            try:
                answers = self._crew.play(t, self._attempts)
            except Lost as lost:
                in_vain = 0 if lost.numbers else in_vain + 1
                if in_vain == TRIES:
                    raise CannotGoOn(
                        f"round {t + 1} was interrupted {TRIES} times, though no shard was lost; the run is saved up "
                        "to there: resume it"
                    ) from lost
                self._replace(lost, t)
            else:
                return [told for told, _ in answers], [state for _, state in answers]

    def _replace(self, lost: Lost, t: int) -> None:
        who = ", ".join(map(str, lost.numbers))
        _warn([f"shard {who} (counted from 0) was lost in round {t + 1}, which is played again"] if who else [])
        try:
            self._begin(lost)
        except CannotGoOn as error:
            raise CannotGoOn(f"{error}; the run is saved up to round {t}: resume it when there is room") from error

    def _or_begin(self, work: Callable[[], None]) -> None:
        """Do something with shards that are built, or build them as if it had been done."""
        try:
            work()
        except Lost as lost:
            self._begin(lost)

    def _begin(self, lost: Lost) -> None:
        """Start new processes for the shards that are lost, and build all shards in the state that is kept."""
        for _ in range(TRIES):
            try:
                self._crew.start(lost.numbers)
                self._build()
                self._restore()
                return self._warm_up()
            except Lost as again:
                lost = again
        raise CannotGoOn(f"{TRIES} times in a row shards were lost before they could begin: {lost}") from lost

    def _build(self) -> None:
        crew = self._crew
        orders = [dataclasses.replace(self._order, number=number) for number in range(len(self._order.held))]
        built: list[Built] = crew.ask_all("build", lambda number: [orders[number], self._datas[number]])
        self._cards = sorted((card for one in built for card in one.cards), key=lambda card: card.id)
        _warn([words for one in built for words in one.warned])
        crew.meet()

    def _restore(self) -> None:
        self._rows = {}
        if (kept := self._kept) is not None:
            self._crew.ask_all("restore", lambda number: [self._round, kept[number]])

    def _warm_up(self) -> None:
        if self._warm:
            self._crew.ask_all("warm_up")


def _warn(words: Sequence[str]) -> None:
    for text in dict.fromkeys(words):
        warnings.warn(text, stacklevel=2)
