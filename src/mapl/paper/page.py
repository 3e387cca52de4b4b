"""From the results store to one page: the paper's tables and figures with our numbers in them, and what they say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from mapl.paper import TABLES, complexity
from mapl.paper import captions as captions
from mapl.paper import graph_pictures as graphs
from mapl.paper import labels as labels
from mapl.paper import page_tables as tables
from mapl.paper import pictures as figures
from mapl.paper import words as words
from mapl.paper.figures import FIGURES
from mapl.paper.scale import FORMS, OURS
from mapl.paper.statistics import CellResult, results
from mapl.paper.store import Row, Store
from mapl.report.document import Block, Bullets, Heading, Paragraph, Shown, to_html, to_markdown
from mapl.report.style import Picture, png, svg
from mapl.report.words import count, listing
from mapl.runs.files import write_aside

TITLE = "MAPL reproduced: the paper's tables and figures, run again"
CURVES = 7
"""Lines that one picture can carry."""
PANELS = 24
"""Graphs that one picture can carry."""


def write_page(out: Path, store: Store) -> list[Path]:
    """Write `out`/index.html, which stands alone, `out`/README.md, and the figures of both under `out`/figures.

    The same store gives the same bytes.
    """
    made = _Page(Path(out))
    full = [row for row in store.rows.values() if not row.scale]
    found = {name: results(name, store) for name in TABLES}
    others = {form: _of_form(store, form) for form in FORMS if form != OURS}
    learned = _learned(full)
    every = [result for name in TABLES for result in found[name]]
    for title, sentences in words.headlines(every, full, learned).items():
        made.add(Heading(title, 3), Bullets(sentences))
    _tables(made, found)
    _forms(made, others, every)
    _pairs(made, every)
    _graph(made, learned)
    _figures(made, store, found["res_hetero"], learned)
    _complexity(made, store)
    _scaled(made, store)
    return made.write(captions.below(full))


class _Page:
    """The blocks of the page as they come, and the files that it needs."""

    def __init__(self, out: Path):
        self.out = out
        self.blocks: list[Block] = []
        self.files: dict[Path, bytes] = {}

    def add(self, *blocks: Block) -> None:
        self.blocks += blocks

    def show(self, name: str, figure: Figure, alt: str, caption: str) -> None:
        """A figure on the page, and as PNG and SVG beside it."""
        picture = Picture(f"{name}.png", png(figure), alt, caption)
        self.files[self.out / "figures" / picture.name] = picture.png
        self.files[self.out / "figures" / f"{name}.svg"] = svg(figure)
        self.add(Shown(picture))

    def write(self, below: str) -> list[Path]:
        self.files[self.out / "index.html"] = to_html(TITLE, below, self.blocks)
        self.files[self.out / "README.md"] = to_markdown(TITLE, below, self.blocks)
        for path, data in self.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_aside(path, data)
        return sorted(self.files)


# Tables


def _tables(made: _Page, found: dict[str, list[CellResult]]) -> None:
    if not any(found.values()):
        return
    made.add(Heading("The paper's tables"), Paragraph(captions.TABLES_EXPLAINED))
    for name, some in found.items():
        if some:
            made.add(Heading(f"{name}: {TABLES[name].title} ({count(len(some), 'cell')} filled)", 3))
            made.add(tables.laid_out(name, some), tables.details(some))


def _forms(made: _Page, others: dict[str, list[CellResult]], ours: Sequence[CellResult]) -> None:
    """MAPL in forms other than the tables', where it was run that way."""
    if any(others.values()):
        made.add(Heading("MAPL in its other forms"), Paragraph(captions.FORMS_EXPLAINED))
    for form, some in others.items():
        if some:
            made.add(Paragraph(captions.other_form(form, some, ours)), tables.details(some, folded=False))


def _of_form(store: Store, form: str) -> list[CellResult]:
    """The cells that were run in a form; those that have none, or share their run with the tables, are left out."""
    found = [result for name in TABLES for result in results(name, store, form=form)]
    once: dict[str, CellResult] = {}
    for result in found:
        if result.rows[0].form == form:
            once.setdefault(result.rows[0].key, result)  # the first table that has a run stands for the others
    return list(once.values())


def _pairs(made: _Page, every: Sequence[CellResult]) -> None:
    if found := tables.pairs(every):
        made.add(Heading("MAPL against each other method, pair by pair"), Paragraph(captions.PAIRS_EXPLAINED))
        made.add(tables.pairs_table(found))


