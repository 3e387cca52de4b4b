"""Networks of peers for the tests: made in milliseconds, on this machine alone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mapl import Recipe
from mapl.peer import certificates, enrolment
from mapl.peer.authority import create_network, invite
from mapl.peer.enrolment import Enrolment
from mapl.peer.identity import Identity
from mapl.peer.invitations import Invitation
from mapl.peer.joining import join

enrolment.POLL = 0.01  # tests start and stop it often

HERE = "127.0.0.1"
RECIPE = Recipe.of(method="courier", clients=4)
NOW = certificates.now


def new_network(folder: Path, name: str = "clinics", me: str = "alice", **settings: Any) -> Identity:
    """A network, with the identity of its authority."""
    return create_network(name, me, [HERE], settings.pop("recipe", RECIPE), folder, **settings)


def invited(alice: Identity, name: str, port: int = 7447, **settings: Any) -> Invitation:
    """An invitation, whose file is beside the authority's folder."""
    path = alice.folder.parent / f"{name}.invitation"
    path.unlink(missing_ok=True)
    return invite(alice, name, f"{HERE}:{port}", path, **settings)


def joined(alice: Identity, name: str, hosts: Sequence[str] = (HERE,), **settings: Any) -> Identity:
    """A new member, through the service."""
    folder = settings.pop("folder", alice.folder.parent / name)
    with Enrolment(alice.folder, HERE, 0) as service:
        return join(invited(alice, name, service.port, **settings), hosts, folder)


def at(monkeypatch: pytest.MonkeyPatch, days: float) -> None:
    """Set the clock that certificates are compared with. TLS has the real one."""
    moment = NOW() + timedelta(days=days)
    monkeypatch.setattr(certificates, "now", lambda: moment)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, with its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
