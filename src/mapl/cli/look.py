"""`mapl report`, `mapl list` and `mapl show`: commands that look and change nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mapl import plugins
from mapl.cli import recipe_options as options
from mapl.cli.compare import Folders, load_runs
from mapl.cli.named import NAMED
from mapl.errors import MaplError, unknown, warn
from mapl.terminal.messages import say
from mapl.terminal.options import JsonOption, SetOption, TrustOption

if TYPE_CHECKING:
    from mapl.runs.record import Record


def report_command(
    folders: Folders,
    out: Annotated[Path | None, typer.Option(help="Folder for the page. Default: the first run's.")] = None,
    trust: TrustOption = False,
) -> None:
    """Write a self-contained page about runs: report.html, and its figures as PNG files.

    It is the page of [bold]mapl watch[/bold], frozen: the network with a slider through
    its rounds, then tables and figures. It needs no server and no network.

    [bold]mapl report runs/mine[/bold]             one run
    [bold]mapl report runs --out comparison[/bold]   all runs, side by side
    """
    from mapl.report import write_report

    with plugins.looking(trust):
        page = write_report(load_runs(folders), out or folders[0] / "report")
    say(f"report: {page}")


def _runs() -> dict[str, str]:
    """The runs in runs/, by folder."""
    from mapl.runs.folder import load, runs_below

    found = {}
    for folder in runs_below(Path("runs")):
        try:
            found[str(folder)] = _described(load(folder))
        except MaplError as error:
            found[str(folder)] = f"cannot be read: {error}"
    return found


def _described(run: Record) -> str:
    recipe = run.recipe
    what = f"{recipe.method.name} on {recipe.data.name}, {recipe.network.topology.name}, seed {recipe.seed}"
    accuracy = f", accuracy {100 * run.mean:.1f} %" if run.tested else ""
    return f"{what}: {len(run.rounds)} of {recipe.rounds} rounds{accuracy}"


LISTS: dict[str, Callable[[], dict[str, str]]] = {**NAMED, "runs": _runs}
"""What `mapl list` lists."""


def _lists(incomplete: str) -> list[str]:
    return [name for name in LISTS if name.startswith(incomplete)]


def list_command(
    what: Annotated[
        str,
        typer.Argument(
            help="methods, backbones, data, scenarios, topologies, writers, paper or runs.",
            metavar="WHAT",
            autocompletion=_lists,
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """List the names that a recipe can use, each with a short description; or the runs in runs/.

    [bold]mapl list methods[/bold]   what --method takes
    [bold]mapl list runs[/bold]      what is in runs/
    """
    if what not in LISTS:
        raise unknown("list", what, LISTS)
    entries = LISTS[what]()
    if as_json:
        print(json.dumps(entries, indent=1))
        return
    if not entries:
        say("there are no runs in runs/ yet: mapl run makes one")
    width = max(map(len, entries), default=0)
    for name, text in entries.items():
        say(f"{name:<{width}}  {text}")


def show_command(
    recipe: options.RecipeArgument = None,
    method: options.MethodOption = None,
    data: options.DataOption = None,
    scenario: options.ScenarioOption = None,
    clients: options.ClientsOption = None,
    rounds: options.RoundsOption = None,
    topology: options.TopologyOption = None,
    seed: options.SeedOption = None,
    settings: SetOption = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the whole recipe that mapl run would train with, and where each value comes from.

    Takes the same arguments as [bold]mapl run[/bold]. The output is itself a
    recipe file.

    [bold]mapl show[/bold]                                    what mapl run would train
    [bold]mapl show --method courier --clients 20[/bold]
    [bold]mapl show --set partition.shots=5 > mine.toml[/bold]   a recipe to edit
    """
    from mapl.analysis.privacy import planned
    from mapl.recipe import to_toml

    with plugins.looking(trust):
        composed, provenance = options.compose_recipe(
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
