"""What only the authority of a network can do: make it, invite, sign certificates, revoke.

The authority is whoever has `ca.key`. Every change is made in one turn (`held`), so that a command and a running
enrolment service do not undo each other's work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from mapl.peer import certificates, revocations
from mapl.peer.agreement import AGREEMENT, Agreement
from mapl.peer.certificates import AUTHORITY_DAYS, MEMBER_DAYS, Key, Member
from mapl.peer.errors import IdentityError
from mapl.peer.files import MEMBERS, SECRET, VERSION, held, made_aside, read, write
from mapl.peer.identity import (
    AUTHORITY,
    AUTHORITY_KEY,
    CERTIFICATE,
    KEY,
    NETWORK,
    RECIPE,
    REVOKED,
    Card,
    Identity,
    network_id,
)
from mapl.peer.invitations import LIMIT, QUIC, Book, Entry, Invitation, new_entry, new_token
from mapl.peer.names import check_address, check_hosts, check_name, join_address
from mapl.peer.revocations import Revoked

if TYPE_CHECKING:
    from mapl.recipe import Recipe

# Making a network


def create_network(
    network: str, me: str, hosts: Sequence[str], recipe: Recipe, folder: Path, number: int = 0
) -> Identity:
    """A new network with an authority of its own, in the folder of its first member."""
    check_name(network, "network")
    check_name(me, "--me")
    found = check_hosts(hosts, "--host")
    if not 0 <= number < recipe.clients:
        raise IdentityError("number", f"--number: got {number}, but the recipe has clients 0 to {recipe.clients - 1}")
    with made_aside(folder) as aside:
        key = certificates.new_key()
        authority = certificates.new_authority(network, key)
        write(aside / AUTHORITY_KEY, certificates.key_pem(key), SECRET)
        own = certificates.new_key()
        # As long as the authority: whoever has this folder has the authority's key as well.
        mine = certificates.issue(authority, key, own.public_key(), me, number, found, AUTHORITY_DAYS)
        first = revocations.signed(key, network_id(authority), 0, ())
        card = Card(version=VERSION, network=network, network_id=network_id(authority), name=me)
        write_identity(aside, card, authority, mine, own, _text_of(recipe), first.stored())
        Book().save(aside)
        Identity.load(aside)
    return Identity.load(folder)


def _text_of(recipe: Recipe) -> bytes:
    """The recipe as the network has it. Where the images are is each member's own affair."""
    from mapl.recipe import to_toml

    shared = recipe.model_copy(update={"data": recipe.data.model_copy(update={"folder": None})})
    return to_toml(shared).encode()


def write_identity(
    folder: Path,
    card: Card,
    authority: bytes,
    certificate: bytes,
    key: Key,
    recipe: bytes,
    revoked: bytes,
    agreement: Agreement | None = None,
) -> None:
    """The files of a new identity, into a folder that nobody else can look into."""
    (folder / MEMBERS).mkdir()
    write(folder / KEY, certificates.key_pem(key), SECRET)
    write(folder / NETWORK, card.text())
    write(folder / AUTHORITY, authority)
    write(folder / CERTIFICATE, certificate)
    write(folder / RECIPE, recipe)
    write(folder / REVOKED, revoked)
    if agreement is not None:
        write(folder / AGREEMENT, agreement.text())


def agree(identity: Identity, agreement: Agreement) -> None:
    """Say for the whole network what its members' data have in common. Invitations carry it from now on."""
    check_is_authority(identity, "say which classes there are")
    write(identity.folder / AGREEMENT, agreement.text())


# Inviting


def invite(
    identity: Identity, name: str, at: str, path: Path, number: int | None = None, days: int = 7, again: bool = False
) -> Invitation:
    """Write an invitation file for a new member, or `again` for one that needs a new certificate.

    An earlier invitation for the same name that nobody has used is withdrawn.
    """
    check_is_authority(identity, "invite")
    check_name(name)
    host, port = check_address(at, "--at")
    if ":" in host:  # zenoh 1.10 takes [::1] for a host's name, and finds it in no certificate
        raise IdentityError("host", f"--at: peers cannot dial {host!r}: give a host's name for an IPv6 address")
    if not identity.own.is_known_as(host):
        hosts = ", ".join((*identity.own.hosts, identity.name))
        raise IdentityError(
            "host", f"--at: {host!r} is not a host of {identity.name!r} ({hosts}), so nobody would believe it there"
        )
    if path.exists() or path.is_symlink():
        raise IdentityError("files", f"{str(path)!r} exists already: remove it first")
    with held(identity.folder):
        book = Book.load(identity.folder)
        _check_name_is_free(identity, name, again)
        number = _number_for(identity, book, name, number)
        token, end = new_token(), certificates.now() + timedelta(days=days)
        invitation = _invitation(identity, name, number, token, join_address(host, port))
        write(path, invitation.text(), SECRET)
        try:
            book.plus(new_entry(token, name, number, end)).save(identity.folder)
        except IdentityError:
            path.unlink()  # nobody would accept it
            raise
    return invitation


