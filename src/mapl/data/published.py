"""Published data sets: which files, in which folders, with which checksums."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mapl.errors import MaplError

log = logging.getLogger("mapl.data")

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""How the released program normalises colour images, whatever the data set."""

CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

# The defaults of a recipe are the paper's protocol, except for the backbones.
SUGGESTS: dict[str, Any] = {"model": {"backbones": ["resnet18", "shufflenet", "googlenet", "alexnet"]}}
"""The defaults of a recipe with one of the paper's data sets."""

Layout = Mapping[str, str | None]
"""Files or folders under the data folder, with the published MD5 where there is one."""

State = Literal["published", "different", "unknown"]
"""Whether a file's checksum is the published one, another one, or none was published."""


@dataclass(frozen=True)
class Download:
    """A file that is offered for download."""

    path: str
    """Where it belongs under the data folder."""
    md5: str
    urls: tuple[str, ...]
    """Where to get it, in the order to try."""
    unpack: str = ""
    """The folder under the data folder that it unpacks to; empty if it is not an archive."""
    most: int = 2 * 2**30
    """How many bytes it has at most, also unpacked. Give the size of its images uncompressed."""


@dataclass(frozen=True)
class Published:
    """A data set's files."""

    name: str
    layouts: tuple[Layout, ...]
    """Each is the whole data set; the first complete one is read."""
    downloads: tuple[Download, ...]

    def missing(self, folder: Path) -> list[str]:
        """What is missing from the layout that is closest to being complete."""
        absent = [[path for path in layout if not (folder / path).exists()] for layout in self.layouts]
        shares = [len(paths) / len(layout) for paths, layout in zip(absent, self.layouts, strict=True)]
        return absent[shares.index(min(shares))]

    def find(self, folder: Path) -> dict[str, Path]:
        """The files of the first complete layout, or an error that says which are missing."""
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
        """`find`, with a warning in the log about files that are not as published. They are read anyway.

        The warning comes once: it is repeated only if a file changes or moves.
        """
        found = self.find(folder)
        other = [path for path, state in self.checksums(folder).items() if state == "different"]
        if _are_new([found[path] for path in other]):
            log.warning(
                "data set %r in %r: %s not as published (another checksum: repacked, or incomplete); used anyway",
                self.name,
                str(folder),
                f"{other[0]} is" if len(other) == 1 else f"{len(other)} files ({other[0]}, …) are",
            )
        return found

    def checksums(self, folder: Path) -> dict[str, State]:
        """How the files compare with the published ones."""
        found = self.find(folder)
        published = {path: md5 for layout in self.layouts for path, md5 in layout.items()}
        return {path: _state(place, published[path]) for path, place in found.items()}


def _state(path: Path, published: str | None) -> State:
    if published is None or path.is_dir():
        return "unknown"
    return "published" if md5(path) == published else "different"


def md5(path: Path) -> str:
    """The checksum that publishers give. It finds damaged files; it does not protect against manipulated ones."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


_noticed: set[str] = set()
"""Files that this process has warned about, for a machine where that cannot be written down."""


def _are_new(files: Sequence[Path]) -> bool:
    """Whether nobody was told yet about one of these files, as it is now; remembered for the next time."""
    marks = [f"{file.stat().st_size} {file.stat().st_mtime_ns} {file.resolve()}" for file in files]
    try:
        memory = _cache_folder() / "not-as-published.txt"
        known = set(memory.read_text(encoding="utf-8").splitlines()) if memory.exists() else set()
        new = [mark for mark in marks if mark not in known | _noticed]
        if new:
            memory.parent.mkdir(parents=True, exist_ok=True)
            with memory.open("a", encoding="utf-8") as file:
                file.writelines(f"{mark}\n" for mark in new)
    except (OSError, RuntimeError, UnicodeError):  # no home folder, a read-only one, a damaged file, an odd path
        new = [mark for mark in marks if mark not in _noticed]
    _noticed.update(marks)
    return bool(new)


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mapl"
