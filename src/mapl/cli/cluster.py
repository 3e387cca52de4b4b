"""The options that carry a run out in shards on a cluster."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mapl.errors import MaplError
from mapl.terminal.messages import say

if TYPE_CHECKING:
    from mapl.engine.settings import RaySettings
    from mapl.recipe import Recipe

PANEL = "More than one machine or GPU (docs/scale.md)"

EngineOption = Annotated[
    Literal["here", "ray"] | None,
    typer.Option(
        help="'here': one process. 'ray': shards of clients on a Ray cluster, with the same results.",
        rich_help_panel=PANEL,
    ),
]
AddressOption = Annotated[
    str | None,
    typer.Option(help="HOST:PORT of the cluster's head, or 'auto'. Default: this machine.", rich_help_panel=PANEL),
]
ShardsOption = Annotated[
    int | None, typer.Option(min=1, help="Number of shards. Default: one per GPU, or per core.", rich_help_panel=PANEL)
]
GpusOption = Annotated[
    float | None,
    typer.Option(
        "--gpus-per-shard",
        min=0,
        help="GPUs per shard; 0.5: two shards share one. Default: 1, if there are any.",
        rich_help_panel=PANEL,
    ),
]
PlanOption = Annotated[
    bool,
    typer.Option(
        "--plan",
        help="Print which shard would be where, and the expected time and memory; train nothing.",
        rich_help_panel=PANEL,
    ),
]


def check_used(recipe: Recipe, plan: bool, address: str | None, shards: int | None, gpus: float | None) -> None:
    """Refuse options that would change nothing."""
    if recipe.engine.where != "ray":
        refuse_without_ray(plan, address, shards, gpus)


def refuse_without_ray(plan: bool, address: str | None, shards: int | None, gpus: float | None) -> None:
    """Refuse the options of a cluster in a run without one."""
    given = {"--plan": plan or None, "--address": address, "--shards": shards, "--gpus-per-shard": gpus}
    if names := [name for name, value in given.items() if value is not None]:
        raise MaplError(f"{names[0]} is for runs on a cluster; give --engine ray, too")


def ray_settings(
    engine: str | None, plan: bool, address: str | None, shards: int | None, gpus: float | None
) -> RaySettings | None:
    """What the options say of the cluster on which a run goes on; None: in one process."""
    from mapl.engine.settings import RaySettings

    if engine != "ray":
        refuse_without_ray(plan, address, shards, gpus)
        return None
    return RaySettings(address=address, shards=shards, gpus_per_shard=gpus)


def engine_again(ray: RaySettings | None) -> str:
    """What has to be said again when a run is resumed. Its folder does not say where it was carried out.

    `ray`: the cluster; None: it was one process.
    """
    if ray is None:
        return ""
    gpus = None if ray.gpus_per_shard is None else f"{ray.gpus_per_shard:g}"
    options = {"--address": ray.address, "--shards": ray.shards, "--gpus-per-shard": gpus}
    given = [f" {name} {shlex.quote(str(value))}" for name, value in options.items() if value is not None]
    return "".join([" --engine ray", *given])


def show_plan(recipe: Recipe, as_json: bool) -> None:
    """Print where the shards of a run would be."""
    from mapl.cluster.plan import plan

    made = plan(recipe)
    if as_json:
        print(json.dumps(made.as_json()))
    else:
        for line in made.lines():
            say(line)
