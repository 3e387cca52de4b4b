"""From records to report.html: which parts the page has, and what takes the place of one that is missing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from mapl.analysis.compare import notes
from mapl.report import curves, facts, maps, sentences, tables
from mapl.report.document import Bullets, Document, Facts, Heading, Paragraph
from mapl.report.embedding import embed, embedding_figure
from mapl.report.frozen import frozen
from mapl.report.lines import Line, lines, loss_terms, most_interesting
from mapl.report.text import count, listing
from mapl.report.write import write_document
from mapl.runs.record import Record

GRAPHS = 4
"""Arms whose graph is drawn; each needs a t-SNE, which takes seconds."""
AGAIN = (
    "Each folder holds its whole recipe: mapl run <folder>/recipe.toml --name again repeats the run, to the bit on the "
    "same machine. Equal fingerprints mean equal settings, whatever the name, length and device. Equal data digests "
    "mean equal samples and labels."
)

OF_A_PART = "The recipe of a part is that of its whole network."


def write_report(
    records: Sequence[Record],
    out: Path,
    title: str = "",
    introduction: str = "",
) -> Path:
    """Write `out`/report.html, one self-contained page about these runs, and its pictures as PNG beside it.

    Args:
        records: one run, or several methods and seeds; seeds of one recipe are taken together.
        out: the folder of the page, created if it does not exist.
        title: the page's title; if empty, it says what was run.
        introduction: plain text for the top of the page; an empty line starts a new paragraph.
    """
    all_lines = lines(records)
    runs = sum(len(line.runs) for line in all_lines)
    page = Document(title or facts.title(all_lines), f"Made by mapl from {count(runs, 'run')}.")
    page.add(Bullets(sentences.headlines(all_lines)))
    shown = most_interesting(all_lines)
    if scene := frozen(all_lines, shown):
        page.add(scene)
    page.add(*(Paragraph(text.strip()) for text in introduction.split("\n\n") if text.strip()))
    _results(page, all_lines)
    _graphs(page, all_lines, shown)
    _costs(page, all_lines)
    _clients(page, all_lines, shown.typical)
    write_document(page, Path(out), html="report.html")
    return Path(out) / "report.html"


def _results(page: Document, lines: Sequence[Line]) -> None:
    page.add(Heading("What was run"), Facts(facts.facts(lines)))
    page.add(Heading("Results"), tables.arms_table(lines), Paragraph(sentences.ARMS_EXPLAINED))
    if others := sentences.further(lines):
        page.add(Bullets(others))
    if remarks := notes([line.arm for line in lines if line.arm is not None]):
        page.add(Bullets(remarks))
    if (measures := tables.measures_table(lines)) is not None:
        page.add(measures, Paragraph(sentences.MEASURES_EXPLAINED))
    if tables.shows_way(lines):
        page.add(Paragraph(sentences.WAY_EXPLAINED))
    if any(line.arm for line in lines):
        alt = "Line chart of test accuracy by round, and one dot per client at the last test."
        page.draw("accuracy", partial(curves.accuracy_figure, lines), alt, sentences.accuracy_caption(lines))


def _graphs(page: Document, lines: Sequence[Line], shown: Line) -> None:
    page.add(Heading("Who has what, and who listens to whom"))
    record = shown.typical
    alt = "Map of clients by classes, and map of the share of classes that each pair of clients has in common."
    page.draw("data", partial(maps.data_figure, record), alt, sentences.data_caption(record))
    order = [shown, *(line for line in lines if line is not shown)]
    drawn = [(line, rounds) for line in order if (rounds := maps.graph_rounds(line.typical, curves.graph_start(line)))]
    if not drawn:
        page.add(Paragraph("In none of these runs did a client listen to another, so there is no graph to show."))
    for number, (line, rounds) in enumerate(drawn[:GRAPHS], start=1):
        alt = f"Heat maps of the true overlap of classes and of the mixing matrix W of {line.label} in some rounds."
        page.draw(
            f"graph-{number}",
            partial(maps.graph_figure, line.typical, rounds),
            alt,
            sentences.graph_caption(line, rounds),
        )
        _embedding(page, line, number)
    if len(drawn) > GRAPHS:
        left_out = listing(line.label for line, _ in drawn[GRAPHS:])
        page.add(Paragraph(f"The graphs of {left_out} are not drawn here: a report of those runs alone shows them."))


def _embedding(page: Document, line: Line, number: int) -> None:
    embedding = embed(line.typical)
    if isinstance(embedding, str):
        page.add(Paragraph(f"There is no picture of the embeddings of {line.label}: {embedding}."))
        return
    alt = f"Embeddings of the test samples of {line.label} in the plane, coloured by class and by client."
    caption = sentences.embedding_caption(line, embedding)
    page.draw(f"embedding-{number}", partial(embedding_figure, embedding), alt, caption)


def _costs(page: Document, lines: Sequence[Line]) -> None:
    played = [line for line in lines if line.length]
    page.add(Heading("What training minimised"))
    if any(loss_terms(line) for line in played):
        alt = "Line charts of each term of the training loss by round."
        page.draw("losses", partial(curves.loss_figure, played), alt, sentences.loss_caption(played))
    else:
        page.add(Paragraph("No round has been played yet."))
    page.add(Heading("What was sent"))
    if any(run.messages for line in played for run in line.runs):
        alt = "Line charts of the messages per round, against the full mesh, and of the MiB sent so far."
        page.draw("messages", partial(curves.messages_figure, played), alt, sentences.messages_caption(played))
    else:
        page.add(Paragraph("No letter was sent: every client learned alone."))
    if any(run.refused for line in played for run in line.runs):
        page.add(Paragraph(sentences.refused_letters(played)), tables.refused_table(played))


def _clients(page: Document, lines: Sequence[Line], record: Record) -> None:
    page.add(Heading(f"The clients of {record.folder.name}"), tables.clients_table(record))
    if len(record.clients) > tables.MOST_CLIENTS:
        page.add(Paragraph(f"The first {tables.MOST_CLIENTS} of {len(record.clients):,} clients."))
    page.add(Heading("The runs"), tables.runs_table(lines), Paragraph(AGAIN))
    if not all(run.whole for line in lines for run in line.runs):
        page.add(Paragraph(OF_A_PART))
