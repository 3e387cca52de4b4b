"""A reproduced table for a terminal, and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from mapl.analysis.compare import Estimate
from mapl.paper.statistics import CellResult
from mapl.paper.tables import about

HEADER = ("cell", "published", "ours", "all images", "difference", "inside", "control", "gain")

NOTES = """\
published, ours: mean ± standard deviation over clients, on the paper's 15 test images per class. all images: the same
models on every test image of each client's classes. In brackets: 95 % interval over seeds. difference: ours minus
published. inside: whether the published value lies in our interval. control: the same run without letters. gain: ours
minus control, with its 95 % interval over seeds or, where it says so, over the clients of one seed."""


def printed(table: str, results: Sequence[CellResult], scale: str) -> Iterator[str]:
    """Lines of text, in columns: one per cell."""
    yield ""
    yield f"{table}: {about(table).title}"
    if scale:
        yield f"NOT THE PAPER'S PROTOCOL: {scale}. These numbers only show that everything works at that scale."
    if not results:
        yield "no cell has been run yet"
        return
    lines = [HEADER, *(_texts(result) for result in results)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADER))]
    for line in lines:
        yield "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
    yield from NOTES.splitlines()


def _texts(result: CellResult) -> tuple[str, ...]:
    cell, seeds = result.cell, len(result.runs)
    inside = result.published_inside
    return (
        "/".join(cell.parts[1:]),
        f"{100 * result.published:.1f} ± {100 * result.cell.std:.1f}" if cell.is_published else "",
        f"{100 * result.accuracy.mean:.1f} ± {100 * result.spread:.1f}{_interval(result.accuracy)}",
        "" if result.all_images is None else f"{100 * result.all_images.mean:.1f}{_interval(result.all_images)}",
        f"{100 * result.difference:+.1f}" if cell.is_published else "",
        f"{seeds} seed" if inside is None else "" if not cell.is_published else "yes" if inside else "no",
        "" if result.control is None else f"{100 * result.control.mean:.1f}",
        _gain(result),
    )


def _interval(estimate: Estimate) -> str:
    return "" if estimate.interval is None else f" [± {100 * estimate.interval:.1f}]"


def _gain(result: CellResult) -> str:
    if result.gain is None:
        return ""
    over = " over clients" if result.gain_over == "clients" and result.gain.interval is not None else ""
    return result.gain.text(sign="+") + over


def as_json_lines(results: Sequence[CellResult], scale: str) -> Iterator[str]:
    """One line of JSON per cell."""
    for result in results:
        yield json.dumps({"event": "cell", "scale": scale, **_values(result)})


def _values(result: CellResult) -> dict[str, Any]:
    return {
        "cell": result.cell.name,
        "published": result.published if result.cell.is_published else None,
        "published_std": result.cell.std if result.cell.is_published else None,
        "accuracy": asdict(result.accuracy),
        "std": result.spread,
        "all_images": result.all_images and asdict(result.all_images),
        "difference": result.difference if result.cell.is_published else None,
        "published_inside": result.published_inside if result.cell.is_published else None,
        "control": result.control and asdict(result.control),
        "gain": result.gain and asdict(result.gain),
        "gain_over": result.gain_over,
        "gain_all_images": result.gain_all and asdict(result.gain_all),
        "seeds": result.seeds,
    }
