"""`mapl compare`, `mapl report`, `mapl list` and `mapl show`: commands that look and change nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from mapl import plugins
from mapl.cli.recipe_options import (
    ClientsOption,
    DataOption,
    MethodOption,
    RecipeArgument,
    RoundsOption,
    ScenarioOption,
    SeedOption,
    TopologyOption,
    compose_recipe,
)
from mapl.errors import MaplError, unknown
from mapl.names import printable
from mapl.terminal.messages import console, say, warn
from mapl.terminal.options import JsonOption, SetOption, TrustOption

if TYPE_CHECKING:
    from mapl.analysis.compare import Arm
    from mapl.runs.history import Record

Folders = Annotated[list[Path], typer.Argument(help="Folders of runs.", metavar="RUN...")]


def compare_command(folders: Folders, trust: TrustOption = False, as_json: JsonOption = False) -> None:
    """Compare runs: accuracy, collaboration gain, messages, bytes, time.

    Runs that differ only in their seed share a row. The collaboration gain is the accuracy minus that of the control
    arm: the same recipe, data and seed, trained with [bold]--topology none[/bold]. Give those runs too.

    Below the table: over how many pairs each gain is, and every setting in which the rows differ apart from the method.

    If there are also runs with [bold]--topology none --set partition.pooled=true[/bold], which train on all data of
    their cluster, the table shows how much of the way from the control to them an arm has made.
    """
    from mapl.analysis.compare import compare

    with plugins.looking(trust):
        arms = compare(_load(folders))
    if not arms:
        raise MaplError("there is nothing to compare: none of these runs has been tested yet; resume them")
    if as_json:
        print(json.dumps([arm.as_dict() for arm in arms], indent=1))
    else:
        print_table(arms)


def _load(folders: Sequence[Path]) -> list[Record]:
    """The runs, with a warning for each that will not be counted, or compared with no other."""
    from mapl.analysis.compare import left_out, unpaired
    from mapl.runs.history import load

    records = [load(folder) for folder in folders]
    remarks = (remark for record in records for remark in record.remarks)
    for sentence in (*remarks, *left_out(records), *unpaired(records)):
        warn(sentence)
    return records


def print_table(arms: Sequence[Arm]) -> None:
    """Print arms as a table, and below it what the numbers alone do not say."""
    from mapl.analysis.compare import notes

    out = console()
    out.print(table(arms, out.width))
    for note in notes(arms):
        print(note)


def gain_text(arm: Arm) -> str:
    """The collaboration gain in words."""
    if arm.gain is not None:
        return arm.gain.text(sign="+")
    if arm.is_part:
        return "part"
    if arm.is_ceiling:
        return "ceiling"
    return "control" if arm.is_control else "no control"


WAY = "way to pooled"
CELLS: dict[str, Callable[[Arm], str]] = {
    "seeds": lambda arm: str(len(arm.seeds)),
    "acc. %": lambda arm: arm.accuracy.text(),
    "std": lambda arm: f"{100 * arm.spread:.1f}",
    "gain": gain_text,
    WAY: lambda arm: arm.way or "–",
    "inside": lambda arm: "–" if arm.inside is None else f"{arm.inside:.2f}",
    "messages": lambda arm: f"{arm.messages:,.0f}",
    "MiB": lambda arm: f"{arm.bytes / 2**20:,.1f}",
    "s": lambda arm: f"{arm.seconds:,.0f}",
}
"""The columns of numbers. Headings are short, because a wide heading wastes the width of a terminal."""
EXPENDABLE = (("s", "MiB"), ("messages",), ("inside",), ("std",), ("seeds",), (WAY,))
"""The columns that a narrow terminal drops, in this order. A missing column is better than truncated numbers."""
NAME = 14
"""The smallest width for the names of the arms, which are wrapped."""
CAPTION = {
    "acc. %": "mean over clients at the last test, ± 95 % interval over seeds",
    "std": "over clients",
    "gain": "over the same recipe, data and seed without letters, after as many rounds",
    WAY: "gain, as a share of what training on all data of the cluster gains",
    "inside": "share of the weight given to others that stays inside the true clusters",
}
"""What the headings mean."""


def table(arms: Sequence[Arm], width: int) -> Table:
    """Arms as a table of at most this width, with as many columns as fit untruncated."""
    columns = _columns(arms, width)
    caption = "; ".join(f"{title}: {CAPTION[title]}" for title in columns if title in CAPTION)
    result = Table(caption=caption, caption_justify="left")
    result.add_column("run", overflow="fold")
    for title in columns:
        result.add_column(title, justify="right", no_wrap=True, overflow="crop")
    for arm in arms:
        result.add_row(printable(arm.label), *(CELLS[title](arm) for title in columns))
    return result


def _columns(arms: Sequence[Arm], width: int) -> list[str]:
    """The columns that fit."""
    shown = [title for title in CELLS if title != WAY or any(arm.way for arm in arms)]
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
    out: Annotated[Path | None, typer.Option(help="Folder for the page. Default: the first run's.")] = None,
    trust: TrustOption = False,
) -> None:
    """Write a self-contained page about runs (report.html), and its figures as PNG files."""
    from mapl.report import write_report

    with plugins.looking(trust):
        page = write_report(_load(folders), out or folders[0] / "report")
    say(f"report: {page}")


def _room(name: str) -> Callable[[], dict[str, str]]:
    return lambda: {name: entry.summary for name, entry in plugins.index(name).items()}


def _paper() -> dict[str, str]:
    from mapl.paper.tables import listing

    return listing()


LISTS: dict[str, Callable[[], dict[str, str]]] = {
    "methods": _room("mapl.methods"),
    "backbones": _room("mapl.backbones"),
    "data": _room("mapl.data.sources"),
    "scenarios": lambda: plugins.table("mapl.data.partition", "SCENARIOS"),
    "topologies": lambda: plugins.table("mapl.network.topology", "TOPOLOGIES"),
    "writers": _room("mapl.runs.writers"),
    "paper": _paper,
}
"""What each list has: names, and a sentence about each. None of them imports what it lists, which would be slow."""


def list_command(
    what: Annotated[
        str, typer.Argument(help="methods, backbones, data, scenarios, topologies, writers or paper.", metavar="WHAT")
    ],
    as_json: JsonOption = False,
) -> None:
    """List the names that a recipe can use, each with a short description."""
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
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the whole recipe that mapl run would train with, and where each value comes from.

    Takes the same arguments as [bold]mapl run[/bold]. The output is itself a recipe file.
    """
    from mapl.analysis.privacy import planned
    from mapl.recipe import to_toml

    with plugins.looking(trust):
        composed, provenance = compose_recipe(
            recipe,
            settings,
            method=method,
            data=data,
            scenario=scenario,
            clients=clients,
            rounds=rounds,
            topology=topology,
            seed=seed,
        )
        for path in (composed.method.name, composed.data.name):
            if ":" in path and not plugins.is_permitted(path):
                warn(f"{path!r} is code, which is imported only with --trust; its own defaults are not shown")
    if as_json:
        print(json.dumps({"recipe": composed.model_dump(mode="json"), "provenance": provenance}, indent=1))
    else:
        print(to_toml(composed, provenance), end="")
        if privacy := planned(composed):
            print(f"# privacy: {privacy}")
