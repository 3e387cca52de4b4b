"""The one exception that a person is meant to read.

Everything that can go wrong because of what somebody *gave* us (a recipe, a file, a name, a letter) raises `MaplError`
with one sentence that says what is wrong and where. The command line prints that sentence and exits with its status.
Anything else that escapes is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MaplError(Exception):
    """Something a person gave is wrong; the message is one sentence that says what and where."""

    status = 2
    """What the command line exits with."""


class Busy(MaplError):
    """Nothing is wrong, but somebody else is at it; the same command may do later."""

    status = 1


def unknown(kind: str, name: str, known: Iterable[str]) -> MaplError:
    """The error for a name that is not known: it lists the known ones and the nearest match."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return MaplError(f"unknown {kind} {name!r}; known: {', '.join(names)}.{hint}")
