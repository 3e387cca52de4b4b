"""From the results store to one page: the paper's tables and figures with our numbers in them, and what they say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from mapl.paper import captions, complexity, contests, further, labels, overview, page_tables, pictures
from mapl.paper.figures import FIGURES
from mapl.paper.findings import findings
from mapl.paper.protocol import FORMS, OURS
from mapl.paper.statistics import CellResult, results
from mapl.paper.store import Store, StoredRun
from mapl.paper.tables import FURTHER, TABLES, about
from mapl.report.document import Bullets, Document, Heading, Paragraph
from mapl.report.text import count, listing
from mapl.report.write import write_document

TITLE = "MAPL reproduced: the paper's tables and figures, run again"
MOST_LINES = 7
"""Lines in one picture."""
MOST_PANELS = 24
"""Graphs in one picture."""


def write_page(out: Path, store: Store) -> list[Path]:
    """Write `out`/index.html, which is self-contained, `out`/README.md, and the figures of both under `out`/figures.

    The same store gives the same bytes.
    """
    runs = [run for run in store.runs.values() if not run.scale]
    by_table = {name: results(name, store) for name in TABLES}
    every = [result for table in by_table.values() for result in table]
    learned = _learned(runs)
    page = Document(TITLE, captions.subtitle(runs), picture_folder="figures", with_svg=True)
    couriers = further.contests(store)
    page.add(Heading("In a minute"), Paragraph(overview.in_a_minute(every, couriers)))
    if every:
        alt = "Squares for all cells of the paper's tables, coloured three ways."
        page.draw("cells", overview.squares(every), alt, overview.squares_caption())
        page.add(Paragraph(" ".join(filter(None, (overview.further_hour(store, runs), _subset(every))))))
    for subject, sentences in findings(every, runs, learned).items():
        page.add(Heading(subject, 3), Bullets(sentences))
    _tables(page, by_table)
    if couriers:
        page.add(Heading(f"{FURTHER}: {about(FURTHER).title}"), Paragraph(further.EXPLAINED))
        page.add(further.contests_table(couriers))
    _other_forms(page, store, every)
    _pairs(page, every)
    _graphs(page, learned)
    _figures(page, store, by_table["res_hetero"], learned)
    _complexity(page, store)
    _other_scales(page, store)
    return write_document(page, Path(out), html="index.html", markdown="README.md")


def _subset(every: Sequence[CellResult]) -> str:
    return overview.SUBSET if any(result.cell.setting["dataset"] == "SVHN" for result in every) else ""


def _tables(page: Document, by_table: dict[str, list[CellResult]]) -> None:
    if any(by_table.values()):
        page.add(Heading("The paper's tables"), Paragraph(captions.TABLES_EXPLAINED))
    for name, filled in by_table.items():
        if filled:
            page.add(Heading(f"{name}: {TABLES[name].title} ({count(len(filled), 'cell')} filled)", 3))
            page.add(page_tables.paper_table(name, filled), page_tables.details_table(filled))


def _other_forms(page: Document, store: Store, ours: Sequence[CellResult]) -> None:
    """MAPL in forms other than the tables', if it was run in any."""
    by_form = {form: _of_form(store, form) for form in FORMS if form != OURS}
    if any(by_form.values()):
        page.add(Heading("MAPL in its other forms"), Paragraph(captions.FORMS_EXPLAINED))
    for form, filled in by_form.items():
        if filled:
            page.add(
                Paragraph(captions.other_form(form, filled, ours)), page_tables.details_table(filled, folded=False)
            )


def _of_form(store: Store, form: str) -> list[CellResult]:
    """The cells that were run in a form, each run under the first table that has it."""
    by_run: dict[str, CellResult] = {}
    for result in (result for name in TABLES for result in results(name, store, form=form)):
        if result.runs[0].form == form:
            by_run.setdefault(result.runs[0].key, result)
    return list(by_run.values())


def _pairs(page: Document, every: Sequence[CellResult]) -> None:
    if pairs := contests.pairs(every):
        page.add(Heading("MAPL against each other method, pair by pair"), Paragraph(captions.PAIRS_EXPLAINED))
        page.add(page_tables.pairs_table(pairs))


def _other_scales(page: Document, store: Store) -> None:
    """What was run at another scale: shown apart, and never counted."""
    for scale in sorted({run.scale for run in store.runs.values() if run.scale}):
        page.add(Heading(f"Not the paper's protocol: “{scale}”"), Paragraph(captions.scaled(scale, store)))
        if filled := [result for name in TABLES for result in results(name, store, scale=scale)]:
            page.add(page_tables.scaled_table(filled))


