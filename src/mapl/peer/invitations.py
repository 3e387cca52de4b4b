"""Invitations: the file that the invited person gets, and the book that the authority keeps of them."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import datetime
from pathlib import Path

from pydantic import AwareDatetime, Field

from mapl.peer import certificates
from mapl.peer.agreement import Agreement
from mapl.peer.errors import IdentityError
from mapl.peer.files import SECRET, VERSION, Written, parsed, read, write
from mapl.peer.identity import clients_of, network_id
from mapl.peer.names import check_address, check_name

BOOK = "invitations.json"
LIMIT = 16 * 1024 * 1024
"""The largest file, in bytes. Both grow with the number of members, by about a thousand bytes each."""
QUIC = "quic/"


class Invitation(Written):
    """What a new member needs to join. Whoever has it can join in the member's place: it is a secret."""

    version: int = Field(ge=1, le=VERSION)
    network: str
    network_id: str
    ca: str
    name: str
    number: int = Field(ge=0)
    token: str = Field(min_length=20, max_length=100, pattern=r"^[A-Za-z0-9_-]+$")
    inviter: str
    """Who invites. Its certificate has this name, wherever it is reached."""
    addresses: tuple[str, ...]
    """Where the inviter's peer is (`quic/HOST:PORT`)."""
    enrolment: str
    """Where it signs certificates (HOST:PORT)."""
    recipe: str
    """The network's recipe, as TOML."""
    members: tuple[str, ...]
    """Certificates of the members that the inviter knew."""
    agreement: Agreement | None = None
    """What members who bring their own data agree on. Invitations from before there was one have none."""

    @staticmethod
    def load(path: Path) -> Invitation:
        """Read an invitation, and check that its parts fit together."""
        what = f"invitation {str(path)!r}"
        found = parsed(Invitation, read(path, LIMIT), what)
        for name in (found.network, found.name, found.inviter):
            check_name(name, what)
        if network_id(found.ca.encode()) != found.network_id:
            raise IdentityError("authority", f"{what} has the certificate of another network")
        if found.number >= clients_of(found.recipe.encode(), f"the recipe of {what}"):
            raise IdentityError("number", f"{what} has number {found.number}, which its recipe has not")
        for address in (found.enrolment, *found.addresses):
            check_address(address.removeprefix(QUIC), what)
        return found


class Entry(Written):
    """What the authority remembers of an invitation. The token itself is only in the invitation."""

    token: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the token, in hex."""
    name: str
    number: int = Field(ge=0)
    expires: AwareDatetime
    used: str | None = None
    """A digest of the key that was signed. Whoever has it may ask again, if the answer was lost."""

    @property
    def is_pending(self) -> bool:
        """Whether somebody can still use it for the first time."""
        return self.used is None and not self.is_over

    @property
    def is_over(self) -> bool:
        return self.expires < certificates.now()


class Book(Written):
    """All invitations that are not over yet, used ones too."""

    version: int = Field(default=VERSION, ge=1, le=VERSION)
    entries: tuple[Entry, ...] = ()

    @staticmethod
    def load(folder: Path) -> Book:
        path = folder / BOOK
        return parsed(Book, read(path, LIMIT), repr(str(path))) if path.exists() else Book()

    def save(self, folder: Path) -> None:
        write(folder / BOOK, self.text(), SECRET)

    def pending(self) -> dict[str, Entry]:
        """The invitations that nobody has used, by name."""
        return {entry.name: entry for entry in sorted(self.entries, key=lambda e: e.name) if entry.is_pending}

    def without(self, name: str) -> Book:
        """The book without invitations for this name, and without those that are over."""
        kept = [entry for entry in self.entries if entry.name != name and not entry.is_over]
        return self.model_copy(update={"entries": tuple(kept)})

    def plus(self, entry: Entry) -> Book:
        """The book with this entry in place of any other for its name."""
        return self.model_copy(update={"entries": (*self.without(entry.name).entries, entry)})

    def find(self, token: str) -> Entry:
        """The invitation of a token. How long it takes says nothing about how much of the token is right."""
        wanted = digest_of(token)
        found = [entry for entry in self.entries if hmac.compare_digest(entry.token, wanted)]
        if not found:
            raise IdentityError("token", "this invitation is not known here: it was never made, or withdrawn")
        if found[0].is_over:
            raise IdentityError("expired", f"the invitation ended on {found[0].expires:%Y-%m-%d %H:%M} UTC")
        return found[0]


def new_token() -> str:
    """32 random bytes."""
    return secrets.token_urlsafe(32)


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def new_entry(token: str, name: str, number: int, expires: datetime) -> Entry:
    return Entry(token=digest_of(token), name=name, number=number, expires=expires)
