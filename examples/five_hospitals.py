"""Five hospitals with patients of their own, on scikit-learn's breast cancer data: 30 numbers a patient, two diagnoses.

    python examples/five_hospitals.py

Their training sets are small and of unequal size, and the last hospital has seen benign cases only. All are tested on
the same 200 patients, whom nobody trains on. No row of a table leaves a hospital: letters carry small networks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer

import mapl

SIZES = {"Aarau": 12, "Basel": 16, "Bern": 20, "Chur": 24, "Zug": 12}
ARMS: dict[str, dict[str, Any]] = {
    "alone": {"method": "local"},
    "courier without letters": {"method": "courier", "network": {"topology": {"name": "none"}}},
    "courier with letters": {"method": "courier"},
}
SEEDS = (0, 1, 2)


def hospitals(seed: int) -> dict[str, object]:
    """Each hospital's training patients, and the test patients, as ((X, y), (X, y))."""
    cancer = load_breast_cancer()
    diagnoses = cancer.target_names[cancer.target]
    order = np.random.default_rng(seed).permutation(len(diagnoses))
    tests, rest = order[:200], order[200:]
    sites: dict[str, object] = {}
    for name, size in SIZES.items():
        able = rest[diagnoses[rest] == "benign"] if name == "Zug" else rest
        patients, rest = able[:size], np.setdiff1d(rest, able[:size], assume_unique=True)
        sites[name] = ((cancer.data[patients], diagnoses[patients]), (cancer.data[tests], diagnoses[tests]))
    return sites


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/hospitals")
    accuracy = {}
    for arm, settings in ARMS.items():
        records = []
        for seed in SEEDS:
            data = mapl.datasets(hospitals(seed))
            recipe = mapl.Recipe.of(data=data, seed=seed, rounds=30, evaluate={"moment": "mixed"}, **settings)
            records.append(mapl.run(recipe, out / f"{arm}-{seed}".replace(" ", "-"), data=data))
        accuracy[arm] = np.mean([record.accuracy for record in records], axis=0)
    print(f"{'accuracy, % (3 seeds)':<28}", *(f"{name:>6}" for name in SIZES), "  mean")
    print(f"{'training patients':<28}", *(f"{size:>6}" for size in SIZES.values()))
    for arm, values in accuracy.items():
        print(f"{arm:<28}", *(f"{100 * value:6.1f}" for value in values), f"{100 * values.mean():6.1f}")


if __name__ == "__main__":
    main()
