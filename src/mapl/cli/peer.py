"""`mapl peer`: one client in a process of its own."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table

from mapl.cli.export import Format
from mapl.cli.progress import observing
from mapl.cli.runs import RoundsJsonOption, sentences, summary
from mapl.names import DASH, printable
from mapl.pace import duration
from mapl.terminal.interrupt import Interrupt, leave, stopped
from mapl.terminal.messages import console, quoted, say
from mapl.terminal.options import JsonOption, TrustOption

app = typer.Typer(
    help="""Train with other peers over a real network: your data and your model stay on this machine.

[bold]mapl identity join bob.invitation --host 192.168.1.11[/bold]
    be a member (mapl identity --help)
[bold]mapl peer init --identity clinics --data photos[/bold]
    write PEER.toml, and say what will leave this machine
[bold]mapl peer run PEER.toml[/bold]      train; after Ctrl-C, rerun it to continue
[bold]mapl peer status PEER.toml[/bold]   round, neighbours, letters, accuracy
[bold]mapl peer watch PEER.toml[/bold]    the same, live
[bold]mapl peer alone PEER.toml[/bold]    the same training without letters, and their gain
[bold]mapl peer export PEER.toml[/bold]   the trained model, to use it elsewhere""",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

File = Annotated[Path, typer.Argument(help="The peer's settings.", metavar="PEER.toml")]
STALE = 3.0
"""A peer whose rounds take r seconds counts as silent when its status is older than this many r, and 30 s."""


@app.command("init")
def init_command(
    identity: Annotated[Path, typer.Option(help="Folder of your identity (mapl identity join).", metavar="FOLDER")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Your images: a folder with a folder for each class, or an .npz file. "
            "Default: your share of the data that the recipe names.",
            metavar="FOLDER|FILE.npz",
        ),
    ] = None,
    backbone: Annotated[
        str, typer.Option(help="Your architecture (mapl list backbones). Default: the recipe's choice.")
    ] = "",
    listen: Annotated[
        str | None, typer.Option(help="Where to listen for others.", metavar="HOST:PORT", show_default="0.0.0.0:7447")
    ] = None,
    connect: Annotated[
        list[str] | None,
        typer.Option(help="A peer to connect to. Repeatable. Default: whoever invited you.", metavar="HOST:PORT"),
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write.", metavar="PEER.toml")] = Path("PEER.toml"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    trust: TrustOption = False,
) -> None:
    """Write PEER.toml for your data, and say what was found and what would leave this machine.

    Members who bring their own data have to number classes alike. The first one
    to use --data is the network's authority: its classes become the network's,
    and invitations made afterwards carry them.

    [bold]mapl peer init --identity clinics --data photos[/bold]
    [bold]mapl peer init --identity clinics --data photos --backbone resnet18[/bold]
    """
    from mapl.cli.new_peer import described
    from mapl.peer.init import prepare

    peer = prepare(
        identity,
        data,
        backbone=backbone,
        listen=listen,
        connect=connect,
        out=out,
        overwrite=overwrite,
        trust=trust,
    )
    peer.write()
    described(peer)


@app.command("run")
def run_command(file: File = Path("PEER.toml"), trust: TrustOption = False, as_json: RoundsJsonOption = False) -> None:
    """Train this peer's client to the last round of the network's recipe.

    After Ctrl-C, a crash or kill -9, rerun the command to continue.
    \\[wait] in PEER.toml says how long the peer waits for letters of others. Then
    it goes on without them.

    [bold]mapl peer run PEER.toml[/bold]
    """
    from mapl.peer.identity import Identity
    from mapl.peer.process import run_peer
    from mapl.peer.settings import read_settings

    settings = read_settings(file)
    rounds = Identity.load(settings.identity).recipe(trust).rounds
    interrupt = Interrupt()
    try:
        with interrupt, observing(rounds, as_json) as observer:
            record = run_peer(settings, stop=interrupt, observers=[observer], say=_note, trust=trust)
    except KeyboardInterrupt:
        leave(stopped("at once", f"mapl peer run {quoted(file)}"), interrupt.status)
    if as_json:
        print(json.dumps({"event": "end", **summary(record)}))
    elif record.finished:
        for line in sentences(record):
            say(line)
        say(f"what the letters gained: mapl peer alone {file}")
    else:
        say(stopped(f"after round {len(record.rounds)} of {rounds}", f"mapl peer run {quoted(file)}"))
    if not record.finished:
        sys.exit(interrupt.status)


@app.command("alone")
def alone_command(file: File = Path("PEER.toml"), trust: TrustOption = False) -> None:
    """Train this peer's control arm: the same data, seed and first weights, but no letters. Then say the gain.

    It needs no network and writes beside the peer's own run. After Ctrl-C, rerun
    the command to continue.

    [bold]mapl peer alone PEER.toml[/bold]
    """
    from mapl.peer.alone import gain, run_alone
    from mapl.peer.identity import Identity
    from mapl.peer.settings import read_settings

    settings = read_settings(file)
    rounds = Identity.load(settings.identity).recipe(trust).rounds
    interrupt = Interrupt()
    try:
        with interrupt, observing(rounds, as_json=False) as observer:
            record = run_alone(settings, stop=interrupt, observers=[observer], say=_note, trust=trust)
    except KeyboardInterrupt:
        leave(stopped("at once", f"mapl peer alone {file}"), interrupt.status)
    if not record.finished:
        leave(
            stopped(f"after round {len(record.rounds)} of {rounds}", f"mapl peer alone {file}"),
            interrupt.status,
        )
    say(gain(settings).sentence())


@app.command("export")
def export_command(
    file: File = Path("PEER.toml"),
    to: Annotated[Path, typer.Option(help="Folder to write the model to.")] = Path("model"),
    format: Annotated[Format, typer.Option(help="The format; see mapl export.")] = Format.SAFETENSORS,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
    trust: TrustOption = False,
) -> None:
    """Write the model that this peer has trained to a file, to use it elsewhere (mapl export).

    [bold]mapl peer export PEER.toml --to model[/bold]
    """
    from mapl.peer.identity import Identity
    from mapl.peer.process import believing, own_data
    from mapl.peer.settings import read_settings
    from mapl.runs.export import export_run

    settings = read_settings(file)
    with believing(settings, trust):
        data = own_data(settings, Identity.load(settings.identity))
        paths = export_run(settings.run, to, kind=format.value, overwrite=overwrite, data=data)
    for path in paths:
        say(f"exported: {path}")


def _note(sentence: str) -> None:
    print(printable(sentence), file=sys.stderr, flush=True)


@app.command("status")
def status_command(
    files: Annotated[list[Path], typer.Argument(help="Settings of peers on this machine.", metavar="PEER.toml...")],
    as_json: JsonOption = False,
) -> None:
    """Show the state of a peer: its round, whom it listens to, letters in and out, refused ones and why, accuracy.

    [bold]mapl peer status PEER.toml[/bold]
    """
    trees = _statuses(files)
    if as_json:
        print(json.dumps(trees if len(trees) > 1 else trees[0]))
        return
    for tree in trees:
        console().print(_picture(tree))


@app.command("watch")
def watch_command(
    files: Annotated[list[Path], typer.Argument(help="Settings of peers on this machine.", metavar="PEER.toml...")],
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between updates.")] = 1.0,
) -> None:
    """Show peers live, until all of them are done or Ctrl-C.

    [bold]mapl peer watch PEER.toml[/bold]
    """
    try:
        with Live(Group(), console=console(), refresh_per_second=4) as live:
            while True:
                trees = _statuses(files)
                live.update(Group(*map(_picture, trees)) if len(trees) < 4 else overview(trees))
                if all(tree["state"] == "finished" for tree in trees):
                    return
                time.sleep(every)
    except KeyboardInterrupt:
        return


def _statuses(files: list[Path]) -> list[dict[str, Any]]:
    from mapl.peer.seen import read_status
    from mapl.peer.settings import read_settings

    return [read_status(read_settings(file).folder) for file in files]


def overview(trees: list[dict[str, Any]]) -> Table:
    """A line for each peer."""
    table = Table("peer", "state", "round", "accuracy", "listens to", "letters in", "out", "missing", "refused")
    for tree in trees:
        refused = sum(number for reasons in tree["refused"].values() for number in reasons.values())
        table.add_row(
            printable(tree["name"]),
            state_of(tree),
            f"{tree['round']}/{tree['rounds']}",
            _percent(tree["accuracy"]),
            _listens_to(tree),
            f"{tree['letters_in']:,}",
            f"{tree['letters_out']:,}",
            str(len(tree["last_exchange"]["missing"])),
            str(refused),
        )
    return table


def state_of(tree: dict[str, Any]) -> str:
    """What a peer is doing, or how long ago it was last heard of."""
    age = time.time() - tree["updated"]
    usual = sum(tree["seconds"].values())
    if tree["state"] in ("training", "waiting") and age > max(30.0, STALE * usual):
        return f"silent for {duration(age)}"
    return str(tree["state"])


def _picture(tree: dict[str, Any]) -> Table:
    """Everything about one peer."""
    last = tree["last_exchange"]
    table = Table(
        "",
        "",
        title=printable(f"{tree['name']} in {tree['network']}"),
        show_header=False,
        title_justify="left",
    )
    alive = ", ".join(tree["alive"]) or "nobody"
    letters = f"{last['read']} of {last['asked']} in the last round, after {last['waited']:.1f} s"
    if last["stale"]:
        letters += f"; {last['stale']} of them late"
    rows = {
        "state": f"{state_of(tree)}, round {tree['round']} of {tree['rounds']}",
        "trains": f"{tree['method']}, {tree['backbone']}, {tree['images']:,} images of its own",
        "accuracy": f"{_percent(tree['accuracy'])} on its own test images",
        "connected": f"{len(tree['alive'])} of {max(0, tree['members'] - 1)} others: {alive}",
        "listens to": _listens_to(tree, most=12),
        "letters": letters,
        "missing": ", ".join(last["missing"]) or "none",
        "in, out": f"{tree['letters_in']:,} letters ({_mib(tree['bytes_in'])}), "
        f"{tree['letters_out']:,} ({_mib(tree['bytes_out'])})",
        "refused": _refused(tree["refused"]),
    }
    for name, text in rows.items():
        table.add_row(name, printable(text))
    return table


def _refused(counts: dict[str, dict[str, int]]) -> str:
    return ", ".join(f"{n} of {who} ({why})" for who, reasons in counts.items() for why, n in reasons.items()) or "none"


def _listens_to(tree: dict[str, Any], most: int = 4) -> str:
    """The neighbours with the most weight."""
    others = {name: weight for name, weight in tree["neighbours"].items() if name != tree["name"] and weight > 0}
    ranking = sorted(others, key=lambda name: -others[name])
    texts = [printable(f"{name} {others[name]:.2f}") for name in ranking[:most]]
    return ", ".join(texts) + (f" and {len(ranking) - most} more" if len(ranking) > most else "") or "nobody"


def _percent(share: float | None) -> str:
    return DASH if share is None else f"{100 * share:.1f} %"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
