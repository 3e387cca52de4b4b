"""Couriers for colour images: accuracy of clients that exchange them, against what they cost.

    mapl data get cifar10
    python results/courier/colour.py --rounds 50         # CIFAR-10, scenario 1, writes colour.md
    python results/courier/colour.py --little            # without a GPU, writes colour-little.md

Everything else is recipes/modern. --little has the fewer clients and images of letters.py, and couriers alone answer.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from letters import COLOUR
from torch import nn

import mapl
from mapl.backbones._blocks import conv_bn_relu
from mapl.backbones.courier import Stage
from mapl.backbones.residual import Block
from mapl.data.loading import keeping_data
from mapl.model import find_backbone
from mapl.paper.machine import device_name
from mapl.recipe import assignment, compose, read
from mapl.trees import Tree

HERE = Path(__file__).parent
LITTLE = "10 clients with 100 training images per class, whose own networks are the smallest there are"
RECIPE = HERE.parents[1] / "recipes" / "modern" / "heterogeneous.toml"
Image = tuple[int, int, int]


def network(image: Image, embedding: int, stride: int, *blocks: nn.Module) -> nn.Sequential:
    """A stem, some blocks, average pooling, a linear layer."""
    widths = [layer.out_channels for block in blocks for layer in block.modules() if isinstance(layer, nn.Conv2d)]
    inputs = next(layer.in_channels for block in blocks for layer in block.modules() if isinstance(layer, nn.Conv2d))
    last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], embedding)]
    return nn.Sequential(conv_bn_relu(image[0], inputs, stride), *blocks, *last)


def full(image: Image, embedding: int) -> nn.Module:
    """Full resolution: a residual block with 32 channels, then 64 and 128."""
    return network(image, embedding, 1, Block(32), Stage(32, 64), Stage(64, 128))


def no_block(image: Image, embedding: int) -> nn.Module:
    """Full resolution, but only the stem sees it: 32, then 64 and 128 channels."""
    return network(image, embedding, 1, Stage(32, 64), Stage(64, 128))


def half(image: Image, embedding: int) -> nn.Module:
    """Half the resolution from the stem on: 32, 64 and 128 channels."""
    return network(image, embedding, 2, Block(32), Stage(32, 64), Stage(64, 128))


def half_light(image: Image, embedding: int) -> nn.Module:
    """Half the resolution, and only the stem sees it: 32, 64 and 128 channels."""
    return network(image, embedding, 2, Stage(32, 64), Stage(64, 128))


def half_24(image: Image, embedding: int) -> nn.Module:
    """Half the resolution from the stem on: 24, 48 and 96 channels."""
    return network(image, embedding, 2, Block(24), Stage(24, 48), Stage(48, 96))


def half_16(image: Image, embedding: int) -> nn.Module:
    """Half the resolution from the stem on: 16, 32 and 64 channels."""
    return network(image, embedding, 2, Block(16), Stage(16, 32), Stage(32, 64))


def half_wide(image: Image, embedding: int) -> nn.Module:
    """Half the resolution from the stem on, wide and short: 64 and 128 channels."""
    return network(image, embedding, 2, Block(64), Stage(64, 128))


def narrow(image: Image, embedding: int) -> nn.Module:
    """Full resolution: a residual block with 16 channels, then 32 and 64."""
    return network(image, embedding, 1, Block(16), Stage(16, 32), Stage(32, 64))


CANDIDATES = {made.__name__: made for made in (full, no_block, half, half_light, half_24, half_16, half_wide, narrow)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="50; with --little always 60")
    parser.add_argument("--little", action="store_true", help="couriers alone, few clients and images: for a CPU")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--couriers", nargs="*", choices=list(CANDIDATES), default=list(CANDIDATES))
    parser.add_argument("--data-dir", help="folder with the data set's files")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", dest="settings")
    parser.add_argument("--runs", type=Path, default=Path("runs/colour"), help="folder for the runs")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for the table and its rows")
    options = parser.parse_args()
    options.rounds = COLOUR["rounds"] if options.little else options.rounds or 50
    rows, path = [], options.out / f"colour{'-little' * options.little}"
    with keeping_data():
        for seed in options.seeds:
            for name in options.couriers:
                rows.append(measured(name, seed, options))
                print(json.dumps(rows[-1]), flush=True)
                path.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
                path.with_suffix(".md").write_text(page(rows, options))


def measured(name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    layers: list[Tree] = [
        read(RECIPE),
        COLOUR if options.little else {},
        {"data": {"folder": options.data_dir}} if options.data_dir else {},
        {"seed": seed, "rounds": options.rounds, "checkpoint": {"every": 10**6, "keep": 1}},
        {"method": {"name": "courier", "courier": f"colour:{name}"}},
        *(assignment(text) for text in options.settings),
    ]
    recipe = compose(*(("recipe", layer) for layer in layers))[0]
    seconds: list[float] = []
    record = mapl.run(
        recipe,
        options.runs / f"{name}-{seed}",
        overwrite=True,
        observers=[lambda run, line, laps: seconds.append(laps["train"] + laps["exchange"])],
    )
    return {
        "courier": name,
        "seed": seed,
        "operations": operations(name),
        "parameters": sum(p.numel() for p in CANDIDATES[name]((3, 32, 32), 64).parameters()),
        "seconds": median(seconds[2:]),
        "answers": fmean(record.tested[-1].all_images or record.tested[-1].accuracy or []),
        "ways": record.ways,
        "device": device_name(recipe),
    }


def operations(name: str) -> float:
    """Millions of floating-point operations for one image, a product and its sum being two."""
    counts: list[int] = []
    net = find_backbone(f"colour:{name}")((3, 32, 32), 64)
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(lambda of, _, y: counts.append(2 * y.numel() * of.weight[0].numel()))
    net.eval()(torch.zeros(1, 3, 32, 32))
    return sum(counts) / 1e6


def page(rows: list[dict[str, Any]], options: argparse.Namespace) -> str:
    how = "--little" if options.little else f"--rounds {options.rounds}"
    if options.couriers != list(CANDIDATES):
        how += f" --couriers {' '.join(options.couriers)}"
    words = [
        "# Couriers for colour images",
        "",
        f"    python results/courier/colour.py {how}" + "".join(f" --set {text}" for text in options.settings),
        "",
        f"CIFAR-10, scenario 1, {LITTLE if options.little else '20 clients'}, recipes/modern, method `courier`, "
        f"{options.rounds} rounds, all test images, {rows[0]['device']}. Accuracies in %. Operations are those of one "
        "image's forward pass, in millions. Seconds per round are medians of training and exchange of all clients, own "
        "networks included.",
        "",
        "| courier | what it is | parameters | operations | s per round | seeds | answers | courier | own network |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, made in CANDIDATES.items():
        some = [row for row in rows if row["courier"] == name]
        if some:
            shares = [[row["answers"], row["ways"]["courier"], row["ways"]["own"]] for row in some]
            numbers = [f"{100 * fmean(column):.1f}" for column in zip(*shares, strict=True)]
            words.append(
                f"| `{name}` | {(made.__doc__ or '').rstrip('.')} | {some[0]['parameters']:,} "
                f"| {some[0]['operations']:.0f} | {median(row['seconds'] for row in some):.3f} | {len(some)} "
                f"| {' | '.join(numbers)} |"
            )
    return "\n".join(words) + "\n"


if __name__ == "__main__":
    main()
