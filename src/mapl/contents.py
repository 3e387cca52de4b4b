"""What is in a file that a recipe names. Its name alone does not say it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from mapl.errors import MaplError


def digest_of_file(path: Path) -> str | None:
    """16 hex digits, equal for equal contents; None if the file cannot be read, which whoever needs it will say."""
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
    except OSError:
        return None


def check_digest(setting: str, path: Path, expected: str | None) -> None:
    """Refuse a file that is not what it was when the run began. `setting` names it in the error."""
    if expected is not None and digest_of_file(path) not in (None, expected):
        raise MaplError(
            f"{setting}: {str(path)!r} is not the file that the run began with; change it back, or start a new run"
        )
