"""Who has which images: the paper's four scenarios (Section 5, "Data heterogeneity").

Clients form C clusters; a cluster is assigned a run of classes, disjoint (scenarios 1 and 3) or overlapping (2 and 4);
a client takes a fixed number of images of each class of its cluster (1 and 2) or a number drawn from a range (3 and 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from mapl.data.dataset import Dataset
from mapl.errors import MaplError
from mapl.keys import ALWAYS, NOBODY, generator

SCENARIOS = {
    1: "disjoint classes per cluster, the same number of images of each class",
    2: "overlapping classes per cluster, the same number of images of each class",
    3: "disjoint classes per cluster, a random number of images of each class",
    4: "overlapping classes per cluster, a random number of images of each class",
}


class PartitionSettings(BaseModel):
    """Who has which images."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scenario: Literal[1, 2, 3, 4] = Field(
        1, description="The paper's scenario: classes disjoint (1, 3) or overlapping (2, 4); shots fixed (1, 2) or not."
    )
    clusters: int = Field(2, ge=1, description="How many clusters of clients there are; each has its own classes.")
    overlap: int = Field(4, ge=1, description="Classes that neighbouring clusters share in scenarios 2 and 4.")
    shots: int = Field(300, ge=1, description="Training images a class of each client, in scenarios 1 and 2.")
    shots_range: tuple[int, int] = Field(
        (100, 300), description="Fewest and most training images a class of each client, in scenarios 3 and 4."
    )
    test_shots: int | Literal["all"] = Field(15, description="Test images a class of each client, or 'all'.")
    sharding: Literal["paper", "random"] = Field(
        "paper",
        description="'paper': a class's images in the order of the data set, from stride × the client's number on; "
        "'random': drawn by seed, no image at two clients.",
    )
    stride: int = Field(200, ge=0, description="With sharding 'paper': images from one client's first to the next's.")


@dataclass(frozen=True)
class Shard:
    """What one client has: indices into the data set's training and test images."""

    cluster: int
    classes: tuple[int, ...]
    train: Tensor
    test: Tensor


def cluster_classes(settings: PartitionSettings, classes: int) -> list[tuple[int, ...]]:
    """The classes of each cluster: a run each, evenly spaced, sharing `overlap` with the next in scenarios 2 and 4."""
    clusters = settings.clusters
    if clusters > classes:
        raise MaplError(
            f"partition.clusters: got {clusters}, but the data has {classes} classes; take at most {classes}"
        )
    if settings.scenario in (1, 3):
        edges = [classes * c // clusters for c in range(clusters + 1)]
        return [tuple(range(a, b)) for a, b in pairwise(edges)]
    size = -(-(classes + settings.overlap * (clusters - 1)) // clusters)
    if size > classes or settings.overlap >= size:
        raise MaplError(
            f"partition.overlap: got {settings.overlap}, but {clusters} clusters of {classes} classes cannot share it"
        )
    starts = [round(c * (classes - size) / max(1, clusters - 1)) for c in range(clusters)]
    return [tuple(range(s, s + size)) for s in starts]


def partition(dataset: Dataset, settings: PartitionSettings, clients: int, seed: int) -> list[Shard]:
    """One shard a client. A class that cannot fill a shard is an error that says which, and how many are missing."""
    if settings.clusters > clients:
        raise MaplError(
            f"partition.clusters: got {settings.clusters}, but there are {clients} clients; take at most {clients}"
        )
    by_cluster = cluster_classes(settings, dataset.classes)
    cluster_of = [i * settings.clusters // clients for i in range(clients)]
    train = _Dealer("training", dataset.train.labels, dataset.classes, settings, seed)
    test = _Dealer("test", dataset.test.labels, dataset.classes, settings, seed)
    shards = []
    for client, cluster in enumerate(cluster_of):
        held = by_cluster[cluster]
        shots = _draw_shots(settings, client, len(held), seed)
        shards.append(
            Shard(
                cluster=cluster,
                classes=held,
                train=torch.cat([train.deal(client, k, n, settings.stride) for k, n in zip(held, shots, strict=True)]),
                test=torch.cat([_deal_test(test, client, k, settings.test_shots) for k in held]),
            )
        )
    return shards


def _draw_shots(settings: PartitionSettings, client: int, classes: int, seed: int) -> list[int]:
    if settings.scenario in (1, 2):
        return [settings.shots] * classes
    low, high = settings.shots_range
    if not 1 <= low <= high:
        raise MaplError(f"partition.shots_range: got [{low}, {high}]; it takes two numbers, 1 ≤ fewest ≤ most")
    draw = generator(seed, client, ALWAYS, "shots")
    return torch.randint(low, high + 1, (classes,), generator=draw).tolist()


def _deal_test(dealer: _Dealer, client: int, klass: int, shots: int | Literal["all"]) -> Tensor:
    return dealer.everything(klass) if shots == "all" else dealer.deal(client, klass, shots, shots)


class _Dealer:
    """Deals the images of each class of one split to one client after another."""

    def __init__(self, split: str, labels: Tensor, classes: int, settings: PartitionSettings, seed: int):
        self.split = split
        self.random = settings.sharding == "random"
        self.images = [torch.nonzero(labels == k).flatten() for k in range(classes)]
        if self.random:
            for k, images in enumerate(self.images):
                draw = generator(seed, NOBODY, ALWAYS, f"{split} images of class {k}")
                self.images[k] = images[torch.randperm(len(images), generator=draw)]
        self.dealt = [0] * classes

    def everything(self, klass: int) -> Tensor:
        return self.images[klass]

    def deal(self, client: int, klass: int, shots: int, stride: int) -> Tensor:
        first = self.dealt[klass] if self.random else client * stride
        missing = first + shots - len(self.images[klass])
        if missing > 0:
            raise MaplError(
                f"class {klass} has {len(self.images[klass])} {self.split} images, but client {client} needs number "
                f"{first} to {first + shots - 1} of them: {missing} are missing; lower "
                + ("partition.test_shots" if self.split == "test" else "partition.shots or partition.stride")
                + ", or take fewer clients"
            )
        self.dealt[klass] = first + shots
        return self.images[klass][first : first + shots]
