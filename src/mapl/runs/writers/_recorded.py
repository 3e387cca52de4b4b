"""What a run has recorded of the rounds before the one that a writer is called with."""

from __future__ import annotations

from pathlib import Path

from mapl.runs.chain import Round
from mapl.runs.folder import CLIENTS, RECIPE, load, read_cards


def recorded(folder: Path, before: int) -> list[tuple[Round, dict[str, float]]]:
    """Each earlier round with the seconds of its parts; empty if `folder` is not that of a run."""
    if before == 0 or not (folder / RECIPE).is_file():
        return []
    record = load(folder)
    times = {
        time["round"]: {part: seconds for part, seconds in time.items() if part not in ("round", "seconds")}
        for time in record.times
    }
    # A crash between the two files leaves a round without its times.
    return [(line, times.get(line.round, {})) for line in record.rounds if line.round < before]


def clients_of(folder: Path) -> list[int] | None:
    """The numbers of the clients that a line has values for; None if `folder` is not that of a run: 0, 1, 2, …"""
    return [card.id for card in read_cards(folder)[0]] if (folder / CLIENTS).is_file() else None
