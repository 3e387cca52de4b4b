"""The command line."""

from __future__ import annotations

import signal

from mapl.terminal.interrupt import leave


def main() -> None:
    """Run the command line.

    Exit status: 0 for success, 1 if another process is writing the same run, 2 for a mistake in what was asked, 130
    after Ctrl-C.
    """
    previous = signal.signal(signal.SIGINT, _leave)
    try:
        # Imported here, so that Ctrl-C is quiet from the first moment.
        from mapl.cli.app import run_app

        run_app()
    finally:
        if signal.getsignal(signal.SIGINT) is _leave:
            signal.signal(signal.SIGINT, previous)


def _leave(*_: object) -> None:
    """Ctrl-C where no command handles it."""
    leave()
