"""`mapl identity`: who is in a network of peers, how a member joins, and how it is revoked."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from mapl.cli.recipe_options import ClientsOption, RoundsOption, compose_recipe
from mapl.names import DASH, printable
from mapl.terminal.messages import console, say
from mapl.terminal.options import JsonOption

if TYPE_CHECKING:
    from mapl.peer.identity import Identity, Member

app = typer.Typer(
    help="""Make a network of peers, invite members, join, and revoke members.

[bold]mapl identity create-network clinics --me alice --host 192.168.1.10[/bold]
    alice's machine: a new network, and her own identity in it; then mapl peer init
[bold]mapl identity invite clinics bob --at 192.168.1.10:7447[/bold]
    a file for bob; send it to him by a way that you trust
[bold]mapl identity serve clinics --listen 0.0.0.0:7447[/bold]
    while this runs, bob can join
[bold]mapl identity join bob.invitation --host 192.168.1.11[/bold]
    bob's machine: his identity""",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Folder = Annotated[Path, typer.Argument(help="Folder of an identity.", metavar="FOLDER")]
HostsOption = Annotated[
    list[str],
    typer.Option("--host", help="IP address or name by which others reach this machine. Repeatable."),
]
OutOption = Annotated[Path | None, typer.Option(help="Folder to make. Default: the network's name.")]


@app.command("create-network")
def create_command(
    name: Annotated[str, typer.Argument(help="Name of the network: a-z, 0-9 and '-'.")],
    me: Annotated[str, typer.Option(help="Your own name in it.")],
    host: HostsOption,
    number: Annotated[int, typer.Option(min=0, help="Which of the recipe's clients you are.")] = 0,
    recipe: Annotated[
        Path | None, typer.Option(help="What the network trains. Default: couriers, with settings for small images.")
    ] = None,
    clients: ClientsOption = None,
    rounds: RoundsOption = None,
    out: OutOption = None,
) -> None:
    """Make a network, with an authority of its own, and your identity in it.

    The folder has the authority's key, [bold]ca.key[/bold]. Whoever has it can
    invite and revoke members.

    [bold]mapl identity create-network clinics --me alice --host 192.168.1.10[/bold]
    """
    from mapl.peer.authority import create_network

    method = None if recipe else "courier"
    composed, _ = compose_recipe(recipe, None, method=method, clients=clients, rounds=rounds)
    identity = create_network(name, me, host, composed, out or Path(name), number)
    say(f"network {_network(identity)} made in {identity.folder}: {_who(identity)} of {identity.clients} clients")
    key = identity.folder / "ca.key"
    say(f"keep {key} to yourself, and keep a copy: without it nobody can invite or revoke members")
    say(f"next: mapl peer init --identity {identity.folder} --data YOUR_IMAGES, which says which classes there are")
    say(f"then: mapl identity invite {identity.folder} NAME --at HOST:PORT")


