"""Joining a network: a key pair made here, and a certificate for it from the inviter's enrolment service."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mapl.names import printable
from mapl.peer import certificates, revocations
from mapl.peer.authority import write_identity
from mapl.peer.enrolment import PATH, SECONDS, Answer, Request
from mapl.peer.errors import IdentityError
from mapl.peer.files import VERSION, made_aside, parsed
from mapl.peer.identity import Card, Identity, opened, recipe_of
from mapl.peer.invitations import Invitation
from mapl.peer.names import check_hosts, split_address

LIMIT = 16 * 1024 * 1024
"""The largest answer, in bytes: a certificate of about a thousand bytes for each member."""
TRIES = 3
"""How often the same key asks, if no answer comes. The service gives it the same certificate again."""
PAUSE = 1.0
"""Seconds between two tries."""


class Unanswered(Exception):
    """The request may have arrived, but no answer came."""


def join(invitation: Invitation, hosts: Sequence[str], folder: Path) -> Identity:
    """Make an identity in a new folder. After an error there is none."""
    found = check_hosts(hosts, "--host")
    recipe_of(invitation.recipe.encode(), "of the invitation")  # before the invitation is used up
    with made_aside(folder) as aside:
        key = certificates.new_key()
        answer = _ask(invitation, certificates.new_request(key, invitation.name, found))
        _check(invitation, answer)
        card = Card(
            version=VERSION,
            network=invitation.network,
            network_id=invitation.network_id,
            name=invitation.name,
            addresses=invitation.addresses,
        )
        write_identity(
            aside,
            card,
            invitation.ca.encode(),
            answer.certificate.encode(),
            key,
            invitation.recipe.encode(),
            answer.revoked.encode(),
            invitation.agreement,
        )
        _remember(opened(aside), (*answer.members, *invitation.members))
    # Only now the clock is asked: the invitation is used up, and a clock can be set.
    return Identity.load(folder)


def _check(invitation: Invitation, answer: Answer) -> None:
    """The certificate has to be the one that was promised. `opened` checks that it is for our key."""
    authority, what = invitation.ca.encode(), f"the certificate that {invitation.inviter!r} sent"
    member = certificates.read_member(answer.certificate.encode(), authority, what)
    if (member.name, member.number) != (invitation.name, invitation.number):
        raise IdentityError(
            "name", f"{what} is for {member.name!r} with number {member.number}, which the invitation does not say"
        )
    revocations.read(answer.revoked.encode(), authority, invitation.network_id)


def _remember(identity: Identity, members: Sequence[str]) -> None:
    """Remember the members that the inviter named. Whoever was revoked since, or is no member, is left out."""
    for pem in members:
        with suppress(IdentityError):
            identity.remember(pem.encode())


# Asking


def _ask(invitation: Invitation, csr: bytes) -> Answer:
    """The service's answer; the same request again if none comes."""
    body = Request(token=invitation.token, csr=csr.decode()).text()
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE)
        connection = _connected(invitation)
        try:
            status, said = _posted(connection, body)
        except Unanswered:
            continue
        finally:
            connection.close()
        if status != 200:
            raise IdentityError("refused", f"{invitation.inviter!r} refused: {_sentence(said)}")
        return parsed(Answer, said, f"the answer of {invitation.inviter!r}")
    raise IdentityError(
        "unreachable",
        f"{invitation.inviter!r} at {invitation.enrolment} did not answer: try again, and if the invitation was used, "
        f"ask for another (mapl identity invite --again)",
    )


def _connected(invitation: Invitation) -> ssl.SSLSocket:
    """A connection to the inviter, and to nobody else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=invitation.ca)
    where = f"the enrolment service of {invitation.inviter!r} at {invitation.enrolment}"
    try:
        plain = socket.create_connection(split_address(invitation.enrolment), timeout=SECONDS)
        secured = context.wrap_socket(plain, server_hostname=invitation.inviter)
    except ssl.SSLCertVerificationError as error:
        raise IdentityError("authority", f"{where} has another certificate: {error.verify_message}") from error
    except OSError as error:
        raise IdentityError(
            "unreachable",
            f"{where} cannot be reached ({error.strerror or error}): mapl identity serve, or mapl peer run, has to be "
            "running there",
        ) from error
    if _common_name(secured.getpeercert()) != invitation.inviter:
        secured.close()
        raise IdentityError("authority", f"{where} has the certificate of another member")
    return secured


def _common_name(certificate: Any) -> str:
    """The name of whoever is at the other end. A host that is called like the inviter would not do."""
    parts = dict(pair for part in certificate["subject"] for pair in part)
    return str(parts.get("commonName"))


def _posted(connection: ssl.SSLSocket, body: bytes) -> tuple[int, bytes]:
    http_connection = http.client.HTTPConnection("enrolment")
    http_connection.sock = connection
    try:
        http_connection.request("POST", PATH, body, {"Content-Type": "application/json"})
        response = http_connection.getresponse()
        said = response.read(LIMIT + 1)
        if len(said) > LIMIT or len(said) < int(response.headers.get("Content-Length") or 0):
            raise Unanswered
        return response.status, said
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unanswered from error


def _sentence(said: bytes) -> str:
    """What a refusal says, from somebody else and so made harmless."""
    try:
        text = json.loads(said)["error"]
    except (ValueError, TypeError, KeyError, RecursionError):
        text = "without saying why"
    return printable(str(text))[:300]
