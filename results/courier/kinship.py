"""How well drifts tell kin from others on digits, with and without the mean over classes taken out.

    python results/courier/kinship.py > results/courier/kinship.md

For every setting, the smallest cosine of two clients of one cluster and the largest of two clients of different
clusters, over two seeds, after 1, 5 and 45 rounds. Clients are kin where the cosine is above ½.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from digits import COMMON, SETTINGS
from torch import Tensor

from mapl.kinship import DECAY
from mapl.methods._courier import COURIER, head_of
from mapl.methods.courier import TEACHER
from mapl.recipe import Recipe, Tree, merge
from mapl.runs.part import Part, build_part
from mapl.runs.round import play_round

AFTER = (1, 5, 45)
SEEDS = (0, 1)
OVERLAPPING: Tree = {"scenario": 2, "clusters": 3, "sizes": [5, 3, 2]}


def main() -> None:
    torch.set_num_threads(1)
    settings = {name: tree for name, tree in SETTINGS.items() if tree.get("scheme") != "dirichlet"}
    settings["three overlapping clusters of 5, 3 and 2"] = OVERLAPPING
    print("Smallest cosine inside clusters / largest across, over two seeds, on digits.\n")
    print("| setting | mean taken out: round 1 | 5 | 45 | left in: round 1 | 5 | 45 |\n|---|---|---|---|---|---|---|")
    for name, partition in settings.items():
        runs = [list(cosines(partition, seed)) for seed in SEEDS]
        cells = [
            f"{min(run[kind][t - 1][0] for run in runs):.2f} / {max(run[kind][t - 1][1] for run in runs):.2f}"
            for kind in (0, 1)
            for t in AFTER
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def cosines(partition: Tree, seed: int) -> Iterator[list[tuple[float, float]]]:
    """By round, the extreme cosines: with the mean over classes taken out, and with it left in."""
    part = build_part(Recipe.of(**merge(COMMON, {"method": "courier", "partition": partition, "seed": seed})))
    updates = watched(part)
    for round in range(AFTER[-1]):
        play_round(part, round)
    clusters = torch.tensor([client.cluster for client in part.clients])
    for centred in (True, False):
        yield [extremes(drift, clusters) for drift in drifts(torch.stack(updates), centred)]


def watched(part: Part) -> list[Tensor]:
    """A list that every round's exchange adds to: what training did to each client's head, (M, K, features + 1)."""
    updates: list[Tensor] = []
    absorb_all = part.method.absorb_all

    def watch(round: int, pairs: Any) -> None:
        pairs = list(pairs)
        own = [client.model.own for client, _ in pairs]
        updates.append(torch.stack([head_of(nets[COURIER]) - head_of(nets[TEACHER]) for nets in own]).double())
        absorb_all(round, pairs)

    part.method.absorb_all = watch  # type: ignore[method-assign]
    return updates


def drifts(updates: Tensor, centred: bool) -> Iterator[Tensor]:
    """Of every round, from updates (T, M, K, D): (M, K · D)."""
    if centred:
        updates = updates - updates.mean(dim=2, keepdim=True)
    total = torch.zeros_like(updates[0].flatten(1))
    for update in updates:
        total = DECAY * total + torch.nn.functional.normalize(update.flatten(1), dim=1)
        yield total


def extremes(drift: Tensor, clusters: Tensor) -> tuple[float, float]:
    unit = torch.nn.functional.normalize(drift, dim=1)
    cosine, same = unit @ unit.T, clusters[:, None] == clusters
    others = ~torch.eye(len(clusters), dtype=torch.bool)
    return float(cosine[same & others].min()), float(cosine[~same].max())


if __name__ == "__main__":
    main()
