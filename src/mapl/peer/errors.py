"""What can be wrong with an identity, or with what somebody sent about theirs."""

from __future__ import annotations

from typing import Literal

from mapl.errors import MaplError

Reason = Literal[
    "files",
    "permissions",
    "format",
    "authority",
    "key",
    "expired",
    "revoked",
    "name",
    "number",
    "host",
    "token",
    "used",
    "unreachable",
    "refused",
]
"""In one word, for programs and counts."""


class IdentityError(MaplError):
    """Somebody is not who they should be, or a file of an identity is not what it should be."""

    def __init__(self, reason: Reason, sentence: str):
        self.reason: Reason = reason
        super().__init__(sentence)
