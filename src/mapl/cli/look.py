"""`mapl compare`, `mapl report`, `mapl list` and `mapl show`: commands that look and change nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import mapl.backbones
import mapl.data.sources
import mapl.methods
import mapl.paper
import mapl.runs.writers
from mapl.analysis.compare import Arm, compare, left_out
from mapl.cli.runs import (
    ClientsOption,
    DataOption,
    JsonOption,
    MethodOption,
    RecipeArgument,
    RoundsOption,
    ScenarioOption,
    SeedOption,
    SetOption,
    TopologyOption,
    _options,
    from_command_line,
)
from mapl.data.partition import SCENARIOS
from mapl.errors import MaplError, unknown
from mapl.network import TOPOLOGIES
from mapl.plugins import known, summary
from mapl.recipe import to_toml
from mapl.runs.history import Record, load

Folders = Annotated[list[Path], typer.Argument(help="Folders of runs.", metavar="RUN...")]


def compare_command(folders: Folders, as_json: JsonOption = False) -> None:
    """Put runs side by side: accuracy, collaboration gain, messages, bytes, time.

    Seeds of one recipe are taken together. The collaboration gain needs the control arm among the runs: the same recipe
    and seed with [bold]--topology none[/bold].
    """
    records = _load(folders)
    for record in records:
        if not record.tested:
            raise MaplError(f"run {str(record.folder)!r} has not been tested yet; resume it, or leave it out")
    arms = compare(records)
    if as_json:
        print(json.dumps([arm.as_dict() for arm in arms], indent=1))
    else:
        print_table(arms)


def _load(folders: Sequence[Path]) -> list[Record]:
    """The runs; which of them will not be counted is said on standard error, where it spoils no table."""
    records = [load(folder) for folder in folders]
    for sentence in left_out(records):
        print(f"warning: {sentence}", file=sys.stderr, flush=True)
    return records


def print_table(arms: Sequence[Arm]) -> None:
    """Arms as a table on the terminal."""
    # A pipe has no width to fit in: wrapped cells would be of no use to whoever reads it.
    console = Console(width=None if sys.stdout.isatty() else 180)
    console.print(table(arms, console.width))


def gain_text(arm: Arm) -> str:
    """The collaboration gain in words."""
    if arm.gain is not None:
        return arm.gain.text(sign="+")
    return "control" if arm.is_control or arm.method == "local" else "no control"


CELLS: dict[str, Callable[[Arm], str]] = {
    "seeds": lambda arm: str(len(arm.seeds)),
    "acc. %": lambda arm: arm.accuracy.text(),
    "std": lambda arm: f"{100 * arm.spread:.1f}",
    "gain": gain_text,
    "inside": lambda arm: "–" if arm.inside is None else f"{arm.inside:.2f}",
    "messages": lambda arm: f"{arm.messages:,.0f}",
    "MiB": lambda arm: f"{arm.bytes / 2**20:,.1f}",
    "s": lambda arm: f"{arm.seconds:,.0f}",
}
"""The columns of numbers. Their headings are no wider than their numbers: a terminal has no room for both."""
EXPENDABLE = (("s", "MiB"), ("messages",), ("inside",), ("std",), ("seeds",))
"""What a narrow terminal goes without, in this order: a column less is better than numbers that are cut."""
NAME = 14
"""What the names of the arms need at the least; they are wrapped."""
CAPTION = {
    "acc. %": "mean over clients at the last test, ± 95 % interval over seeds",
    "std": "over clients",
    "gain": "against the same recipe and seed without letters, after as many rounds",
    "inside": "share of the weight given to others that stays inside the true clusters",
}
"""What the short headings mean."""


def table(arms: Sequence[Arm], width: int) -> Table:
    """Arms as a table that fits, with as many columns as can be shown whole."""
    columns = _columns(arms, width)
    caption = "; ".join(f"{title}: {CAPTION[title]}" for title in columns if title in CAPTION)
    made = Table(caption=caption, caption_justify="left")
    made.add_column("run", overflow="fold")
    for title in columns:
        made.add_column(title, justify="right", no_wrap=True, overflow="crop")
    for arm in arms:
        made.add_row(arm.label, *(CELLS[title](arm) for title in columns))
    return made


def _columns(arms: Sequence[Arm], width: int) -> list[str]:
    """The columns that there is room for."""
    shown = list(CELLS)
    for titles in EXPENDABLE:
        # Each column has a line and a space on either side, and the table a line at its end.
        needed = NAME + sum(_width(title, arms) for title in shown) + 3 * (len(shown) + 1) + 1
        if needed > width:
            shown = [title for title in shown if title not in titles]
    return shown


def _width(title: str, arms: Sequence[Arm]) -> int:
    return max(map(len, [title, *(CELLS[title](arm) for arm in arms)]))


def report_command(
    folders: Folders,
    out: Annotated[Path | None, typer.Option(help="Folder for the page; by default the first run's.")] = None,
) -> None:
    """Draw runs as one self-contained page (report.html) and the same pictures as PNG."""
    from mapl.report import write_report  # plotting is slow to import, and only this command needs it

    page = write_report(_load(folders), out or folders[0] / "report")
    print(f"report: {page}")


def _listed(things: dict[str, object]) -> dict[str, str]:
    return {name: summary(thing) for name, thing in things.items()}


LISTS: dict[str, Callable[[], dict[str, str]]] = {
    "methods": lambda: _listed(known(mapl.methods)),
    "backbones": lambda: _listed(known(mapl.backbones)),
    "data": lambda: _listed(known(mapl.data.sources)),
    "scenarios": lambda: {str(number): text for number, text in SCENARIOS.items()},
    "topologies": lambda: _listed(dict(TOPOLOGIES)),
    "paper": mapl.paper.listing,
    "writers": lambda: _listed(known(mapl.runs.writers)),
}


def list_command(
    what: Annotated[str, typer.Argument(help="methods, backbones, data, scenarios, topologies, writers or paper.")],
    as_json: JsonOption = False,
) -> None:
    """List what can be named in a recipe."""
    if what not in LISTS:
        raise unknown("list", what, LISTS)
    entries = LISTS[what]()
    if as_json:
        print(json.dumps(entries, indent=1))
        return
    width = max(map(len, entries))
    for name, text in entries.items():
        print(f"{name:<{width}}  {text}")


def show_command(
    recipe: RecipeArgument = None,
    method: MethodOption = None,
    data: DataOption = None,
    scenario: ScenarioOption = None,
    clients: ClientsOption = None,
    rounds: RoundsOption = None,
    topology: TopologyOption = None,
    seed: SeedOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the whole recipe, defaults filled in, and where each value came from; it takes what mapl run takes."""
    options = _options(method, data, scenario, clients, rounds, topology, seed, None)
    made, provenance = from_command_line(recipe, options, settings or [])
    if as_json:
        print(json.dumps({"recipe": made.model_dump(mode="json"), "provenance": provenance}, indent=1))
    else:
        print(to_toml(made, provenance), end="")
