"""What a command says about data of your own before it trains: what was found, and how it was divided."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from mapl.names import printable
from mapl.terminal.progress import counting

if TYPE_CHECKING:
    from mapl.data.dataset import Dataset, Progress
    from mapl.data.partition import Share
    from mapl.recipe import Recipe

MOST_NAMED = 12
"""How many classes a line names."""

SCHEMES = {
    "iid": "at random, alike for all (IID)",
    "scenario": "as the paper's scenario {scenario}",
    "dirichlet": "by Dirichlet({alpha:g})",
    "shards": "in sorted pieces, {shards_per_client} each",
    "file": "as {file} says",
}


PATIENCE = 1.0
"""Seconds that reading may take before it shows how far it is."""


@contextmanager
def reading(name: str = "your data") -> Iterator[None]:
    """Inside, data are read once, with progress if it takes longer than `PATIENCE`."""
    from mapl.data.loading import keeping_data

    start = time.monotonic()
    with ExitStack() as stack:
        shown: list[Progress] = []

        def progress(done: int, total: int) -> None:
            if not shown and time.monotonic() - start >= PATIENCE:
                shown.append(stack.enter_context(counting(f"reading {name}")))
            for show in shown:
                show(done, total)

        with keeping_data(progress):
            yield


def introduced(recipe: Recipe) -> list[str]:
    """The lines about the data of a recipe; none if they are not the user's own."""
    from mapl.data.partition import partition
    from mapl.runs.client_data import load_data, own_data

    if not own_data(recipe) or ":" in recipe.data.name:
        return []
    dataset = load_data(recipe)
    shares = partition(dataset, recipe.partition, recipe.clients, recipe.seed)
    return [*_found(dataset, recipe), *_divided(shares, recipe, dataset.noun)]


def _found(dataset: Dataset, recipe: Recipe) -> Iterator[str]:
    yield f"found     {dataset.summary()}, in {recipe.data.folder}"
    counts = [a + b for a, b in zip(*(s.counts(dataset.classes) for s in (dataset.train, dataset.test)), strict=True)]
    names = dataset.class_names or tuple(str(k) for k in range(dataset.classes))
    listed = [f"{printable(name)} {count:,}" for name, count in zip(names, counts, strict=True)][:MOST_NAMED]
    more = f", … ({dataset.classes - MOST_NAMED} more)" if dataset.classes > MOST_NAMED else ""
    yield f"          {', '.join(listed)}{more}"
    for line in dataset.found:
        yield f"          {line}"


def _divided(shares: Sequence[Share], recipe: Recipe, noun: str) -> Iterator[str]:
    settings = recipe.partition
    how = SCHEMES[settings.scheme].format(**settings.model_dump())
    clients = "1 client" if len(shares) == 1 else f"{len(shares)} clients"
    train, test = (
        _between([len(part) for part in parts]) for parts in zip(*((s.train, s.test) for s in shares), strict=True)
    )
    yield f"divided   among {clients} {how}: {train} training and {test} test {noun} each"
    other = "partition.alpha=0.1" if settings.scheme == "dirichlet" else "partition.scheme=dirichlet"
    yield f"          others: --clients, --set {other}, or --scenario (mapl data show counts them)"


def _between(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
