"""`mapl`: its commands, and how errors are shown.

Nothing slow is imported here, nor at the top of the modules with the commands: `mapl --help` should be instant.
Commands import what they need when they run.
"""

from __future__ import annotations

import io
import sys
import warnings
from typing import Annotated

import typer

from mapl.cli import compare, completion, data, demo, export, identity, join, look, network, peer, runs, watch
from mapl.errors import MaplError
from mapl.paper import commands as paper
from mapl.terminal import messages

TRAIN, LOOK, PEERS, SETTINGS = "Train", "Use runs", "Peers on a network", "Names, settings, data"

app = typer.Typer(
    name="mapl",
    help="""Train personalised models together, peer to peer. There is no server, and every client has its own data and
its own architecture.

[bold]mapl demo --quick[/bold]            see it work, in a minute or two
[bold]mapl run[/bold]                     train MAPL on handwritten digits, into runs/
[bold]mapl run --data photos[/bold]       train on your own images
[bold]mapl run --method local,mapl,courier --seeds 5[/bold]
                            several methods and seeds, compared
[bold]mapl compare runs[/bold]            what communication gained, in numbers
[bold]mapl report runs[/bold]             the same with figures, as a page
[bold]mapl watch[/bold]                   a live page of your runs
[bold]mapl show --method mapl+[/bold]     every setting; change any: --set KEY=VALUE

[bold]mapl COMMAND --help[/bold] explains a command.""",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        print(f"mapl {metadata.version('mapl')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of `mapl` itself."""
    warnings.showwarning = messages.show_warning


app.command("demo", rich_help_panel=TRAIN)(demo.demo)
app.command("run", rich_help_panel=TRAIN)(runs.run_command)
app.command("resume", rich_help_panel=TRAIN)(runs.resume_command)
app.command("reproduce", rich_help_panel=TRAIN)(paper.reproduce_command)
app.command("watch", rich_help_panel=LOOK)(watch.watch_command)
app.command("compare", rich_help_panel=LOOK)(compare.compare_command)
app.command("report", rich_help_panel=LOOK)(look.report_command)
app.command("join", rich_help_panel=PEERS)(join.join_command)
app.command("export", rich_help_panel=LOOK)(export.export_command)
app.add_typer(identity.app, name="identity", rich_help_panel=PEERS)
app.add_typer(peer.app, name="peer", rich_help_panel=PEERS)
app.add_typer(network.app, name="network", rich_help_panel=PEERS)
app.command("list", rich_help_panel=SETTINGS)(look.list_command)
app.command("show", rich_help_panel=SETTINGS)(look.show_command)
app.add_typer(data.app, name="data", rich_help_panel=SETTINGS)


def run_app() -> None:
    """Run the command that the arguments name. A `MaplError` is printed, without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal or a pipe that is not UTF-8 shows "?" for what it does not have, such as "±".
            stream.reconfigure(errors="replace")
    try:
        if sys.argv[1:2] == [completion.OPTION]:
            completion.install(app)
        # `python -m mapl` is called mapl too: for a shell that completes commands, the name of the program is one word.
        app(prog_name="mapl")
    except MaplError as error:
        messages.error(error)
        sys.exit(error.status)
