"""Which network should travel? Couriers of several kinds on digits and FashionMNIST, four backbones.

    python results/courier/couriers.py --data-dir data --out runs/couriers > results/courier/couriers.md

Digits with three seeds, FashionMNIST with two. The table is written from the runs; runs that are finished are not run
again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from torch import nn

from mapl.backbones._blocks import conv_bn_relu
from mapl.backbones.courier import Stage
from mapl.backbones.residual import Block
from mapl.methods._courier import COURIER
from mapl.recipe import Tree, merge
from mapl.runs.history import Record, load
from mapl.runs.jobs import Job, carry_out

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent / "fashionmnist")]
ALONE: Tree = {"network": {"topology": {"name": "none"}}}


def full_resolution(image: tuple[int, int, int], embedding: int) -> nn.Module:
    """The grey courier without the stride of its stem."""
    return nn.Sequential(
        conv_bn_relu(image[0], 16),
        Block(16),
        Stage(16, 32),
        Stage(32, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, embedding),
    )


DIGITS = ("courier", "cnn", "mlp", "separable", "couriers:full_resolution")
FASHION = ("courier", "cnn", "mlp", "separable")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="data", help="folder with FashionMNIST's files")
    parser.add_argument("--out", type=Path, default=Path("runs/couriers"), help="folder for the runs")
    options = parser.parse_args()
    jobs = [*jobs_of("digits", DIGITS, 3, options), *jobs_of("fashionmnist", FASHION, 2, options)]
    carry_out(jobs)
    runs: dict[str, list[Record]] = {}
    for job in jobs:
        runs.setdefault(job.arm, []).append(load(job.folder))
    print("\n".join(table(runs)))


def jobs_of(data: str, couriers: tuple[str, ...], seeds: int, options: argparse.Namespace) -> Iterator[Job]:
    from run import PROTOCOL  # the setting of results/fashionmnist

    common: Tree = {"data": {"name": "digits"}}
    if data == "fashionmnist":
        backbones = ["mlp", "cnn", "residual", "separable"]
        common = merge(PROTOCOL, {"data": {"folder": options.data_dir}, "model": {"backbones": backbones}})
    common = merge(common, {"evaluate": {"moment": "mixed"}, "engine": {"device": "cpu", "workers": 1}})
    for seed in range(seeds):
        for courier in couriers:
            for arm, more in (("letters", {}), ("alone", ALONE)):
                name = f"{data}-{courier.replace(':', '.')}-{arm}-seed{seed}"
                tree = merge(
                    common, {"method": {"name": "courier", "courier": courier}, "seed": seed, "name": name, **more}
                )
                yield Job(f"{data}/{courier}/{arm}", tree, options.out / name)


def table(runs: dict[str, list[Record]]) -> Iterator[str]:
    yield "After mixing, means over seeds, in %: with letters / without."
    yield ""
    yield "| data | courier | answers | courier by itself | own network by itself | kB per letter | s per run |"
    yield "|---|---|---|---|---|---|---|"
    for name in dict.fromkeys(arm.rpartition("/")[0] for arm in runs):
        both = runs[f"{name}/letters"], runs[f"{name}/alone"]
        cells = [
            " / ".join(f"{100 * fmean(r.mean for r in arm):.1f}" for arm in both),
            *(" / ".join(f"{100 * fmean(r.ways[way] for r in arm):.1f}" for arm in both) for way in (COURIER, "own")),
            f"{fmean(r.bytes / r.messages for r in both[0]) / 1e3:,.0f}",
            f"{fmean(r.seconds for r in both[0]):.0f}",
        ]
        yield f"| {name.replace('couriers:', '').replace('/', ' | ').replace('_', ' ')} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