# The graph


def _learned(runs: Iterable[StoredRun]) -> list[StoredRun]:
    """The runs that learned a graph, the paper's main setting first."""
    learning = [run for run in runs if getattr(run.parsed_recipe.method, "learn_graph", False) and not run.control]
    past_warmup = [run for run in learning if run.rounds > run.parsed_recipe.method.warmup]  # type: ignore[attr-defined]
    return sorted(past_warmup, key=lambda run: (labels.prominence(run), run.seed))


def _graphs(page: Document, learned: Sequence[StoredRun]) -> None:
    if not learned:
        return
    page.add(Heading("The learned graph"), Paragraph(captions.GRAPH_EXPLAINED), page_tables.graph_table(learned))
    groups: dict[str, list[StoredRun]] = {}
    for run in learned:
        groups.setdefault(labels.run_name(run), []).append(run)
    shown = dict(list(groups.items())[:MOST_LINES])
    alt = "Line charts of edges, messages and the share of weight inside clusters by round."
    page.draw("graph-by-round", pictures.graph_curves(shown), alt, captions.curves_caption(shown, len(groups)))


# The paper's figures


def _figures(page: Document, store: Store, hetero: Sequence[CellResult], learned: Sequence[StoredRun]) -> None:
    page.add(Heading("The paper's figures"))
    drawn = {
        "class_sim": _class_sim(page, store),
        "col_graph (scenario 1)": _col_graph(page, store, 1),
        "col_graph (scenario 2)": _col_graph(page, store, 2),
        "conv": _conv(page, hetero),
    }
    _final_graphs(page, [run for run in learned if len(run.clusters) == 20])
    if missing := [name for name, there in drawn.items() if not there]:
        page.add(Paragraph(f"Not drawn, because the store lacks the runs: {listing(missing)}."))


def _class_sim(page: Document, store: Store) -> bool:
    """From the first seed that has both runs."""
    for seed in _seeds(store):
        runs = [
            run for work in FIGURES["class_sim"].works(seed) if (run := work.run_in(store)) and "heads" in run.extra
        ]
        if len(runs) == 2:
            alt = "Maps of images of each class and client, and of the similarity of heads without and with l_proto."
            page.draw("class_sim", pictures.class_sim_figure(*runs), alt, captions.class_sim_caption(*runs))
            return True
    return False


def _col_graph(page: Document, store: Store, scenario: int) -> bool:
    """From the first seed that has it."""
    for seed in _seeds(store):
        works = {work.name: work for work in FIGURES["col_graph"].works(seed)}
        run = works[f"scenario={scenario}"].run_in(store)
        if run is None or "embedding" not in run.extra:
            continue
        early = works[f"scenario={scenario}/rounds=50"].run_in(store)
        early = early if early is not None and "embedding" in early.extra else None
        alt = f"Share of classes in common, mixing matrix by round, and embeddings in the plane, scenario {scenario}."
        caption = captions.col_graph_caption(run, early, scenario)
        page.draw(f"col_graph-scenario{scenario}", pictures.col_graph_figure(run, early), alt, caption)
        return True
    return False


def _seeds(store: Store) -> list[int]:
    return sorted({run.seed for run in store.runs.values()})


def _conv(page: Document, hetero: Sequence[CellResult]) -> bool:
    shown = [r for r in hetero if r.cell.setting["dataset"] == "CIFAR10" and r.cell.setting["scenario"] in (1, 2)]
    if shown:
        alt = "Line charts of test accuracy by round for each method, in scenarios 1 and 2."
        page.draw("conv", pictures.conv_figure(shown), alt, captions.conv_caption(shown))
    return bool(shown)


def _final_graphs(page: Document, runs: Sequence[StoredRun]) -> None:
    for first in range(0, len(runs), MOST_PANELS):
        shown = runs[first : first + MOST_PANELS]
        figure = pictures.final_graphs_figure(shown, [labels.panel_title(run) for run in shown])
        alt = "Mixing matrices at the end of runs with 20 clients."
        page.draw(f"graphs-{first // MOST_PANELS + 1}", figure, alt, captions.FINAL_GRAPHS)


def _complexity(page: Document, store: Store) -> None:
    if costs := complexity.read(store.folder):
        page.add(Heading("Communication complexity"), Paragraph(captions.complexity_explained(costs)))
        page.add(page_tables.complexity_table(costs), Bullets([f"{c.method}: {c.remark}." for c in costs if c.remark]))
