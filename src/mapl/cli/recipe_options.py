"""The options that make up a recipe, and the recipe that they make."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mapl.cli.named import NAMED, completing
from mapl.errors import MaplError
from mapl.terminal.messages import quoted

if TYPE_CHECKING:
    from mapl.recipe import Recipe
    from mapl.trees import Provenance, Tree

RecipeArgument = Annotated[
    Path | None,
    typer.Argument(help="A recipe file (TOML), or paper:CELL (mapl list paper). Default: handwritten digits."),
]
MethodOption = Annotated[
    str | None,
    typer.Option(help="A method (mapl list methods), or package.module:Name.", autocompletion=completing("methods")),
]
DataOption = Annotated[
    str | None,
    typer.Option(
        help="A data set (mapl list data), your own folder or file, or package.module:Name.",
        autocompletion=completing("data"),
    ),
]
ScenarioOption = Annotated[int | None, typer.Option(help="The paper's scenario, 1 to 4 (mapl list scenarios).")]
ClientsOption = Annotated[int | None, typer.Option(help="Number of clients.")]
RoundsOption = Annotated[int | None, typer.Option(help="Number of rounds.")]
TopologyOption = Annotated[
    str | None,
    typer.Option(
        help="Who can reach whom (mapl list topologies). 'none' is the control arm.",
        autocompletion=completing("topologies"),
    ),
]
SeedOption = Annotated[int | None, typer.Option(help="Seed of all random draws.")]

KEYS = {
    "method": "method.name",
    "data": "data.name",
    "scenario": "partition.scenario",
    "clients": "clients",
    "rounds": "rounds",
    "topology": "network.topology.name",
    "seed": "seed",
    "name": "name",
    "engine": "engine.where",
    "address": "engine.ray.address",
    "shards": "engine.ray.shards",
    "gpus": "engine.ray.gpus_per_shard",
}
"""Which setting each option sets."""


def compose_recipe(
    path: Path | None, settings: Sequence[str] | None, **options: str | float | None
) -> tuple[Recipe, Provenance]:
    """The recipe of a file, with options (by the names in `KEYS`) and --set settings over it."""
    from mapl.paper.tables import resolve
    from mapl.plugins import take_as_named
    from mapl.recipe import assignment, compose, read
    from mapl.trees import merge

    given = [f"{KEYS[name]}={json.dumps(value)}" for name, value in options.items() if value is not None]
    over: Tree = {}
    for text in [*given, *(settings or [])]:
        over = merge(over, assignment(text))
    take_as_named(over)
    layers: list[tuple[str, Tree]] = []
    if path:
        _check_recipe(path)
        layers.append((str(path), resolve(str(path), over) or read(path)))
    if over:
        layers.append(("command line", over))
    return compose(*layers)


def _check_recipe(path: Path) -> None:
    """Refuse a folder or a name in the place of a recipe, with the option or the command that takes it."""
    if path.is_dir():
        is_run, given = (path / "recipe.toml").exists(), quoted(path)
        meant = f"mapl resume {given} continues this run" if is_run else f"--data {given} trains on what is in it"
        raise MaplError(f"recipe {str(path)!r} is a folder, but a recipe is a TOML file; {meant}")
    option = next((option for option, room in _NAMED_BY.items() if str(path) in NAMED[room]()), None)
    if option and not path.exists():
        raise MaplError(f"there is no recipe {str(path)!r}; did you mean {option} {path}?")


_NAMED_BY = {"--method": "methods", "--data": "data", "--topology": "topologies"}
"""Options that take a name, and the list that has it."""
