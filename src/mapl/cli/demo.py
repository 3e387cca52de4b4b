"""`mapl demo`: every part of MAPL on real handwritten digits, each against its own control, in a few minutes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from rich.console import Console

from mapl.analysis.clusters import share_by_chance
from mapl.analysis.compare import Estimate, compare
from mapl.cli.look import print_table
from mapl.recipe import Tree, compose, merge
from mapl.runs.history import Record, load
from mapl.runs.jobs import Job, carry_out

CONTROL: Tree = {"network": {"topology": {"name": "none"}}}
ONE_BACKBONE: Tree = {"model": {"backbones": ["cnn"]}}

ARMS: dict[str, Tree] = {
    "local": {"method": "local"},
    "mapl-alone": merge({"method": "mapl"}, CONTROL),
    "mapl": {"method": "mapl"},
    "mapl+": {"method": "mapl+"},
    "one-backbone-alone": merge(merge({"method": "mapl"}, CONTROL), ONE_BACKBONE),
    "one-backbone-mapl+": merge({"method": "mapl+"}, ONE_BACKBONE),
}
"""What is compared. A mixed network where nothing else is said: four backbones in turn."""

# What a client would use is the model it has after the round, mixed or not. Images of 8×8 pixels are nothing for a GPU,
# and there is a process for each core already.
COMMON: Tree = {"data": "digits", "evaluate": {"moment": "mixed"}, "engine": {"device": "cpu", "workers": 1}}
QUICK: Tree = {"rounds": 12}


def demo(
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds each arm is run with.", show_default="3; --quick: 2")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the runs and the report.", show_default="runs/demo; --quick: runs/demo-quick"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few rounds and two seeds: to see that all works.")] = False,
) -> None:
    """See MAPL work: ten clients, four kinds of network, handwritten digits, in a few minutes.

    Trains MAPL, MAPL+ and Local, each with its control arm, says what each part adds, and draws it all in a report.
    Runs that are finished are not run again; those that were stopped go on.
    """
    seeds = seeds or (2 if quick else 3)
    # Runs of other lengths: those of --quick are of no use to the whole demo.
    out = out or Path("runs/demo-quick" if quick else "runs/demo")
    jobs = _jobs(out, seeds, quick)
    print(f"{len(ARMS)} arms × {seeds} seeds on handwritten digits, in {out}", flush=True)
    carry_out(jobs)
    runs = {name: [load(job.folder) for job in jobs if job.arm == name] for name in ARMS}
    records = [record for arm in runs.values() for record in arm]
    print_table(compare(records))
    findings = [_no_findings()] if quick else list(_findings(runs))
    for finding in findings:
        Console(soft_wrap=True, highlight=False).print(f"• {finding}")
    from mapl.report import write_report  # plotting is slow to import, and not needed until here

    page = write_report(records, out / "report", title="MAPL on handwritten digits", introduction="\n\n".join(findings))
    print(f"report: {page}")


def _jobs(out: Path, seeds: int, quick: bool) -> list[Job]:
    over = QUICK if quick else {}
    jobs = []
    for seed in range(seeds):
        for arm, tree in ARMS.items():
            name = f"{arm}-seed{seed}"
            warmup = {"method": {"warmup": 4}} if quick and arm != "local" else {}
            whole = {"seed": seed, "name": name}
            for layer in (COMMON, over, {**tree, "method": {"name": tree["method"]}}, warmup):
                whole = merge(whole, layer)
            jobs.append(Job(arm, whole, out / name))
    return jobs


def _no_findings() -> str:
    """After a few rounds the arms may well be in another order than at the end."""
    whole = compose(("demo", COMMON))[0].rounds
    return (
        f"{QUICK['rounds']} rounds of {whole} only show that it works: "
        "what each part of MAPL adds is found out without --quick."
    )


def _findings(runs: dict[str, list[Record]]) -> Iterator[str]:
    """What each part adds, in plain words, also where it adds nothing."""
    mapl, plus = runs["mapl"], runs["mapl+"]
    yield (
        "Two views and MAPL's losses, without any letter, against plain local training: "
        + _verdict(_difference(runs["mapl-alone"], runs["local"]))
    )
    yield "MAPL's letters (prototypes): " + _verdict(_difference(mapl, runs["mapl-alone"]))
    inside = compare(mapl)[0].inside or 0.0
    chance = share_by_chance([c.cluster for c in mapl[0].clients]) or 0.0
    yield (
        f"MAPL's graph: clients that never saw each other's data put {100 * inside:.0f} % of the weight they give to "
        f"others inside the true clusters ({100 * chance:.0f} % by chance), and the network sends {_saved(mapl):.0f} % "
        "fewer messages than the full mesh."
    )
    yield (
        f"MAPL+ in the mixed network ({_matches(plus[0])} of {len(plus[0].clients)} clients share their cluster with a "
        "client of the same architecture, so few weights can be exchanged): "
        + _verdict(_difference(plus, runs["mapl-alone"]))
    )
    yield (
        "MAPL+ where all have the same backbone, so that all weights are mixed: "
        + _verdict(_difference(runs["one-backbone-mapl+"], runs["one-backbone-alone"]))
    )


def _difference(ours: Sequence[Record], theirs: Sequence[Record]) -> Estimate:
    """Paired by seed: same shards, same first weights."""
    return Estimate.of([a.mean - b.mean for a, b in zip(ours, theirs, strict=True)])


def _verdict(gain: Estimate) -> str:
    points = f"{gain.text(sign='+')} points of accuracy"
    if gain.interval is None:
        return f"{points}, from one seed: no claim."
    if abs(gain.mean) <= gain.interval:
        return f"{points}: no difference that these seeds can show."
    return f"{points}: {'a gain' if gain.mean > 0 else 'a loss'} that the 95 % interval confirms."


def _saved(runs: Sequence[Record]) -> float:
    """Percentage of the full mesh's messages that were not sent."""
    full = [len(r.clients) * (len(r.clients) - 1) * len(r.rounds) for r in runs]
    return 100 * (1 - fmean(r.messages / n for r, n in zip(runs, full, strict=True)))


def _matches(record: Record) -> int:
    """How many clients have another of the same backbone in their cluster."""
    kinds = [(c.cluster, c.backbone) for c in record.clients]
    return sum(kinds.count(kind) > 1 for kind in kinds)
