"""`mapl join`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mapl.terminal.messages import quoted, say


def join_command(
    folders: Annotated[list[Path], typer.Argument(help="Folders of the parts.", metavar="PART...")],
    out: Annotated[Path, typer.Option(help="Folder of the run. It must not exist yet.", metavar="RUN")],
) -> None:
    """Join the folders of a network's processes into the folder of one run.

    Every process of a real network records only its own clients. Joined, these
    parts are a run like any other: mapl report, compare and export take it. It
    has the rounds that all parts have played.

    [bold]mapl join peers/* --out runs/network[/bold]
    [bold]mapl report runs/network[/bold]
    """
    from mapl.runs.join import join

    record = join(folders, out)
    parts = "1 part" if len(folders) == 1 else f"{len(folders)} parts"
    say(f"joined {parts}, {len(record.clients)} of {record.recipe.clients} clients, {len(record.rounds)} rounds: {out}")
    say(f"see it with: mapl report {quoted(out)}")
