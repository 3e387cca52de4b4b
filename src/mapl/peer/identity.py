"""Who a peer is, and whom it believes: an identity folder, and everything that a running peer asks of it.

Other processes may change the folder (`mapl identity revoke`, an enrolment), so it is looked at each time. What was
verified once is not verified again, and a file that has not changed is not read again.
"""

from __future__ import annotations

import os
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from mapl.peer import agreement, certificates, revocations
from mapl.peer.agreement import AGREEMENT, Agreement
from mapl.peer.certificates import Member
from mapl.peer.errors import IdentityError, Reason
from mapl.peer.files import MEMBERS, VERSION, Written, check_secret, held, parsed, read, write
from mapl.peer.names import check_address, check_name
from mapl.peer.revocations import Revocations

if TYPE_CHECKING:
    from mapl.recipe import Recipe

__all__ = ["Identity", "IdentityError", "Member", "Reason"]

NETWORK, AUTHORITY, AUTHORITY_KEY = "network.json", "ca.pem", "ca.key"
CERTIFICATE, KEY, RECIPE, REVOKED = "me.pem", "me.key", "recipe.toml", "revoked.json"
LARGEST_RECIPE = 1024 * 1024
ID_DIGITS = 16


class Card(Written):
    """network.json: which network this is an identity of, and whose it is."""

    version: int = Field(ge=1, le=VERSION)
    network: str
    network_id: str
    name: str
    addresses: tuple[str, ...] = ()
    """Where peers were when this one joined (`quic/HOST:PORT`). Nobody's word depends on them."""


def network_id(authority: bytes) -> str:
    """16 hex digits of SHA-256 of the authority's public key."""
    certificate = certificates.read_authority(authority, "the authority's certificate")
    return certificates.digest_of(certificates.authority_key(certificate))[:ID_DIGITS]


