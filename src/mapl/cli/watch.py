"""`mapl watch`: a live page of your runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mapl.errors import MaplError
from mapl.terminal.messages import say
from mapl.terminal.options import TrustOption

if TYPE_CHECKING:
    from mapl.live.watch import Watch


def watch_command(
    path: Annotated[
        Path,
        typer.Argument(help="A run, a folder with runs, or the PEER.toml of a peer.", metavar="RUN|FOLDER|PEER.toml"),
    ] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0: any that is free.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    trust: TrustOption = False,
) -> None:
    """Open a live page of your runs: the network as it moves, accuracy, letters, time left.

    It follows running runs and opens finished ones. Only this machine can reach
    it, at the address that is printed. Ctrl-C ends the page, not the runs.

    [bold]mapl watch[/bold]             all runs in runs/
    [bold]mapl watch runs/mine[/bold]   one run, with its control arm if it is there
    """
    from mapl.live.server import Server

    server = Server(_watch(path, trust), port)
    say(f"watching {path} at {server.url}")
    say("Ctrl-C ends this page, not the runs")
    if browser and sys.stdout.isatty() and _has_screen():
        import webbrowser

        webbrowser.open(server.url)
    with server:
        server.serve_forever()


def _watch(path: Path, trust: bool) -> Watch:
    """What to watch: a run among its neighbours, a folder of runs, or a peer."""
    from mapl.live.watch import Watch
    from mapl.peer.seen import RUN, STATUS, beside
    from mapl.runs.folder import RECIPE

    if not path.exists():
        raise MaplError(f"there is no {str(path)!r}: name a run, a folder with runs, or a PEER.toml")
    if not path.is_dir():
        from mapl.peer.settings import read_settings

        path = read_settings(path).folder
        if not path.is_dir():
            raise MaplError(f"no peer has run in {str(path)!r} yet: start it with mapl peer run")
    if (path / RECIPE).exists():
        path = path.resolve()
        return Watch(path.parent, path.name, beside, trust)  # its control may stand beside it
    return Watch(path, RUN if (path / STATUS).exists() else "", beside, trust)


def _has_screen() -> bool:
    """Whether a browser would open in a window of its own, not in this terminal."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
