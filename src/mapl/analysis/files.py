"""A comparison as files: CSV and Parquet for programs, with all digits; Markdown and LaTeX for people."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mapl.analysis.catchup import middle
from mapl.analysis.compare import Arm, Estimate, notes
from mapl.analysis.paired import Difference, explained, worth
from mapl.errors import MaplError
from mapl.measures import METRICS, TITLES
from mapl.names import DASH, printable
from mapl.runs.files import write_aside

Row = dict[str, str | int | float | None]

BESIDE = "-differences"
"""A file of numbers has one table. The differences go into a second file, whose name ends so."""


def check_kinds(paths: Sequence[Path]) -> None:
    """Refuse a file that could not be written, before anything is."""
    for path in paths:
        if path.suffix not in KINDS:
            raise MaplError(f"{str(path)!r}: the name should end in {', '.join(KINDS)}")
        if path.suffix == ".parquet" and find_spec("pyarrow") is None:
            raise MaplError(f"{str(path)!r}: Parquet needs pyarrow, which is not installed: pip install pyarrow")
        if path.is_dir() or not path.parent.is_dir():
            raise MaplError(f"{str(path)!r}: {'it is a folder' if path.is_dir() else 'there is no such folder'}")


def write_comparison(path: Path, arms: Sequence[Arm], found: Sequence[Difference]) -> list[Path]:
    """Write a comparison in the form that the name of the file asks for. Returns the files."""
    check_kinds([path])
    contents = KINDS[path.suffix](path, arms, found)
    try:
        for file, data in contents.items():
            write_aside(file, data)
    except OSError as error:
        raise MaplError(f"{str(path)!r} could not be written ({error.strerror})") from error
    return list(contents)


def rows_of(arms: Sequence[Arm]) -> list[Row]:
    """One row per arm. Accuracies are shares of 1; settings in which the arms differ have columns of their own."""
    settings, late = dict.fromkeys(key for arm in arms for key in arm.differs), any(arm.joiners for arm in arms)
    return [
        {
            "arm": arm.label,
            "method": arm.method,
            "seeds": len(arm.seeds),
            "rounds": arm.rounds,
            **_estimate("accuracy", arm.accuracy),
            "std_over_clients": arm.spread,
            **{k: v for name in METRICS[1:] for k, v in _estimate(name, arm.measures.get(name)).items()},
            "metric": arm.metric,
            **_estimate("gain", arm.gain),
            "pairs": arm.pairs,
            **_estimate("share_of_way", arm.share),
            "inside": arm.inside,
            **(_joiners(arm) if late else {}),
            "messages": arm.messages,
            "bytes": arm.bytes,
            "seconds": arm.seconds,
            "is_control": int(arm.is_control),
            "is_ceiling": int(arm.is_ceiling),
            **{key: _plain(arm.differs.get(key)) for key in settings},
        }
        for arm in arms
    ]


def _joiners(arm: Arm) -> Row:
    """How many clients joined late, over all runs, how many of them caught up, and when, as a median."""
    caught_up = sum(rounds is not None for rounds in arm.joiners)
    return {"joiners": len(arm.joiners), "caught_up": caught_up, "catch_up_rounds": middle(arm.joiners)}


def difference_rows(found: Sequence[Difference]) -> list[Row]:
    """One row per pair of arms."""
    return [
        {
            "first": d.first,
            "second": d.second,
            "seeds": len(d.seeds),
            "metric": d.metric,
            **_estimate("difference", d.difference),
            "p": d.p,
            "p_holm": d.holm,
            "verdict": d.verdict,
        }
        for d in found
    ]


def _estimate(name: str, estimate: Estimate | None) -> Row:
    if estimate is None:
        return {name: None, f"{name}_interval": None}
    return {name: estimate.mean, f"{name}_interval": estimate.interval}


def _plain(value: Any) -> str | None:
    return None if value is None else str(value)


# For programs


def _csv(path: Path, arms: Sequence[Arm], found: Sequence[Difference]) -> dict[Path, bytes]:
    return {file: _csv_of(rows) for file, rows in _two(path, arms, found).items()}


def _csv_of(rows: Sequence[Row]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _parquet(path: Path, arms: Sequence[Arm], found: Sequence[Difference]) -> dict[Path, bytes]:
    return {file: _parquet_of(rows) for file, rows in _two(path, arms, found).items()}


def _parquet_of(rows: Sequence[Row]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
    return bytes(sink.getvalue())


def _two(path: Path, arms: Sequence[Arm], found: Sequence[Difference]) -> dict[Path, list[Row]]:
    tables = {path: rows_of(arms)}
    if found:
        tables[path.with_name(f"{path.stem}{BESIDE}{path.suffix}")] = difference_rows(found)
    return tables


# For people


def _texts(arms: Sequence[Arm], found: Sequence[Difference]) -> list[tuple[list[str], list[list[str]]]]:
    """Both tables as titles and rows of text."""
    beside = [f"{TITLES[arm.metric]}, %" for arm in arms[:1] if arm.metric != "accuracy"]
    results = [
        [
            *(arm.label, str(len(arm.seeds)), arm.accuracy.text(), *([arm.value.text()] if beside else [])),
            f"{100 * arm.spread:.1f}",
            *(DASH if arm.gain is None else arm.gain.text(sign="+"), f"{arm.messages:,.0f}"),
            f"{arm.bytes / 2**20:,.1f}",
        ]
        for arm in arms
    ]
    tables = [(["arm", "seeds", "accuracy, %", *beside, "std", "gain, points", "messages", "MiB"], results)]
    if found:
        pairs = [[*difference_texts(d).values()] for d in found]
        tables.append((list(difference_texts(found[0])), pairs))
    return tables


def difference_texts(d: Difference) -> dict[str, str]:
    """A difference as the texts of a row, by title."""
    return {
        "first": d.first,
        "second": d.second,
        "seeds": str(len(d.seeds)),
        "first − second, points": d.difference.text(sign="+"),
        "p (Holm)": DASH if d.holm is None else "< 0.001" if d.holm < 0.001 else f"{d.holm:.3f}",
        "": d.verdict,
    }


def remarks(arms: Sequence[Arm], found: Sequence[Difference]) -> list[str]:
    """What the tables do not say."""
    texts = [*notes(arms), explained(found), worth(arms)]
    return [text for text in texts if text]


def _markdown(path: Path, arms: Sequence[Arm], found: Sequence[Difference]) -> dict[Path, bytes]:
    parts = []
    for titles, rows in _texts(arms, found):
        lines = [titles, ["---"] * len(titles), *rows]
        parts.append("\n".join(f"| {' | '.join(map(_in_markdown, cells))} |" for cells in lines))
    parts.append("\n".join(f"- {_in_markdown(text)}" for text in remarks(arms, found)))
    return {path: ("\n\n".join(filter(None, parts)) + "\n").encode()}


def _in_markdown(text: str) -> str:
    return "".join(f"\\{c}" if c in "|*_`<[\\" else c for c in printable(text))


def _latex(path: Path, arms: Sequence[Arm], found: Sequence[Difference]) -> dict[Path, bytes]:
    parts = []
    for titles, rows in _texts(arms, found):
        columns = "".join("r" if index and title else "l" for index, title in enumerate(titles))
        body = [" & ".join(map(_in_latex, cells)) + r" \\" for cells in rows]
        head = " & ".join(map(_in_latex, titles)) + r" \\"
        lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
        parts.append("\n".join([*lines, r"\end{tabular}"]))
    parts.append("\n".join(f"% {printable(text)}" for text in remarks(arms, found)))
    return {path: ("% needs \\usepackage{booktabs}\n" + "\n\n".join(filter(None, parts)) + "\n").encode()}


_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
}


def _in_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in printable(text))


Write = Callable[[Path, Sequence[Arm], Sequence[Difference]], Mapping[Path, bytes]]

KINDS: dict[str, Write] = {".csv": _csv, ".parquet": _parquet, ".md": _markdown, ".tex": _latex}
"""How a comparison is written, by the end of the file's name."""
