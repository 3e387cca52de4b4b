"""Many runs at once, a process for each core: what is finished is left alone, what was stopped goes on."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NoReturn

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mapl.cli.progress import Interrupt
from mapl.engine.workers import cores
from mapl.errors import MaplError
from mapl.recipe import Recipe, Tree, compose
from mapl.runs.history import HISTORY, RECIPE, load, load_recipe
from mapl.runs.run import resume, run


@dataclass(frozen=True)
class Job:
    """One run: the recipe's tree, the arm that it belongs to, and its folder."""

    arm: str
    tree: Tree
    folder: Path

    def recipe(self) -> Recipe:
        return compose((self.arm, self.tree))[0]


def carry_out(jobs: Sequence[Job]) -> None:
    """Run all jobs, a process for each core. What is finished already is left alone.

    Ctrl-C lets the running ones finish their round and save, begins no other, and exits with status 130; a second
    Ctrl-C ends them at once.
    """
    for job in jobs:
        _check_place(job)
    try:
        with Interrupt() as interrupt:
            futures = _in_processes(jobs, interrupt)
    except KeyboardInterrupt:
        _leave("stopped at once; the same command goes on from the last checkpoints")
    for future in futures:
        future.result()
    if interrupt():
        _leave("stopped and saved; the same command goes on from here")


def _check_place(job: Job) -> None:
    """Said before anything is trained, not when the job's turn comes."""
    if (job.folder / RECIPE).exists() and load_recipe(job.folder) != job.recipe():
        raise MaplError(f"{str(job.folder)!r} is a run of another recipe: choose another --out, or remove it")


def _leave(words: str) -> NoReturn:
    # One more Ctrl-C would change nothing but print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print(words, file=sys.stderr, flush=True)
    sys.exit(130)


def _in_processes(jobs: Sequence[Job], interrupt: Callable[[], bool]) -> list[Future[None]]:
    """Every job's future, done: with its run, its error, or nothing where Ctrl-C came first."""
    # A fresh process has no threads that a fork could tear apart.
    context = multiprocessing.get_context("spawn")
    stop, others = context.Event(), set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(min(cores(), len(jobs)), context, _begin, (stop,))
    try:
        with _watching(jobs) as watch:
            with _ctrl_c_held_back():
                futures = [pool.submit(_carry_out, job) for job in jobs]
            watch(futures, interrupt, stop)
        pool.shutdown()
    except BaseException:
        # The second Ctrl-C, or a bug: nobody waits for the runs any more. What they wrote is whole whenever they end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for worker in set(multiprocessing.active_children()) - others:
            worker.kill()
        pool.shutdown()
        raise
    return futures


@contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """Ctrl-C reaches us a moment later, and processes that are started meanwhile never.

    A terminal sends it to them as well, and seconds pass before they have imported what tells them to ignore it.
    """
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_stop: Event
"""In a worker: whether to stop. It can be handed to a process only when that begins, not with each job."""


def _begin(stop: Event) -> None:
    """The first thing that a worker does."""
    global _stop
    _stop = stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whether to stop is for the parent to say


def _carry_out(job: Job) -> None:
    # Asked here, because a pool hands out jobs ahead of time and those cannot be cancelled.
    if _stop.is_set():
        return
    if not (job.folder / RECIPE).exists():
        run(job.recipe(), job.folder, overwrite=True, stop=_stop.is_set)
    elif not load(job.folder).finished:
        resume(job.folder, stop=_stop.is_set)


@contextmanager
def _watching(jobs: Sequence[Job]) -> Iterator[Watch]:
    """Show how many rounds of all jobs are done, read off their histories."""
    total = sum(job.recipe().rounds for job in jobs)
    columns = (TextColumn("training"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("left"))
    with Progress(*columns, TimeRemainingColumn(), disable=not sys.stdout.isatty()) as bar:
        yield Watch(jobs, bar, total)


class Watch:
    """Waits for the runs, shows how far they are, and has all of them stopped after Ctrl-C or when one failed."""

    def __init__(self, jobs: Sequence[Job], bar: Progress, total: int):
        self.jobs = jobs
        self.bar = bar
        self.total = total
        self.task = bar.add_task("training", total=total)
        self.start, self.said = time.monotonic(), 0.0
        self.before = self._done()

    def __call__(self, futures: Sequence[Future[None]], interrupt: Callable[[], bool], stop: Event) -> None:
        while wait(futures, timeout=0.5).not_done:
            if interrupt() or any(future.done() and future.exception() for future in futures):
                stop.set()
            self._show()
        self._show()

    def _show(self) -> None:
        done, elapsed = self._done(), time.monotonic() - self.start
        self.bar.update(self.task, completed=done)
        if self.bar.disable and elapsed - self.said > 30 and self.before < done < self.total:
            self.said = elapsed
            left = elapsed / (done - self.before) * (self.total - done)
            print(f"{100 * done // self.total} % done, about {left:.0f} s left", file=sys.stderr, flush=True)

    def _done(self) -> int:
        return sum(_lines(job.folder / HISTORY) for job in self.jobs)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
