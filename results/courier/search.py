"""The training protocol of recipes/modern: a handful of settings, tried on clients that train alone.

    mapl data get cifar10
    python results/courier/search.py                     # CIFAR-10, scenario 1, writes search.md

Clients that train alone decide, so that no method's letters have a say. The rest is recipes/modern/heterogeneous.toml.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean

import mapl
from mapl.data.loading import keeping_data
from mapl.paper.machine import device_name
from mapl.recipe import assignment, compose, read
from mapl.trees import Tree

HERE = Path(__file__).parent
RECIPE = HERE.parents[1] / "recipes" / "modern" / "heterogeneous.toml"
TRIED = {
    "Adam, 1e-3, constant": ["train.cosine_rounds=none"],
    "Adam, 1e-3, cosine": [],
    "Adam, 3e-3, cosine": ["train.learning_rate=3e-3"],
    "Adam, 3e-4, cosine": ["train.learning_rate=3e-4"],
    "Adam with β₁ = 0.9, 1e-3, cosine": ["train.betas=[0.9,0.999]"],
    "AdamW with decay 0.05, 1e-3, cosine": ["train.optimizer=adamw", "train.weight_decay=0.05"],
}
"""What differs from the recipe. Its optimiser is Adam with β₁ = 0.5, the paper's."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="the cosine ends there")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir", help="folder with the data set's files")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", dest="settings")
    parser.add_argument("--runs", type=Path, default=Path("runs/search"), help="folder for the runs")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for search.md")
    options = parser.parse_args()
    rows: list[tuple[str, float]] = []
    with keeping_data():
        for name, settings in TRIED.items():
            accuracy, device = measured(settings, options)
            rows.append((name, accuracy))
            print(f"{name}: {100 * accuracy:.1f} %", flush=True)
    words = [
        "# The training protocol of recipes/modern",
        "",
        f"    python results/courier/search.py --rounds {options.rounds}",
        "",
        f"CIFAR-10, scenario 1, 20 clients with four backbones that train alone (`local`), {options.rounds} rounds, "
        f"seed {options.seed}, all test images, {device}.",
        "",
        "| optimiser | accuracy, % |",
        "|---|---|",
        *(f"| {name} | {100 * accuracy:.1f} |" for name, accuracy in rows),
    ]
    (options.out / "search.md").write_text("\n".join(words) + "\n")


def measured(settings: list[str], options: argparse.Namespace) -> tuple[float, str]:
    """The mean accuracy at the end, and the device."""
    layers: list[Tree] = [
        read(RECIPE),
        {"data": {"folder": options.data_dir}} if options.data_dir else {},
        {"seed": options.seed, "rounds": options.rounds, "checkpoint": {"every": 10**6, "keep": 1}},
        {"method": {"name": "local"}, "train": {"cosine_rounds": options.rounds}},
        *(assignment(text) for text in (*options.settings, *settings)),
    ]
    recipe = compose(*(("recipe", layer) for layer in layers))[0]
    record = mapl.run(recipe, options.runs / recipe.fingerprint(), overwrite=True)
    last = record.tested[-1]
    return fmean(last.all_images or last.accuracy or []), device_name(recipe)


if __name__ == "__main__":
    main()
