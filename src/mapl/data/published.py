"""Data sets as their publishers offer them: which files, in which folders, with which checksums."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mapl.errors import MaplError

log = logging.getLogger("mapl.data")

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""How the released program normalises colour images, whatever the data set."""

CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

# The recipe's own defaults are the paper's protocol; only the backbones are not.
SUGGESTS: dict[str, Any] = {"model": {"backbones": ["resnet18", "shufflenet", "googlenet", "alexnet"]}}
"""What the data sets of the paper suggest."""

Layout = Mapping[str, str | None]
"""Files or folders under the data folder, and the published MD5 of those that have one."""

State = Literal["published", "different", "unknown"]
"""A file's checksum: the published one, another one, or none was published."""


@dataclass(frozen=True)
class Download:
    """A file that is offered for download."""

    path: str
    """Where it belongs under the data folder."""
    md5: str
    urls: tuple[str, ...]
    """Where to have it, in the order to try them."""
    unpack: str = ""
    """The folder, under the data folder, that its contents make; empty: it is not an archive."""


@dataclass(frozen=True)
class Published:
    """A data set's files."""

    name: str
    layouts: tuple[Layout, ...]
    """Each of them is the whole data set; the first one found is read."""
    downloads: tuple[Download, ...]

    def missing(self, folder: Path) -> list[str]:
        """What is not there of the layout that is nearest to being whole."""
        absent = [[path for path in layout if not (folder / path).exists()] for layout in self.layouts]
        shares = [len(paths) / len(layout) for paths, layout in zip(absent, self.layouts, strict=True)]
        return absent[shares.index(min(shares))]

    def find(self, folder: Path) -> dict[str, Path]:
        """The files of the first layout that is whole, or an error that says which are missing."""
        for layout in self.layouts:
            found = {path: folder / path for path in layout}
            if all(place.exists() for place in found.values()):
                return found
        raise MaplError(
            f"data set {self.name!r} is not in {str(folder)!r}, or not all of it; missing: "
            f"{', '.join(self.missing(folder))}; get it with: mapl data get {self.name} --folder {folder}, "
            "or say where it is with data.folder or $MAPL_DATA"
        )

    def open(self, folder: Path) -> dict[str, Path]:
        """`find`, and a word in the log about files that are not as published. They are read all the same."""
        found = self.find(folder)
        other = [path for path, state in self.checksums(folder).items() if state == "different"]
        if other:
            log.warning(
                "data set %r in %r: %s not as published (another checksum: repacked, or a part of it); used as found",
                self.name,
                str(folder),
                f"{other[0]} is" if len(other) == 1 else f"{len(other)} files ({other[0]}, …) are",
            )
        return found

    def checksums(self, folder: Path) -> dict[str, State]:
        """How the files that are read compare with the published ones."""
        found = self.find(folder)
        published = {path: md5 for layout in self.layouts for path, md5 in layout.items()}
        return {path: _state(place, published[path]) for path, place in found.items()}


def _state(path: Path, published: str | None) -> State:
    if published is None or path.is_dir():
        return "unknown"
    return "published" if md5(path) == published else "different"


def md5(path: Path) -> str:
    """The checksum that publishers of data sets give. It tells a damaged file from a whole one, not friend from foe."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
