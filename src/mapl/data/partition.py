"""Who has which images: the paper's four scenarios (Section 5, "Data heterogeneity"), and the schemes of `schemes`.

Clients form C clusters. Each cluster has a range of classes, disjoint (scenarios 1 and 3) or overlapping (2 and 4). A
client takes a fixed number of images of each class of its cluster (1 and 2), or a number drawn from a range (3 and 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from mapl.contents import check_digest
from mapl.data import schemes
from mapl.data.dataset import Dataset
from mapl.data.samples import Samples
from mapl.errors import MaplError
from mapl.keys import ALWAYS, NOBODY, generator

SCENARIOS = {
    1: "disjoint classes per cluster, the same number of images of each class",
    2: "overlapping classes per cluster, the same number of images of each class",
    3: "disjoint classes per cluster, a random number of images of each class",
    4: "overlapping classes per cluster, a random number of images of each class",
}


NO_IMAGES = torch.empty(0, dtype=torch.long)


class PartitionSettings(BaseModel):
    """Who has which images."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scheme: Literal["scenario", "iid", "dirichlet", "shards", "file"] = Field(
        "scenario",
        description="'scenario': the paper's; 'iid': at random; 'dirichlet': each class split by Dirichlet(alpha); "
        "'shards': sorted by label, cut into pieces and dealt out; 'file': as partition.file says.",
    )
    scenario: Literal[1, 2, 3, 4] = Field(
        1, description="The paper's scenario: classes disjoint (1, 3) or overlapping (2, 4); shots fixed (1, 2) or not."
    )
    clusters: int = Field(2, ge=1, description="Number of clusters of clients; each cluster has its own classes.")
    sizes: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        None, description="Number of clients of each cluster; 'none': equal sizes."
    )
    overlap: int = Field(4, ge=1, description="Classes that neighbouring clusters share in scenarios 2 and 4.")
    shots: int = Field(300, ge=1, description="Training images per class and client in scenarios 1 and 2.")
    shots_range: tuple[int, int] = Field(
        (100, 300), description="Fewest and most training images per class and client in scenarios 3 and 4."
    )
    test_shots: Annotated[int, Field(ge=1)] | Literal["all"] = Field(
        15, description="Test images per class and client, or 'all'."
    )
    sharding: Literal["paper", "random"] = Field(
        "paper",
        description="'paper': the images of a class in the order of the data set, from stride × the client's number; "
        "'random': drawn by seed, and no two clients share an image.",
    )
    stride: int = Field(
        200, ge=0, description="With sharding 'paper': distance between the first images of neighbouring clients."
    )
    images: int = Field(0, ge=0, description="Scheme 'iid': training images per client; 0: all images, split evenly.")
    alpha: float = Field(
        0.5, ge=1e-3, le=1e6, description="Scheme 'dirichlet': the smaller it is, the fewer clients share a class."
    )
    shards_per_client: int = Field(2, ge=1, description="Scheme 'shards': pieces of the sorted images per client.")
    file: Path | None = Field(
        None,
        description='Scheme \'file\': JSON with the indices of each client, {"train": [[…], …], "test": [[…], …]}.',
    )
    digest: str | None = Field(
        None, description="Digest of what is in `file`. A run fills it in, and refuses another file when it is resumed."
    )
    fewest: int = Field(
        2, ge=1, description="Schemes other than 'scenario': the fewest training images that a client may get."
    )
    pooled: bool = Field(
        False,
        description="Every client trains on the training images of all clients of its true cluster; tests do not "
        "change. With topology 'none' that is the ceiling for collaboration.",
    )

    def short(self) -> str:
        """A few letters for the name of a run."""
        scheme = f"s{self.scenario}" if self.scheme == "scenario" else str(self.scheme)
        alpha = f"{self.alpha:g}" if self.scheme == "dirichlet" else ""
        return f"{scheme}{alpha}{'-pooled' if self.pooled else ''}"


@dataclass(frozen=True)
class Share:
    """What one client has: indices into the data set's training and test images."""

    cluster: int
    """Its true cluster. With 'iid' and 'dirichlet' it is 0 for everyone. With 'shards' and 'file', clients with the
    same set of classes are a cluster."""
    classes: tuple[int, ...]
    train: Tensor
    test: Tensor
    held: Tensor = NO_IMAGES
    """Training images that it keeps out of training."""


