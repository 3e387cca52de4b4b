"""Many runs at once: one process per core, or one after another on a GPU. Finished ones stay, stopped ones resume."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from pathlib import Path

import torch

from mapl.engine.workers import cores, share_cores
from mapl.errors import MaplError, hand_over_warnings, warn
from mapl.recipe import Recipe, compose
from mapl.runs import checkpoint
from mapl.runs.folder import HISTORY, RECIPE, load, load_recipe
from mapl.runs.part import with_digests
from mapl.runs.run import resume, run
from mapl.trees import Tree

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Watcher = Callable[[int, int], None]
"""Called about twice a second with the rounds done by all jobs, and their total."""


@dataclass(frozen=True)
class Job:
    """One run: its arm, its recipe as a tree, and its folder."""

    arm: str
    tree: Tree
    folder: Path

    def recipe(self) -> Recipe:
        return compose((self.arm, self.tree))[0]


def carry_out(
    jobs: Sequence[Job],
    *,
    stop: Callable[[], bool] = lambda: False,
    watch: Watcher = lambda done, total: None,
) -> bool:
    """Run all jobs, as many at a time as the machine has cores. Returns whether all of them are finished.

    On a GPU they run one after another, because one run fills it.

    Once `stop` returns true or a job fails, no new job starts, and the running ones finish their round and save. Then
    the error of a failed job is raised. Any exception in this process, such as KeyboardInterrupt, kills the running
    jobs at once. Each resumes from its last checkpoint the next time.
    """
    for job in jobs:
        _check_folder(job)
    left = [job for job in jobs if not is_done(job)]
    if not left:
        return True
    futures = _in_processes(left, stop, watch)
    finished = [_outcome(job, future) for job, future in zip(left, futures, strict=True)]
    return all(finished)


def _outcome(job: Job, future: Future[bool]) -> bool:
    """Whether a job's run is finished. Its error says which run it is about: there may be dozens."""
    if error := future.exception():
        error.add_note(f"in the run {job.folder}")
    return future.result()


def is_done(job: Job) -> bool:
    """Whether its run is in its folder, finished.

    One that was killed between its last round and its last checkpoint is not: its models are missing. If there is no
    folder of checkpoints, somebody has removed it.
    """
    if not (job.folder / RECIPE).exists():
        return False
    record = load(job.folder)
    has_models = checkpoint.newest(job.folder) >= len(record.rounds) or not (job.folder / checkpoint.FOLDER).exists()
    return record.finished and has_models


def _check_folder(job: Job) -> None:
    """Refuse a run of another recipe before anything is trained, not when the job's turn comes."""
    wanted = with_digests(job.recipe())  # first: it names the code that a run may use
    if not (job.folder / RECIPE).exists():
        return
    existing = load_recipe(job.folder)
    if (existing.fingerprint(), existing.rounds) != (wanted.fingerprint(), wanted.rounds):
        raise MaplError(f"{str(job.folder)!r} is a run of another recipe: choose another folder, or remove it")


def _in_processes(jobs: Sequence[Job], stop: Callable[[], bool], watch: Watcher) -> list[Future[bool]]:
    """Every job's future, completed: whether its run is finished, or its error."""
    # A spawned process has no threads. A forked one would have copies of ours, with their locks held.
    context = multiprocessing.get_context("spawn")
    stopping, said, before = context.Event(), context.SimpleQueue(), set[str]()
    others = set(multiprocessing.active_children())
    processes = _side_by_side(jobs)
    pool = ProcessPoolExecutor(processes, context, _begin, (stopping, said, processes))
    try:
        with _signals_held_back():
            futures = [pool.submit(_carry_out, job) for job in jobs]
        total = sum(job.recipe().rounds for job in jobs)
        watch(_rounds_done(jobs), total)
        while wait(futures, timeout=0.5).not_done:
            if stop() or any(future.done() and future.exception() for future in futures):
                stopping.set()
            watch(_rounds_done(jobs), total)
            _say_again(said, before)
        watch(_rounds_done(jobs), total)
        _say_again(said, before)
        for future in futures:
            if isinstance(error := future.exception(), BrokenProcessPool):
                raise error  # the pool now asks the other workers to end with SIGTERM, which they ignore
        pool.shutdown()
    except BaseException:
        # Nobody waits for the runs any more, and what they have written is whole whenever they are killed.
        with _signals_ignored():
            for worker in set(multiprocessing.active_children()) - others:
                worker.kill()
            pool.shutdown()
        raise
    return futures


def _say_again(said: SimpleQueue[str], before: set[str]) -> None:
    """Warn of what workers have warned of. All of them may say the same, about this machine, which is said once."""
    while not said.empty():
        if (text := said.get()) not in before:
            before.add(text)
            warn(text)


def _side_by_side(jobs: Sequence[Job]) -> int:
    """How many processes there are."""
    devices = {job.recipe().engine.device for job in jobs}
    on_gpu = "cuda" in devices or ("auto" in devices and torch.cuda.is_available())
    return 1 if on_gpu else min(cores(), len(jobs))


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM for this process, and block them in the processes started meanwhile.

    A terminal or a batch system sends them to all, and workers spend seconds on imports before they can ignore them.
    """
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """Used while the workers are killed: one left alive would keep this process from ending."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_stopping: Event
"""In a worker: whether to stop. An event can be passed to a process only when it starts, not with a job."""


def _begin(stopping: Event, said: SimpleQueue[str], processes: int) -> None:
    """Set up a worker, one of so many, before its first job."""
    global _stopping
    _stopping = stopping
    hand_over_warnings(said.put)
    share_cores(processes)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    for number in STOP_SIGNALS:
        signal.signal(number, _leave_it_to_the_parent)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _end_with_the_parent() -> None:
    """A parent that was killed cannot tell its workers, which would go on, and lock the folders of their runs."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _leave_it_to_the_parent(number: int, frame: object) -> None:
    """The parent decides when to stop, as long as there is one."""
    parent = multiprocessing.parent_process()
    if parent is None or not parent.is_alive():
        os._exit(128 + number)


def _carry_out(job: Job) -> bool:
    # Checked here: a pool hands out jobs ahead of time, and those cannot be cancelled.
    if _stopping.is_set():
        return False
    recipe = job.recipe()  # names, in this process, the code that the run may import
    if not (job.folder / RECIPE).exists():
        return run(recipe, job.folder, overwrite=True, stop=_stopping.is_set).finished
    return is_done(job) or resume(job.folder, stop=_stopping.is_set).finished


def _rounds_done(jobs: Sequence[Job]) -> int:
    """Counted in the histories of the runs."""
    return sum(_lines(job.folder / HISTORY) for job in jobs)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
