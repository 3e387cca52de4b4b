"""Does anybody lose by listening? The courier on digits, in networks of several shapes, five seeds each.

    python results/courier/digits.py --out runs/courier-digits > results/courier/digits.md

Every setting has the courier, its control (the same training without letters) and mutual learning at home, the best
training without letters that we know. The table is written from the runs; runs that are finished are not run again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from mapl.analysis.clusters import share_inside
from mapl.analysis.compare import Estimate
from mapl.runs.folder import load
from mapl.runs.jobs import Job, carry_out
from mapl.runs.record import Record
from mapl.trees import Tree, merge

SETTINGS: dict[str, Tree] = {
    "two clusters": {"scenario": 1},
    "two clusters that share four of seven classes": {"scenario": 2},
    "two clusters, unequal shards": {"scenario": 3},
    "three clusters of 4, 3 and 3": {"scenario": 1, "clusters": 3},
    "three clusters of 6, 3 and 1": {"scenario": 1, "clusters": 3, "sizes": [6, 3, 1]},
    "two clusters of 4, two clients alone": {"scenario": 1, "clusters": 4, "sizes": [4, 4, 1, 1]},
    "no clusters, Dirichlet(0.3)": {"scheme": "dirichlet", "alpha": 0.3},
}
ALONE: Tree = {"network": {"topology": {"name": "none"}}}
ARMS: dict[str, Tree] = {
    "courier": {"method": {"name": "courier"}},
    "alone": {"method": {"name": "courier"}, **ALONE},
    "mutual": {"method": {"name": "mutual"}},
}
COMMON: Tree = {"data": "digits", "evaluate": {"moment": "mixed"}, "engine": {"device": "cpu", "workers": 1}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/courier-digits"), help="folder for the runs")
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds")
    options = parser.parse_args()
    jobs = list(jobs_of(options.out, options.seeds))
    carry_out(jobs)
    runs: dict[str, list[Record]] = {}
    for job in jobs:
        runs.setdefault(job.arm, []).append(load(job.folder))
    print("\n".join(table(runs, options.seeds)))


def jobs_of(out: Path, seeds: int) -> Iterator[Job]:
    for seed in range(seeds):
        for number, (setting, partition) in enumerate(SETTINGS.items()):
            for arm, tree in ARMS.items():
                name = f"{number}-{arm}-seed{seed}"
                whole = merge(COMMON, {**tree, "partition": partition, "seed": seed, "name": name})
                yield Job(f"{setting}/{arm}", whole, out / name)


def table(runs: dict[str, list[Record]], seeds: int) -> Iterator[str]:
    """One line per setting: what the answers gain, and what the client that gains least gets."""
    first = next(iter(runs.values()))[0]
    yield (
        f"{seeds} seeds, {first.recipe.rounds} rounds, {len(first.clients)} clients, four backbones, tested after "
        "mixing. ± is the 95 % interval over seeds. Inside: the share of the weight given to others that stays inside "
        "the true clusters. Worst client: the gain over its control of the client that gains least in a run, mean over "
        "seeds. Clients that lost: of all clients of all seeds, those worse than their control by more than one test "
        "image."
    )
    yield ""
    yield (
        "| setting | alone, % | mutual at home, % | courier, % | gain over alone | gain over mutual | inside "
        "| worst client | clients that lost | messages (full mesh) |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for setting in SETTINGS:
        courier, alone, mutual = (runs[f"{setting}/{arm}"] for arm in ("courier", "alone", "mutual"))
        each = np.array([final(a) - final(b) for a, b in zip(courier, alone, strict=True)])  # (seeds, clients)
        one_image = np.array([[1 / c.tests for c in record.clients] for record in courier])
        shares = [share_inside(r.weights(), [c.cluster for c in r.clients]) for r in courier]
        inside = f"{np.mean([s for s in shares if s is not None]):.2f}" if setting != list(SETTINGS)[-1] else ""
        full = len(first.clients) * (len(first.clients) - 1) * first.recipe.rounds
        cells = (
            setting,
            *(Estimate.of([r.mean for r in arm]).text() for arm in (alone, mutual, courier)),
            difference(courier, alone),
            difference(courier, mutual),
            inside,
            f"{100 * each.min(axis=1).mean():+.1f}",
            f"{int((each < -1.01 * one_image).sum())} of {each.size}",
            f"{np.mean([r.messages for r in courier]):,.0f} ({full:,})",
        )
        yield f"| {' | '.join(cells)} |"


def final(record: Record) -> np.ndarray:
    """Each client's accuracy at the last test."""
    return np.array(record.tested[-1].accuracy)


def difference(ours: Sequence[Record], theirs: Sequence[Record]) -> str:
    return Estimate.of([a.mean - b.mean for a, b in zip(ours, theirs, strict=True)]).text(sign="+")


if __name__ == "__main__":
    main()
