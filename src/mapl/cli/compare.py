"""`mapl compare`: runs side by side, as a table on the terminal or as files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from mapl import plugins
from mapl.errors import MaplError, unknown, warn
from mapl.names import DASH, printable
from mapl.terminal.messages import console, say
from mapl.terminal.options import JsonOption, TrustOption

if TYPE_CHECKING:
    from mapl.analysis.compare import Arm
    from mapl.analysis.paired import Difference
    from mapl.measures import Metric
    from mapl.runs.record import Record

Folders = Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that contain some.", metavar="RUN...")]


def compare_command(
    folders: Folders,
    to: Annotated[
        list[Path] | None,
        typer.Option("--to", help="Also write FILE: .csv, .parquet, .md or .tex. Repeatable.", metavar="FILE"),
    ] = None,
    metric: Annotated[
        str,
        typer.Option(
            help="Metric of gains and differences: accuracy, worst_tenth (of the clients), macro_f1, "
            "balanced_accuracy or calibration_error.",
        ),
    ] = "accuracy",
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare runs: accuracy, collaboration gain, messages, bytes, time.

    Runs that differ only in their seed share a row. The collaboration gain is the
    accuracy minus that of the control arm: the same recipe, data and seed,
    trained with [bold]--topology none[/bold]. Give those runs too.

    Methods are also compared with each other, in pairs with equal seeds,
    corrected for how many comparisons there are (Holm's method).

    Below the tables stand the number of pairs behind each gain, and the settings
    other than the method in which the rows differ.

    Runs with [bold]--topology none --set partition.pooled=true[/bold] train on
    all data of their cluster. If there are some, the table shows which share of
    the way from its control to them each arm has made.

    [bold]mapl compare runs[/bold]                  all runs in a folder
    [bold]mapl compare runs/digits-*[/bold]         some of them
    [bold]mapl compare runs --to table.csv[/bold]   also as a file
    """
    from mapl.analysis.files import check_kinds, write_comparison

    check_kinds(to or [])
    which = known_metric(metric)
    with plugins.looking(trust):
        arms, differences = compared(load_runs(folders), which)
    if not arms:
        raise MaplError("there is nothing to compare: none of these runs has been tested yet; resume them")
    show_comparison(arms, differences, as_json)
    for path in to or []:
        for file in write_comparison(path, arms, differences):
            say(f"written: {file}", sys.stderr if as_json else None)


def known_metric(name: str) -> Metric:
    """The metric of that name."""
    from mapl.measures import METRICS

    found = next((metric for metric in METRICS if metric == name), None)
    if found is None:
        raise unknown("metric", name, METRICS)
    return found


def compared(records: Sequence[Record], metric: Metric = "accuracy") -> tuple[list[Arm], list[Difference]]:
    """The arms of some runs, and how they differ from each other."""
    from mapl.analysis.compare import compare
    from mapl.analysis.paired import differences

    return compare(records, metric), differences(records, metric)


def show_comparison(arms: Sequence[Arm], differences: Sequence[Difference], as_json: bool = False) -> None:
    """Print a comparison."""
    if as_json:
        values = {"arms": [arm.as_dict() for arm in arms], "differences": [d.as_dict() for d in differences]}
        print(json.dumps(values, indent=1))
    else:
        print_tables(arms, differences)


def load_runs(folders: Sequence[Path]) -> list[Record]:
    """The runs, with a warning for each that will not be counted, or compared with no other."""
    from mapl.analysis.compare import left_out, unpaired
    from mapl.runs.folder import load, runs_below

    runs = {folder: runs_below(folder) for folder in folders}
    for folder, found in runs.items():
        if folder.is_dir() and not found:
            raise MaplError(f"there is no run in {str(folder)!r}, nor in a folder below it")
    records = [load(run) for folder in folders for run in runs[folder] or [folder]]
    remarks = (remark for record in records for remark in record.remarks)
    for sentence in (*remarks, *left_out(records), *unpaired(records)):
        warn(sentence)
    return records


def print_tables(arms: Sequence[Arm], differences: Sequence[Difference]) -> None:
    """Print arms as a table, their differences as another, and below them what the numbers alone do not say."""
    from mapl.analysis.files import remarks

    out = console()
    out.print(table(arms, out.width))
    if differences:
        out.print(_differences(differences[:MOST]))
    if len(differences) > MOST:
        say(f"{len(differences) - MOST} more differences: all of them with --to FILE.csv")
    for remark in remarks(arms, differences):
        say(remark)