@app.command("invite")
def invite_command(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="Name of the new member: a-z, 0-9 and '-'.")],
    at: Annotated[str, typer.Option(help="HOST:PORT where the new member reaches your peer.")],
    number: Annotated[
        int | None, typer.Option(min=0, help="Which of the recipe's clients it is. Default: the lowest free one.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=365, help="The invitation expires after this many days.")] = 7,
    again: Annotated[
        bool, typer.Option("--again", help="For a member that needs a new certificate, or has lost its folder.")
    ] = False,
) -> None:
    """Write NAME.invitation, with which one new member can join once.

    It is a secret: whoever has it can join as NAME. Send it by a way that you
    trust.

    [bold]mapl identity invite clinics bob --at 192.168.1.10:7447[/bold]
    [bold]mapl identity invite clinics bob --at 192.168.1.10:7447 --again[/bold]
        bob has lost his folder, or his certificate ends
    """
    from mapl.peer.authority import invite
    from mapl.peer.identity import Identity

    identity = Identity.load(folder)
    path = Path(f"{name}.invitation")
    invitation = invite(identity, name, at, path, number, days, again)
    whom = f"{invitation.name}, number {invitation.number}"
    say(f"invitation for {whom}, written to {path}: a secret, good once, for {days} days")
    say(f"while it is used, this has to run: mapl identity serve {folder} --listen {invitation.enrolment}")
    if invitation.agreement is None:
        say("it does not say which classes there are: for members' own data, mapl peer init --data comes before invite")


@app.command("serve")
def serve_command(
    folder: Folder,
    listen: Annotated[str, typer.Option(help="HOST:PORT to listen at; 0.0.0.0 is every address of this machine.")],
) -> None:
    """Sign certificates for whoever has an invitation, until Ctrl-C. A running peer of the authority does so too.

    [bold]mapl identity serve clinics --listen 0.0.0.0:7447[/bold]
    """
    from mapl.peer.enrolment import Enrolment
    from mapl.peer.names import join_address, split_address

    host, port = split_address(listen, "--listen")
    with Enrolment(folder, host, port, say) as service:
        say(f"waiting for new members of {service.identity.network} at {join_address(host, service.port)}")
        threading.Event().wait()


@app.command("join")
def join_command(
    invitation: Annotated[Path, typer.Argument(help="The file that you got.", metavar="INVITATION")],
    host: HostsOption,
    out: OutOption = None,
) -> None:
    """Join a network with an invitation. The key is made here, and never leaves this machine.

    [bold]mapl identity join bob.invitation --host 192.168.1.11[/bold]
    """
    from mapl.peer.invitations import Invitation
    from mapl.peer.joining import join

    given = Invitation.load(invitation)
    identity = join(given, host, out or Path(given.network))
    say(f"joined network {_network(identity)} in {identity.folder}: {_who(identity)} of {identity.clients} clients")
    say(f"members: {', '.join(identity.members())}")
    say(f"{invitation} is used up, and can be removed")
    say(f"next: mapl peer init --identity {identity.folder}")


def _network(identity: Identity) -> str:
    return f"{identity.network} ({identity.network_id})"


def _who(identity: Identity) -> str:
    return f"{identity.name}, number {identity.number}"


@app.command("list")
def list_command(folder: Folder, as_json: JsonOption = False) -> None:
    """List the members that this identity knows, revoked members, and unused invitations.

    [bold]mapl identity list clinics[/bold]
    """
    from mapl.peer.identity import Identity

    identity = Identity.load(folder)
    rows = _member_rows(identity) + _revoked_rows(identity) + _invitation_rows(identity)
    if as_json:
        head = {"network": identity.network, "network_id": identity.network_id, "name": identity.name}
        print(json.dumps({**head, "authority": identity.is_authority, "rows": rows}, indent=1))
        return
    table = Table("name", "number", "expires", "hosts", "state")
    for row in rows:
        number = DASH if row["number"] is None else str(row["number"])
        expires = (row["expires"] or DASH)[:10]
        table.add_row(row["name"], number, expires, printable(", ".join(row["hosts"])) or DASH, row["state"])
    console().print(table)
    role = "the authority" if identity.is_authority else "a member"
    say(f"network {_network(identity)}, seen by {_who(identity)}, {role}")


def _row(name: str, state: str, number: int | None = None, expires: Any = None, hosts: Any = ()) -> dict[str, Any]:
    when = expires.isoformat() if expires is not None else None
    return {"name": name, "number": number, "expires": when, "hosts": list(hosts), "state": state}


def _member_rows(identity: Identity) -> list[dict[str, Any]]:
    valid, revoked = identity.members(), identity.revoked_names()

    def state(member: Member) -> str:
        if member.name in revoked:
            return "revoked"
        return "member" if member.name in valid else "expired"

    return [_row(m.name, state(m), m.number, m.expires, m.hosts) for m in identity.known().values()]


def _revoked_rows(identity: Identity) -> list[dict[str, Any]]:
    """Names that were revoked before this peer knew them."""
    return [_row(name, "revoked") for name in sorted(identity.revoked_names() - identity.known().keys())]


def _invitation_rows(identity: Identity) -> list[dict[str, Any]]:
    from mapl.peer.invitations import Book

    pending = Book.load(identity.folder).pending().values()
    return [_row(entry.name, "invited", entry.number, entry.expires) for entry in pending]


@app.command("revoke")
def revoke_command(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="The member to revoke.")],
) -> None:
    """Revoke a member permanently, or withdraw an invitation that nobody has used.

    The name of a revoked member is never used again. Its number is free for
    another.

    Running peers learn of it as soon as this peer is connected to them.

    [bold]mapl identity revoke clinics bob[/bold]
    """
    from mapl.peer.authority import revoke
    from mapl.peer.identity import Identity

    identity = Identity.load(folder)
    if not revoke(identity, name):
        say(f"the invitation of {name} is withdrawn")
        return
    say(f"{name} is revoked (list {identity.revoked().sequence}); its number is free for a new member")
