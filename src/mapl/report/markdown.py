"""Documents as Markdown, for readers of the repository. Pictures are links to their files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from mapl.report.document import Block, Bullets, Document, Entry, Facts, Heading, Paragraph, Picture, Scene, Table


def to_markdown(document: Document) -> bytes:
    """The whole file."""
    folder = f"{document.picture_folder}/" if document.picture_folder else ""
    parts = [f"# {plain(document.title)}", plain(document.subtitle)]
    parts += [_block(block, number, folder) for block, number in document.numbered()]
    return ("\n\n".join(parts) + "\n").encode("utf-8", "replace")


def _block(block: Block, number: int, folder: str) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {plain(text)}"
        case Paragraph(text):
            return _line(text)
        case Bullets(texts):
            return "\n".join(f"- {_line(text)}" for text in texts)
        case Facts(entries):
            return "\n".join(f"- **{plain(name)}**: {'; '.join(map(plain, texts))}" for name, texts in entries.items())
        case Picture(name, alt, caption):
            return f"![{plain(alt)}]({folder}{name}.png)\n\n**Figure {number}.** {plain(caption)}"
        case Scene():
            return "_The page in HTML shows these runs round by round._"
        case Table(titles, rows, words, folded):
            table = markdown_table(list(map(plain, titles)), [list(map(_cell, row)) for row in rows], words)
            return f"<details>\n<summary>{escape(folded)}</summary>\n\n{table}\n\n</details>" if folded else table


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> str:
    """A table of cells that are Markdown already; columns of numbers, after those of words, are aligned right."""
    rule = ["---" if column < words else "---:" for column in range(len(titles))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (titles, rule, *rows))


def _cell(cell: str | Entry) -> str:
    if isinstance(cell, str):
        return plain(cell)
    return "<br>".join(f"**{plain(line)}**" if i in cell.bold else plain(line) for i, line in enumerate(cell.lines))


_MARKS = re.compile(r"[\\`*\[\]|$~]|(?<![^\W_])_|_(?![^\W_])")
"""What Markdown would read as a mark. An underscore inside a word is none."""
_START = re.compile(r"^(\d*)([#+.)-])(?=\s|#|$)")
"""What would make a line a heading or an item of a list."""


def plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _MARKS.sub(lambda mark: f"\\{mark[0]}", escape(" ".join(text.split()), quote=False))


def _line(text: str) -> str:
    """The same where it starts a line."""
    return _START.sub(r"\1\\\2", plain(text))
