"""Carry out a plan, run after run. Each goes into the store as it ends; one that was stopped or killed continues."""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from mapl.data.loading import keeping_data
from mapl.errors import MaplError
from mapl.paper.cost import Rates
from mapl.paper.plan import Work
from mapl.paper.store import Store
from mapl.paper.summary import summarise
from mapl.recipe import Recipe
from mapl.runs.chain import Round
from mapl.runs.files import only_writer
from mapl.runs.folder import RECIPE, load_recipe, write_recipe
from mapl.runs.record import Record
from mapl.runs.run import Observer, resume, run


@dataclass(frozen=True)
class Moment:
    """Where a reproduction is, after a round or at the end of a run."""

    work: Work
    number: int
    """Which of the remaining runs this is, counted from 1."""
    total: int
    """How many runs there are, as far as is known now."""
    round: int
    """Rounds of this run that were played."""
    left: float | None
    """Seconds until all runs are done; None before anything was measured."""
    over: bool = False
    """Whether the run is in the store."""


Watcher = Callable[[Moment], None]


@contextmanager
def opened(out: Path) -> Iterator[Store]:
    """The store of a folder, locked for this process."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MaplError(f"results cannot be written to {str(out)!r} ({error}); choose another --out") from error
    with only_writer(out, "the results in"):
        yield Store(out)


def carry_out(
    works: Sequence[Work],
    store: Store,
    *,
    watch: Watcher = lambda moment: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Run what is not in the store yet, one after another. Returns whether everything is there now.

    `stop` is called after every round, as in `mapl.run`. A run that it ends is saved, and continues the next time.
    """

    def agenda(store: Store, rates: Rates) -> list[Work]:
        return [work for work in works if work.key not in store]

    return follow(agenda, store, watch=watch, stop=stop)


Agenda = Callable[[Store, Rates], Sequence[Work]]
"""What to run now, in order. It is asked before every run, with what earlier ones took."""


def follow(
    agenda: Agenda,
    store: Store,
    *,
    watch: Watcher = lambda moment: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Run the first of the agenda until it is empty. Returns false if `stop` came before that."""
    _sweep(store)
    done, left = 0, agenda(store, Rates())
    rates = Rates.of(store.runs.values(), left[0].recipe) if left else Rates()
    with keeping_data():
        while left := agenda(store, rates):
            if stop():
                return False
            work, progress = left[0], _Progress(done, left, rates, watch)
            record = _run(work, store.running(work.key), progress, stop)
            if not record.finished:
                return False
            stored = summarise(work, record, progress.setup)
            store.add(stored)
            rates.learn(work.recipe, stored.seconds / stored.rounds, stored.setup_seconds)
            progress.tell(stored.rounds, over=True)
            shutil.rmtree(record.folder)
            _free()
            done += 1
    return True


class _Progress:
    """Measures the first run of the agenda, and says how long all of it will take."""

    def __init__(self, done: int, left: Sequence[Work], rates: Rates, watch: Watcher):
        self.done, self.agenda, self.rates, self.watch = done, left, rates, watch
        self.start = time.perf_counter()
        self.played = 0
        self.setup = 0.0

    def __call__(self, recipe: Recipe, line: Round, seconds: dict[str, float]) -> None:
        this = sum(seconds.values())
        if not self.played:
            self.setup = time.perf_counter() - self.start - this
        self.played += 1
        # The first round includes one-time work; a run of one round has no other.
        if self.played == 2 or recipe.rounds == 1:
            self.rates.glimpse(recipe, this, self.setup)
        self.tell(line.round + 1)

    def tell(self, played: int, over: bool = False) -> None:
        this, left = self.agenda[0], None
        if self.rates.known:
            rest = sum(self.rates.estimate(work.recipe) for work in self.agenda[1:])
            left = rest + (0.0 if over else self.rates.estimate(this.recipe, played))
        self.watch(Moment(this, self.done + 1, self.done + len(self.agenda), played, left, over))


def _run(work: Work, folder: Path, observer: Observer, stop: Callable[[], bool]) -> Record:
    """Start a run, or continue it from its checkpoint."""
    if not (folder / RECIPE).exists():
        return run(work.recipe, folder, observers=[observer], stop=stop, overwrite=True)
    if load_recipe(folder).fingerprint() == work.recipe.fingerprint():
        # The same run, but the device or the folder of the data may have changed.
        write_recipe(folder, work.recipe)
    return resume(folder, observers=[observer], stop=stop)


def _sweep(store: Store) -> None:
    """Remove the folders of runs that are in the store, in case a kill came between the two."""
    for folder in store.begun():
        if folder.name in store:
            shutil.rmtree(folder)


def _free() -> None:
    """Free the GPU's memory before the next run asks how much there is."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
