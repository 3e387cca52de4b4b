"""The one exception and the one warning that users are meant to read.

Anything wrong with what somebody *gave* us (a recipe, a file, a name, a letter) raises `MaplError`, with one sentence
that says what is wrong and where. The command line prints that sentence and exits with the error's status. Any other
exception is a bug and keeps its traceback.

What a person may want to know while the work goes on is said by `warn`. Python shows it, and lets a program catch it;
the command line prints the sentence.
"""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any


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
    """A number became infinite or NaN."""


def unknown(kind: str, name: str, known: Iterable[str]) -> MaplError:
    """The error for an unknown name: it lists the known ones and the nearest match."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return MaplError(f"unknown {kind} {name!r}; known: {', '.join(names)}.{hint}")


class MaplWarning(UserWarning):
    """Something that a person may want to know. It is one sentence, as that of a `MaplError`."""


_SAID: dict[Any, Any] = {}
"""What was said `once`, as Python notes it. It forgets where somebody changes what is shown."""


def warn(message: str, *, once: bool = False) -> None:
    """Say something, and go on.

    Left to itself, Python shows one line's equal messages once per process, even if they are about two runs. Here each
    is shown; `once` is for what stays as it is, such as a library that is missing.
    """
    caller = _caller()
    where = caller.f_code.co_filename, caller.f_lineno
    warnings.warn_explicit(message, MaplWarning, *where, registry=_SAID if once else None)


def _caller() -> FrameType:
    """Who called the package: for a person, lines inside of it say nothing."""
    package = __name__.partition(".")[0]
    caller = sys._getframe()
    frame: FrameType | None = caller
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package:
            caller = frame.f_back or frame
        frame = frame.f_back
    return caller


def hand_over_warnings(tell: Callable[[str], None]) -> None:
    """From now on this process tells the sentences of `warn` to another one, which says them again."""
    show = warnings.showwarning

    def showwarning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, MaplWarning):
            tell(str(message))
        else:
            show(message, category, *where, **more)

    warnings.simplefilter("default", MaplWarning)
    warnings.showwarning = showwarning
