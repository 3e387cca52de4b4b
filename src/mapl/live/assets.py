"""The files of the page, which are written here and nowhere else: its markup, its looks and its scripts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from html import escape
from pathlib import Path
from string import Template

FOLDER = Path(__file__).parent / "page"
STYLES = ("base.css", "view.css")
VIEW = ("layout.js", "draw.js", "view.js")
"""What shows a run, in the order in which it is loaded."""
SCRIPTS = (*VIEW, "live.js")
FROZEN = (*VIEW, "frozen.js")
"""Of a page that has its runs in itself, and asks nobody."""


@cache
def text(name: str) -> str:
    """A file of the page."""
    return (FOLDER / name).read_text(encoding="utf-8")


def live_page(chosen: str) -> bytes:
    """The page that asks a server; `chosen` is the run that it shows first."""
    links = "\n".join(f'<link rel="stylesheet" href="{name}">' for name in STYLES)
    scripts = "\n".join(f'<script src="{name}" defer></script>' for name in SCRIPTS)
    page = Template(text("live.html"))
    chosen = escape(chosen, quote=True)
    return page.substitute(styles=links, scripts=scripts, view=text("view.html"), chosen=chosen).encode()


def frozen_view() -> str:
    """The part of a page that shows runs without a server. The page also needs the styles and the script."""
    return Template(text("frozen.html")).substitute(view=text("view.html"))


def frozen_script() -> str:
    """Shows what is in the page's element `told`, as JSON."""
    return "\n".join(map(text, FROZEN))


def _served(name: str, kind: str) -> Callable[[], tuple[str, bytes]]:
    return lambda: (kind, text(name).encode())


FILES: dict[str, Callable[[], tuple[str, bytes]]] = {
    **{name: _served(name, "text/css; charset=utf-8") for name in STYLES},
    **{name: _served(name, "text/javascript; charset=utf-8") for name in SCRIPTS},
}
"""What the server answers with: the kind of each file, and its bytes."""
