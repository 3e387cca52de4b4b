"""What a command says outside its results."""

from __future__ import annotations

import shlex
import sys
import warnings
from pathlib import Path
from typing import TextIO

from rich.console import Console

from mapl.errors import MaplError, MaplWarning
from mapl.names import printable


def say(text: object, stream: TextIO | None = None) -> None:
    """One line of output. Names, paths and data may come from anybody: what a terminal would obey is written out."""
    print(printable(str(text)), file=stream, flush=True)


def quoted(path: Path) -> str:
    """A path as a shell takes it: the commands that are suggested can be copied."""
    return shlex.quote(str(path))


LINES = "\n"
"""Messages may have several lines."""


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """In place of `warnings.showwarning`: the package's own warnings as one line, all others in Python's own form.

    They go to standard error, where they do not get into results that are piped.
    """
    if issubclass(category, MaplWarning):
        text = f"warning: {printable(str(message), keep=LINES)}\n"
    else:
        text = warnings.formatwarning(message, category, filename, lineno, line)
    print(text, end="", file=file or sys.stderr, flush=True)


def error(error: MaplError | str) -> None:
    """Why a command failed, on standard error."""
    Console(stderr=True, highlight=False).print("[bold red]error:[/]", end=" ")
    if isinstance(error, MaplError):
        notes = "; ".join(getattr(error, "__notes__", []))
        error = f"{error.shell} ({notes})" if notes else error.shell
    print(printable(error, keep=LINES), file=sys.stderr)


def console() -> Console:
    """Where tables are printed, `[bold]` and `:warning:` as they are written.

    A pipe has no width, so tables are not cut or wrapped to fit one.
    """
    return Console(width=None if sys.stdout.isatty() else 1000, markup=False, emoji=False)
