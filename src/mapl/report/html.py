"""Documents as HTML: one file with everything in it, which loads nothing from a network and runs no script.

All text is escaped here, and nowhere else.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape as escape_html
from string import Template

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

STYLE = """
:root { --ink: #1d2129; --soft: #5b6470; --line: #e3e6ea; --back: #ffffff; --card: #f6f8fa; --accent: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --soft: #a2abb6; --line: #353b44; --back: #16191e; --card: #1f242b; --accent: #56b4e9; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 2.5rem 1.5rem 4rem; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .3rem; letter-spacing: -.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin: 2.8rem 0 .8rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 2rem 0 .6rem; }
p, ul { max-width: 48rem; }
p { margin: .6rem 0; }
.soft { color: var(--soft); }
.short { background: var(--card); border-left: 4px solid var(--accent); border-radius: 6px; margin: 1.5rem 0;
  padding: .8rem 1.2rem; max-width: none; list-style: none; }
.short li { margin: .35rem 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .45rem 1.4rem; margin: 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .42rem .7rem; text-align: right; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
td { vertical-align: top; white-space: nowrap; }
td .soft { font-size: .85em; }
.words { text-align: left; white-space: normal; }
tbody tr:hover { background: var(--card); }
.dotted { display: flex; gap: .55rem; min-width: 10rem; }
.dot { flex: none; width: .7rem; height: .7rem; border-radius: 50%; margin-top: .35rem; }
details { margin: .8rem 0; }
summary { cursor: pointer; color: var(--accent); }
figure { margin: 1.2rem 0 2rem; }
figure img { display: block; width: 100%; height: auto; background: #fff; border: 1px solid var(--line);
  border-radius: 8px; padding: .6rem; }
figcaption { color: var(--soft); font-size: .9rem; margin-top: .6rem; max-width: 60rem; }
figcaption b { color: var(--ink); }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .6rem; } }
@media print { figure, tr { break-inside: avoid; } }
"""


def to_html(document: Document) -> bytes:
    """The whole file."""
    title, subtitle = escape(document.title), escape(document.subtitle)
    header = f'<header>\n<h1>{title}</h1>\n<p class="soft">{subtitle}</p>\n</header>'
    body = "\n".join([header, *(_block(block, number) for block, number in document.numbered())])
    text = PAGE.substitute(title=title, style=STYLE, body=body)
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
