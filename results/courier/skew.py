"""Clients that share all classes, but not evenly: should a courier listen to its kin or to everybody?

    cd results/courier && python skew.py --out runs > skew.md     # twenty minutes on two cores

Digits, and shards from a Dirichlet distribution: the smaller its α, the more uneven. And clusters, where listening to
everybody does harm. Runs that are finished are not run again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from digits import ALONE, COMMON
from numpy.typing import NDArray

from mapl.analysis.compare import Estimate
from mapl.methods._circles import Circles
from mapl.methods.courier import Courier
from mapl.runs.folder import load
from mapl.runs.jobs import Job, carry_out
from mapl.runs.record import Record
from mapl.trees import Tree, merge

FEW: Tree = {"clients": 4, "rounds": 10, "partition": {"scheme": "dirichlet", "alpha": 0.5, "images": 240}}
SETTINGS: dict[str, Tree] = {
    "4 clients, 60 images each on average, Dirichlet(0.5), 10 rounds": FEW,
    "the same, 30 rounds": {**FEW, "rounds": 30},
    "10 clients, Dirichlet(0.3), 45 rounds": {"partition": {"scheme": "dirichlet", "alpha": 0.3}},
    "10 clients, Dirichlet(1), 45 rounds": {"partition": {"scheme": "dirichlet", "alpha": 1.0}},
    "10 clients in two clusters, 45 rounds": {"partition": {"scenario": 1}},
    "10 clients in clusters of 4, 3 and 3, 45 rounds": {"partition": {"scenario": 1, "clusters": 3}},
    "4 clients, two clusters that share four of seven classes, 45 rounds": {"clients": 4, "partition": {"scenario": 2}},
}
ARMS: dict[str, Tree] = {
    "kin": {"method": {"name": "courier"}},
    "everybody": {"method": {"name": "skew:Everybody"}},
    "alone": {"method": {"name": "courier"}, **ALONE},
}
SEEDS = 3


class Everybody(Courier):
    """A courier that is averaged with all that are heard, whoever wrote them."""

    name = "everybody"

    def kin_of(self, circles: Circles, round: int) -> NDArray[np.float64]:
        return np.repeat(1 / circles.sizes, circles.sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/courier-skew"), help="folder for the runs")
    options = parser.parse_args()
    jobs = list(jobs_of(options.out))
    carry_out(jobs)
    runs: dict[str, list[Record]] = {}
    for job in jobs:
        runs.setdefault(job.arm, []).append(load(job.folder))
    print("\n".join(table(runs)))


def jobs_of(out: Path) -> Iterator[Job]:
    for number, (setting, tree) in enumerate(SETTINGS.items()):
        for arm, own in ARMS.items():
            for seed in range(SEEDS):
                name = f"{number}-{arm}-seed{seed}"
                whole = merge(merge(COMMON, tree), {**own, "seed": seed, "name": name, "evaluate": {"every": 1000}})
                yield Job(f"{setting}/{arm}", whole, out / name)


def table(runs: Mapping[str, Sequence[Record]]) -> Iterator[str]:
    yield (
        f"Digits, four backbones, {SEEDS} seeds, tested after mixing. Accuracies of the answers in %; ± is the 95 % "
        "interval over seeds. Kin: how many others a client listens to at the end, on average."
    )
    yield ""
    yield "| setting | alone | kin | everybody | everybody less kin, points | kin |"
    yield "|---|---|---|---|---|---|"
    for setting in SETTINGS:
        arms = {arm: runs[f"{setting}/{arm}"] for arm in ARMS}
        means = {arm: Estimate.of([record.mean for record in records]).text() for arm, records in arms.items()}
        pairs = zip(arms["everybody"], arms["kin"], strict=True)
        more = Estimate.of([a.mean - b.mean for a, b in pairs]).text(sign="+")
        heard = fmean(float((r.weights() > 0).sum()) / len(r.clients) - 1 for r in arms["kin"])
        yield f"| {setting} | {means['alone']} | {means['kin']} | {means['everybody']} | {more} | {heard:.1f} |"


if __name__ == "__main__":
    main()
