"""Two tables for spreadsheets, pandas and R: rounds.csv and clients.csv in the run's folder."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, ClassVar

from mapl.errors import MaplError
from mapl.measures import METRICS
from mapl.recipe import Recipe
from mapl.runs.chain import Round
from mapl.runs.files import write_aside
from mapl.runs.writers._recorded import clients_of, recorded

__all__ = ["CsvFile"]

Row = dict[str, Any]


class CsvFile:
    """Two tables: rounds.csv (one row per round) and clients.csv (one row per tested round and client).

    Rounds that are played again after a crash replace their old rows. A row that a kill cut off is rewritten.
    """

    name: ClassVar[str] = "csv"

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self._rounds = _Table(self.folder / "rounds.csv")
        self._clients = _Table(self.folder / "clients.csv")
        self._next: int | None = None
        self._held: list[int] | None = None

    def __call__(self, recipe: Recipe, line: Round, seconds: dict[str, float]) -> None:
        try:
            # Not in __init__: a run that is to be overwritten, and its tables, are gone only by the first round.
            if line.round != self._next:
                self._take_up(line.round)
            self._rounds.append([_round_row(line, seconds)])
            self._clients.append(_client_rows(line, self._held))
        except OSError as error:
            raise MaplError(f"the tables in {str(self.folder)!r} could not be written ({error})") from error
        self._next = line.round + 1

    def _take_up(self, start: int) -> None:
        """Make the tables hold the rounds before `start`, and nothing else.

        The history is the better source: it has the round whose row a kill cut off, and the rounds before this writer
        was first used. In a folder without a history, the whole rows of the tables are kept.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._held = clients_of(self.folder)
        if past := recorded(self.folder, start):
            self._rounds.replace([_round_row(line, seconds) for line, seconds in past])
            self._clients.replace([row for line, _ in past for row in _client_rows(line, self._held)])
        else:
            for table in (self._rounds, self._clients):
                table.replace(table.before(start))


def _round_row(line: Round, seconds: dict[str, float]) -> Row:
    """The columns that every run has, then one per loss term."""
    return {
        "round": line.round,
        "accuracy": fmean(line.accuracy) if line.accuracy else None,
        "std": pstdev(line.accuracy) if line.accuracy else None,
        **{name: line.value(name) for name in METRICS if name != "accuracy"},
        **({"all_images": fmean(line.all_images)} if line.all_images else {}),
        **{f"accuracy_{way}": fmean(accuracy) for way, accuracy in (line.ways or {}).items()},
        "messages": line.messages,
        "bytes": line.bytes,
        "seconds": sum(seconds.values()) if seconds else None,
        **{f"loss_{term}": value for term, value in line.mean_losses.items()},
    }


def _client_rows(line: Round, held: Sequence[int] | None) -> list[Row]:
    rows: list[Row] = [
        {"round": line.round, "client": place if held is None else held[place], "accuracy": value}
        for place, value in enumerate(line.accuracy or ())
    ]
    by_name: dict[str, list[float]] = dict((line.measures or {}).items())
    if line.all_images:
        by_name["all_images"] = line.all_images
    for name, values in by_name.items():
        for row, value in zip(rows, values, strict=True):
            row[name] = value
    return rows


class _Table:
    """A CSV file that grows by whole lines. A new column means rewriting it."""

    def __init__(self, path: Path):
        self.path = path
        self.columns: list[str] = []

    def append(self, rows: Sequence[Row]) -> None:
        if any(column not in self.columns for row in rows for column in row):
            self.replace([*self._read(), *rows])
        elif rows:
            with self.path.open("ab") as file:
                file.write(_text(self.columns, rows).encode())

    def replace(self, rows: Sequence[Row]) -> None:
        self.columns = list(dict.fromkeys(column for row in rows for column in row))
        if rows:
            header = [dict(zip(self.columns, self.columns, strict=True))]
            write_aside(self.path, _text(self.columns, [*header, *rows]).encode())
        else:
            self.path.unlink(missing_ok=True)

    def before(self, start: int) -> list[Row]:
        """The rows of earlier rounds."""
        try:
            return [row for row in self._read() if int(row["round"]) < start]
        except (KeyError, TypeError, ValueError, csv.Error) as error:
            raise MaplError(f"{str(self.path)!r} is not a table written by mapl, so it is not overwritten") from error

    def _read(self) -> list[Row]:
        data = self.path.read_bytes() if self.path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1].decode()  # a kill may have cut off the last line
        return list(csv.DictReader(io.StringIO(whole, newline="")))


def _text(columns: Sequence[str], rows: Iterable[Row]) -> str:
    text = io.StringIO(newline="")
    csv.DictWriter(text, columns, lineterminator="\n").writerows(rows)
    return text.getvalue()
