"""`mapl run` and `mapl resume`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mapl.analysis.clusters import share_inside
from mapl.cli.progress import Interrupt, progress
from mapl.paper import resolve
from mapl.recipe import Provenance, Recipe, Tree, assignment, compose, merge, read
from mapl.runs.history import Record, load_recipe
from mapl.runs.run import resume, run
from mapl.runs.writers import open_writers

RecipeArgument = Annotated[
    Path | None, typer.Argument(help="A recipe file (TOML) or paper:CELL (mapl list paper); without it, digits.")
]
MethodOption = Annotated[str | None, typer.Option(help="Method: a name (mapl list methods) or package.module:Name.")]
DataOption = Annotated[str | None, typer.Option(help="Data set: a name (mapl list data) or package.module:Name.")]
ScenarioOption = Annotated[int | None, typer.Option(help="The paper's scenario, 1 to 4 (mapl list scenarios).")]
ClientsOption = Annotated[int | None, typer.Option(help="How many clients.")]
RoundsOption = Annotated[int | None, typer.Option(help="How many rounds.")]
TopologyOption = Annotated[
    str | None, typer.Option(help="Who can reach whom (mapl list topologies); 'none' is the control arm.")
]
SeedOption = Annotated[int | None, typer.Option(help="Seed of every random draw.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Any setting, as key=value: --set method.graph.beta=0.2. May be repeated.", metavar="KEY=VALUE"
    ),
]
LogOption = Annotated[
    list[str] | None,
    typer.Option("--log", help="Also write for other programs (mapl list writers). May be repeated.", metavar="NAME"),
]
ProfileOption = Annotated[
    bool,
    typer.Option(
        "--profile",
        help="Say where the time went, and save it as profile.json. Waits where parts of a round meet, so a GPU is a "
        "little slower.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs; of a run a line a round.")]


def run_command(
    recipe: RecipeArgument = None,
    method: MethodOption = None,
    data: DataOption = None,
    scenario: ScenarioOption = None,
    clients: ClientsOption = None,
    rounds: RoundsOption = None,
    topology: TopologyOption = None,
    seed: SeedOption = None,
    settings: SetOption = None,
    name: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    out: Annotated[Path, typer.Option(help="Folder that the run's folder is made in.")] = Path("runs"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run of that name.")] = False,
    log: LogOption = None,
    profile: ProfileOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train: carry out a recipe, round by round, into runs/<name>.

    Examples: [bold]mapl run[/bold] trains MAPL on handwritten digits;
    [bold]mapl run --topology none[/bold] is its control arm, the same training without letters;
    [bold]mapl run my.toml --seed 1 --set partition.shots=5[/bold] changes a recipe of yours.
    """
    options = _options(method, data, scenario, clients, rounds, topology, seed, name)
    made, _ = from_command_line(recipe, options, settings or [])
    folder = out / made.title()
    with Interrupt() as interrupt, progress(made.rounds, as_json) as observer:
        observers = [observer, *open_writers(log or [], folder)]
        record = run(made, folder, observers=observers, stop=interrupt, overwrite=overwrite, profile=profile)
    conclude(record, as_json, profile)


def resume_command(
    folder: Annotated[Path, typer.Argument(help="Folder of the run.")],
    rounds: Annotated[int | None, typer.Option(help="Go on to this many rounds, more than the recipe has.")] = None,
    log: LogOption = None,
    profile: ProfileOption = False,
    as_json: JsonOption = False,
) -> None:
    """Go on with a run that was stopped or killed, from its newest whole checkpoint."""
    total = rounds or load_recipe(folder).rounds
    with Interrupt() as interrupt, progress(total, as_json) as observer:
        observers = [observer, *open_writers(log or [], folder)]
        record = resume(folder, rounds=rounds, observers=observers, stop=interrupt, warn=_warn, profile=profile)
    conclude(record, as_json, profile)


def from_command_line(path: Path | None, options: Tree, settings: Sequence[str]) -> tuple[Recipe, Provenance]:
    """The recipe of a file and the command line over it."""
    over = options
    for text in settings:
        over = merge(over, assignment(text))
    layers: list[tuple[str, Tree]] = []
    if path:
        layers.append((str(path), resolve(str(path), over) or read(path)))
    if over:
        layers.append(("command line", over))
    return compose(*layers)


def _options(
    method: str | None,
    data: str | None,
    scenario: int | None,
    clients: int | None,
    rounds: int | None,
    topology: str | None,
    seed: int | None,
    name: str | None,
) -> Tree:
    """The tree of the options that were given."""
    flat: dict[str, Any] = {
        "method.name": method,
        "data.name": data,
        "partition.scenario": scenario,
        "clients": clients,
        "rounds": rounds,
        "network.topology.name": topology,
        "seed": seed,
        "name": name,
    }
    tree: Tree = {}
    for key, value in flat.items():
        if value is not None:
            tree = merge(tree, assignment(f"{key}={json.dumps(value)}"))
    return tree


def conclude(record: Record, as_json: bool, profiled: bool) -> None:
    """Say what came of a run; status 130 if it was stopped before its end."""
    profile = record.profile if profiled else None
    if as_json:
        if profile:
            print(json.dumps({"event": "profile", **profile}))
        print(json.dumps({"event": "end", **summary(record)}))
    else:
        for line in [*sentences(record), *(profile_lines(profile) if profile else [])]:
            print(line)
    if not record.finished:
        sys.exit(130)


def summary(record: Record) -> dict[str, Any]:
    """A run in a few numbers."""
    tested = bool(record.tested)
    return {
        "folder": str(record.folder),
        "finished": record.finished,
        "rounds": len(record.rounds),
        "accuracy": record.mean if tested else None,
        "std": record.std if tested else None,
        "messages": record.messages,
        "bytes": record.bytes,
        "seconds": record.seconds,
    }


def sentences(record: Record) -> list[str]:
    """A run in a few lines for a person."""
    if not record.finished:
        return [
            f"stopped after round {len(record.rounds)} of {record.recipe.rounds}, saved in {record.folder}",
            f"go on with: mapl resume {record.folder}",
        ]
    lines = [
        f"accuracy {100 * record.mean:.1f} % ± {100 * record.std:.1f} over {len(record.clients)} clients "
        f"after {len(record.rounds)} rounds, {record.seconds:.0f} s",
        f"{record.messages:,} messages, {record.bytes / 2**20:,.1f} MiB",
    ]
    inside = share_inside(record.weights(), [c.cluster for c in record.clients])
    if inside is not None:
        lines.append(f"{100 * inside:.0f} % of the weight given to others stays inside the true clusters")
    return [*lines, f"saved in {record.folder}; look at it with: mapl report {record.folder}"]


def profile_lines(profile: dict[str, Any]) -> list[str]:
    """Where the time of a run went, for a person."""
    rounds, setup = profile["rounds"], profile["setup_seconds"]
    lines = [
        f"{rounds} rounds in {profile['seconds']:.1f} s on {profile['device']}, after {setup:.1f} s of setting up:"
    ]
    for name, part in profile["parts"].items():
        seconds, each, share = part["seconds"], part["seconds_a_round"], part["share"]
        lines.append(f"  {name:<12} {100 * share:5.1f} %  {seconds:9.2f} s  {1000 * each:10.2f} ms a round")
    return lines


def _warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr, flush=True)
