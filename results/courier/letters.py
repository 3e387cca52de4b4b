"""Accuracy against bytes: couriers in smaller letters, and in fewer.

    mapl data get fashionmnist && mapl data get cifar10
    cd results/courier && python letters.py --out runs --plot letters.png > letters.md     # over an hour on two cores

On digits and FashionMNIST clients have four small backbones. On CIFAR-10 their own networks are the smallest there are,
and the couriers answer: they do not learn from own networks. Runs that are finished are not run again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from digits import COMMON
from kinship import CIFAR10, MODERN

from mapl.analysis.compare import Estimate
from mapl.recipe import read
from mapl.runs.folder import load
from mapl.runs.jobs import Job, carry_out
from mapl.runs.record import Record
from mapl.trees import Tree, merge

KINDS = {"none": "float32", "bfloat16": "bfloat16", "int8": "int8", "top-k": "top-k, 5 %"}
EVERY = (1, 2, 5)
ALL = tuple((kind, every) for kind in KINDS for every in EVERY)
FEW = (("none", 1), ("none", 2), ("none", 5), ("bfloat16", 1), ("int8", 1), ("int8", 2), ("int8", 5), ("top-k", 1))
CHOSEN = ("int8", 2)


class Setting(NamedTuple):
    recipe: Tree
    says: str
    arms: tuple[tuple[str, int], ...]
    """Kinds of letters, and rounds between them."""
    seeds: int
    seeds_of_chosen: int
    """Of the letters that are recommended, and of those that they are compared with."""


FASHIONMNIST: Tree = {
    "clients": 10,
    "rounds": 40,
    "data": {"name": "fashionmnist"},
    "partition": {"scenario": 1, "shots": 20, "sharding": "random", "test_shots": 100},
    "model": {
        "backbones": ["mlp", "cnn", "residual", "separable"],
        "embedding": 64,
        "projection": 64,
        "hidden": 128,
    },
    "train": {"learning_rate": 1e-3, "batch": 32},
    "evaluate": {"every": 40, "moment": "mixed"},
    "engine": {"device": "cpu", "workers": 1},
}
COLOUR: Tree = merge(
    CIFAR10,
    {
        "clients": 10,
        "rounds": 60,
        "partition": {"scenario": 1, "shots": 100},
        "train": {"cosine_rounds": 60},
        "method": {"answer": "courier"},
        "evaluate": {"every": 60},
    },
)
SETTINGS = {
    "digits": Setting(COMMON, "45 rounds, the demo's setting", ALL, 3, 3),
    "fashionmnist": Setting(FASHIONMNIST, "40 rounds, 20 training images per class and client", ALL, 3, 3),
    "cifar10": Setting(
        merge(read(MODERN), COLOUR), "60 rounds of recipes/modern, 100 training images per class and client", FEW, 1, 2
    ),
}
Runs = Mapping[tuple[str, int], Sequence[Record]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--data-dir", help="folder with the data sets' files")
    parser.add_argument("--out", type=Path, default=Path("runs/courier-letters"), help="folder for the runs")
    parser.add_argument("--plot", type=Path, help="where to draw the picture")
    options = parser.parse_args()
    jobs = {data: list(jobs_of(data, options.data_dir, options.out)) for data in options.data}
    carry_out([job for some in jobs.values() for job in some])
    runs = {data: finished(some) for data, some in jobs.items()}
    for data, some in runs.items():
        print("\n".join(table(data, some)))
    if options.plot:
        draw(runs, options.plot)


def jobs_of(data: str, folder: str | None, out: Path) -> Iterator[Job]:
    setting = SETTINGS[data]
    for seed in range(setting.seeds_of_chosen):
        for kind, every in setting.arms if seed < setting.seeds else (("none", 1), CHOSEN):
            name = f"{data}-{kind}-{every}-seed{seed}"
            own = {
                "method": {"name": "courier", "every": every},
                "network": {"compress": {"kind": kind}},
                "seed": seed,
                "name": name,
                "checkpoint": {"every": 1000, "keep": 1},
            }
            files = {"data": {"folder": folder}} if folder and data != "digits" else {}
            yield Job(f"{kind}/{every}", merge(merge(setting.recipe, own), files), out / name)


def finished(jobs: Sequence[Job]) -> Runs:
    """The runs by kind of letter and rounds between letters, one per seed."""
    runs: dict[tuple[str, int], list[Record]] = {}
    for job in jobs:
        kind, _, every = job.arm.partition("/")
        runs.setdefault((kind, int(every)), []).append(load(job.folder))
    return runs


def answers(record: Record) -> float:
    """With all test images where the recipe tests with them."""
    return fmean(record.tested[-1].all_images or record.tested[-1].accuracy or [])


def table(data: str, runs: Runs) -> Iterator[str]:
    first = runs["none", 1]
    yield from (f"### {data}", "")
    yield (
        f"{len(first[0].clients)} clients, two clusters, {SETTINGS[data].says}, tested after mixing. ± is the 95 % "
        "interval over seeds. Costs: the loss against float32 letters every round, over the same seeds."
    )
    yield ""
    yield "| letters | every | seeds | answers, % | costs, points | messages | MB | times fewer bytes |"
    yield "|---|---|---|---|---|---|---|---|"
    for (kind, every), records in runs.items():
        pairs = list(zip(records, first, strict=False))  # the same seeds: they start at 0
        costs = Estimate.of([answers(b) - answers(a) for a, b in pairs])
        cells = (
            KINDS[kind],
            f"{every} round{'s' if every > 1 else ''}",
            str(len(records)),
            Estimate.of([answers(r) for r in records]).text(),
            "" if records is first else costs.text(sign="+"),
            f"{fmean(r.messages for r in records):,.0f}",
            f"{fmean(r.bytes for r in records) / 1e6:,.0f}",
            f"{fmean(b.bytes for _, b in pairs) / fmean(r.bytes for r in records):.1f}",
        )
        yield f"| {' | '.join(cells)} |"
    yield ""


def draw(runs: Mapping[str, Runs], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullFormatter

    figure, grid = plt.subplots(1, len(runs), figsize=(1 + 3.6 * len(runs), 3.8), layout="constrained", squeeze=False)
    for axes, (data, some) in zip(grid[0], runs.items(), strict=True):
        for kind, label in KINDS.items():
            # The first seeds only, which all letters have.
            shared = {e: some[kind, e][: SETTINGS[data].seeds] for e in EVERY if (kind, e) in some}
            sizes = [fmean(r.bytes for r in records) / 1e6 for records in shared.values()]
            percent = [100 * fmean(answers(r) for r in records) for records in shared.values()]
            axes.plot(sizes, percent, "o-", label=label)
            for size, height, every in zip(sizes, percent, shared, strict=True):
                axes.annotate(f"{every}", (size, height), textcoords="offset points", xytext=(4, 5), fontsize=8)
        axes.set(xscale="log", xlabel="MB sent in the whole run", title=data)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.spines[["top", "right"]].set_visible(False)
    grid[0][0].set_ylabel("answers, %")
    grid[0][0].legend(frameon=False)
    figure.suptitle("A number is the rounds between letters", fontsize=10)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
