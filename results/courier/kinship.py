"""How well drifts tell kin from others on digits, and what two parts of the rule are for.

    python results/courier/kinship.py > results/courier/kinship.md
    python results/courier/kinship.py --cifar10 FOLDER > results/courier/kinship-cifar10.md   # half an hour

For every setting, the smallest cosine of two clients of one cluster and the largest of two clients of different
clusters, over two seeds, after 1, 5, 45 and 300 rounds. Clients are kin where the cosine is above 0. Beside the rule,
from the same updates: every round counts in full, whatever the mix kept of it; and the mean over classes is left in.

CIFAR-10 has the data and the protocol of recipes/modern, one seed and fewer clients. Their own networks are the
smallest there are: the courier does not learn from them, so its drift does not depend on them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from digits import COMMON, SETTINGS
from torch import Tensor

from mapl.kinship import kept, update_of
from mapl.methods._courier import COURIER, head_of
from mapl.methods.courier import START
from mapl.recipe import Recipe, read
from mapl.runs.part import Part, build_part
from mapl.runs.round import play_round
from mapl.trees import Tree, merge

AFTER = (1, 5, 45, 300)
SEEDS = (0, 1)
MODERN = Path(__file__).parents[2] / "recipes" / "modern" / "heterogeneous.toml"
CIFAR10_AFTER = (1, 5, 20, 45, 100, 200)
CIFAR10: Tree = {
    "clients": 6,
    "data": {"name": "cifar10"},
    "model": {"backbones": ["mlp"], "embedding": 64, "projection": 64, "hidden": 64},
    "evaluate": {"every": 1000},
    "engine": {"device": "cpu", "workers": 1, "precision": "bf16"},
    "train": {"threads": 1},
}
OVERLAPPING: Tree = {"scenario": 2, "clusters": 3, "sizes": [5, 3, 2]}


class Heads(NamedTuple):
    """The heads of all couriers in one round, (M, K, features + 1): before training, after it, and after mixing."""

    before: Tensor
    trained: Tensor
    mixed: Tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar10", type=Path, help="the folder of CIFAR-10's files")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.cifar10:
        common = merge(merge(read(MODERN), CIFAR10), {"data": {"folder": str(options.cifar10)}})
        print("Smallest cosine inside clusters / largest across, one seed, on CIFAR-10.\n")
        page(common, {"two clusters": {"scenario": 1}}, (0,), CIFAR10_AFTER)
        return
    settings: dict[str, Tree] = {name: tree for name, tree in SETTINGS.items() if tree.get("scheme") != "dirichlet"}
    settings["three overlapping clusters of 5, 3 and 2"] = OVERLAPPING
    print("Smallest cosine inside clusters / largest across, over two seeds, on digits.\n")
    page(COMMON, settings, SEEDS, AFTER)


def page(common: Tree, settings: dict[str, Tree], seeds: Sequence[int], after: Sequence[int]) -> None:
    """Print a row per setting, as soon as its runs are done."""
    columns = [f"{rule}{t}" for rule in ("the rule: round ", "in full: ", "mean left in: ") for t in after]
    print(f"| setting | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name, partition in settings.items():
        trees = [merge(common, {"method": "courier", "partition": partition, "seed": seed}) for seed in seeds]
        runs = [list(cosines(tree, after[-1])) for tree in trees]
        cells = [
            f"{min(run[rule][t - 1][0] for run in runs):.2f} / {max(run[rule][t - 1][1] for run in runs):.2f}"
            for rule in range(3)
            for t in after
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def cosines(recipe: Tree, rounds: int) -> Iterator[list[tuple[float, float]]]:
    """By rule and round, the extreme cosines."""
    part = build_part(Recipe.of(**recipe))
    heads = watched(part)
    for round in range(rounds):
        play_round(part, round)
    clusters = torch.tensor([client.cluster for client in part.clients])
    for rule in (the_rule, in_full, mean_left_in):
        yield [extremes(drift.flatten(1), clusters) for drift in rule(heads)]


def watched(part: Part) -> list[Heads]:
    """A list that every round's exchange adds to."""
    heads: list[Heads] = []
    absorb_all = part.method.absorb_all

    def watch(round: int, pairs: Any) -> None:
        pairs = list(pairs)
        before = torch.stack([client.state[START] for client, _ in pairs])
        trained = torch.stack([head_of(client.model.own[COURIER]) for client, _ in pairs])
        absorb_all(round, pairs)
        mixed = torch.stack([head_of(client.model.own[COURIER]) for client, _ in pairs])
        heads.append(Heads(before.double(), trained.double(), mixed.double()))

    part.method.absorb_all = watch  # type: ignore[method-assign]
    return heads


def the_rule(heads: Sequence[Heads]) -> Iterator[Tensor]:
    """The drift of every client, round by round: (M, K, features + 1)."""
    total, share = torch.zeros_like(heads[0].before), torch.ones(len(heads[0].before), 1, 1, dtype=torch.float64)
    for before, trained, mixed in heads:
        updates = torch.stack([update_of(*pair) for pair in zip(before, trained, strict=True)])
        total = total + share * updates
        yield total
        moved = (update_of(*pair) for pair in zip(before, mixed, strict=True))
        share = torch.stack([kept(u, m) for u, m in zip(updates, moved, strict=True)]).view(-1, 1, 1)


def in_full(heads: Sequence[Heads]) -> Iterator[Tensor]:
    total = torch.zeros_like(heads[0].before)
    for before, trained, _ in heads:
        update = trained - before
        total = total + update - update.mean(dim=1, keepdim=True)
        yield total


def mean_left_in(heads: Sequence[Heads]) -> Iterator[Tensor]:
    total = torch.zeros_like(heads[0].before)
    for before, trained, _ in heads:
        total = total + trained - before
        yield total


def extremes(drift: Tensor, clusters: Tensor) -> tuple[float, float]:
    unit = torch.nn.functional.normalize(drift, dim=1)
    cosine, same = unit @ unit.T, clusters[:, None] == clusters
    others = ~torch.eye(len(clusters), dtype=torch.bool)
    return float(cosine[same & others].min()), float(cosine[~same].max())


if __name__ == "__main__":
    main()
