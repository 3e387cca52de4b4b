"""Other common ways to divide images among clients: at random, by Dirichlet shares, by sorted shards, by a file.

Each returns the indices of every client's training images. Except for files, every image goes to exactly one client,
unless the settings ask for fewer images.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mapl.errors import MaplError
from mapl.keys import ALWAYS, NOBODY, generator, key


def iid(total: int, clients: int, images: int, seed: int) -> list[Tensor]:
    """`images` of the `total` images for each client, drawn at random; 0 splits all of them evenly."""
    if images * clients > total:
        raise MaplError(
            f"partition.images: got {images}, but {clients} clients need {images * clients} training images, and the "
            f"data has {total}; take at most {total // clients}, or 0 for all of them"
        )
    shuffled = torch.randperm(total, generator=generator(seed, NOBODY, ALWAYS, "iid"))
    parts = torch.tensor_split(shuffled[: images * clients] if images else shuffled, clients)
    return [part.sort().values for part in parts]


def dirichlet(labels: Tensor, classes: int, clients: int, alpha: float, seed: int) -> list[Tensor]:
    """The images of each class divided among the clients by shares drawn from Dirichlet(α, …, α) (Hsu et al., 2019).

    A small α gives a class to few clients. A large α divides it almost evenly.
    """
    parts: list[list[Tensor]] = [[] for _ in range(clients)]
    for k in range(classes):
        images = torch.nonzero(labels == k).flatten()
        order = torch.randperm(len(images), generator=generator(seed, NOBODY, ALWAYS, f"dirichlet order of class {k}"))
        # torch has no Dirichlet distribution that takes a generator.
        draw = np.random.Generator(np.random.PCG64(key(seed, NOBODY, ALWAYS, f"dirichlet shares of class {k}")))
        edges = np.rint(np.cumsum(draw.dirichlet([alpha] * clients)) * len(images)).astype(np.int64)
        for part, dealt in zip(parts, torch.tensor_split(images[order], edges[:-1].tolist()), strict=True):
            part.append(dealt)
    return [torch.cat(part).sort().values for part in parts]


def sorted_shards(labels: Tensor, clients: int, each: int, seed: int) -> list[Tensor]:
    """The images sorted by label and cut into pieces; every client gets `each` of them (McMahan et al., 2017)."""
    pieces = clients * each
    if pieces > len(labels):
        raise MaplError(
            f"partition.shards_per_client: got {each}, but {len(labels)} training images cannot be cut into {pieces} "
            "pieces; take fewer"
        )
    cut = torch.tensor_split(torch.argsort(labels, stable=True), pieces)
    dealt = torch.randperm(pieces, generator=generator(seed, NOBODY, ALWAYS, "shards")).view(clients, each)
    return [torch.cat([cut[piece] for piece in hand]).sort().values for hand in dealt.tolist()]


def from_file(path: Path, clients: int, totals: dict[str, int]) -> dict[str, list[Tensor]]:
    """The indices of every client in a JSON file, by split: `train`, and `test` if the file has it.

    The file is {"train": [[indices of client 0], …], "test": […]}; or a list with one entry per client, which is
    {"train": […], "test": […]} or only the training indices. A client cannot have an image twice; two clients can have
    the same image.
    """
    name = repr(str(path))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MaplError(f"partition.file: there is no file {name}") from None
    except (OSError, ValueError) as error:
        raise MaplError(f"partition.file: {name} is not JSON that can be read: {error}") from error
    by_split = _by_split(content)
    if by_split is None or not {"train"} <= by_split.keys() <= totals.keys():
        raise MaplError(
            f'partition.file: {name} should be {{"train": [[…], …], "test": [[…], …]}} with a list of indices for each '
            "client (test may be left out), or a list with such a pair for each client"
        )
    for split, lists in by_split.items():
        if len(lists) != clients:
            raise MaplError(
                f"partition.file: {name} has {split} indices of {len(lists)} clients, and there are {clients}"
            )
    return {
        split: [
            _indices(found, totals[split], f"{name}: {split} indices of client {i}") for i, found in enumerate(lists)
        ]
        for split, lists in by_split.items()
    }


def _by_split(content: Any) -> dict[str, list[Any]] | None:
    """The content of a file as one list per split; None if it has another form."""
    if isinstance(content, list) and content and all(isinstance(entry, dict) for entry in content):
        splits = content[0].keys()
        if any(entry.keys() != splits for entry in content):
            return None
        content = {split: [entry[split] for entry in content] for split in splits}
    if isinstance(content, list):
        content = {"train": content}
    whole = isinstance(content, dict) and all(isinstance(lists, list) for lists in content.values())
    return content if whole else None


def _indices(found: Any, total: int, what: str) -> Tensor:
    if not isinstance(found, list) or not all(type(index) is int for index in found):
        raise MaplError(f"partition.file: {what} should be a list of whole numbers")
    outside = [index for index in found if not 0 <= index < total]
    if outside:
        raise MaplError(f"partition.file: {what} contain {outside[0]}; the data's run from 0 to {total - 1}")
    if len(set(found)) < len(found):
        raise MaplError(f"partition.file: {what} contain an index twice")
    return torch.tensor(found, dtype=torch.int64)


def draw_tests(labels: Tensor, held: tuple[int, ...], shots: int | str, client: int, seed: int) -> Tensor:
    """A client's test images of each class it has: 'all' or this many. Other clients may have the same ones."""
    tests = []
    for k in held:
        images = torch.nonzero(labels == k).flatten()
        if not isinstance(shots, str):
            if len(images) < shots:
                raise MaplError(
                    f"class {k} has {len(images)} test images, but client {client} needs {shots}; lower "
                    "partition.test_shots, or set it to 'all'"
                )
            order = torch.randperm(len(images), generator=generator(seed, client, ALWAYS, f"test images of class {k}"))
            images = images[order[:shots]].sort().values
        tests.append(images)
    return torch.cat(tests) if tests else torch.empty(0, dtype=torch.int64)
