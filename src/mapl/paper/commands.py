"""`mapl reproduce`: any table or figure of the paper, run here, beside the published numbers."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mapl.errors import MaplError, warn
from mapl.pace import duration
from mapl.paper.tables import FURTHER, TABLES, cells
from mapl.terminal.interrupt import Interrupt, stopped
from mapl.terminal.messages import say
from mapl.terminal.options import JsonOption, SetOption
from mapl.terminal.progress import progress

if TYPE_CHECKING:
    # What is slow to import is imported where it is used: `mapl --help` imports this module.
    from mapl.paper.carry_out import Moment, Watcher
    from mapl.paper.plan import Work
    from mapl.paper.protocol import Protocol
    from mapl.paper.queue import Queue
    from mapl.paper.statistics import CellResult
    from mapl.paper.store import Store

Words = Annotated[
    list[str] | None,
    typer.Option(help="Only these: scenario=1 (or 1), or another part of a cell's name. With several, any of them."),
]


def reproduce_command(
    table: Annotated[str | None, typer.Argument(help="A table or figure. Without it, list them.")] = None,
    rows: Words = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(help="Only these, axis by axis: CIFAR10,MAPL is that method on that data set."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, starting at 0.")] = 1,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Number of rounds, if not the paper's. Nothing else changes.")
    ] = None,
    budget_minutes: Annotated[
        float | None, typer.Option(min=0, help="Stop after this many minutes; rerun to continue.")
    ] = None,
    scale: Annotated[str, typer.Option(help="Another protocol: smoke, small or modern. Never the paper's.")] = "",
    form: Annotated[
        Literal["balanced", "released", "paper"], typer.Option(help="What MAPL computes (docs/graph.md).")
    ] = "balanced",
    settings: SetOption = None,
    following: Annotated[
        bool, typer.Option("--next", help="No table: run what is worth most next (docs/reproduce.md has the rule).")
    ] = False,
    others: Annotated[
        list[Path] | None, typer.Option("--merge", help="Add the results of another results folder. Repeatable.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("reproduction"),
    plan_only: Annotated[
        bool, typer.Option("--plan", help="Print what would be run and how long it takes; save nothing.")
    ] = False,
    page: Annotated[bool, typer.Option("--page", help="Also write a page with tables and figures.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a table or figure of the paper again: published numbers, ours, and each method's control arm.

    If it was stopped, rerun the command to continue.

    [bold]mapl reproduce res_hetero --scale smoke[/bold]
        tries everything, in minutes
    [bold]mapl reproduce res_hetero --rows 1 --columns CIFAR10 --seeds 3[/bold]
        one column of a scenario
    [bold]mapl reproduce --page[/bold]
        writes a page of the results so far
    [bold]mapl reproduce --next --budget-minutes 25[/bold]
        fills half an hour with what is worth most
    """
    from mapl.paper import complexity
    from mapl.paper.carry_out import opened
    from mapl.paper.plan import plan
    from mapl.paper.protocol import Protocol
    from mapl.paper.store import Store

    if following and (table or rows or columns or seeds != 1 or form != "balanced"):
        raise MaplError(
            "--next chooses cells, seeds and forms itself: give it no table, --rows, --columns, --seeds, --form"
        )
    if others:
        _merge(others, out)
    protocol = Protocol(scale, rounds, tuple(settings or ()), form)
    if following:
        _next(protocol, out, budget_minutes, plan_only, page, as_json)
        return
    if table is None:
        _listing(out, as_json)
        if page:
            _write_page(Store(out))
        return
    wanted, across = _words(rows), _words(columns)
    works = plan(table, protocol, seeds, wanted, across)
    if plan_only:
        _say_plan(works, Store(out), as_json, measured=True)
        return
    with opened(out) as store:
        _say_plan(works, store, as_json)
        if table == "complexity":  # no run: two rounds of letters, without training
            complexity.write(out, complexity.measure())
        end = time.monotonic() + 60 * budget_minutes if budget_minutes is not None else math.inf
        interrupt = Interrupt()
        whole = _carry_out(works, store, end, as_json, interrupt)
        if table in TABLES or table == FURTHER:
            _show(table, store, protocol, wanted, across, as_json)
        elif whole and not page and not as_json:
            drawn = "--page draws it" if not protocol.label else "figures are drawn of the paper's own protocol alone"
            say(f"the runs of figure {table} are in {store.folder}; {drawn}")
        if page:
            _write_page(store)
    if not whole:
        print(stopped("and saved"), file=sys.stderr)
        if time.monotonic() < end:
            sys.exit(interrupt.status)


