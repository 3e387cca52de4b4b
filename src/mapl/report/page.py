"""The page itself: one HTML file with everything in it, which asks no network for anything and runs no script."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from string import Template

import torch
from torch import Tensor

from mapl.report import words
from mapl.report.lines import Line
from mapl.report.style import Picture
from mapl.runs.history import Record

ROWS = 200
"""Clients that the last table lists."""

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
.left { text-align: left; }
tbody tr:hover { background: var(--card); }
.arm { display: flex; gap: .55rem; min-width: 10rem; }
.dot { flex: none; width: .7rem; height: .7rem; border-radius: 50%; margin-top: .35rem; }
figure { margin: 1.2rem 0 2rem; }
figure img { display: block; width: 100%; height: auto; background: #fff; border: 1px solid var(--line);
  border-radius: 8px; padding: .6rem; }
figcaption { color: var(--soft); font-size: .9rem; margin-top: .6rem; max-width: 60rem; }
figcaption b { color: var(--ink); }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .6rem; } }
@media print { figure, tr { break-inside: avoid; } }
"""


def page(title: str, body: Sequence[str], style: str = "") -> bytes:
    """The whole file. `body` is HTML; the title is text; `style` goes over the style of all pages."""
    text = PAGE.substitute(title=escape(title), style=STYLE + style, body="\n".join(body))
    # A folder's name may hold bytes that are no text.
    return text.encode("utf-8", "replace")


def heading(title: str, below: str, introduction: str) -> str:
    paragraphs = [part.strip() for part in introduction.split("\n\n") if part.strip()]
    shown = "".join(f"<p>{escape(part)}</p>\n" for part in paragraphs)
    return f'<header>\n<h1>{escape(title)}</h1>\n<p class="soft">{escape(below)}</p>\n{shown}</header>'


def section(title: str) -> str:
    return f"<h2>{escape(title)}</h2>"


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def bullets(texts: Sequence[str]) -> str:
    return '<ul class="short">\n' + "\n".join(f"<li>{escape(text)}</li>" for text in texts) + "\n</ul>"


def definitions(facts: Mapping[str, Sequence[str]]) -> str:
    rows = "\n".join(
        f"<dt>{escape(name)}</dt><dd>{'<br>'.join(escape(text) for text in texts)}</dd>"
        for name, texts in facts.items()
    )
    return f"<dl>\n{rows}\n</dl>"


def shown(picture: Picture, number: int) -> str:
    data = base64.b64encode(picture.png).decode()
    return (
        f'<figure>\n<img src="data:image/png;base64,{data}" alt="{escape(picture.alt)}">\n'
        f"<figcaption><b>Figure {number}.</b> {escape(picture.caption)}</figcaption>\n</figure>"
    )


def arms_table(lines: Sequence[Line]) -> str:
    """One row an arm."""
    titles = "arm|seeds|accuracy (%)|std over clients|collaboration gain|inside clusters|messages|MiB|seconds"
    rows = []
    for line in lines:
        dot = f'<span class="dot" style="background:{line.colour}"></span>'
        name = f'<div class="arm">{dot}<span>{escape(line.label)}</span></div>'
        rows.append([name, *map(escape, _numbers(line))])
    return table(titles.split("|"), rows, left=1)


def _numbers(line: Line) -> list[str]:
    arm = line.arm
    if arm is None:
        seconds = sum(run.seconds for run in line.runs) / len(line.runs)
        return [str(len(line.runs)), "not tested yet", "–", "–", "–", "–", "–", f"{seconds:,.0f}"]
    return [
        str(len(arm.seeds)),
        arm.accuracy.text(),
        f"{100 * arm.spread:.1f}",
        words.gain_cell(arm),
        "–" if arm.inside is None else f"{100 * arm.inside:.0f} %",
        f"{arm.messages:,.0f}",
        f"{arm.bytes / 2**20:,.1f}",
        f"{arm.seconds:,.0f}",
    ]


def runs_table(lines: Sequence[Line]) -> str:
    """One row a run: where it lies and how far it came."""
    rows = [
        [
            escape(run.folder.name),
            escape(line.label),
            str(run.recipe.seed),
            f"{len(run.rounds)} of {run.recipe.rounds}",
            f"{100 * run.mean:.1f}" if run.tested else "–",
            run.recipe.fingerprint(),
        ]
        for line in lines
        for run in line.runs
    ]
    return table(["folder", "arm", "seed", "rounds", "accuracy (%)", "fingerprint"], rows, left=2)


def clients_table(record: Record) -> str:
    """One row a client."""
    weights = record.weights().fill_diagonal_(0) if record.graph.exists else None
    rows = []
    for card in record.clients[:ROWS]:
        row = [
            str(card.id),
            str(card.cluster),
            card.backbone,
            f"{card.parameters:,}",
            ranges(card.classes),
            f"{card.samples:,}",
            f"{card.tests:,}",
            f"{100 * float(record.accuracy[card.id]):.1f}" if record.tested else "–",
            "–" if weights is None else _most(weights[card.id]),
        ]
        rows.append([escape(cell) for cell in row])
    titles = "client|cluster|backbone|parameters|classes|training images|test images|accuracy (%)|listens most to"
    return table(titles.split("|"), rows, left=3)


def _most(row: Tensor) -> str:
    """Whom a client listens to most, itself aside; those whom it hears alike are named together."""
    share = float(row.max())
    if share <= 0:
        return "nobody"
    alike = torch.nonzero(row > share - 1e-9).flatten().tolist()
    return f"{ranges(alike)} ({share:.2f}{' each' if len(alike) > 1 else ''})"


def ranges(numbers: Sequence[int]) -> str:
    """0–4, 7, 9."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}–{r[-1]}" for r in runs) or "none"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """A table of HTML cells, the first `left` columns of which are words."""

    def cells(tag: str, values: Sequence[str]) -> str:
        styles = [' class="left"'] * left + [""] * (len(values) - left)
        return "".join(f"<{tag}{style}>{value}</{tag}>" for style, value in zip(styles, values, strict=True))

    head = f"<thead><tr>{cells('th', [escape(title) for title in titles])}</tr></thead>"
    body = "\n".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide">\n<table>\n{head}\n<tbody>\n{body}\n</tbody>\n</table>\n</div>'