def _scaled(made: _Page, store: Store) -> None:
    """What was run at another scale: shown apart, and never counted."""
    for scale in sorted({row.scale for row in store.rows.values() if row.scale}):
        made.add(Heading(f"Not the paper's protocol: “{scale}”"), Paragraph(captions.scaled(scale, store)))
        found = [result for name in TABLES for result in results(name, store, scale=scale)]
        if found:
            made.add(tables.apart(found))


# The graph


def _learned(rows: Iterable[Row]) -> list[Row]:
    """The runs whose graph was learned, the paper's main setting first."""
    found = [row for row in rows if getattr(row.made.method, "learn_graph", False) and not row.control]
    played = [row for row in found if row.rounds > row.made.method.warmup]  # type: ignore[attr-defined]
    return sorted(played, key=lambda row: (labels.prominence(row), row.seed))


def _graph(made: _Page, learned: Sequence[Row]) -> None:
    if not learned:
        return
    made.add(Heading("The learned graph"), Paragraph(captions.GRAPH_EXPLAINED), tables.graph_table(learned))
    groups: dict[str, list[Row]] = {}
    for row in learned:
        groups.setdefault(labels.setting(row), []).append(row)
    chosen = dict(list(groups.items())[:CURVES])
    alt = "Line charts of edges, messages and the share of weight inside clusters by round."
    made.show("graph-by-round", figures.graph_curves(chosen), alt, captions.curves_caption(chosen, len(groups)))


def _figures(made: _Page, store: Store, hetero: Sequence[CellResult], learned: Sequence[Row]) -> None:
    made.add(Heading("The paper's figures"))
    drawn = {
        "class_sim": _class_sim(made, store),
        "col_graph (scenario 1)": _col_graph(made, store, 1),
        "col_graph (scenario 2)": _col_graph(made, store, 2),
        "conv": _conv(made, hetero),
    }
    _final_graphs(made, [row for row in learned if len(row.clusters) == 20])
    if missing := [name for name, there in drawn.items() if not there]:
        made.add(Paragraph(f"Not drawn, because runs that they need are not in the store: {listing(missing)}."))


def _conv(made: _Page, hetero: Sequence[CellResult]) -> bool:
    some = [r for r in hetero if r.cell.setting["dataset"] == "CIFAR10" and r.cell.setting["scenario"] in (1, 2)]
    if some:
        alt = "Line charts of test accuracy by round for each method, in scenarios 1 and 2."
        made.show("conv", figures.conv_figure(some), alt, captions.conv_caption(some))
    return bool(some)


def _class_sim(made: _Page, store: Store) -> bool:
    """From the first seed that has both runs."""
    for seed in sorted({row.seed for row in store.rows.values()}):
        found = [work.row(store) for work in FIGURES["class_sim"].works(seed)]
        rows = [row for row in found if row is not None and "heads" in row.extra]
        if len(rows) == 2:
            alt = "Maps of images of each class and client, and of the similarity of heads without and with l_proto."
            made.show("class_sim", figures.class_sim_figure(*rows), alt, captions.class_sim_caption(*rows))
            return True
    return False


def _col_graph(made: _Page, store: Store, scenario: int) -> bool:
    """From the first seed that has it."""
    for seed in sorted({row.seed for row in store.rows.values()}):
        works = {work.name: work for work in FIGURES["col_graph"].works(seed)}
        row = works[f"scenario={scenario}"].row(store)
        if row is None or "embedding" not in row.extra:
            continue
        early = works[f"scenario={scenario}/rounds=50"].row(store)
        early = early if early is not None and "embedding" in early.extra else None
        alt = f"Share of classes in common, mixing matrix by round, and embeddings in the plane, scenario {scenario}."
        caption = captions.col_graph_caption(row, early, scenario)
        made.show(f"col_graph-scenario{scenario}", graphs.col_graph_figure(row, early), alt, caption)
        return True
    return False


def _final_graphs(made: _Page, rows: Sequence[Row]) -> None:
    for first in range(0, len(rows), PANELS):
        some = rows[first : first + PANELS]
        titles = [labels.short(row) for row in some]
        alt = "Mixing matrices at the end of runs with 20 clients."
        made.show(f"graphs-{first // PANELS + 1}", graphs.final_graphs(some, titles), alt, captions.FINAL_GRAPHS)


def _complexity(made: _Page, store: Store) -> None:
    costs = complexity.read(store.folder)
    if not costs:
        return
    made.add(Heading("Communication complexity"), Paragraph(captions.complexity_words(costs)))
    made.add(tables.complexity_table(costs), Bullets([f"{c.method}: {c.remark}." for c in costs if c.remark]))