def _next(
    protocol: Protocol, out: Path, budget_minutes: float | None, plan_only: bool, page: bool, as_json: bool
) -> None:
    """`--next`: run what is worth most, as far as the budget goes."""
    from mapl.paper.carry_out import follow, opened
    from mapl.paper.queue import Queue
    from mapl.paper.store import Store

    queue = Queue(protocol)
    if plan_only:
        _say_stages(queue, Store(out), budget_minutes, as_json)
        return
    end = time.monotonic() + 60 * budget_minutes if budget_minutes is not None else math.inf
    with opened(out) as store:
        _say_stages(queue, store, budget_minutes, as_json)
        interrupt = Interrupt()
        with interrupt, _watching(as_json) as watch:
            agenda = queue.agenda(lambda: end - time.monotonic())
            follow(agenda, store, watch=watch, stop=lambda: interrupt() or time.monotonic() >= end)
        if not as_json:
            _say_filled(store, len(queue.left(store)))
        if page:
            _write_page(store)
    if interrupt():
        print(stopped("and saved"), file=sys.stderr)
        sys.exit(interrupt.status)


def _say_stages(queue: Queue, store: Store, budget_minutes: float | None, as_json: bool) -> None:
    """The steps of the rule, how much of each is done, and what the budget is enough for."""
    from mapl.paper.cost import Rates
    from mapl.paper.queue import fitting

    left = queue.left(store)
    rates = Rates.of(store.runs.values(), left[0].recipe) if left else Rates()
    for number, stage in enumerate(queue.stages(store), 1):
        entry = {"event": "stage", "stage": number, "title": stage.title, "runs": len(stage.works)}
        entry["left"] = len(stage.left(store))
        done = len(stage.works) - len(stage.left(store))
        print(json.dumps(entry) if as_json else f"{number}. {stage.title}: {done} of {len(stage.works)} runs done")
    seconds = sum(rates.estimate(work.recipe) for work in left) if rates.known else None
    fits = [] if budget_minutes is None or not rates.known else fitting(left, store, rates, 60 * budget_minutes)
    if as_json:
        print(json.dumps({"event": "plan", "left": len(left), "seconds": seconds, "fits": [w.title() for w in fits]}))
        return
    when = f", about {duration(seconds)}" if seconds is not None else ", time not known yet"
    print(f"{len(left)} runs with data on this machine to go{when if left else ''}", flush=True)
    if fits:
        print(
            f"of these, about {len(fits)} end in {budget_minutes:g} minutes; the first is {fits[0].title()}", flush=True
        )


def _say_filled(store: Store, left: int) -> None:
    from mapl.paper.statistics import filled

    say(f"{sum(filled(store).values())} of {len(cells())} cells are filled in {store.folder}; {left} runs to go")


def _merge(others: Sequence[Path], out: Path) -> None:
    """`--merge`: add what other stores have."""
    from mapl.paper.carry_out import opened
    from mapl.paper.queue import merge

    with opened(out) as store:
        for folder in others:
            new, different = merge(store, folder)
            say(f"{new} new runs from {folder}", sys.stderr)
            if different:
                warn(f"{different} runs are in {folder} too, with other results: those in {out} are kept")


def _write_page(store: Store) -> None:
    from mapl.paper.page import write_page  # brings the drawing library with it

    for path in write_page(store.folder, store):
        say(f"written: {path}", sys.stderr)


def _words(given: Sequence[str] | None) -> list[str]:
    return [word.strip() for text in given or () for word in text.split(",") if word.strip()]


