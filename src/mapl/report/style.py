"""How every picture looks. Figures are made without pyplot, so that drawing leaves no global state behind."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

INK, FAINT = "#333333", "#D9D9D9"
WIDTH = 10.0
"""Inches that fill the page."""
DPI = 180
LEGEND = 9.0
"""Points of the letters in a legend."""


@dataclass(frozen=True)
class Picture:
    """A figure on the page and in a file beside it."""

    name: str
    png: bytes
    alt: str
    caption: str


def figure(height: float, layout: Literal["constrained", "compressed"] = "constrained") -> Figure:
    """An empty figure as wide as the page; "compressed" is for panels that keep their shape, as maps do."""
    return Figure(figsize=(WIDTH, height), layout=layout, facecolor="white")


def png(made: Figure) -> bytes:
    """The figure as PNG; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    made.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def svg(made: Figure) -> bytes:
    """The figure as SVG, its text as outlines; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "mapl"}):
        made.savefig(buffer, format="svg", dpi=DPI, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def plain(text: str) -> str:
    """Text for matplotlib, which would read what stands between two dollars as a formula."""
    return text.replace("$", r"\$")


def tidy(axes: Axes, title: str = "", x: str = "", y: str = "") -> None:
    """One look for everything with an x and a y."""
    axes.set_title(plain(title), fontsize=10, loc="left", color=INK)
    axes.set_xlabel(plain(x), fontsize=9, color=INK)
    axes.set_ylabel(plain(y), fontsize=9, color=INK)
    axes.tick_params(labelsize=8.5, colors=INK, length=3, color=FAINT)
    axes.grid(color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(FAINT)


def whole_rounds(axes: Axes, last: float, ticks: int = 10) -> None:
    """An axis of rounds, from 1 on."""
    axes.set_xlim(1 - 0.02 * last, max(last, 2))
    axes.xaxis.set_major_locator(MaxNLocator(ticks, integer=True))


def legend(made: Figure, handles: Sequence[Any]) -> None:
    """One legend above all panels, in as many columns as its labels leave room for."""
    labels = [textwrap.fill(str(handle.get_label()), _letters(1)) for handle in handles]
    longest = max((len(line) for label in labels for line in label.splitlines()), default=0)
    columns = next((n for n in range(min(4, len(labels)), 1, -1) if longest <= _letters(n)), 1)
    # What the legend takes beyond two rows it must not take from the panels.
    rows = -(-sum(1 + label.count("\n") for label in labels) // columns)
    made.set_figheight(made.get_figheight() + max(0, rows - 2) * 1.6 * LEGEND / 72)
    made.legend(
        handles=list(handles),
        labels=labels,
        loc="outside upper left",
        ncols=columns,
        columnspacing=2,
        frameon=False,
        fontsize=LEGEND,
    )


def _letters(columns: int) -> int:
    """How long a label may be with so many columns of them in a picture as wide as the page."""
    ems = WIDTH * 72 / LEGEND
    # A line and the gaps around it take five ems of a column, and a letter on average a little over half of one.
    return int((ems / columns - 5) / 0.62)
