"""What to run next when time on a machine is short: `mapl reproduce --next`.

The rule. Whatever is not in the store yet is run in this order, and each run with its control:

1. A first seed of every cell of res_hetero, data set by data set: CIFAR-10, SVHN, MNIST, FashionMNIST.
2. A second and a third seed of CIFAR-10 in scenarios 1 and 2, all methods.
3. What the released program computes (`--form released`): MAPL on CIFAR-10 in scenarios 1 and 2, three seeds.
4. The courier, its rival without letters and its ceiling (table `further`) in scenarios 1 and 2 with four backbones: a
   first seed in the paper's protocol and in the modern one, with MAPL and Local beside it in the modern one.
5. A second and a third seed of MAPL and of the best other method, wherever the two are close.
6. A first seed of ab1, comm_budget, ab2, cgle and var1.
7. A first seed of res_homo on CIFAR-10.
8. A first seed of all other cells.

Cells whose data are not on this machine are left out. A run that was stopped comes before all others, because part of
it is paid for. With a budget, a run starts only if it should end in time; a shorter one further down may go first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import mapl.data.sources
from mapl.data.published import Published
from mapl.errors import MaplError
from mapl.methods._encoder import SYNTHETIC
from mapl.paper.contests import contest
from mapl.paper.cost import Rates
from mapl.paper.plan import Work, works_of
from mapl.paper.protocol import Protocol
from mapl.paper.statistics import difference
from mapl.paper.store import Store, StoredRun, key_of
from mapl.paper.tables import FURTHER, Cell, cells, table
from mapl.plugins import find
from mapl.recipe import Recipe
from mapl.runs import checkpoint

DATA = ("CIFAR10", "SVHN", "MNIST", "FashionMNIST")
"""The data sets of the paper that can be had, in the order in which they are run. CINIC-10 is not among them."""
SMALLER = ("ab1", "comm_budget", "ab2", "cgle", "var1")
"""The tables after res_hetero, in order."""
CLOSE = 0.02
"""MAPL and another method are close if they differ by at most this much in accuracy."""
MARGIN = 1.1
"""A run is expected to take this many times what was measured, so that one slow run does not break the budget."""


@dataclass(frozen=True)
class Stage:
    """One step of the rule."""

    title: str
    works: list[Work]

    def left(self, store: Store) -> list[Work]:
        return [work for work in self.works if work.key not in store]


class Queue:
    """The rule at one protocol. Recipes are made once, because it is asked before every run."""

    def __init__(self, protocol: Protocol, anywhere: bool = False) -> None:
        """`anywhere`: as if all data sets that can be had were on this machine."""
        self.protocol, self.anywhere = protocol, anywhere
        hetero = [cell for name in DATA for cell in table("res_hetero") if cell.setting["dataset"] == name]
        main = [cell for cell in hetero if cell.setting["dataset"] == "CIFAR10" and cell.setting["scenario"] in (1, 2)]
        released = replace(protocol, form="released")
        homo = [cell for cell in table("res_homo") if cell.setting["dataset"] == "CIFAR10"]
        smaller = [cell for name in SMALLER for cell in table(name)]
        self._before = [
            Stage("a first seed of res_hetero", works_of(hetero, protocol, [0])),
            Stage("three seeds of CIFAR-10, scenarios 1 and 2", works_of(main, protocol, [1, 2])),
            Stage("MAPL as released", works_of([c for c in main if c.method == "MAPL"], released, [0, 1, 2])),
            Stage("a first seed of couriers", self._couriers(hetero)),
        ]
        self._after = [
            Stage(f"a first seed of {', '.join(SMALLER)}", works_of(smaller, protocol, [0])),
            Stage("a first seed of res_homo on CIFAR-10", works_of(homo, protocol, [0])),
            Stage("a first seed of all other cells", works_of(cells(), protocol, [0])),
        ]
        self._keys = {cell: key_of(protocol.of_cell(cell, 0)) for cell in hetero if protocol.covers(cell)}
        self._presence = _Presence()

    def _couriers(self, hetero: Sequence[Cell]) -> list[Work]:
        """Data set by data set, in both protocols. At a scale there is one protocol, that of the scale."""
        modern = [] if self.protocol.scale else [replace(self.protocol, scale="modern")]
        further = [cell for cell in table(FURTHER) if cell.models == "heterogeneous"]
        works = []
        for name in DATA:
            here = [c for c in (*further, *hetero) if c.setting["dataset"] == name and c.setting["scenario"] in (1, 2)]
            couriers = [cell for cell in here if cell.table == FURTHER]
            beside = [cell for cell in here if cell.table != FURTHER and cell.method in ("MAPL", "Local")]
            works += works_of(couriers, self.protocol, [0])
            works += [work for other in modern for work in works_of([*couriers, *beside], other, [0])]
        return works

    def stages(self, store: Store) -> list[Stage]:
        """The steps of the rule in order, each with all of its runs, also those that are done."""
        close = Stage("three seeds where methods are close", works_of(self.close(store), self.protocol, [1, 2]))
        return [*self._before, close, *self._after]

    def close(self, store: Store) -> list[Cell]:
        """MAPL and the best other method of res_hetero, wherever it takes more seeds to tell them apart.

        By the first seed, on all test images, so that further seeds do not change what is asked for.
        """
        groups: dict[tuple[str, ...], dict[Cell, StoredRun]] = {}
        for cell, key in self._keys.items():
            if (run := store.get(key)) and run.all_images:
                groups.setdefault(contest(cell), {})[cell] = run
        found = []
        for group in groups.values():
            ours = [cell for cell in group if cell.method == "MAPL"]
            others = {cell: fmean(run.all_images or ()) for cell, run in group.items() if cell not in ours}
            if ours and others:
                best = max(others, key=others.__getitem__)
                better, _ = difference([group[ours[0]]], [group[best]], "all_images")
                if better is not None and abs(better.mean) <= max(CLOSE, better.interval or 0):
                    found += [ours[0], best]
        return found

    def left(self, store: Store) -> list[Work]:
        """Every run that is not in the store, in the order of the rule. Runs that were begun come first."""
        once: dict[str, Work] = {}
        for stage in self.stages(store):
            for work in stage.left(store):
                if self._has_data(work.recipe):
                    once.setdefault(work.key, work)
        return sorted(once.values(), key=lambda work: not played(store, work))  # the sort is stable

    def _has_data(self, recipe: Recipe) -> bool:
        return recipe.data.name.upper() != "CINIC10" if self.anywhere else self._presence.has_all(recipe)

    def agenda(self, seconds_left: Callable[[], float]) -> Callable[[Store, Rates], Sequence[Work]]:
        """What `carry_out.follow` asks for: what is worth most now, and fits into the time that is left."""
        return lambda store, rates: fitting(self.left(store), store, rates, seconds_left())


def fitting(works: Iterable[Work], store: Store, rates: Rates, seconds: float) -> list[Work]:
    """Those that end in this time, one after another. As long as nothing was measured, all of them."""
    if not rates.known:
        return list(works) if seconds > 0 else []
    chosen = []
    for work in works:
        cost = MARGIN * rates.estimate(work.recipe, played(store, work))
        if cost <= seconds:
            chosen.append(work)
            seconds -= cost
    return chosen


def played(store: Store, work: Work) -> int:
    """The rounds of a run that need not be played again, because a checkpoint has them."""
    return checkpoint.newest(store.running(work.key))


def merge(store: Store, folder: Path) -> tuple[int, int]:
    """Add the runs of another store. Returns how many are new, and how many are in both with other results.

    Of those, ours are kept.
    """
    if not list(folder.glob("*.jsonl")):
        raise MaplError(f"{str(folder)!r} is not a results store: it has no .jsonl file")
    new = different = 0
    for key, run in Store(folder).runs.items():
        ours = store.get(key)
        if ours is None:
            store.add(run)
            new += 1
        else:
            different += ours.accuracy != run.accuracy
    return new, different


class _Presence:
    """Which data sets are on this machine; every file is looked for once."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, Path], bool] = {}

    def has_all(self, recipe: Recipe) -> bool:
        """The clients' data set, and that of the encoder of FLT."""
        names = (recipe.data.name, getattr(recipe.method, "encoder_data", None))
        return all(self._has(name, recipe.data.root()) for name in names if name)

    def _has(self, name: str, folder: Path) -> bool:
        if (name, folder) not in self.known:
            # FLT's encoder may learn from made-up images, which are no data set.
            source = None if name == SYNTHETIC else find("data set", name, mapl.data.sources)
            published: Published | None = getattr(source, "published", None)
            self.known[name, folder] = published is None or not published.missing(folder)
        return self.known[name, folder]
