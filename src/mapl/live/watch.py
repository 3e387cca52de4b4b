"""Everything the page asks for, whoever carries the questions: the runs, one run from some round on, W of a round."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mapl.errors import MaplError
from mapl.live import scene
from mapl.live.follow import Follower
from mapl.live.shelf import Shelf, state, table
from mapl.plugins import looking
from mapl.runs.folder import HISTORY, RECIPE
from mapl.runs.record import Record

Tree = dict[str, Any]
Beside = Callable[[Path], Mapping[str, Any] | None]
"""What is known about a run's folder besides its files, such as the status of a peer: `names` of clients by number,
`alive` numbers, a `title`, and `facts`."""


class Gone(MaplError):
    """What was asked for is not there, or not any more."""


class Watch:
    """The runs under a folder. Any number of pages may ask, at once."""

    def __init__(self, root: Path, chosen: str = "", beside: Beside = lambda folder: None, trust: bool = False) -> None:
        self.root, self.chosen, self.trust = root, chosen, trust
        self._beside = beside
        self._shelf = Shelf(root)
        self._followers: dict[Path, Follower] = {}
        self._lock = threading.Lock()

    def runs(self) -> Tree:
        """The table of runs."""
        with self._lock, looking(self.trust):
            return {"folder": str(self.root), "there": self.root.is_dir(), "runs": table(self._shelf.runs())}

    def run(self, name: str, start: int, control_start: int, stamp: str) -> Tree:
        """A run, and its control if there is one, from these rounds on; from the first if the stamp is not its own."""
        with self._lock, looking(self.trust):
            folder = self._folder(name)
            record, own = self._look(folder)
            other = self._shelf.control(name)
            control, theirs = self._look(self._folder(other)) if other else (None, 0)
            now = f"{own}.{theirs}.{other or ''}"
            if now != stamp:
                start = control_start = 0
            beside = self._beside(folder) or {}
            tree: Tree = {
                "stamp": now,
                "start": start,
                "lines": scene.lines(record, start),
                "rounds": len(record.rounds),
                "graphs": record.graph.exists,
                "state": _state(record),
                "left": scene.left(record),
                "alive": beside.get("alive"),
                "facts": beside.get("facts"),
            }
            if not start:
                tree["run"] = scene.still(record, beside.get("names"), beside.get("title", ""))
            if control is not None and other:
                lines = scene.accuracies(control, control_start)
                tree["control"] = {"name": other, "start": control_start, "lines": lines}
            return tree

    def graph(self, name: str, round: int) -> Tree:
        """W at the end of a round, counted from 0: by client, to whom it listens and how much."""
        with self._lock, looking(self.trust):
            record, _ = self._look(self._folder(name))
            if not 0 <= round < len(record.rounds):
                raise Gone(f"run {name!r} has no round {round + 1}")
            return {"round": round, "rows": scene.edges(record.graph.rows(round), record.recipe.clients)}

    def _folder(self, name: str) -> Path:
        folder = self._shelf.find(name)
        if folder is None or not (folder / RECIPE).exists():
            raise Gone(f"run {name!r} is not there, or not any more")
        return folder

    def _look(self, folder: Path) -> tuple[Record, int]:
        """A run as it is now, and how often it was read anew."""
        follower = self._followers.setdefault(folder, Follower(folder))
        try:
            return follower.look(), follower.generation
        except FileNotFoundError:
            raise Gone(f"run {folder.name!r} disappeared while it was read") from None


def _state(record: Record) -> str:
    path = record.folder / HISTORY
    try:
        changed = (path if path.exists() else record.folder / RECIPE).stat().st_mtime
    except OSError:
        changed = 0.0
    usual = max((line["seconds"] for line in record.times[-scene.RECENT :]), default=0.0)
    planned = len(record.rounds) if record.finished else record.recipe.rounds
    return state(len(record.rounds), planned, time.time() - changed, usual)