@dataclass(frozen=True)
class Identity:
    """One peer's identity in one network. `Identity.load(folder)` makes one."""

    folder: Path
    network: str
    network_id: str
    addresses: tuple[str, ...]
    """Where to find other peers at first (`quic/HOST:PORT`); none for whoever made the network."""
    authority: bytes
    """The certificate of the network's authority (PEM)."""
    own: Member
    clients: int
    """How many clients the network's recipe has. Numbers are below it."""

    @staticmethod
    def load(folder: str | Path) -> Identity:
        """Read an identity folder and check all of it: certificates, keys, who may read them, and the clock."""
        identity = opened(Path(folder))
        identity._check_authority()
        certificates.check_time(
            identity.own.begins,
            identity.own.expires,
            f"the certificate of {identity.name!r}",
            "set the clock, or get a new invitation from the network's authority",
        )
        if identity.name in identity.revoked_names():
            raise IdentityError("revoked", f"{identity.name!r} was revoked in the network {identity.network!r}")
        return identity

    @property
    def name(self) -> str:
        return self.own.name

    @property
    def number(self) -> int:
        """The id of the client that this peer trains."""
        return self.own.number

    @property
    def ca_path(self) -> Path:
        return self.folder / AUTHORITY

    @property
    def certificate_path(self) -> Path:
        return self.folder / CERTIFICATE

    @property
    def key_path(self) -> Path:
        return self.folder / KEY

    @property
    def is_authority(self) -> bool:
        """Whether it can invite and revoke: whether the authority's key is here."""
        return (self.folder / AUTHORITY_KEY).exists()

    def recipe(self, trust: bool = False) -> Recipe:
        """The network's recipe. Code that it names is imported only with `trust`: somebody else wrote it."""
        return recipe_of(read(self.folder / RECIPE, LARGEST_RECIPE), str(self.folder / RECIPE), trust)

    def agreement(self) -> Agreement | None:
        """What members who bring their own data agree on; None if nobody has said."""
        path = self.folder / AGREEMENT
        return parsed(Agreement, read(path, agreement.LIMIT), repr(str(path))) if path.exists() else None

    # Members

    def members(self) -> dict[str, Member]:
        """Everybody with a valid certificate, this peer among them, by name and in the order of names.

        Left out is whoever was revoked, or whose certificate is not valid today.
        """
        today = certificates.now()
        return {name: member for name, member in self.holders().items() if member.begins <= today <= member.expires}

    def holders(self) -> dict[str, Member]:
        """The same whatever the clock says: whoever has a name and a number until the authority takes it back."""
        gone = self.revoked_names()
        return {name: member for name, member in self.known().items() if name not in gone}

    def known(self) -> dict[str, Member]:
        """The same with those who were revoked."""
        found = {self.name: self.own}
        for name, path, stamp in _stamps(self.folder / MEMBERS):
            try:
                member = _in_file(path, stamp, self.authority, self.clients)
            except IdentityError:
                continue  # not ours, or damaged: whoever it is can show it again
            if f"{member.name}.pem" == name:
                found.setdefault(member.name, member)
        return dict(sorted(found.items()))

    def by_number(self) -> dict[int, str]:
        """The members' names by number, in the order of numbers."""
        return dict(sorted((member.number, name) for name, member in self.members().items()))

    def admit(self, pem: bytes) -> Member:
        """Check a certificate that came over the network, and remember it as a member's.

        Take in revocations first: a number is free again as soon as its member is revoked.
        Raises IdentityError with one of the reasons format, authority, name, number, revoked, expired.
        """
        return self.remember(pem, check_time=True)

    def remember(self, pem: bytes, check_time: bool = False) -> Member:
        """The same whatever the clock says, for certificates from the network's authority."""
        member = _member(pem, self.authority, self.clients)
        if member.name in self.revoked_names():
            raise IdentityError("revoked", f"{member.name!r} was revoked")
        if check_time:
            what = f"the certificate of {member.name!r}"
            certificates.check_time(member.begins, member.expires, what, "it has ended, or a clock is wrong")
        with held(self.folder):
            known = self.holders()
            for other in known.values():
                if (other.name == member.name) != (other.number == member.number):
                    raise IdentityError(
                        "number",
                        f"{member.name!r} has number {member.number}, but {other.name!r} with number {other.number} "
                        "is a member already",
                    )
            before = known.get(member.name)
            if before is None or before.begins < member.begins:  # an older one may be shown again, but is not kept
                self._store(member)
        return member

    def _store(self, member: Member) -> None:
        if member.name != self.name:
            write(self.folder / MEMBERS / f"{member.name}.pem", member.certificate)

    # Revocations

    def revocations(self) -> bytes:
        """The newest list of revoked members that this peer has, signed by the authority."""
        return self.revoked().stored()

    def revoked(self) -> Revocations:
        """The same, read and verified."""
        return self._read_revocations(read(self.folder / REVOKED, revocations.LIMIT))

    def revoked_names(self) -> frozenset[str]:
        """Who was revoked. Such a name is never used again."""
        return self.revoked().names

    def accept_revocations(self, data: bytes) -> bool:
        """Take in a list that came over the network, if it is newer than ours. Whether it was.

        Raises IdentityError with one of the reasons format, authority.
        """
        theirs = self._read_revocations(data)
        with held(self.folder):
            if theirs.sequence <= self.revoked().sequence:
                return False
            write(self.folder / REVOKED, theirs.stored())
        return True

    def _read_revocations(self, data: bytes) -> Revocations:
        return revocations.read(data, self.authority, self.network_id)

    # What load checks

    def _check_authority(self) -> None:
        what = f"the certificate of the network {self.network!r}"
        found = certificates.read_authority(self.authority, what)
        begins, expires = found.not_valid_before_utc, found.not_valid_after_utc
        certificates.check_time(begins, expires, what, "set the clock, or make a new network")
        if self.is_authority:
            path = self.folder / AUTHORITY_KEY
            check_secret(path)
            key = certificates.read_key(read(path, certificates.LIMIT), repr(str(path)))
            if certificates.digest_of(key.public_key())[:ID_DIGITS] != self.network_id:
                raise IdentityError("key", f"{str(path)!r} is not the key of {str(self.ca_path)!r}")


