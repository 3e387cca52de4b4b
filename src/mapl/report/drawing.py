"""How every picture looks. Figures are made without pyplot, so drawing leaves no global state behind."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from mapl.names import printable

INK, FAINT = "#333333", "#D9D9D9"
WIDTH, NARROW = 10.0, 5.0
"""Inches: the width of the page, and that of one on a phone, where panels stand below each other."""
DPI = 180
LEGEND = 9.0
"""Font size of a legend, in points."""


_width: ContextVar[float] = ContextVar("width", default=WIDTH)


@contextmanager
def narrow() -> Iterator[None]:
    """Figures that are made meanwhile are for a phone."""
    token = _width.set(NARROW)
    try:
        yield
    finally:
        _width.reset(token)


def is_narrow() -> bool:
    return _width.get() < WIDTH


def figure(height: float, layout: Literal["constrained", "compressed"] = "constrained") -> Figure:
    """An empty figure as wide as the page; "compressed" is for panels of fixed shape, such as maps."""
    return Figure(figsize=(_width.get(), height), layout=layout, facecolor="white")


def beside(height: float, ratios: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """A figure of this height with panels beside each other, of these widths. On a phone each has the whole width."""
    if is_narrow():
        drawn = figure(0.8 * height * len(ratios))
        return drawn, list(drawn.subplots(len(ratios), 1))
    drawn = figure(height)
    return drawn, list(drawn.subplots(1, len(ratios), width_ratios=ratios))


def png(drawn: Figure) -> bytes:
    """The figure as PNG; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def webp(png: bytes) -> bytes:
    """The same picture to the pixel, in about half of the bytes."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").save(buffer, "WEBP", lossless=True, method=1, quality=20)
    return buffer.getvalue()


def svg(drawn: Figure) -> bytes:
    """The figure as SVG, its text as outlines; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "mapl"}):
        drawn.savefig(buffer, format="svg", dpi=DPI, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def plain(text: str) -> str:
    """Text for matplotlib, which reads what is between two dollar signs as a formula."""
    return printable(text, keep="\n").replace("$", r"\$")


def tidy(axes: Axes, title: str = "", x: str = "", y: str = "") -> None:
    """The look of all axes."""
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
    """An axis of rounds, counted from 1."""
    axes.set_xlim(1 - 0.02 * last, max(last, 2))
    axes.xaxis.set_major_locator(MaxNLocator(ticks, integer=True))


def legend(drawn: Figure, handles: Sequence[Any]) -> None:
    """One legend above all panels, in as many columns as fit."""
    labels = [textwrap.fill(str(handle.get_label()), _letters(1)) for handle in handles]
    longest = max((len(line) for label in labels for line in label.splitlines()), default=0)
    columns = next((n for n in range(min(4, len(labels)), 1, -1) if longest <= _letters(n)), 1)
    # A legend of more than two rows makes the figure taller, not the panels smaller.
    rows = -(-sum(1 + label.count("\n") for label in labels) // columns)
    drawn.set_figheight(drawn.get_figheight() + max(0, rows - 2) * 1.6 * LEGEND / 72)
    drawn.legend(
        handles=list(handles),
        labels=labels,
        loc="outside upper left",
        ncols=columns,
        columnspacing=2,
        frameon=False,
        fontsize=LEGEND,
    )


def _letters(columns: int) -> int:
    """How many letters a label may have with so many columns."""
    ems = _width.get() * 72 / LEGEND
    # The line and the gaps around it take five ems of a column; an average letter takes a little over half an em.
    return int((ems / columns - 5) / 0.62)
