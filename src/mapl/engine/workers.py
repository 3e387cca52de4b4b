"""Several clients at a time on a CPU, one per thread: torch releases Python's lock while it computes.

A client's arithmetic does not depend on what runs beside it, so the results are equal to the bit for any number of
workers. Clients that read a generator that all threads share would spoil that: they take turns (`generators.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


_processes = 1
"""How many processes like this one share the cores."""


def share_cores(processes: int) -> None:
    """From now on, this process takes its share of the cores, as one of so many."""
    global _processes
    _processes = processes


def cores() -> int:
    """How many cores this process may use."""
    all_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, all_cores // _processes)


_counting = Lock()
_users, _first = 0, 0
"""How many users `torch_threads` has now, and how many threads torch had before the first of them."""


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Inside, torch uses this many threads for an operation; afterwards as many as before.

    The number belongs to the calling thread, but new threads start with the one that was set last. So the last of
    several runs in threads puts back what the first one found.
    """
    global _users, _first
    with _counting:
        before = torch.get_num_threads()
        _first = _first if _users else before
        _users += 1
        torch.set_num_threads(count)
    try:
        yield
    finally:
        with _counting:
            _users -= 1
            torch.set_num_threads(before if _users else _first)


def side_by_side(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    workers: int,
    in_turn: Callable[[Item], bool],
    cost: Callable[[Item], float] = lambda item: 0.0,
) -> list[Result]:
    """The results of `work`, in the order of the items. Items `in_turn` run one after another, in one thread.

    Items with the highest `cost` start first, so that no thread waits long at the end.
    """
    if workers == 1 or len(items) < 2:
        return [work(item) for item in items]
    results: dict[int, Result] = {}

    def chain(places: Iterable[int]) -> None:
        for place in places:
            results[place] = work(items[place])

    turns = [place for place, item in enumerate(items) if in_turn(item)]
    alone = set(turns)
    chains = [turns, *([place] for place in range(len(items)) if place not in alone)]
    longest_first = sorted(filter(None, chains), key=lambda places: -sum(cost(items[place]) for place in places))
    threads = torch.get_num_threads()
    # New threads every time: each is told how many threads torch may use inside an operation.
    with ThreadPoolExecutor(workers, "mapl", torch.set_num_threads, (threads,)) as pool:
        futures: dict[int, Any] = {places[0]: pool.submit(chain, places) for places in longest_first}
        try:
            for place in sorted(futures):  # of several errors, raise the first item's
                futures[place].result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [results[place] for place in range(len(items))]
