"""The command line."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command line.

    Exit status: 0 for success, 1 if another process is writing the same run, 2 for a mistake in what was asked, 130
    after Ctrl-C.
    """
    previous = signal.signal(signal.SIGINT, _quit)
    try:
        # Imported here, so that Ctrl-C is quiet from the first moment.
        from mapl.cli.app import run_app

        run_app()
    finally:
        if signal.getsignal(signal.SIGINT) is _quit:
            signal.signal(signal.SIGINT, previous)


def _quit(*_: object) -> None:
    """Ctrl-C while a command starts, or in a command that has nothing to save."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # another one would interrupt Python's shutdown, with a traceback
    sys.exit(130)
