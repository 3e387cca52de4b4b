"""The command line."""

from mapl.cli.app import main

__all__ = ["main"]
