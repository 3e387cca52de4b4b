"""The list of members that the authority has put out. It is signed, and the newest one counts."""

from __future__ import annotations

import base64
import binascii
from functools import lru_cache

from pydantic import Field

from mapl.peer import certificates
from mapl.peer.certificates import Key
from mapl.peer.errors import IdentityError
from mapl.peer.files import VERSION, Written, canonical, parsed
from mapl.peer.names import check_name

LIMIT = 64 * 1024
"""The largest list, in bytes: about 700 names."""
CONTEXT = b"mapl revocations 1\n"
"""What is signed begins with this, so that the signature is none of anything else."""


class Revoked(Written):
    """A name that is never used again, and the serial number (hex) of the certificate that it had."""

    name: str
    serial: str = Field(pattern=r"^[0-9a-f]{1,40}$")


class Revocations(Written):
    """All names that were ever revoked in one network."""

    version: int = Field(ge=1, le=VERSION)
    network_id: str = Field(pattern=r"^[0-9a-f]{16}$")
    sequence: int = Field(ge=0, lt=2**53)
    """Grows by one with every change."""
    revoked: tuple[Revoked, ...]
    """Sorted by name, each name once."""
    signature: str

    @property
    def names(self) -> frozenset[str]:
        return frozenset(entry.name for entry in self.revoked)

    def stored(self) -> bytes:
        """The list as it is stored and sent."""
        return canonical(self.model_dump(mode="json"))

    def message(self) -> bytes:
        """What is signed."""
        return CONTEXT + canonical(self.model_dump(mode="json", exclude={"signature"}))


def signed(key: Key, network_id: str, sequence: int, revoked: tuple[Revoked, ...]) -> Revocations:
    """A list with the authority's signature."""
    entries = tuple(sorted(revoked, key=lambda entry: entry.name))
    draft = Revocations(version=VERSION, network_id=network_id, sequence=sequence, revoked=entries, signature="")
    signature = base64.b64encode(certificates.sign(key, draft.message())).decode()
    whole = draft.model_copy(update={"signature": signature})
    if len(whole.stored()) > LIMIT:
        raise IdentityError("format", "the list of revoked members is full: make a new network")
    return whole


@lru_cache(maxsize=64)
def read(data: bytes, authority: bytes, network_id: str) -> Revocations:
    """A list from anywhere, if this network's authority signed it. A pure function, so answers are kept."""
    what = "the list of revoked members"
    if len(data) > LIMIT:
        raise IdentityError("format", f"{what} is too large: it should have at most {LIMIT:,} bytes")
    found = parsed(Revocations, data, what)
    if found.stored() != data:
        raise IdentityError("format", f"{what} is not in the form in which it was signed")
    if found.network_id != network_id:
        raise IdentityError("authority", f"{what} belongs to another network")
    try:
        signature = base64.b64decode(found.signature, validate=True)
    except (binascii.Error, ValueError) as error:
        raise IdentityError("format", f"{what} has a signature that cannot be read") from error
    if not certificates.is_signed(authority, found.message(), signature):
        raise IdentityError("authority", f"{what} is not signed by this network's authority")
    names = [check_name(entry.name, what) for entry in found.revoked]
    if names != sorted(set(names)):
        raise IdentityError("format", f"{what} is not sorted by name")
    return found