MOST = 15
"""Differences that a terminal shows."""


def _differences(differences: Sequence[Difference]) -> Table:
    from mapl.analysis.files import difference_texts

    result = Table()
    for title in difference_texts(differences[0]):
        wide = title in ("first", "second", "")
        result.add_column(title, overflow="fold", justify="left" if wide else "right", no_wrap=not wide)
    for difference in differences:
        result.add_row(*map(printable, difference_texts(difference).values()))
    return result


def gain_text(arm: Arm) -> str:
    """The collaboration gain in words."""
    if arm.gain is not None:
        return arm.gain.text(sign="+")
    if arm.lacks_control:
        return "no control"
    return "part" if arm.is_part else "ceiling" if arm.is_ceiling else "control"


WAY = "way to pooled"
HEADINGS = {
    "worst_tenth": "worst 10 %",
    "macro_f1": "macro-F1 %",
    "balanced_accuracy": "bal. acc. %",
    "calibration_error": "ECE %",
}
"""Of the column that `--metric` adds."""
CELLS: dict[str, Callable[[Arm], str]] = {
    "seeds": lambda arm: str(len(arm.seeds)),
    "acc. %": lambda arm: arm.accuracy.text(),
    **{heading: lambda arm: arm.value.text() for heading in HEADINGS.values()},
    "std": lambda arm: f"{100 * arm.spread:.1f}",
    "gain": gain_text,
    WAY: lambda arm: arm.way or DASH,
    "inside": lambda arm: DASH if arm.inside is None else f"{arm.inside:.2f}",
    "messages": lambda arm: f"{arm.messages:,.0f}",
    "MiB": lambda arm: f"{arm.bytes / 2**20:,.1f}",
    "s": lambda arm: f"{arm.seconds:,.0f}",
}
"""The columns of numbers. Headings are short, because a wide heading wastes the width of a terminal."""
EXPENDABLE = (("s", "MiB"), ("messages",), ("inside",), ("std",), ("seeds",), (WAY,))
"""The columns that a narrow terminal drops, in this order. A missing column is better than truncated numbers."""
NAME = 14
"""The smallest width for the names of the arms, which are wrapped."""
CAPTION = {
    "acc. %": "mean over clients at the last test, ± 95 % interval over seeds",
    HEADINGS["worst_tenth"]: "mean accuracy of the tenth of the clients with the lowest",
    HEADINGS["macro_f1"]: "mean F1 over the classes of a client's test samples",
    HEADINGS["balanced_accuracy"]: "mean recall over the classes of a client's test samples",
    HEADINGS["calibration_error"]: "expected calibration error, 15 bins",
    "std": "of the accuracy over clients",
    "gain": "over the same recipe, data and seed without letters, after as many rounds",
    WAY: "gain, as a share of what training on all data of the cluster gains",
    "inside": "share of the weight given to others that stays inside the true clusters",
}
"""What the headings mean."""


def table(arms: Sequence[Arm], width: int) -> Table:
    """Arms as a table of at most this width, with as many columns as fit untruncated."""
    columns = _columns(arms, width)
    caption = "; ".join(f"{title}: {CAPTION[title]}" for title in columns if title in CAPTION)
    result = Table(caption=caption, caption_justify="left")
    result.add_column("run", overflow="fold")
    for title in columns:
        result.add_column(title, justify="right", no_wrap=True, overflow="crop")
    for arm in arms:
        result.add_row(printable(arm.label), *(CELLS[title](arm) for title in columns))
    return result


def _columns(arms: Sequence[Arm], width: int) -> list[str]:
    """The columns that fit."""
    hidden = {heading for metric, heading in HEADINGS.items() if metric != arms[0].metric}
    shown = [title for title in CELLS if title not in hidden and (title != WAY or any(arm.way for arm in arms))]
    for titles in EXPENDABLE:
        # Each column has a line and a space on either side, and the table a line at its end.
        needed = NAME + sum(_width(title, arms) for title in shown) + 3 * (len(shown) + 1) + 1
        if needed > width:
            shown = [title for title in shown if title not in titles]
    return shown


def _width(title: str, arms: Sequence[Arm]) -> int:
    return max(map(len, [title, *(CELLS[title](arm) for arm in arms)]))
