"""Documents as HTML: one file with everything in it, which loads nothing from a network and runs no script.

All text is escaped here, and nowhere else.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape as escape_html
from string import Template

from mapl.live import assets
from mapl.names import printable
from mapl.report.document import Block, Bullets, Document, Entry, Facts, Heading, Paragraph, Picture, Table


def escape(text: str) -> str:
    """Text as it is written, whatever is in it."""
    return escape_html(printable(text, keep="\n"))


PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>$title</title>
<link rel="icon" href="data:,">
<style>$style</style>
</head>
<body>
<main>
$body
</main>
</body>
</html>
""")


def to_html(document: Document) -> bytes:
    """The whole file."""
    title, subtitle = escape(document.title), escape(document.subtitle)
    header = f'<header>\n<h1>{title}</h1>\n<p class="soft">{subtitle}</p>\n</header>'
    body = "\n".join([header, *(_block(block, number) for block, number in document.numbered())])
    text = PAGE.substitute(title=title, style=assets.text("base.css"), body=body)
    # The name of a folder may hold bytes that are not text.
    return text.encode("utf-8", "replace")


def _block(block: Block, number: int) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{escape(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Bullets(texts):
            return '<ul class="short">\n' + "\n".join(f"<li>{escape(text)}</li>" for text in texts) + "\n</ul>"
        case Facts(entries):
            return "\n".join(["<dl>", *(_fact(name, texts) for name, texts in entries.items()), "</dl>"])
        case Table():
            return _table(block)
        case Picture():
            return _picture(block, number)


def _fact(name: str, texts: Sequence[str]) -> str:
    return f"<dt>{escape(name)}</dt><dd>{'<br>'.join(map(escape, texts))}</dd>"


def _picture(picture: Picture, number: int) -> str:
    data = base64.b64encode(picture.png).decode()
    return (
        f'<figure>\n<img src="data:image/png;base64,{data}" alt="{escape(picture.alt)}">\n'
        f"<figcaption><b>Figure {number}.</b> {escape(picture.caption)}</figcaption>\n</figure>"
    )


def _table(table: Table) -> str:
    def line(tag: str, cells: Sequence[str | Entry]) -> str:
        styles = [' class="words"' if column < table.words else "" for column in range(len(table.titles))]
        return "".join(f"<{tag}{style}>{_cell(cell)}</{tag}>" for style, cell in zip(styles, cells, strict=True))

    head = f"<thead><tr>{line('th', table.titles)}</tr></thead>"
    body = "\n".join(f"<tr>{line('td', row)}</tr>" for row in table.rows)
    html = f'<div class="wide">\n<table>\n{head}\n<tbody>\n{body}\n</tbody>\n</table>\n</div>'
    if not table.folded:
        return html
    return f"<details>\n<summary>{escape(table.folded)}</summary>\n{html}\n</details>"


def _cell(cell: str | Entry) -> str:
    if isinstance(cell, str):
        return escape(cell)
    lines = [f"<b>{escape(line)}</b>" if i in cell.bold else escape(line) for i, line in enumerate(cell.lines)]
    html = "<br>".join([lines[0], *(f'<span class="soft">{line}</span>' for line in lines[1:])])
    if not cell.colour:
        return html
    dot = f'<span class="dot" style="background:{escape(cell.colour)}"></span>'
    return f'<div class="dotted">{dot}<span>{html}</span></div>'
