"""`mapl run` and `mapl resume`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mapl.cli.progress import Interrupt, progress
from mapl.clusters import share_inside
from mapl.history import Record, load_recipe
from mapl.paper import resolve
from mapl.recipe import Provenance, Recipe, Tree, assignment, compose, merge, read
from mapl.run import resume, run
from mapl.writers import open_writers

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
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON lines, for programs.")]


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
        record = run(made, folder, observers=observers, stop=interrupt, overwrite=overwrite)
    conclude(record, as_json)


def resume_command(
    folder: Annotated[Path, typer.Argument(help="Folder of the run.")],
    rounds: Annotated[int | None, typer.Option(help="Go on to this many rounds, more than the recipe has.")] = None,
    log: LogOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with a run that was stopped or killed, from its newest whole checkpoint."""
    total = rounds or load_recipe(folder).rounds
    with Interrupt() as interrupt, progress(total, as_json) as observer:
        observers = [observer, *open_writers(log or [], folder)]
        record = resume(folder, rounds=rounds, observers=observers, stop=interrupt, warn=_warn)
    conclude(record, as_json)


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


def conclude(record: Record, as_json: bool) -> None:
    """Say what came of a run; status 130 if it was stopped before its end."""
    if as_json:
        print(json.dumps({"event": "end", **summary(record)}))
    else:
        for line in sentences(record):
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
    if inside == inside:
        lines.append(f"{100 * inside:.0f} % of the weight given to others stays inside the true clusters")
    return [*lines, f"saved in {record.folder}; look at it with: mapl report {record.folder}"]


def _warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr, flush=True)
