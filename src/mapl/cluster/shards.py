"""The player of a cluster: shards of clients, as if they were one process with all of them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mapl.clock import Clock
from mapl.cluster.packed import Packed, pack, unpack
from mapl.cluster.shard import Built, Lost, Order, Played
from mapl.errors import warn
from mapl.recipe import Recipe
from mapl.runs.chain import Round
from mapl.runs.checkpoint import Checkpoint
from mapl.runs.graph import Row
from mapl.runs.joined import joined_line, joined_state, share_of_state
from mapl.runs.player import CannotGoOn
from mapl.runs.record import ClientCard
from mapl.runs.refusals import check_alike
from mapl.runs.saving import bytes_tensor

if TYPE_CHECKING:
    from mapl.cluster.crew import Crew  # it imports Ray

TRIES = 3
"""How often something is begun again in vain, before it is an error."""
SHARE = 0.1
"""The share of the time that is spent on keeping states."""


@dataclasses.dataclass(frozen=True)
class Kept:
    """All that is needed to go on after a round, in memory of this process."""

    round: int
    """How many rounds had been played."""
    states: list[Packed]
    """Of each shard."""
    counts: list[tuple[int, int]]
    """The messages and bytes that each shard had counted."""


class Shards:
    """Plays a network that is divided among the processes of a crew.

    After a round it keeps the state of all shards, in the memory of this process. If a shard is lost, a new one takes
    its place, all go back to that state, and what was played since is played again. If keeping takes longer than a
    tenth of a round, as on a GPU, not every round is kept.
    """

    def __init__(self, crew: Crew, recipe: Recipe, order: Order, datas: Sequence[object]) -> None:
        self.recipe = recipe
        self._crew, self._order, self._datas = crew, order, datas
        self._cards: list[ClientCard] = []
        self._round = 0
        self._at = 0
        """The round that the shards play next. After a loss it is an earlier one than the run's."""
        self._furthest = 0
        """The most rounds that the shards had played at any time."""
        self._in_vain = 0
        """How often shards were lost, or a round was interrupted, since there was progress."""
        self._kept: Kept | None = None
        self._rows: dict[int, Row] = {}
        self._attempts = 0
        self._warm = False
        self._since = self._last = self._cost = 0.0
        """Seconds of the rounds since one was kept, of the last round, and of keeping one."""
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
            played = self._played(t)
            everything = time.perf_counter() - start
        self._round = t + 1
        self._since += everything
        self._last = everything
        for one in played:
            _warn(one.warned)
        slowest = max((one.seconds for one in played), key=lambda parts: sum(parts.values()))
        seconds.clear()
        seconds |= slowest
        # Sending states here, and what Ray takes.
        seconds["waiting"] = max(0.0, everything - sum(slowest.values()))
        return joined_line(self._order.held, [one.line for one in played]), seconds

    def rows(self) -> Mapping[int, Row]:
        return self._rows

    def state(self) -> dict[str, Tensor]:
        kept = self._current()
        tensors = joined_state(self._order.held, [unpack(state) for state in kept.states])
        tensors["rounds"] = torch.tensor([kept.round])
        tensors["ledger"] = torch.tensor([sum(column) for column in zip(*kept.counts, strict=True)])
        tensors["recipe"] = bytes_tensor(self.recipe.fingerprint().encode())
        return tensors

    def restore(self, saved: Checkpoint) -> None:
        held = self._order.held
        states = [pack(share_of_state(saved.tensors, held, number)) for number in range(len(held))]
        # A shard's ledger starts with what it is given: the first one's with that of the run.
        messages, size = saved.tensors["ledger"].tolist()
        self._kept = Kept(saved.rounds, states, [(messages, size), *[(0, 0)] * (len(held) - 1)])
        self._round = self._furthest = saved.rounds
        if self._attempts:  # they have played
            self._begin(Lost([]))
        else:
            self._or_begin(self._restore)

    def close(self) -> None:
        self._crew.close()

    # What is kept, and what happens when shards are lost

    def _played(self, t: int) -> list[Played]:
        """A round, played as often as it takes; and before it those that the shards have to play again."""
        while True:
            try:
                while True:
                    played = self._play_next(keep=self._at == t and SHARE * (self._since + self._last) >= self._cost)
                    if self._at > t:
                        return played
            except Lost as lost:
                self._replace(lost, t)

    def _play_next(self, keep: bool) -> list[Played]:
        self._attempts += 1
        answers = self._crew.play(self._at, self._attempts, keep)
        played = [told for told, _ in answers]
        if keep:
            self._keep(self._at + 1, [state for _, state in answers], played)
        self._at += 1
        if self._at > self._furthest:  # to play a round again is no progress: the next one may be lost every time
            self._furthest, self._in_vain = self._at, 0
        for one in played:
            self._rows |= one.rows
        return played

    def _keep(self, round: int, states: Sequence[object], played: Sequence[Played]) -> None:
        start = time.perf_counter()
        counts = [(one.messages, one.bytes) for one in played]
        self._kept = Kept(round, self._crew.fetch(states), counts)
        self._since = 0.0
        self._cost = time.perf_counter() - start + max(one.seconds["state"] for one in played)

    def _current(self) -> Kept:
        """What is kept of the last round."""
        while self._kept is None or self._kept.round != self._round:
            try:
                while self._at < self._round:
                    self._play_next(keep=False)
                told = self._crew.ask_all("state")
                self._kept = Kept(self._round, [state.copy() for state, _ in told], [counts for _, counts in told])
                self._since, self._in_vain = 0.0, 0
            except Lost as lost:
                self._replace(lost, self._round - 1)
        return self._kept

    def _replace(self, lost: Lost, t: int) -> None:
        """Replace shards that were lost in round t. The round is not over."""
        first = self._kept.round if self._kept is not None else 0
        who = f"shard {', '.join(map(str, lost.numbers))} (counted from 0)" if lost.numbers else "no shard"
        self._in_vain += 1
        try:
            if self._in_vain == TRIES:
                raise CannotGoOn(f"round {t + 1} was interrupted {TRIES} times; the last time, {who} was lost")
            if lost.numbers:
                again = "it is played again" if first == t else f"rounds {first + 1} to {t + 1} are played again"
                _warn([f"{who} was lost in round {t + 1}: {again}"])
            self._begin(lost)
        except CannotGoOn:
            self._round = first  # the loop saves what is kept
            raise

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
        check_alike(self.recipe.method.name, sorted(each for one in built for each in one.architectures))
        self._cards = sorted((card for one in built for card in one.cards), key=lambda card: card.id)
        _warn([words for one in built for words in one.warned])
        crew.meet()

    def _restore(self) -> None:
        self._rows, self._at = {}, 0
        if (kept := self._kept) is not None:
            self._crew.ask_all("restore", lambda number: [kept.round, kept.states[number]])
            self._at = kept.round

    def _warm_up(self) -> None:
        if self._warm:
            self._crew.ask_all("warm_up")


def _warn(words: Sequence[str]) -> None:
    for text in dict.fromkeys(words):
        warn(text)
