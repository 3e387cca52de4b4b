"""A page as data: blocks of text, tables and pictures. `html` and `markdown` render it, `write` puts it on disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from mapl.report.drawing import narrow, png, svg


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
class Facts:
    """Names, and one or more texts about each."""

    entries: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Entry:
    """A table cell of several lines, some of them bold, or with a dot of some colour before it."""

    lines: tuple[str, ...]
    bold: frozenset[int] = frozenset()
    """Which lines, counted from 0."""
    colour: str = ""


@dataclass(frozen=True)
class Table:
    titles: Sequence[str]
    rows: Sequence[Sequence[str | Entry]]
    words: int = 1
    """How many columns, from the left, hold words. The others hold numbers."""
    folded: str = ""
    """If set, the table is folded away under this title."""


@dataclass(frozen=True)
class Picture:
    name: str
    """Of its files, without the ending."""
    alt: str
    caption: str
    png: bytes
    svg: bytes | None = None
    narrow: bytes | None = None
    """The same for a phone, as PNG."""


@dataclass(frozen=True)
class Scene:
    """Runs that move: the network with a slider through its rounds. Only HTML shows it."""

    told: Mapping[str, Any]
    """What the page's script reads."""


Block = Heading | Paragraph | Bullets | Facts | Table | Picture | Scene


@dataclass
class Document:
    """A page: its title, a line below it, and blocks in the order in which they are added."""

    title: str
    subtitle: str
    blocks: list[Block] = field(default_factory=list)
    picture_folder: str = ""
    """Where the pictures' files go, relative to the page."""
    with_svg: bool = False
    """Whether each picture is also kept as SVG."""

    def add(self, *blocks: Block) -> None:
        self.blocks += blocks

    def draw(self, name: str, figure: Figure | Callable[[], Figure], alt: str, caption: str) -> None:
        """Add a figure as a picture. One that can be made twice is also drawn for a phone."""
        if isinstance(figure, Figure):
            self.add(Picture(name, alt, caption, png(figure), svg(figure) if self.with_svg else None))
            return
        wide = figure()
        with narrow():
            small = png(figure())
        self.add(Picture(name, alt, caption, png(wide), svg(wide) if self.with_svg else None, small))

    @property
    def pictures(self) -> list[Picture]:
        return [block for block in self.blocks if isinstance(block, Picture)]

    def numbered(self) -> Iterator[tuple[Block, int]]:
        """Each block, and how many of its kind there are up to and including it."""
        numbers: Counter[type[Block]] = Counter()
        for block in self.blocks:
            numbers[type(block)] += 1
            yield block, numbers[type(block)]
