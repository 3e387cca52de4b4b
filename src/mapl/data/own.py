"""Data of your own: which data set reads a path, and defaults made from what is there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mapl.data.dataset import Dataset
from mapl.data.loading import GIVEN_IN_PYTHON
from mapl.data.partition import PartitionSettings, cluster_classes, cluster_of
from mapl.errors import MaplError, unknown
from mapl.plugins import index
from mapl.shape import is_image, usual_backbone

Tree = dict[str, Any]

MOST_CLIENTS = 10
FEWEST_IMAGES = 20
"""Training images that a client should have, and more if there are many classes."""
MOST_SHOTS = 30
DIVIDING = {"scenario", "clusters", "sizes", "overlap", "shots", "shots_range", "stride", "sharding"}
"""Settings of the paper's scenarios: who sets one of them asks for a scenario."""


READERS = {".npz": "npz", ".csv": "table", ".tsv": "table", ".parquet": "table"}
"""Which data set reads a file."""


def kind_of(data: Path) -> str:
    """Which data set reads this: a folder of images, or a file."""
    path = data.expanduser()
    if path.is_dir():
        return _in_folder(path, data)
    if not path.exists():
        raise MaplError(f"there is no file or folder {str(data)!r}")
    if path.suffix.lower() not in READERS:
        raise MaplError(
            f"{str(data)!r} is neither a folder of images nor a file that ends in {', '.join(READERS)} (mapl list data "
            "says how)"
        )
    return READERS[path.suffix.lower()]


def _in_folder(path: Path, data: Path) -> str:
    """A folder of images; one with a single file of data was probably meant as that file."""
    try:
        inside = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
    except OSError as error:
        raise MaplError(f"{str(data)!r} is not a folder that can be read: {error.strerror}") from error
    if not inside:
        raise MaplError(f"{str(data)!r} is an empty folder")
    files = sorted(entry.name for entry in inside if entry.suffix.lower() in READERS)
    if files and not any(entry.is_dir() for entry in inside):
        raise MaplError(f"{str(data)!r} is a folder without images: give one of its files, such as {files[0]!r}")
    return "folder"


def located(name: str) -> Tree:
    """The settings of a data set that is named, or given as a path. The path is saved whole: a run is resumed from
    anywhere."""
    known = index("mapl.data.sources")
    if name in known or ":" in name or name == GIVEN_IN_PYTHON:
        return {"name": name}
    if not _is_path(name):
        raise MaplError(f"{unknown('data set', name, known)} There is no file or folder of that name either.")
    return {"name": kind_of(Path(name)), "folder": str(Path(name).expanduser().absolute())}


def _is_path(name: str) -> bool:
    return "/" in name or name.startswith("~") or bool(Path(name).suffix) or Path(name).exists()


def suited(dataset: Dataset, given: Mapping[str, Any]) -> Tree:
    """Defaults for a data set of your own, made from what is there. `given`: what was asked for.

    Every client gets enough to learn from, at random (IID), and is tested with all test images of its classes. Networks
    and batches are small, so that the first try takes minutes.
    """
    total, classes = len(dataset.train), dataset.classes
    clients = given.get("clients")
    if not isinstance(clients, int) or clients < 1:
        clients = _clients(total, classes)
    return {
        "clients": clients,
        "rounds": 40,
        "partition": _division(dataset, given.get("partition", {}), clients),
        "method": {"warmup": 10},
        "model": {"embedding": 128, "projection": 128, "hidden": 512, **_backbones(dataset)},
        **({"augment": _augmentation(dataset)} if dataset.kind == "images" else {}),
        "train": {"batch": _batch(total // clients), "learning_rate": 1e-3},
        "evaluate": {"every": 5},
    }


def suited_to(data: Dataset | Mapping[int, Dataset], given: Mapping[str, Any]) -> Tree:
    """Defaults for data that were given in Python: one data set, or one for each client."""
    if isinstance(data, Dataset):
        return suited(data, given)
    sizes = sorted(len(dataset.train) for dataset in data.values())
    usual = suited(next(iter(data.values())), {**given, "clients": len(data)})
    return {**usual, "train": {**usual["train"], "batch": _batch(sizes[len(sizes) // 2])}}


def _clients(total: int, classes: int) -> int:
    """Each with at least 20 images, and four of each class; but two clients if there is anything to divide."""
    if total < 4:
        return 1
    return max(2, min(MOST_CLIENTS, total // max(FEWEST_IMAGES, 4 * classes)))


def _batch(images: int) -> int:
    """A power of two, so that a client has four batches or more in a round."""
    return max(8, min(64, 1 << max(0, images // 4).bit_length() - 1)) if images >= 32 else 8


def _division(dataset: Dataset, asked: Any, clients: int) -> Tree:
    """At random, unless one of the paper's scenarios was asked for: then with as many shots as there are."""
    asked = asked if isinstance(asked, Mapping) else {}
    if asked.get("scheme", "scenario" if DIVIDING & asked.keys() else "iid") != "scenario":
        return {"scheme": "iid", "test_shots": "all"}
    clusters = min(2, clients, dataset.classes)
    base: Tree = {"scheme": "scenario", "test_shots": "all", "sharding": "random", "clusters": clusters}
    base["overlap"] = max(1, min(4, dataset.classes - clusters))
    known = {key: asked[key] for key in ("scenario", "clusters", "sizes", "overlap") if key in asked}
    try:
        settings = PartitionSettings.model_validate({**base, **known})
        by_cluster, clusters_of = cluster_classes(settings, dataset.classes), cluster_of(settings, clients)
    except (ValueError, MaplError):  # said when the recipe is checked, or the data are divided
        return base
    counts = dataset.train.counts(dataset.classes)
    sharing = [sum(k in by_cluster[c] for c in clusters_of) for k in range(dataset.classes)]
    shots = min((count // n for count, n in zip(counts, sharing, strict=True) if n), default=1)
    shots = max(1, min(MOST_SHOTS, shots))
    return {**base, "shots": shots, "shots_range": [max(1, shots // 2), shots]}


def _backbones(dataset: Dataset) -> Tree:
    """Those of images are the recipe's own defaults."""
    return {} if is_image(dataset.shape) else {"backbones": [usual_backbone(dataset.shape)]}


def _augmentation(dataset: Dataset) -> Tree:
    """Weak, because nobody has said what the images are: a mirrored letter is another letter."""
    contrastive = {
        "crop_scale": [0.5, 1.0],
        "flip": 0,
        "brightness": 0.2,
        "contrast": 0.2,
        "saturation": 0.2,
        "hue": 0,
        "greyscale": 0,
    }
    padding = min(4, min(dataset.shape[1:]) // 8)
    return {"contrastive": contrastive, "plain": {"crop_padding": padding, "flip": 0}}
