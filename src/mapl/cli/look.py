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
import mapl.writers
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
from mapl.compare import Arm, compare
from mapl.data.partition import SCENARIOS
from mapl.errors import MaplError, unknown
from mapl.history import load
from mapl.network import TOPOLOGIES
from mapl.plugins import known, summary
from mapl.recipe import to_toml

Folders = Annotated[list[Path], typer.Argument(help="Folders of runs.", metavar="RUN...")]


def compare_command(folders: Folders, as_json: JsonOption = False) -> None:
    """Put runs side by side: accuracy, collaboration gain, messages, bytes, time.

    Seeds of one recipe are taken together. The collaboration gain needs the control arm among the runs: the same recipe
    and seed with [bold]--topology none[/bold].
    """
    records = [load(folder) for folder in folders]
    for record in records:
        if not record.tested:
            raise MaplError(f"run {str(record.folder)!r} has not been tested yet; resume it, or leave it out")
    arms = compare(records)
    if as_json:
        print(json.dumps([arm.as_dict() for arm in arms], indent=1))
    else:
        print_table(arms)


def print_table(arms: Sequence[Arm]) -> None:
    """Arms as a table on the terminal."""
    # A pipe has no width to fit in: wrapped cells would be of no use to whoever reads it.
    Console(width=None if sys.stdout.isatty() else 180).print(table(arms))


def table(arms: Sequence[Arm]) -> Table:
    """Arms as a table."""
    made = Table(caption="accuracy in %: mean over clients at the last test, ± 95 % interval over seeds")
    for title in (
        "run",
        "seeds",
        "accuracy",
        "std over clients",
        "collaboration gain",
        "inside clusters",
        "messages",
        "MiB",
        "s",
    ):
        made.add_column(title, justify="left" if title == "run" else "right")
    for arm in arms:
        made.add_row(
            arm.label,
            str(len(arm.seeds)),
            arm.accuracy.text(),
            f"{100 * arm.spread:.1f}",
            gain_text(arm),
            "–" if arm.inside is None else f"{arm.inside:.2f}",
            f"{arm.messages:,.0f}",
            f"{arm.bytes / 2**20:,.1f}",
            f"{arm.seconds:,.0f}",
        )
    return made


def gain_text(arm: Arm) -> str:
    """The collaboration gain in words."""
    if arm.gain is not None:
        return arm.gain.text(sign="+")
    return "is the control" if arm.is_control or arm.method == "local" else "no control given"


def report_command(
    folders: Folders,
    out: Annotated[Path | None, typer.Option(help="Folder for the page; by default the first run's.")] = None,
) -> None:
    """Draw runs as one self-contained page (report.html) and the same pictures as PNG."""
    from mapl.report import write_report  # plotting is slow to import, and only this command needs it

    records = [load(folder) for folder in folders]
    page = write_report(records, out or folders[0] / "report")
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
    "writers": lambda: _listed(known(mapl.writers)),
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
