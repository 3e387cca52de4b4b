"""`mapl run` and `mapl resume`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mapl.cli import recipe_options as options
from mapl.cli.cluster import (
    AddressOption,
    EngineOption,
    GpusOption,
    PlanOption,
    ShardsOption,
    check_used,
    engine_again,
    ray_settings,
    show_plan,
)
from mapl.cli.own import introduced, reading
from mapl.cli.progress import observing
from mapl.cli.sweep import is_sweep, sweep
from mapl.errors import MaplError
from mapl.terminal.interrupt import Interrupt, leave, stopped
from mapl.terminal.messages import quoted, say
from mapl.terminal.options import SetOption, TrustOption

if TYPE_CHECKING:
    from mapl.runs.record import Record

LogOption = Annotated[
    list[str] | None,
    typer.Option(
        "--log", help="Also write results for another program (mapl list writers). Repeatable.", metavar="NAME"
    ),
]
ProfileOption = Annotated[
    bool,
    typer.Option(
        "--profile",
        help="Print where the time went, and save it as profile.json. Waits for the GPU between the parts of a round, "
        "so training is slightly slower.",
    ),
]
RoundsJsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs: one line per round.")]


def run_command(
    recipe: options.RecipeArgument = None,
    method: options.MethodOption = None,
    data: options.DataOption = None,
    scenario: options.ScenarioOption = None,
    clients: options.ClientsOption = None,
    rounds: options.RoundsOption = None,
    topology: options.TopologyOption = None,
    seed: options.SeedOption = None,
    settings: SetOption = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; default: made from its settings.")] = None,
    out: Annotated[Path, typer.Option(help="Parent folder of the run's own folder.")] = Path("runs"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run of that name.")] = False,
    log: LogOption = None,
    profile: ProfileOption = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds, starting at --seed, each with its control arm.")
    ] = None,
    no_controls: Annotated[
        bool, typer.Option("--no-controls", help="With several runs: leave out their control arms.")
    ] = False,
    engine: EngineOption = None,
    address: AddressOption = None,
    shards: ShardsOption = None,
    gpus: GpusOption = None,
    plan: PlanOption = False,
    as_json: RoundsJsonOption = False,
) -> None:
    """Train what a recipe says, and save the run in runs/. Ctrl-C or SIGTERM saves and stops.

    Several methods, values or seeds (see the examples) are several runs, with
    their control arms. A table at the end compares them. After Ctrl-C or a crash,
    rerun the command to continue: finished runs are not repeated.

    A recipe can name code (package.module:Name), which is imported and run: trust
    a recipe file as you would a script.

    [bold]mapl run[/bold]                     MAPL on handwritten digits
    [bold]mapl run --data photos[/bold]       your own images: a folder for each class
    [bold]mapl run --topology none[/bold]     the control arm: no communication
    [bold]mapl run --method mapl+ --scenario 2 --clients 20[/bold]
    [bold]mapl run my.toml --seed 1 --set partition.shots=5[/bold]
    [bold]mapl run --method local,mapl,courier --seeds 5[/bold]
    [bold]mapl run --set train.learning_rate=0.001,0.0001[/bold]
    [bold]mapl run --engine ray --shards 4 --plan[/bold]   what four processes take
    """
    if is_sweep(method, settings, seeds):
        if overwrite or log or profile:
            raise MaplError(
                "--overwrite, --log and --profile are for one run; leave them out, or give --out a new folder"
            )
        if engine or address or shards or gpus is not None or plan:
            raise MaplError(
                "--engine, --address, --shards, --gpus-per-shard and --plan are for one run: give one method, one "
                "value of each setting, and no --seeds"
            )
        given = {"data": data, "scenario": scenario, "clients": clients, "rounds": rounds, "topology": topology}
        controls = not no_controls
        sweep(
            recipe,
            settings,
            out,
            seeds=seeds,
            controls=controls,
            as_json=as_json,
            method=method,
            seed=seed,
            name=name,
            **given,
        )
        return
    from mapl.data.loading import keeping_data
    from mapl.runs.client_data import default_name
    from mapl.runs.run import run
    from mapl.runs.writers import open_writers

    with keeping_data():
        with reading():
            composed, _ = options.compose_recipe(
                recipe,
                settings,
                method=method,
                data=data,
                scenario=scenario,
                clients=clients,
                rounds=rounds,
                topology=topology,
                seed=seed,
                name=name,
                engine=engine,
                address=address,
                shards=shards,
                gpus=gpus,
            )
            check_used(composed, plan, address, shards, gpus)
            lines = introduced(composed)
        for line in lines:
            say(line, sys.stderr if as_json else None)
        if plan:
            show_plan(composed, as_json)
            return
        folder = out / default_name(composed)
        again = engine_again(composed.engine.ray if composed.engine.where == "ray" else None)
        with stoppable(folder, again) as interrupt, observing(composed.rounds, as_json) as observer:
            observers = [observer, *open_writers(log or [], folder)]
            record = run(composed, folder, observers=observers, stop=interrupt, overwrite=overwrite, profile=profile)
    conclude(record, as_json, profile, interrupt.status, again=again)


def resume_command(
    folder: Annotated[Path, typer.Argument(help="Folder of the run.")],
    rounds: Annotated[int | None, typer.Option(help="Train to this many rounds, not the recipe's.")] = None,
    log: LogOption = None,
    profile: ProfileOption = False,
    trust: TrustOption = False,
    engine: EngineOption = None,
    address: AddressOption = None,
    shards: ShardsOption = None,
    gpus: GpusOption = None,
    plan: PlanOption = False,
    as_json: RoundsJsonOption = False,
) -> None:
    """Continue a run that was stopped or killed, from its newest intact checkpoint.

    The result is the same as without a stop, in one process or in any number of
    shards.

    [bold]mapl resume runs/mine[/bold]                to the recipe's last round
    [bold]mapl resume runs/mine --rounds 400[/bold]   or beyond it
    [bold]mapl resume runs/mine --engine ray --shards 2[/bold]
    """
    from mapl.plugins import looking
    from mapl.runs.folder import load_recipe
    from mapl.runs.run import placed, resume
    from mapl.runs.writers import open_writers

    ray = ray_settings(engine, plan, address, shards, gpus)
    if plan:
        with looking(trust):
            show_plan(placed(load_recipe(folder), ray), as_json)
        return
    total, again = rounds or load_recipe(folder).rounds, engine_again(ray)
    with stoppable(folder, again) as interrupt, observing(total, as_json) as observer:
        observers = [observer, *open_writers(log or [], folder)]
        played: list[int] = []
        observers.append(lambda recipe, line, seconds: played.append(line.round))
        record = resume(
            folder, rounds=rounds, observers=observers, stop=interrupt, profile=profile, trust=trust, ray=ray
        )
    if record.finished and not played and not as_json:
        say(f"nothing was left to train: all {len(record.rounds)} rounds were there; --rounds trains further")
    conclude(record, as_json, profile, interrupt.status, again=again)


@contextmanager
def stoppable(folder: Path, again: str = "") -> Iterator[Interrupt]:
    """Inside, Ctrl-C or SIGTERM stops the run in this folder; a second Ctrl-C ends the command at once.

    `again`: what has to be said again to resume it.
    """
    from mapl.runs.folder import RECIPE

    interrupt = Interrupt()
    try:
        with interrupt:
            yield interrupt
    except KeyboardInterrupt:
        begun = (folder / RECIPE).is_file()
        last_words = stopped("at once", f"mapl resume {quoted(folder)}{again}") if begun else "stopped at once"
        leave(last_words, interrupt.status)


def conclude(record: Record, as_json: bool, profiled: bool, stopped: int, again: str = "") -> None:
    """Print the outcome of a run. `stopped` is the exit status if it did not reach its end.

    `again`: what has to be said again to resume it.
    """
    profile = record.profile if profiled else None
    if as_json:
        if profile:
            print(json.dumps({"event": "profile", **profile}))
        print(json.dumps({"event": "end", **summary(record)}))
    else:
        for line in [*sentences(record, again), *(profile_lines(profile) if profile else [])]:
            say(line)
    if not record.finished:
        sys.exit(stopped)


def summary(record: Record) -> dict[str, Any]:
    """A run in a few numbers."""
    tested, epsilons = bool(record.tested), record.epsilons()
    return {
        "folder": str(record.folder),
        "finished": record.finished,
        "rounds": len(record.rounds),
        "accuracy": record.mean if tested else None,
        "std": record.std if tested else None,
        "messages": record.messages,
        "bytes": record.bytes,
        "refused": record.refused,
        "seconds": record.seconds,
        **({} if epsilons is None else {"epsilon": _finite(max(epsilons)), "delta": record.recipe.network.noise.delta}),
    }


def _finite(value: float) -> float | None:
    """The value, or None if it is infinite, which JSON cannot say."""
    return value if math.isfinite(value) else None


def sentences(record: Record, resumed_with: str = "") -> list[str]:
    """A run in a few lines for a person."""
    from mapl.analysis.clusters import share_inside
    from mapl.analysis.privacy import spent
    from mapl.network.refused import in_words, total
    from mapl.recipe import names_code

    if not record.finished:
        saved = f"after round {len(record.rounds)} of {record.recipe.rounds}, saved in {record.folder}"
        if not record.whole:  # a part needs its transport
            return [f"stopped {saved}"]
        trust = " --trust" if names_code(record.recipe) else ""
        return [stopped(saved, f"mapl resume {quoted(record.folder)}{trust}{resumed_with}")]
    clients = "1 client" if len(record.clients) == 1 else f"{len(record.clients)} clients"
    lines = [
        f"accuracy {100 * record.mean:.1f} % ± {100 * record.std:.1f} over {clients} "
        f"after {len(record.rounds)} rounds, {record.seconds:.0f} s",
        f"{record.messages:,} messages, {record.bytes / 2**20:,.1f} MiB",
    ]
    if refused := record.refused:
        lines.append(f"{total(refused):,} letters were left out because they failed a check: {in_words(refused)}")
    inside = share_inside(record.among(), [c.cluster for c in record.clients])
    if inside is not None:
        lines.append(f"{100 * inside:.0f} % of the weight given to others stays inside the true clusters")
    if privacy := spent(record):
        lines.append(f"privacy: {privacy} (docs/privacy.md says what this covers)")
    return [*lines, f"saved in {record.folder}; see it with: mapl report {quoted(record.folder)}"]


def profile_lines(profile: dict[str, Any]) -> list[str]:
    """Where the time of a run went, for a person."""
    rounds, setup = profile["rounds"], profile["setup_seconds"]
    lines = [f"{rounds} rounds in {profile['seconds']:.1f} s on {profile['device']}, after {setup:.1f} s of setup:"]
    for name, part in profile["parts"].items():
        seconds, each, share = part["seconds"], part["seconds_a_round"], part["share"]
        lines.append(f"  {name:<12} {100 * share:5.1f} %  {seconds:9.2f} s  {1000 * each:10.2f} ms per round")
    return lines
