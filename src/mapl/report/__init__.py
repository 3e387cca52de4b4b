"""Pages about runs. `write_report` makes one from the folders of runs; any page is a `document.Document`."""

from mapl.report.run_report import write_report

__all__ = ["write_report"]
