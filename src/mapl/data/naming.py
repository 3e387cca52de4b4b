"""Arrays by name, as in an .npz file or a dict: which are samples, which are labels, and which are for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mapl.data.found import Found, Pair
from mapl.data.samples import Kind
from mapl.errors import MaplError

Array = NDArray[Any]

SAMPLES: dict[str, Kind | None] = {
    "images": "images",
    "pixels": "images",
    "features": "features",
    "tokens": "tokens",
    "input_ids": "tokens",
    "x": None,
    "data": None,
    "samples": None,
    "inputs": None,
}
"""What arrays of samples are called; the first that is there is taken. None: their type and shape say what they are."""
LABELS = ("labels", "label", "y", "target", "targets")
CLASS_NAMES, COLUMNS, VOCABULARY = ("class_names", "target_names"), ("columns", "feature_names"), ("vocabulary",)


def is_named(names: Sequence[str]) -> bool:
    """Whether these are the names of arrays of samples and labels."""
    bare = {_bare(name)[1] for name in names}
    return bool(bare & set(SAMPLES)) and bool(bare & set(LABELS))


def found_in(names: Sequence[str], get: Callable[[str], Array], where: str) -> Pair:
    """The training samples and, if they have names of their own, the test samples."""
    places = {_bare(name): name for name in names}
    taken: list[str] = []

    def one(split: str, wanted: Sequence[str]) -> str | None:
        """The array of a split that has one of these names."""
        name = next((places[split, bare] for bare in wanted if (split, bare) in places), None)
        taken.extend([name] if name else [])
        return name

    def extra(wanted: Sequence[str]) -> Array | None:
        name = one("", wanted)
        return None if name is None else np.asarray(get(name))

    class_names, columns, vocabulary = (extra(wanted) for wanted in (CLASS_NAMES, COLUMNS, VOCABULARY))
    splits = ["train", "test"] if any(split for split, bare in places if bare in (*SAMPLES, *LABELS)) else [""]
    if "test" not in {split for split, _ in places}:
        splits = splits[:1]
    chosen = [(split, one(split, tuple(SAMPLES)), one(split, LABELS)) for split in splits]
    _check_complete(chosen, names, where)
    left = [name for name in names if name not in taken]
    notes = (f"arrays left out: {', '.join(left)}",) if left else ()
    found = [
        Found(
            np.asarray(get(samples)),
            np.asarray(get(labels)),
            SAMPLES[_bare(samples)[1]],
            columns=() if columns is None else tuple(map(str, columns.tolist())),
            names=() if class_names is None else tuple(map(str, class_names.tolist())),
            vocabulary=0 if vocabulary is None else int(vocabulary),
            notes=notes,
        )
        for _, samples, labels in chosen
        if samples and labels
    ]
    return found[0], found[1] if len(found) > 1 else None


def _check_complete(chosen: Sequence[tuple[str, str | None, str | None]], names: Sequence[str], where: str) -> None:
    if not any(name for _, *both in chosen for name in both):
        has = ", ".join(names) or "nothing"
        raise MaplError(
            f"{where} has no arrays named images, features, tokens, x or data, and labels or y; it has: {has}"
        )
    missing = [
        f"{split}_{what}" if split else what
        for split, *both in chosen
        for name, what in zip(both, ("images (or features, tokens, x)", "labels"), strict=True)
        if not name
    ]
    if missing:
        raise MaplError(f"{where} has no array {', '.join(missing)}")


def _bare(name: str) -> tuple[str, str]:
    """The split that a name tells, and the name without it."""
    lower = name.lower()
    for split in ("train", "test"):
        if lower.startswith(f"{split}_"):
            return split, lower.removeprefix(f"{split}_")
        if lower.endswith(f"_{split}"):
            return split, lower.removesuffix(f"_{split}")
    return "", lower