Stamp = tuple[int, int, int]
"""Inode, time and size of a file. Whoever changes a file changes one of them: ours are never written in place."""


def _stamps(folder: Path) -> list[tuple[str, str, Stamp]]:
    """The certificates in a folder: name and path of each file, and its stamp.

    A peer asks several times a round. To look is quicker than to read, and a string is quicker than a `Path`.
    """
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".pem"):
                with suppress(OSError):
                    about = entry.stat()
                    found.append((entry.name, entry.path, (about.st_ino, about.st_mtime_ns, about.st_size)))
    return found


@lru_cache(maxsize=4096)
def _in_file(path: str, stamp: Stamp, authority: bytes, clients: int) -> Member:
    """The certificate in a file, read once for each stamp. What cannot be read is tried again each time."""
    return _member(read(Path(path), certificates.LIMIT), authority, clients)


def _member(pem: bytes, authority: bytes, clients: int) -> Member:
    """A certificate of this network, valid today or not."""
    member = certificates.read_member(pem, authority)
    if member.number >= clients:
        raise IdentityError(
            "number", f"{member.name!r} has number {member.number}, but the network has {clients} clients"
        )
    return member


def opened(folder: Path) -> Identity:
    """The identity in a folder; that all its files fit together, but not that they are valid today."""
    if not (folder / NETWORK).is_file():
        raise IdentityError("files", f"{str(folder)!r} is not the folder of an identity: it has no {NETWORK}")
    card = parsed(Card, read(folder / NETWORK, certificates.LIMIT), repr(str(folder / NETWORK)))
    check_name(card.network, f"{str(folder / NETWORK)!r}, network")
    authority = read(folder / AUTHORITY, certificates.LIMIT)
    if network_id(authority) != card.network_id:
        raise IdentityError("authority", f"{str(folder / AUTHORITY)!r} is not of the network in {NETWORK}")
    path = folder / CERTIFICATE
    own = certificates.read_member(read(path, certificates.LIMIT), authority, repr(str(path)))
    if own.name != card.name:
        raise IdentityError("name", f"{str(path)!r} is the certificate of {own.name!r}, not of {card.name!r}")
    _check_key(folder, own)
    clients = clients_of(read(folder / RECIPE, LARGEST_RECIPE), repr(str(folder / RECIPE)))
    if own.number >= clients:
        raise IdentityError("number", f"{own.name!r} has number {own.number}, but {RECIPE} has {clients} clients")
    if not (folder / MEMBERS).is_dir():
        raise IdentityError("files", f"{str(folder)!r} has no folder {MEMBERS}")
    for address in card.addresses:
        check_address(address.removeprefix("quic/"), f"{str(folder / NETWORK)!r}, addresses")
    return Identity(folder, card.network, card.network_id, card.addresses, authority, own, clients)


def _check_key(folder: Path, own: Member) -> None:
    path = folder / KEY
    check_secret(path)
    key = certificates.read_key(read(path, certificates.LIMIT), repr(str(path)))
    if certificates.digest_of(key.public_key()) != own.key:
        raise IdentityError("key", f"{str(path)!r} is not the key of {str(folder / CERTIFICATE)!r}")


# The network's recipe


def clients_of(text: bytes, what: str) -> int:
    """How many clients a recipe has. The rest of it is not read, which would import torch."""
    try:
        clients = tomllib.loads(text.decode()).get("clients")
    except ValueError as error:
        raise IdentityError("format", f"{what} is not TOML: {error}") from error
    if type(clients) is not int or clients < 1:
        raise IdentityError("format", f"{what}: clients: it should be a whole number from 1 on")
    return clients


def recipe_of(text: bytes, source: str, trust: bool = False) -> Recipe:
    """A network's recipe, which somebody else wrote."""
    from mapl.plugins import looking
    from mapl.recipe import validated

    clients_of(text, repr(source))
    with looking(trust):
        return validated(tomllib.loads(text.decode()), source)
