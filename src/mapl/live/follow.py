"""A run that may still be going on: read once as a whole, and from then on only what was added."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from mapl.runs.chain import Entry, Round, follows
from mapl.runs.folder import HISTORY, RECIPE, intact_times, load, read_times, seconds_of
from mapl.runs.record import Record

Mark = tuple[int, int]
"""Says whether a file is still the same one: its number on disk, and when it was last changed."""


class Follower:
    """Reads one run again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.generation = 0
        """Grows when the run was read anew: what was known of it before may no longer hold."""
        self._record: Record | None = None
        self._end = 0
        """Up to where the history is known."""
        self._recipe: Mark = (0, 0)
        self._file = 0

    def look(self) -> Record:
        """The run as it is now. Whatever `mapl.load` refuses is refused here."""
        path = self.folder / HISTORY
        number, size = _size(path)
        record = self._record
        if record is None or number != self._file or size < self._end or _mark(self.folder / RECIPE) != self._recipe:
            record = self._whole()
        elif size > self._end:
            record = self._grown(record, path) or self._whole()
        self._record = record
        return record

    def _whole(self) -> Record:
        self._record = None  # should it not be readable, nothing is known
        self._recipe = _mark(self.folder / RECIPE)
        self._file = _size(self.folder / HISTORY)[0]
        record = load(self.folder)
        self._end = record.history.entries[-1].end if record.history and record.history.entries else 0
        self.generation += 1
        return record

    def _grown(self, record: Record, path: Path) -> Record | None:
        """The record with the lines that were added; None if they do not follow from what is known."""
        history = record.history
        if history is None or history.header is None:
            return None
        with path.open("rb") as file:
            file.seek(self._end)
            *lines, _ = file.read().split(b"\n")
        entries, before, begin = list(history.entries), history.last, self._end
        for line in lines:
            if not follows(line, before):
                return None
            values = json.loads(line)
            try:
                round = Round.of_line(line)
            except ValidationError:
                return None
            end = begin + len(line) + 1
            entries.append(Entry(round, values.get("graph", ""), before, values["chain"], begin, end))
            before, begin = values["chain"], end
        self._end = begin
        longer = replace(history, entries=entries)
        times = [seconds_of(line) for line in intact_times(read_times(self.folder), longer)[0].values()]
        return replace(record, rounds=[entry.round for entry in entries], history=longer, times=times)


def _size(path: Path) -> tuple[int, int]:
    """A file's number on disk and its size; zeros if there is none."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_ino, status.st_size


def _mark(path: Path) -> Mark:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns
