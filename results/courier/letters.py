"""Accuracy against bytes: couriers in smaller letters, and in fewer, on digits.

    cd results/courier && python letters.py --out runs --plot letters.png > letters.md

Two clusters, four backbones, three seeds. The table and the picture are made from the runs; runs that are finished are
not run again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from digits import COMMON

from mapl.analysis.compare import Estimate
from mapl.runs.folder import load
from mapl.runs.jobs import Job, carry_out
from mapl.runs.record import Record
from mapl.trees import merge

KINDS = {"none": "float32", "bfloat16": "bfloat16", "int8": "int8", "top-k": "top-k, 5 %"}
EVERY = (1, 2, 5)
SEEDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/courier-letters"), help="folder for the runs")
    parser.add_argument("--plot", type=Path, help="where to draw the picture")
    options = parser.parse_args()
    jobs = list(jobs_of(options.out))
    carry_out(jobs)
    runs: dict[tuple[str, int], list[Record]] = {}
    for job in jobs:
        kind, _, every = job.arm.partition("/")
        runs.setdefault((kind, int(every)), []).append(load(job.folder))
    print("\n".join(table(runs)))
    if options.plot:
        draw(runs, options.plot)


def jobs_of(out: Path) -> Iterator[Job]:
    for seed in range(SEEDS):
        for kind in KINDS:
            for every in EVERY:
                name = f"{kind}-{every}-seed{seed}"
                own = {
                    "method": {"name": "courier", "every": every},
                    "network": {"compress": {"kind": kind}},
                    "seed": seed,
                    "name": name,
                }
                yield Job(f"{kind}/{every}", merge(COMMON, own), out / name)


def table(runs: dict[tuple[str, int], list[Record]]) -> Iterator[str]:
    first = runs["none", 1]
    yield (
        f"{SEEDS} seeds, {first[0].recipe.rounds} rounds. ± is the 95 % interval over seeds. Costs: accuracy less that "
        "of float32 letters every round."
    )
    yield ""
    yield "| letters | every | answers, % | costs, points | messages | MB | times fewer bytes |"
    yield "|---|---|---|---|---|---|---|"
    for (kind, every), records in runs.items():
        costs = Estimate.of([a.mean - b.mean for a, b in zip(records, first, strict=True)])
        size = fmean(r.bytes for r in records)
        cells = (
            KINDS[kind],
            f"{every} round{'s' if every > 1 else ''}",
            Estimate.of([r.mean for r in records]).text(),
            "" if records is first else costs.text(sign="+"),
            f"{fmean(r.messages for r in records):,.0f}",
            f"{size / 1e6:,.0f}",
            f"{fmean(r.bytes for r in first) / size:.1f}",
        )
        yield f"| {' | '.join(cells)} |"


def draw(runs: dict[tuple[str, int], list[Record]], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for kind, label in KINDS.items():
        sizes = [fmean(r.bytes for r in runs[kind, every]) / 1e6 for every in EVERY]
        answers = [100 * fmean(r.mean for r in runs[kind, every]) for every in EVERY]
        axes.plot(sizes, answers, "o-", label=label)
        for size, answer, every in zip(sizes, answers, EVERY, strict=True):
            axes.annotate(f"{every}", (size, answer), textcoords="offset points", xytext=(4, 5), fontsize=8)
    axes.set(xscale="log", xlabel="MB sent in the whole run", ylabel="answers, %")
    axes.set_title("A number is the rounds between letters", fontsize=10)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
