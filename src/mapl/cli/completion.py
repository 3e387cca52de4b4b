"""`mapl --install-completion`: the Tab key completes commands, options, and names of methods and the like."""

from __future__ import annotations

from pathlib import Path

import typer

from mapl.errors import MaplError

OPTION = "--install-completion"
CALL = '_mapl_completion "$@"\n'


def install(app: typer.Typer) -> None:
    """What Typer does for its option, with one sentence if a file cannot be written."""
    try:
        app(prog_name="mapl")
    except OSError as error:
        raise MaplError(f"completion could not be installed: {error}") from error
    except SystemExit as end:
        if not end.code:
            _finish(Path.home() / ".zfunc" / "_mapl")
        raise


def _finish(function: Path) -> None:
    """Make the first Tab of a zsh complete too.

    A new zsh runs this file when Tab is pressed for the first time. As Typer writes it, it only defines and registers
    what completes, so that Tab would do nothing.
    """
    if function.exists() and not (text := function.read_text(encoding="utf-8")).endswith(CALL):
        function.write_text(f"{text.rstrip()}\n{CALL}", encoding="utf-8")
