"""`mapl demo`: couriers and MAPL on real handwritten digits, each against its own control, in a few minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from mapl.cli.compare import compared, print_tables
from mapl.cli.sweep import train
from mapl.terminal.messages import say

if TYPE_CHECKING:
    from mapl.runs.jobs import Job
    from mapl.runs.record import Record
    from mapl.trees import Tree

CONTROL: Tree = {"network": {"topology": {"name": "none"}}}
ONE_BACKBONE: Tree = {"model": {"backbones": ["cnn"]}}

ARMS: dict[str, Tree] = {
    "local": {"method": "local"},
    "mapl-alone": {"method": "mapl", **CONTROL},
    "mapl": {"method": "mapl"},
    "courier-alone": {"method": "courier", **CONTROL},
    "mutual": {"method": "mutual"},
    "courier": {"method": "courier"},
    "one-backbone-alone": {"method": "mapl", **CONTROL, **ONE_BACKBONE},
    "one-backbone-mapl+": {"method": "mapl+", **ONE_BACKBONE},
}
"""What is compared. Unless it says otherwise, an arm has four backbones, dealt to the clients in turn."""

# Clients would use the model that they have after the round, so that is the one to test. Images of 8×8 pixels are too
# small to gain from a GPU, and there is already one process per core.
COMMON: Tree = {"data": "digits", "evaluate": {"moment": "mixed"}, "engine": {"device": "cpu", "workers": 1}}
QUICK: Tree = {"rounds": 12}


def demo(
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds per arm. Default: 5; with --quick, 2.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the runs and the report. Default: runs/demo; with --quick, runs/demo-quick."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few rounds, two seeds: only to see that it works.")] = False,
) -> None:
    """See clients learn from each other: ten of them, four architectures, handwritten digits, about five minutes.

    Trains couriers, MAPL and MAPL+ with their control arms and Local, prints what
    letters add, and writes a report. After Ctrl-C, rerun the command to
    continue: finished runs are not repeated.

    [bold]mapl demo[/bold]             five seeds: enough to say what letters add
    [bold]mapl demo --quick[/bold]     two seeds, few rounds: only to see that it works
    """
    seeds = seeds or (2 if quick else 5)
    # In folders of their own: the full demo cannot use the short runs of --quick.
    out = out or Path("runs/demo-quick" if quick else "runs/demo")
    say(f"{len(ARMS)} arms × {seeds} seeds on handwritten digits, in {out}; Ctrl-C stops; rerun to continue")
    from mapl.runs.folder import load  # brings torch, which takes seconds

    jobs = _jobs(out, seeds, quick)
    train(jobs)
    runs = {name: [load(job.folder) for job in jobs if job.arm == name] for name in ARMS}
    records = [record for arm in runs.values() for record in arm]
    print_tables(*compared(records))
    findings = [_no_findings()] if quick else list(_findings(runs))
    for finding in findings:
        Console(soft_wrap=True, highlight=False).print(f"• {finding}")
    from mapl.report import write_report  # brings the plotting library, which nothing needs before

    page = write_report(
        records, out / "report", title="Ten clients and handwritten digits", introduction="\n\n".join(findings)
    )
    say(f"report: {page}")


def _jobs(out: Path, seeds: int, quick: bool) -> list[Job]:
    from mapl.runs.jobs import Job
    from mapl.trees import merge

    over = QUICK if quick else {}
    jobs = []
    for seed in range(seeds):
        for arm, tree in ARMS.items():
            name = f"{arm}-seed{seed}"
            warmup = {"method": {"warmup": 4}} if quick and str(tree["method"]).startswith("mapl") else {}
            recipe_tree = {"seed": seed, "name": name}
            for layer in (COMMON, over, {**tree, "method": {"name": tree["method"]}}, warmup):
                recipe_tree = merge(recipe_tree, layer)
            jobs.append(Job(arm, recipe_tree, out / name))
    return jobs


def _no_findings() -> str:
    """Not even a ranking: after a few rounds the arms may be in another order than at the end."""
    from mapl.recipe import compose

    rounds = compose(("demo", COMMON))[0].rounds
    return (
        f"{QUICK['rounds']} of {rounds} rounds only show that everything works. "
        "Run the demo without --quick to see what letters add."
    )


def _findings(runs: dict[str, list[Record]]) -> Iterator[str]:
    """What letters add, in plain words, also where they add nothing."""
    courier, mapl = runs["courier"], runs["mapl"]
    yield "The courier's letters: " + _verdict(courier, runs["courier-alone"])
    yield "What that does for the own networks alone, which never leave home: " + _verdict(
        courier, runs["courier-alone"], lambda run: run.ways["own"]
    )
    yield (
        "The answers compared with the best training without letters that we know (own network and courier learn from "
        "each other at home): " + _verdict(courier, runs["mutual"])
    )
    yield "Nobody is told who belongs together. " + _found(courier)
    yield "MAPL's letters (prototypes): " + _verdict(mapl, runs["mapl-alone"]) + " " + _found(mapl)
    yield (
        "MAPL's losses on two views per image, without letters, versus plain local training: "
        + _verdict(runs["mapl-alone"], runs["local"])
    )
    yield (
        "MAPL+ with the same backbone for all, so that backbones can be mixed: "
        + _verdict(runs["one-backbone-mapl+"], runs["one-backbone-alone"])
    )


def _found(runs: Sequence[Record]) -> str:
    """How well the clients of an arm found their clusters."""
    from mapl.analysis.clusters import share_by_chance
    from mapl.analysis.compare import compare

    inside = compare(runs)[0].inside or 0.0
    chance = share_by_chance([c.cluster for c in runs[0].clients]) or 0.0
    return (
        f"Clients give {100 * inside:.0f} % of their weight for others to clients of their own cluster "
        f"({100 * chance:.0f} % by chance), and send {_saved(runs):.0f} % fewer messages than a full mesh."
    )


def _verdict(
    ours: Sequence[Record], theirs: Sequence[Record], number: Callable[[Record], float] = lambda run: run.mean
) -> str:
    """The difference in words, paired by seed: same data, same initial weights."""
    from mapl.analysis.compare import Estimate
    from mapl.analysis.paired import verdict

    gain = Estimate.of([number(a) - number(b) for a, b in zip(ours, theirs, strict=True)])
    return f"{gain.text(sign='+')} points of accuracy: {verdict(gain, len(ours))}."


def _saved(runs: Sequence[Record]) -> float:
    """The percentage of a full mesh's messages that were not sent."""
    full = [len(r.clients) * (len(r.clients) - 1) * len(r.rounds) for r in runs]
    return 100 * (1 - fmean(r.messages / n for r, n in zip(runs, full, strict=True)))
