"""The command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. It takes the process over: it handles signals from here to the end.

    Exit status: 0 for success, 1 if somebody else is writing the same run, 2 for a mistake in what was asked, 130
    after Ctrl-C, 143 after SIGTERM.
    """
    try:
        # Imported here, so that signals are quiet from the first moment.
        from mapl.terminal.interrupt import default_signals, quit_on_signals

        quit_on_signals()
    except KeyboardInterrupt:  # even before that
        sys.exit(130)
    try:
        from mapl.cli.app import run_app

        run_app()
    finally:
        default_signals()
