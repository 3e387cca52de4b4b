"""All methods on real FashionMNIST, three seeds, each against its own control, on CPU cores.

    mapl data get fashionmnist          # or put the files into data/ by hand
    python results/fashionmnist/run.py --data-dir data --out runs/fashionmnist > results/fashionmnist/one-backbone.md
    python results/fashionmnist/run.py --mixed … > results/fashionmnist/four-backbones.md

Ten clients, scenario 1, few images, so that collaboration has something to add. With one small backbone, so that
methods that average weights can take part; or, with --mixed, four different ones and the methods that allow it. The
tables are written from the runs, never by hand; runs that are finished are not run again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from mapl.analysis.compare import Arm, compare
from mapl.cli.compare import gain_text
from mapl.runs.folder import load
from mapl.runs.jobs import Job, carry_out
from mapl.runs.record import Record
from mapl.trees import Tree, merge

RELEASED: Tree = {"warmup": 10, "graph": {"form": "released", "confidence": "share"}}
"""The tables were made with the graph of the paper's released program; the default is another one (docs/graph.md)."""

METHODS: dict[str, Tree] = {
    "local": {},
    "fedavg": {},
    "dfedavgm": {},
    "fedsim": {},
    "fedproto": {},
    "fedclassavg": {},
    "flt": {"encoder_data": "synthetic"},
    "pfedsim": {"warmup": 20},
    "mapl": RELEASED,
    "mapl+": RELEASED,
    "mutual": {},
    "proxyfl": {},
    "fml": {},
    "courier": {},
}
MIXED = ("local", "fedsim", "fedproto", "fedclassavg", "mapl", "mapl+", "mutual", "proxyfl", "fml", "courier")
"""Methods that take clients of different architectures."""
CONTROLS = ("fedclassavg", "mapl", "proxyfl", "courier")
"""Methods whose twin without letters is a run of its own; that of the others is Local, for mapl+ that of mapl, and for
fml that of proxyfl."""

PROTOCOL: Tree = {
    "data": {"name": "fashionmnist"},
    "clients": 10,
    "rounds": 40,
    "partition": {"scenario": 1, "shots": 20, "sharding": "random", "test_shots": 100},
    "model": {"embedding": 64, "projection": 64, "hidden": 128},
    "train": {"learning_rate": 1e-3, "batch": 32},
    "evaluate": {"every": 10},
    "checkpoint": {"every": 40, "keep": 1},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="data", help="folder with FashionMNIST's files")
    parser.add_argument("--out", type=Path, default=Path("runs/fashionmnist"), help="folder for the runs")
    parser.add_argument("--mixed", action="store_true", help="four backbones instead of one")
    parser.add_argument("--without", nargs="*", default=[], help="methods to leave out")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds")
    options = parser.parse_args()
    methods = [m for m in (MIXED if options.mixed else METHODS) if m not in options.without]
    backbones = ["mlp", "cnn", "residual", "separable"] if options.mixed else ["cnn"]
    common = merge(PROTOCOL, {"data": {"folder": options.data_dir}, "model": {"backbones": backbones}})
    jobs = [job for seed in range(options.seeds) for job in jobs_of(seed, methods, common, options.out)]
    carry_out(jobs)
    records = [load(job.folder) for job in jobs]
    print(markdown(records, compare(records)))


def jobs_of(seed: int, methods: Sequence[str], common: Tree, out: Path) -> list[Job]:
    """Every method and every control with one seed."""
    jobs = []
    for method in methods:
        own = {"method": {"name": method, **METHODS[method]}, "name": f"{method}-seed{seed}", "seed": seed}
        tree = merge(common, own)
        jobs.append(Job(method, tree, out / tree["name"]))
        if method in CONTROLS:
            alone = merge(tree, {"network": {"topology": {"name": "none"}}, "name": f"{method}-alone-seed{seed}"})
            jobs.append(Job(f"{method}-alone", alone, out / alone["name"]))
    return jobs


def markdown(records: Sequence[Record], arms: Sequence[Arm]) -> str:
    """The table, with what made it."""
    lines = [
        f"{len(arms[0].seeds)} seeds, {records[0].recipe.rounds} rounds, {len(records[0].clients)} clients. "
        "One thread a run. ± is the 95 % interval over seeds.",
        "",
        "| method | accuracy, % | std over clients | collaboration gain, points | messages | MiB | s |",
        "|---|---|---|---|---|---|---|",
    ]
    for arm in arms:
        cells = (arm.label, arm.accuracy.text(), f"{100 * arm.spread:.1f}", gain_text(arm))
        cost = (f"{arm.messages:,.0f}", f"{arm.bytes / 2**20:,.1f}", f"{arm.seconds:.0f}")
        lines.append(f"| {' | '.join((*cells, *cost))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
