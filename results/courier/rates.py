"""The learning rate that couriers want, beside own networks that keep theirs.

    mapl data get fashionmnist && mapl data get cifar10
    cd results/courier && python rates.py > rates.md      # runs what rates.jsonl lacks; two hours on one core

FashionMNIST: ten clients, four small backbones, 60 training images per class and client, 40 rounds. CIFAR-10: as in
letters.py, where couriers answer and own networks are the smallest there are. Adam is kept. Its rate falls along a
cosine, from 1e-3 for own networks.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from kinship import MODERN
from letters import COLOUR, FASHIONMNIST

from mapl.analysis.compare import Estimate
from mapl.recipe import Recipe, read
from mapl.runs.part import build_part
from mapl.runs.round import play_round
from mapl.trees import Tree, merge

STORE = Path(__file__).parent / "rates.jsonl"
FASHION = merge(
    FASHIONMNIST, {"partition": {"shots": 60}, "train": {"reset": False, "cosine_rounds": FASHIONMNIST["rounds"]}}
)
LITTLE = merge(read(MODERN), COLOUR)
SETTINGS: dict[str, Tree] = {
    "fashionmnist": FASHION,
    "cifar10": LITTLE,
    "cifar10, 6 clients, 300 images per class": merge(LITTLE, {"clients": 6, "partition": {"shots": 300}}),
}
ALONE: Tree = {"network": {"topology": {"name": "none"}}}
ARMS: dict[str, Tree] = {
    "courier": {"method": {"name": "courier"}},
    "alone": {"method": {"name": "courier"}, **ALONE},
    "mutual": {"method": {"name": "mutual"}},
}
WANTED = [
    *(("fashionmnist", arm, rate, 0) for arm in ("courier", "alone") for rate in (1e-3, 3e-3, 1e-2)),
    *(("fashionmnist", "mutual", rate, 0) for rate in (1e-3, 3e-3)),
    *(("cifar10", arm, rate, 0) for arm in ("courier", "alone") for rate in (1e-3, 3e-3)),
    *(("cifar10, 6 clients, 300 images per class", "courier", rate, 0) for rate in (1e-3, 3e-3)),
]
"""Data, arm, learning rate of the courier, seed."""

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", help="folder with the data sets' files")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for wanted in WANTED:
        rows = stored()
        if not any(identity(row) == wanted for row in rows):
            with STORE.open("a") as file:
                file.write(json.dumps(measured(*wanted, options.data_dir)) + "\n")
    print("\n".join(table(stored())))


def identity(row: Row) -> tuple[Any, ...]:
    return row["data"], row["arm"], row["rate"], row["seed"]


def stored() -> list[Row]:
    return [json.loads(line) for line in STORE.read_text().splitlines()] if STORE.exists() else []


def measured(data: str, arm: str, rate: float, seed: int, folder: str | None) -> Row:
    """The mean accuracy of the answers and of each network after the last round, with all images or the recipe's."""
    own: Tree = {"seed": seed, "data": {"folder": folder} if folder else {}, **ARMS[arm]}
    tree = merge(merge(SETTINGS[data], own), {"method": {"courier_rate": rate}})
    part = build_part(Recipe.of(**tree))
    for round in range(part.recipe.rounds):
        line, _ = play_round(part, round)
    ways = {name: round4(values) for name, values in (line.ways or {}).items()}
    answers = round4(line.all_images or line.accuracy or [])
    return {"data": data, "arm": arm, "rate": rate, "seed": seed, "answers": answers, **ways}


def round4(values: Sequence[float]) -> float:
    return round(fmean(values), 4)


def table(rows: Sequence[Row]) -> Iterator[str]:
    yield "In %. Gain: answers less those of `alone` at the same rate."
    yield ""
    yield "| data | arm | courier's rate | seeds | answers | gain, points | courier by itself | own network by itself |"
    yield "|---|---|---|---|---|---|---|---|"
    for data, arm, rate in dict.fromkeys(wanted[:3] for wanted in WANTED):
        some = by_seed(rows, data, arm, rate)
        alone = by_seed(rows, data, "alone", rate)
        gain = [some[s]["answers"] - alone[s]["answers"] for s in sorted(some.keys() & alone.keys())]
        cells = (
            data,
            arm,
            f"{rate:g}",
            str(len(some)),
            text(some, "answers"),
            Estimate.of(gain).text(sign="+") if gain and arm == "courier" else "",
            text(some, "courier"),
            text(some, "own"),
        )
        yield f"| {' | '.join(cells)} |"


def text(rows: dict[int, Row], what: str) -> str:
    return Estimate.of([row[what] for row in rows.values()]).text()


def by_seed(rows: Sequence[Row], data: str, arm: str, rate: float) -> dict[int, Row]:
    return {row["seed"]: row for row in rows if identity(row)[:3] == (data, arm, rate)}


if __name__ == "__main__":
    main()
