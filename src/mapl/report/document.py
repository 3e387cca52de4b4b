"""A page as data, written twice: as HTML that stands alone, and as Markdown with its pictures beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from mapl.report import page
from mapl.report.style import Picture


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Bullets:
    texts: Sequence[str]


@dataclass(frozen=True)
class Entry:
    """A cell of a table: lines, some of them bold."""

    lines: tuple[str, ...]
    bold: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Grid:
    """A table, the first `left` columns of which are words; folded ones have a title and are opened by a click."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str | Entry]]
    left: int = 1
    folded: str = ""


@dataclass(frozen=True)
class Shown:
    """A picture, in the folder `figures` beside the page."""

    picture: Picture


Block = Heading | Paragraph | Bullets | Grid | Shown

STYLE = """
td { vertical-align: top; }
td:not(.left) { white-space: nowrap; }
td .soft { font-size: .85em; }
h3 { font-size: 1.05rem; margin: 2rem 0 .6rem; }
details { margin: .8rem 0; }
summary { cursor: pointer; color: var(--accent); }
"""
"""What this page needs beyond the style of all pages."""


def to_html(title: str, below: str, blocks: Sequence[Block]) -> bytes:
    """The whole file."""
    parts = [page.heading(title, below, "")]
    number = 0
    for block in blocks:
        number += isinstance(block, Shown)
        parts.append(_html(block, number))
    return page.page(title, parts, STYLE)


def _html(block: Block, number: int) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{escape(text)}</h{level}>"
        case Paragraph(text):
            return page.paragraph(text)
        case Bullets(texts):
            return page.bullets(texts)
        case Shown(picture):
            return page.shown(picture, number)
        case Grid(titles, rows, left, folded):
            made = page.table(titles, [[_html_entry(cell) for cell in row] for row in rows], left)
            return f"<details>\n<summary>{escape(folded)}</summary>\n{made}\n</details>" if folded else made


def _html_entry(cell: str | Entry) -> str:
    if isinstance(cell, str):
        return escape(cell)
    lines = [f"<b>{escape(line)}</b>" if i in cell.bold else escape(line) for i, line in enumerate(cell.lines)]
    return "<br>".join([lines[0], *(f'<span class="soft">{line}</span>' for line in lines[1:])])


def to_markdown(title: str, below: str, blocks: Sequence[Block]) -> bytes:
    """The same for who reads it where the repository lies."""
    parts = [f"# {plain(title)}", plain(below)]
    number = 0
    for block in blocks:
        number += isinstance(block, Shown)
        parts.append(_markdown(block, number))
    return ("\n\n".join(parts) + "\n").encode("utf-8", "replace")


def _markdown(block: Block, number: int) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {plain(text)}"
        case Paragraph(text):
            return plain(text)
        case Bullets(texts):
            return "\n".join(f"- {plain(text)}" for text in texts)
        case Shown(picture):
            shown = f"![{plain(picture.alt)}](figures/{picture.name})"
            return f"{shown}\n\n**Figure {number}.** {plain(picture.caption)}"
        case Grid(titles, rows, left, folded):
            made = _markdown_table(titles, rows, left)
            return f"<details>\n<summary>{escape(folded)}</summary>\n\n{made}\n\n</details>" if folded else made


def _markdown_table(titles: Sequence[str], rows: Sequence[Sequence[str | Entry]], left: int) -> str:
    rule = ["---" if i < left else "---:" for i in range(len(titles))]
    lines = [[plain(title) for title in titles], rule, *([_markdown_entry(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _markdown_entry(cell: str | Entry) -> str:
    if isinstance(cell, str):
        return plain(cell)
    return "<br>".join(f"**{plain(line)}**" if i in cell.bold else plain(line) for i, line in enumerate(cell.lines))


_MARKS = re.compile(r"[\\`*\[\]|$~]|(?<![^\W_])_|_(?![^\W_])")
"""What Markdown would take for a mark; an underscore inside a word is none."""


def plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _MARKS.sub(lambda mark: f"\\{mark[0]}", escape(" ".join(text.split()), quote=False))
