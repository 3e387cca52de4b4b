"""Many runs at once, a process for each core: what is finished is left alone, what was stopped goes on."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mapl.errors import MaplError
from mapl.history import HISTORY, RECIPE, load
from mapl.recipe import Tree, compose
from mapl.run import resume, run


@dataclass(frozen=True)
class Job:
    """One run: the recipe's tree, the arm that it belongs to, and its folder."""

    arm: str
    tree: Tree
    folder: Path


def carry_out(jobs: Sequence[Job]) -> None:
    """Run all jobs, a process for each core. What is finished already is left alone."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # A fresh process has no threads that a fork could tear apart.
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(min(cores, len(jobs)), context) as pool,
        _watching(jobs) as watch,
    ):
        futures = [pool.submit(_carry_out, job) for job in jobs]
        try:
            watch(futures)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        for future in futures:
            future.result()


def _carry_out(job: Job) -> None:
    recipe, _ = compose((job.arm, job.tree))
    if not (job.folder / RECIPE).exists():
        run(recipe, job.folder, overwrite=True)
    elif (record := load(job.folder)).recipe != recipe:
        raise MaplError(f"{str(job.folder)!r} is a run of another recipe: choose another --out, or remove it")
    elif not record.finished:
        resume(job.folder)


@contextmanager
def _watching(jobs: Sequence[Job]) -> Iterator[Watch]:
    """Show how many rounds of all jobs are done, read off their histories."""
    total = sum(compose((job.arm, job.tree))[0].rounds for job in jobs)
    columns = (TextColumn("training"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("left"))
    with Progress(*columns, TimeRemainingColumn(), disable=not sys.stdout.isatty()) as bar:
        yield Watch(jobs, bar, total)


class Watch:
    """Waits for the runs and shows how far they are."""

    def __init__(self, jobs: Sequence[Job], bar: Progress, total: int):
        self.jobs = jobs
        self.bar = bar
        self.total = total
        self.task = bar.add_task("training", total=total)

    def __call__(self, futures: Sequence[Future[None]]) -> None:
        start, said = time.monotonic(), 0.0
        before = sum(_lines(job.folder / HISTORY) for job in self.jobs)
        while not all(future.done() for future in futures):
            if any(future.done() and future.exception() for future in futures):
                return
            done = sum(_lines(job.folder / HISTORY) for job in self.jobs)
            self.bar.update(self.task, completed=done)
            elapsed = time.monotonic() - start
            if self.bar.disable and elapsed - said > 30 and done > before:
                said = elapsed
                left = elapsed / (done - before) * (self.total - done)
                print(f"{100 * done // self.total} % done, about {left:.0f} s left", file=sys.stderr, flush=True)
            time.sleep(0.5)
        self.bar.update(self.task, completed=self.total)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
