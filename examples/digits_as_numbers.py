"""Handwritten digits as rows of 64 numbers, not as images: a table like any other.

    python examples/digits_as_numbers.py

Ten clients: five have the digits 0 to 4, five have 5 to 9, and nobody is told who belongs together. Everything that is
not set below is made from the data: the backbone (mlp), the augmentation (noise and dropout of features), batch and
shots.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sklearn.datasets import load_digits

import mapl

SEEDS = (0, 1, 2)


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/numbers")
    digits = load_digits()
    data = mapl.dataset((digits.data, digits.target))
    print(data)
    for method, topology in (("local", "full"), ("courier", "none"), ("courier", "full")):
        means = []
        for seed in SEEDS:
            recipe = mapl.Recipe.of(
                data=data,
                method=method,
                seed=seed,
                clients=10,
                rounds=30,
                partition={"scenario": 1, "shots": 5},
                network={"topology": {"name": topology}},
                evaluate={"moment": "mixed"},
            )
            record = mapl.run(recipe, out / f"{method}-{topology}-{seed}", data=data)
            means.append(record.mean)
        letters = f"{record.messages:,} letters a run" if record.messages else "no letters"
        print(f"{method:<8} {letters:<20} accuracy {100 * sum(means) / len(SEEDS):.1f} % (mean of {len(SEEDS)} seeds)")


if __name__ == "__main__":
    main()
