"""Runs as one self-contained page: words, tables and pictures, all of them made from what the runs wrote down."""

from mapl.report.write import write_report

__all__ = ["write_report"]