def _check_name_is_free(identity: Identity, name: str, again: bool) -> None:
    if name == identity.name:
        raise IdentityError("name", f"{name!r} is the authority itself")
    if name in identity.revoked_names():
        raise IdentityError("revoked", f"{name!r} was revoked, and such a name is never used again: take another")
    holders = identity.holders()
    if name in holders and not again:
        raise IdentityError("name", f"{name!r} is a member already; --again invites it for a new certificate")
    for member in holders.values():
        if name in member.hosts:
            raise IdentityError("name", f"{name!r} is a host of {member.name!r}: take another name")


def _number_for(identity: Identity, book: Book, name: str, wanted: int | None) -> int:
    """The number that was asked for, the one that the member has, or the lowest that is free."""
    holders = identity.holders()
    had = holders.get(name)
    if had and wanted not in (None, had.number):
        raise IdentityError("number", f"--number: {name!r} has number {had.number}, and keeps it")
    if had:
        return had.number
    taken = {member.number: member.name for member in holders.values()}
    taken |= {entry.number: entry.name for entry in book.without(name).entries}
    if wanted is None:
        free = next((n for n in range(identity.clients) if n not in taken), None)
        if free is None:
            raise IdentityError("number", f"all {identity.clients} numbers of the network are taken")
        return free
    if not 0 <= wanted < identity.clients:
        raise IdentityError(
            "number", f"--number: got {wanted}, but the network's recipe has clients 0 to {identity.clients - 1}"
        )
    if wanted in taken:
        raise IdentityError("number", f"--number: {wanted} is the number of {taken[wanted]!r}")
    return wanted


def _invitation(identity: Identity, name: str, number: int, token: str, address: str) -> Invitation:
    return Invitation(
        version=VERSION,
        network=identity.network,
        network_id=identity.network_id,
        ca=identity.authority.decode(),
        name=name,
        number=number,
        token=token,
        inviter=identity.name,
        addresses=(f"{QUIC}{address}",),
        enrolment=address,  # QUIC is UDP and enrolment is TCP: both have the same port
        recipe=read(identity.folder / RECIPE, LIMIT).decode(),
        members=tuple(member.certificate.decode() for member in identity.members().values()),
        agreement=identity.agreement(),
    )


# Signing


def enrol(identity: Identity, token: str, request: bytes) -> Member:
    """Sign the certificate of whoever has this invitation. Its name and number are the invitation's.

    An invitation works once. But whoever asks again with the same key gets the same answer, if the first was lost.
    """
    key, hosts = certificates.read_request(request)
    digest = certificates.digest_of(key)
    with held(identity.folder):
        book = Book.load(identity.folder)
        entry = book.find(token)
        if entry.name in identity.revoked_names():
            raise IdentityError("revoked", f"{entry.name!r} was revoked")
        if entry.used not in (None, digest):
            raise IdentityError("used", "this invitation was used already, with another key")
        known = identity.known().get(entry.name)
        if entry.used and known and known.key == digest:
            return known
        _check_hosts_are_free(identity, book, entry.name, hosts)
        # First that it is used: after a crash in between, the same key may ask again, and no other.
        book.plus(entry.model_copy(update={"used": digest})).save(identity.folder)
        return _signed(identity, entry, key, hosts)


def _signed(identity: Identity, entry: Entry, key: certificates.PublicKey, hosts: Sequence[str]) -> Member:
    signer = _authority_key(identity)
    pem = certificates.issue(identity.authority, signer, key, entry.name, entry.number, hosts, MEMBER_DAYS)
    write(identity.folder / MEMBERS / f"{entry.name}.pem", pem)
    return certificates.read_member(pem, identity.authority)


def _check_hosts_are_free(identity: Identity, book: Book, name: str, hosts: Iterable[str]) -> None:
    """A host that is the name of somebody else would let one member answer for the other."""
    others = (identity.known().keys() | book.pending().keys() | identity.revoked_names()) - {name}
    for host in hosts:
        if host in others:
            raise IdentityError("host", f"the host {host!r} is the name of another member")


# Revoking


def revoke(identity: Identity, name: str) -> bool:
    """Put a member out for good; or withdraw an invitation that nobody has used. Whether there was a member."""
    check_is_authority(identity, "revoke")
    with held(identity.folder):
        book, revoked, known = Book.load(identity.folder), identity.revoked(), identity.known()
        if name == identity.name:
            raise IdentityError("name", f"{name!r} is the authority itself: without it, make a new network")
        if name in revoked.names:
            raise IdentityError("revoked", f"{name!r} was revoked already")
        if name not in known and name not in book.pending():
            raise IdentityError(
                "name", f"{name!r} is neither a member nor invited; mapl identity list {identity.folder} shows who is"
            )
        book.without(name).save(identity.folder)
        if name not in known:
            return False
        entry = Revoked(name=name, serial=f"{known[name].serial:x}")
        key = _authority_key(identity)
        newer = revocations.signed(key, identity.network_id, revoked.sequence + 1, (*revoked.revoked, entry))
        write(identity.folder / REVOKED, newer.stored())
    return True


def check_is_authority(identity: Identity, what: str) -> None:
    if not identity.is_authority:
        raise IdentityError(
            "authority",
            f"{identity.name!r} cannot {what}: only the authority of the network {identity.network!r} can, "
            f"where {AUTHORITY_KEY} is",
        )


def _authority_key(identity: Identity) -> Key:
    path = identity.folder / AUTHORITY_KEY
    return certificates.read_key(read(path, certificates.LIMIT), repr(str(path)))
