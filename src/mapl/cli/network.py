"""`mapl network`: peers on this machine, for trying them out."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live

from mapl.cli import recipe_options as options
from mapl.cli.peer import overview
from mapl.cli.runs import sentences
from mapl.errors import MaplError
from mapl.terminal.interrupt import Interrupt, leave, stopped
from mapl.terminal.messages import say
from mapl.terminal.options import SetOption

if TYPE_CHECKING:
    from mapl.peer.local import LocalNetwork

app = typer.Typer(
    help="""Run a network of real peers on this machine: one process per peer, over QUIC with mutual TLS.

[bold]mapl network up --peers 5[/bold]    couriers on handwritten digits
[bold]mapl network up recipe.toml[/bold]  your recipe""",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.callback()
def _options() -> None:
    """Options of `mapl network` itself."""


@app.command("up")
def up_command(
    recipe: options.RecipeArgument = None,
    peers: Annotated[int | None, typer.Option(min=2, help="Number of peers. Default: the recipe's clients.")] = None,
    method: options.MethodOption = None,
    data: options.DataOption = None,
    scenario: options.ScenarioOption = None,
    rounds: options.RoundsOption = None,
    seed: options.SeedOption = None,
    settings: SetOption = None,
    out: Annotated[Path, typer.Option(help="Folder for the peers and the joined run.")] = Path("networks/local"),
    asynchronous: Annotated[bool, typer.Option("--async", help="Peers never wait for each other.")] = False,
) -> None:
    """Start a process for each client of a recipe, show them live, and report as for a simulated run.

    Every peer has an identity, a settings file and a folder of its own under
    --out. After Ctrl-C, rerun the command to continue. With default settings the
    result equals that of `mapl run`, to the bit.

    [bold]mapl network up --peers 5[/bold]
    [bold]mapl network up recipe.toml --out networks/mine[/bold]
    """
    from mapl.peer.local import LocalNetwork, name_of
    from mapl.peer.process import check_real

    composed, _ = options.compose_recipe(
        recipe,
        settings,
        method=method or (None if recipe else "courier"),
        data=data,
        scenario=scenario,
        clients=peers,
        rounds=rounds,
        seed=seed,
    )
    check_real(composed)
    files = _files(out, composed, asynchronous)
    interrupt = Interrupt()
    try:
        with interrupt, LocalNetwork(files) as network:
            network.start_all()
            _watch(network, files, interrupt)
            failed = [n for n in range(len(files)) if network.status(n) not in (0, None)]
    except KeyboardInterrupt:
        leave(stopped("at once; the last round of each peer is saved"), interrupt.status)
    if interrupt():
        leave(stopped("and saved"), interrupt.status)
    if failed:
        log = files[failed[0]].parent / "peer.log"
        raise MaplError(f"{name_of(failed[0])} failed: {_last_line(log)} (see {log})")
    _conclude(files, out)


def _files(out: Path, recipe: Any, asynchronous: bool) -> list[Path]:
    """The settings files of a network, made if they are not there."""
    from mapl.peer.identity import Identity
    from mapl.peer.local import PEER, make_network, name_of

    files = [out / name_of(number) / PEER for number in range(recipe.clients)]
    if not out.exists() or not any(out.iterdir()):
        say(f"making {recipe.clients} peers in {out}")
        wait = {"wait": {"mode": "async"}} if asynchronous else {"wait": {"patience": 120.0, "first": 120.0}}
        return make_network(out, recipe, wait)
    if not all(file.exists() for file in files):
        raise MaplError(f"{str(out)!r} is not a network of {recipe.clients} peers; choose another --out")
    existing = Identity.load(out / name_of(0) / "identity").recipe()
    if existing.fingerprint() != recipe.fingerprint() or existing.rounds != recipe.rounds:
        raise MaplError(f"{str(out)!r} is a network with another recipe; choose another --out")
    return files


def _watch(network: LocalNetwork, files: list[Path], interrupt: Interrupt) -> None:
    """Show all peers until all have ended. A signal is passed on to them, once."""
    passed_on = False
    screen = Console(stderr=True, markup=False, emoji=False)
    with Live(Group(), console=screen, refresh_per_second=4, transient=True, redirect_stdout=False) as live:
        last = -1
        while any(network.running(number) for number in range(len(files))):
            trees = _trees(files)
            if sys.stderr.isatty():
                live.update(overview(trees) if trees else Group())
            elif trees and (least := min(tree["round"] for tree in trees)) * 10 // trees[0]["rounds"] > last:
                last = least * 10 // trees[0]["rounds"]
                say(f"{len(trees)} of {len(files)} peers, round {least} of {trees[0]['rounds']}", sys.stderr)
            if interrupt() and not passed_on:
                passed_on = True
                for number in range(len(files)):
                    network.stop(number)
            time.sleep(0.25)


def _trees(files: list[Path]) -> list[dict[str, Any]]:
    from mapl.peer.seen import read_status
    from mapl.peer.settings import read_settings

    trees = []
    for file in files:
        try:
            trees.append(read_status(read_settings(file).folder))
        except MaplError:  # not started yet
            continue
    return trees


def _conclude(files: list[Path], out: Path) -> None:
    """Join what the peers wrote into one run."""
    import shutil

    from mapl.peer.settings import read_settings
    from mapl.runs.join import join

    folder = out / "run"
    if folder.exists():
        shutil.rmtree(folder)
    record = join([read_settings(file).run for file in files], folder)
    for line in sentences(record):
        say(line)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return lines[-1].removeprefix("error: ")[:300] if lines else "it said nothing"
