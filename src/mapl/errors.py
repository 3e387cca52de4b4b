"""The one exception that users are meant to read.

Anything wrong with what somebody *gave* us (a recipe, a file, a name, a letter) raises `MaplError`, with one sentence
that says what is wrong and where. The command line prints that sentence and exits with the error's status. Any other
exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MaplError(Exception):
    """An input is wrong. The message is one sentence that says what is wrong and where.

    Where it names a way out, it does so in the words of Python. `shell` is the same sentence in those of the command
    line, where they differ.
    """

    status = 2
    """The exit status of the command line."""

    def __init__(self, message: str, shell: str = ""):
        super().__init__(message)
        self.shell = shell or message


class Busy(MaplError):
    """Nothing is wrong, but another process is busy with it. The same command may work later."""

    status = 1


class NotFinite(MaplError):
    """A number became infinite, or is none any more."""


def unknown(kind: str, name: str, known: Iterable[str]) -> MaplError:
    """The error for an unknown name: it lists the known ones and the nearest match."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return MaplError(f"unknown {kind} {name!r}; known: {', '.join(names)}.{hint}")