def cluster_classes(settings: PartitionSettings, classes: int) -> list[tuple[int, ...]]:
    """The classes of each cluster: ranges of nearly equal size; in 2 and 4 each shares `overlap` with the next."""
    clusters = settings.clusters
    if clusters > classes:
        raise MaplError(
            f"partition.clusters: got {clusters}, but the data has {classes} classes; take at most {classes}"
        )
    shared = 0 if settings.scenario in (1, 3) else settings.overlap
    if clusters > 1 and shared > classes - clusters:
        raise MaplError(
            f"partition.overlap: got {shared}, but with {classes} classes {clusters} clusters can share at most "
            f"{classes - clusters} with the next one; take less, or fewer clusters"
        )
    # Ranges end to end, then each moved back by the classes it shares with those before it.
    edges = [(classes + shared * (clusters - 1)) * c // clusters for c in range(clusters + 1)]
    return [tuple(range(a - shared * c, b - shared * c)) for c, (a, b) in enumerate(pairwise(edges))]


def partition(
    dataset: Dataset, settings: PartitionSettings, clients: int, seed: int, held_out: float = 0.0
) -> list[Share]:
    """One share per client. If a class has too few images, the error says which class and how many are missing.

    held_out: the share of each client's training images that it keeps out of training.
    """
    divide = _by_scenario if settings.scheme == "scenario" else _by_scheme
    shares = divide(dataset, settings, clients, seed)
    if held_out:
        shares = [_hold_out(share, dataset, held_out, client, seed) for client, share in enumerate(shares)]
    return _pooled(shares) if settings.pooled else shares


def _hold_out(share: Share, dataset: Dataset, held_out: float, client: int, seed: int) -> Share:
    held = draw_held_out(dataset.train.labels[share.train], held_out, client, seed)
    return replace(share, train=share.train[~held], held=share.train[held])


def draw_held_out(labels: Tensor, share: float, client: int, seed: int, purpose: str = "held out") -> Tensor:
    """Which of a client's training images (n,) are held out: booleans (n,).

    Of each class its share, rounded, but at least one image; and at least one is left for training.
    """
    draw = generator(seed, client, ALWAYS, purpose)
    held = torch.zeros(len(labels), dtype=torch.bool)
    for k in torch.unique(labels).tolist():
        images = torch.nonzero(labels == k).flatten()
        count = min(max(1, round(share * len(images))), len(images) - 1)
        held[images[torch.randperm(len(images), generator=draw)[:count]]] = True
    return held


S = TypeVar("S", bound=Samples)

TESTS = 0.2
"""The share of each class that becomes test images, if a data set of your own does not say which they are."""
DRAWN = "nothing says which are for tests: a fifth of each class was drawn, the same each time"


def divided(samples: S, where: str) -> tuple[S, S]:
    """Training and test samples, these from every class with more than one. The same samples give the same ones."""
    test = draw_held_out(samples.labels, TESTS, NOBODY, 0, "test images")
    if not test.any():
        raise MaplError(f"{where} has one sample per class, so none of them can be for tests")
    return samples.take(torch.nonzero(~test).flatten()), samples.take(torch.nonzero(test).flatten())


def _pooled(shares: Sequence[Share]) -> list[Share]:
    """The shares with the training images of their whole clusters, one tensor per cluster, client after client.

    An image that two clients have is there twice: the clients together would see it twice, too. What a client holds
    out it also leaves out of the pool, if another client has the same image.
    """
    together: dict[int, Tensor] = {}
    for cluster in {share.cluster for share in shares}:
        together[cluster] = torch.cat([share.train for share in shares if share.cluster == cluster])
    return [replace(share, train=_without(together[share.cluster], share.held)) for share in shares]


def _without(images: Tensor, held: Tensor) -> Tensor:
    """The images that are not held; the same tensor if none is."""
    found = torch.isin(images, held)
    return images[~found] if found.any() else images


def _by_scenario(dataset: Dataset, settings: PartitionSettings, clients: int, seed: int) -> list[Share]:
    """The paper's scenarios: each client takes images of the classes of its cluster."""
    if settings.clusters > clients:
        raise MaplError(
            f"partition.clusters: got {settings.clusters}, but there are {clients} clients; take at most {clients}"
        )
    by_cluster = cluster_classes(settings, dataset.classes)
    clusters = cluster_of(settings, clients)
    train = _Dealer("training", dataset.train.labels, dataset.classes, settings, seed)
    test = _Dealer("test", dataset.test.labels, dataset.classes, settings, seed)
    shares = []
    for client, cluster in enumerate(clusters):
        held = by_cluster[cluster]
        shots = _draw_shots(settings, client, len(held), seed)
        tests = torch.cat([_deal_test(test, client, k, settings.test_shots) for k in held])
        if not len(tests):
            raise MaplError(f"data set {dataset.name!r} has no test images of client {client}'s classes {held}")
        shares.append(
            Share(
                cluster=cluster,
                classes=held,
                train=torch.cat([train.deal(client, k, n, settings.stride) for k, n in zip(held, shots, strict=True)]),
                test=tests,
            )
        )
    return shares


def cluster_of(settings: PartitionSettings, clients: int) -> list[int]:
    """Each client's cluster."""
    sizes = settings.sizes
    if sizes is None:
        return [i * settings.clusters // clients for i in range(clients)]
    if len(sizes) != settings.clusters or sum(sizes) != clients:
        raise MaplError(
            f"partition.sizes: got {list(sizes)}, but there are {settings.clusters} clusters and {clients} clients; "
            "it takes one size per cluster, and they add up to the number of clients"
        )
    return [cluster for cluster, size in enumerate(sizes) for _ in range(size)]


def other_tests(dataset: Dataset, share: Share) -> Tensor:
    """The test images of a client's classes that are not among its own, in the order of the data set."""
    labels = dataset.test.labels
    others = torch.isin(labels, torch.tensor(share.classes))
    others[share.test] = False
    return torch.nonzero(others).flatten()


def _by_scheme(dataset: Dataset, settings: PartitionSettings, clients: int, seed: int) -> list[Share]:
    """Test images come from the classes of a client's training images, unless a file names them."""
    found = _divide(dataset, settings, clients, seed)
    held = [tuple(torch.unique(dataset.train.labels[indices]).tolist()) for indices in found["train"]]
    for client, indices in enumerate(found["train"]):
        if len(indices) < settings.fewest:
            remedy = "take a larger partition.alpha" if settings.scheme == "dirichlet" else "give it more"
            raise MaplError(
                f"client {client} is left with {len(indices)} training images, and partition.fewest is "
                f"{settings.fewest}; {remedy}, or take fewer clients"
            )
    tests = found.get("test") or [
        schemes.draw_tests(dataset.test.labels, classes, settings.test_shots, client, seed)
        for client, classes in enumerate(held)
    ]
    for client, indices in enumerate(tests):
        if not len(indices):
            raise MaplError(f"client {client} is left without test images (its classes: {held[client]})")
    groups = {classes: number for number, classes in enumerate(dict.fromkeys(held))}
    clustered = settings.scheme in ("shards", "file")
    return [
        Share(groups[classes] if clustered else 0, classes, train, test)
        for classes, train, test in zip(held, found["train"], tests, strict=True)
    ]


def _divide(dataset: Dataset, settings: PartitionSettings, clients: int, seed: int) -> dict[str, list[Tensor]]:
    labels = dataset.train.labels
    match settings.scheme:
        case "iid":
            return {"train": schemes.iid(len(labels), clients, settings.images, seed)}
        case "dirichlet":
            return {"train": schemes.dirichlet(labels, dataset.classes, clients, settings.alpha, seed)}
        case "shards":
            return {"train": schemes.sorted_shards(labels, clients, settings.shards_per_client, seed)}
    if settings.file is None:
        raise MaplError("partition.file: not set; the scheme 'file' needs a JSON file with the indices of each client")
    totals = {"train": len(labels), "test": len(dataset.test.labels)}
    check_digest("partition.file", settings.file.expanduser(), settings.digest)
    return schemes.from_file(settings.file.expanduser(), clients, totals)


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
    """Deals out the images of each class of one split, client by client."""

    def __init__(self, split: str, labels: Tensor, classes: int, settings: PartitionSettings, seed: int):
        self.split = split
        self.random = settings.sharding == "random"
        shots = "partition.shots" if settings.scenario in (1, 2) else "partition.shots_range"
        shots = "partition.test_shots" if split == "test" else shots
        self.remedy = shots if self.random or split == "test" else f"{shots} or partition.stride"
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
                f"{first} to {first + shots - 1} of them: {missing} are missing; lower {self.remedy}, "
                "or take fewer clients"
            )
        self.dealt[klass] = first + shots
        return self.images[klass][first : first + shots]
