"""`mapl`: its commands, and how an error reaches a person."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Annotated

import typer
from rich.console import Console

from mapl.cli import data, demo, export, look, runs
from mapl.errors import MaplError
from mapl.paper import commands as reproduce

app = typer.Typer(
    name="mapl",
    help="Train personalised models together, peer to peer, with no server, whatever architecture each peer has.\n\n"
    "Start with [bold]mapl demo[/bold], or [bold]mapl run[/bold] and then [bold]mapl report[/bold].",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"mapl {metadata.version('mapl')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which one.")
    ] = False,
) -> None:
    """What every command has."""


app.command("demo")(demo.demo)
app.command("run")(runs.run_command)
app.command("resume")(runs.resume_command)
app.command("compare")(look.compare_command)
app.command("report")(look.report_command)
app.command("reproduce")(reproduce.reproduce_command)
app.command("list")(look.list_command)
app.command("show")(look.show_command)
app.command("export")(export.export_command)
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command line: status 0 when it did what was asked, 1 when a run is in use, 2 for what a person got wrong,
    130 after Ctrl-C."""
    try:
        app()
    except MaplError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print("[bold red]error:[/]", end=" ")
        print(error, file=sys.stderr)
        sys.exit(error.status)