def _listing(out: Path, as_json: bool) -> None:
    """What can be reproduced, and how much of it has been."""
    from mapl.paper.plan import names
    from mapl.paper.statistics import filled
    from mapl.paper.store import Store

    done = filled(Store(out))
    total = {name: sum(cell.table == name for cell in cells()) for name in TABLES}
    for name, title in names().items():
        entry: dict[str, Any] = {"name": name, "title": title}
        if name in total:
            entry |= {"cells": total[name], "filled": done[name]}
        other = "not the paper's" if name == FURTHER else "figure"
        count = f"{done[name]:>4} of {total[name]} cells" if name in total else f"{other:>17}"
        print(json.dumps(entry) if as_json else f"{name:<12} {count:<17}  {title}")
    if not as_json:
        say(f"{sum(done.values())} of {sum(total.values())} cells of the paper are filled in {out}")


def _say_plan(works: Sequence[Work], store: Store, as_json: bool, measured: bool = False) -> None:
    """How many runs there are, how many are done, and how long the rest takes."""
    from mapl.paper.cost import Rates, measure

    left = [work for work in works if work.key not in store]
    rates = Rates.of(store.runs.values(), left[0].recipe) if left else Rates()
    if left and measured and not rates.known:
        print("measuring two rounds of the first run (not saved)", file=sys.stderr, flush=True)
        try:
            rates = measure(left[0].recipe)
        except MaplError as error:  # data that is not here yet: the plan is as good without
            warn(str(error))
    seconds = sum(rates.estimate(work.recipe) for work in left) if rates.known else None
    if as_json:
        event = {"event": "plan", "runs": len(works), "done": len(works) - len(left), "seconds": seconds}
        print(json.dumps({**event, "left": [work.title() for work in left]} if measured else event), flush=True)
        return
    if measured:
        for work in left:
            print(f"  {work.title()}")
    when = "" if not left else f", about {duration(seconds)}" if seconds is not None else ", time not known yet"
    print(f"{len(works)} runs, {len(works) - len(left)} done, {len(left)} to go{when}", flush=True)


def _carry_out(works: Sequence[Work], store: Store, end: float, as_json: bool, interrupt: Interrupt) -> bool:
    """All runs, or as many as end in time and before Ctrl-C or SIGTERM; whether that was all."""
    from mapl.paper.carry_out import carry_out

    with interrupt, _watching(as_json) as watch:
        return carry_out(works, store, watch=watch, stop=lambda: interrupt() or time.monotonic() >= end)


@contextmanager
def _watching(as_json: bool) -> Iterator[Watcher]:
    if as_json:
        yield _json_line
        return
    with progress(every=30) as show:
        yield lambda moment: show(moment.round, moment.work.recipe.rounds, _where(moment), moment.left)


def _where(moment: Moment) -> str:
    return f"run {moment.number} of {moment.total}: {moment.work.title()}, round {moment.round}"


def _json_line(moment: Moment) -> None:
    event = {"event": "run" if moment.over else "round", "run": moment.number, "runs": moment.total}
    event |= {"cell": moment.work.cell, "control": moment.work.control, "seed": moment.work.recipe.seed}
    print(json.dumps({**event, "round": moment.round, "seconds_left": moment.left}), flush=True)


def _show(
    table: str, store: Store, protocol: Protocol, rows: Sequence[str], columns: Sequence[str], as_json: bool
) -> None:
    from mapl.paper.cell_table import as_json_lines, printed
    from mapl.paper.plan import chosen
    from mapl.paper.statistics import filled, results

    asked = {cell.name for cell in chosen(table, protocol, rows, columns)}
    found: list[CellResult] = [r for r in results(table, store, protocol.label, protocol.form) if r.cell.name in asked]
    for line in as_json_lines(found, protocol.label) if as_json else printed(table, found, protocol.label):
        print(line)
    if not as_json:
        if table == FURTHER:
            return
        done = filled(store)
        say(f"{done[table]} of {sum(c.table == table for c in cells())} cells of {table} are filled in {store.folder}")
