"""Documents as HTML: one file with everything in it, which loads nothing from a network.

All text is escaped here, and nowhere else. Only a page with a scene has a script. It is ours, and the browser is given
its digest, so that it runs no other.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape as escape_html
from string import Template
from typing import Any

from mapl.live import assets
from mapl.names import printable
from mapl.report.document import Block, Bullets, Document, Entry, Facts, Heading, Paragraph, Picture, Scene, Table
from mapl.report.drawing import webp


def escape(text: str) -> str:
    """Text as it is written, whatever is in it."""
    return escape_html(printable(text, keep="\n"))


POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="$policy">
<title>$title</title>
<link rel="icon" href="data:,">
<style>$style</style>
</head>
<body>
<main>
$body
</main>
$script</body>
</html>
""")


def to_html(document: Document) -> bytes:
    """The whole file."""
    title, subtitle = escape(document.title), escape(document.subtitle)
    header = f'<header>\n<h1>{title}</h1>\n<p class="soft">{subtitle}</p>\n</header>'
    body = "\n".join([header, *(_block(block, number) for block, number in document.numbered())])
    style, script, policy = assets.text("base.css"), "", POLICY
    if any(isinstance(block, Scene) for block in document.blocks):
        style += assets.text("view.css")
        code = assets.frozen_script()
        script, policy = f"<script>{code}</script>\n", f"{POLICY}; script-src 'sha256-{_digest(code)}'"
    text = PAGE.substitute(title=title, style=style, body=body, script=script, policy=policy)
    # The name of a folder may hold bytes that are not text.
    return text.encode("utf-8", "replace")


def _digest(code: str) -> str:
    return base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


def _scene(told: Mapping[str, Any]) -> str:
    """What moves, and what it is told. In a script, text ends at the next "</script", whatever is around it."""
    tree = json.dumps(told, separators=(",", ":"), allow_nan=False)
    for mark in "<>&":
        tree = tree.replace(mark, f"\\u{ord(mark):04x}")
    return f'{assets.frozen_view()}<script type="application/json" id="told">{tree}</script>'


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
            return _table(block, number)
        case Picture():
            return _picture(block, number)
        case Scene(told):
            return _scene(told)


def _fact(name: str, texts: Sequence[str]) -> str:
    return f"<dt>{escape(name)}</dt><dd>{'<br>'.join(map(escape, texts))}</dd>"


def _picture(picture: Picture, number: int) -> str:
    image = f'<img src="{_data(picture.png)}" alt="{escape(picture.alt)}">'
    if picture.narrow is not None:
        small = f'<source media="(max-width: 40rem)" srcset="{_data(picture.narrow)}">'
        image = f"<picture>{small}{image}</picture>"
    return (
        f"<figure>\n{_sideways(image, f'Figure {number}')}\n"
        f"<figcaption><b>Figure {number}.</b> {escape(picture.caption)}</figcaption>\n</figure>"
    )


def _data(png: bytes) -> str:
    return f"data:image/webp;base64,{base64.b64encode(webp(png)).decode()}"


def _sideways(html: str, name: str) -> str:
    """What may be wider than the window: it moves sideways by itself, with the keyboard too."""
    return f'<div class="wide" tabindex="0" role="region" aria-label="{escape(name)}">\n{html}\n</div>'


def _table(table: Table, number: int) -> str:
    def line(tag: str, cells: Sequence[str | Entry], scope: str = "") -> str:
        styles = [' class="words"' if column < table.words else "" for column in range(len(table.titles))]
        return "".join(f"<{tag}{scope}{style}>{_cell(cell)}</{tag}>" for style, cell in zip(styles, cells, strict=True))

    titles = line("th", table.titles, ' scope="col"')
    head = f"<thead><tr>{titles}</tr></thead>"
    body = "\n".join(f"<tr>{line('td', row)}</tr>" for row in table.rows)
    html = _sideways(f"<table>\n{head}\n<tbody>\n{body}\n</tbody>\n</table>", f"Table {number}")
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
