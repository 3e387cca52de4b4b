"""From records to report.html: which parts the page has, in which order, and what takes the place of a missing one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from matplotlib.figure import Figure

from mapl.analysis.compare import Arm
from mapl.errors import MaplError
from mapl.report import curves, facts, maps, page, words
from mapl.report.embedding import embed, embedding_figure
from mapl.report.lines import Line, lines, loss_terms
from mapl.report.style import Picture, png
from mapl.runs.files import write_aside
from mapl.runs.history import Record

GRAPHS = 4
"""Arms whose graph is drawn; each takes a t-SNE, which takes seconds."""


def write_report(
    records: Sequence[Record],
    out: Path,
    title: str = "",
    introduction: str = "",
    arms: Sequence[Arm] | None = None,
) -> Path:
    """Write `out`/report.html, one self-contained page about these runs, and its pictures as PNG beside it.

    Args:
        records: one run, or several methods and seeds; seeds of one recipe are taken together.
        out: the folder of the page, made if need be.
        title: the page's title; empty: made from what was run.
        introduction: plain text for the top of the page; an empty line starts a new paragraph.
        arms: what `mapl.analysis.compare.compare` made of the same records, where the caller has it already.
    """
    all_lines = lines(records, arms)
    out = Path(out)
    with _writing(out):
        out.mkdir(parents=True, exist_ok=True)
    report = _Report(out)
    title = title or facts.title(all_lines)
    runs = sum(len(line.runs) for line in all_lines)
    report.add(page.heading(title, f"Made by mapl from {words.count(runs, 'run')}.", introduction))
    _results(report, all_lines)
    _graphs(report, all_lines)
    _costs(report, all_lines)
    _clients(report, all_lines)
    path = out / "report.html"
    with _writing(out):
        write_aside(path, page.page(title, report.parts))
    return path


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    """A folder that is a file, or that cannot be written, is an error that says what to do next."""
    try:
        yield
    except OSError as error:
        raise MaplError(f"report {str(out)!r} could not be written ({error}); choose another folder") from error


class _Report:
    """The parts of a page as they come, and its pictures, numbered."""

    def __init__(self, out: Path):
        self.out = out
        self.parts: list[str] = []
        self.pictures = 0

    def add(self, *parts: str) -> None:
        self.parts += parts

    def show(self, name: str, figure: Figure, alt: str, caption: str) -> None:
        picture = Picture(f"{name}.png", png(figure), alt, caption)
        with _writing(self.out):
            write_aside(self.out / picture.name, picture.png)
        self.pictures += 1
        self.add(page.shown(picture, self.pictures))


def _results(report: _Report, lines: Sequence[Line]) -> None:
    report.add(page.bullets(words.headlines(lines)))
    report.add(page.section("What was run"), page.definitions(facts.facts(lines)))
    report.add(page.section("Results"), page.arms_table(lines), page.paragraph(words.TABLE))
    if any(line.arm for line in lines):
        caption = words.accuracy_caption(lines)
        alt = "Line chart of test accuracy by round, and a dot a client at the last test."
        report.show("accuracy", curves.accuracy_figure(lines), alt, caption)


def _graphs(report: _Report, lines: Sequence[Line]) -> None:
    report.add(page.section("Who has what, and who listens to whom"))
    first = lines[0].first
    alt = "Map of clients by classes, and map of the share of classes that each pair of clients has in common."
    report.show("data", maps.data_figure(first), alt, words.data_caption(first))
    drawn = [(line, rounds) for line in lines if (rounds := maps.graph_rounds(line.first, curves.graph_start(line)))]
    if not drawn:
        report.add(page.paragraph("None of these runs wrote down a graph between clients, so there is none to show."))
    for number, (line, rounds) in enumerate(drawn[:GRAPHS], start=1):
        alt = f"Heat maps of the true overlap of classes and of the mixing matrix W of {line.label} in some rounds."
        report.show(f"graph-{number}", maps.graph_figure(line.first, rounds), alt, words.graph_caption(line, rounds))
        _embedding(report, line, number)
    if len(drawn) > GRAPHS:
        left_out = words.listing(line.label for line, _ in drawn[GRAPHS:])
        report.add(page.paragraph(f"The graphs of {left_out} are not drawn here: make a page of theirs to see them."))


def _embedding(report: _Report, line: Line, number: int) -> None:
    made = embed(line.first)
    if isinstance(made, str):
        report.add(page.paragraph(f"There is no picture of the embeddings of {line.label}: {made}."))
        return
    alt = f"Embeddings of the test images of {line.label} in the plane, coloured by class and by client."
    report.show(f"embedding-{number}", embedding_figure(made), alt, words.embedding_caption(line, made))


def _costs(report: _Report, lines: Sequence[Line]) -> None:
    played = [line for line in lines if line.length]
    report.add(page.section("What training minimised"))
    if any(loss_terms(line) for line in played):
        alt = "Line charts of each term of the training loss by round."
        report.show("losses", curves.loss_figure(played), alt, words.loss_caption(played))
    else:
        report.add(page.paragraph("No round has been played yet."))
    report.add(page.section("What was sent"))
    if any(run.messages for line in played for run in line.runs):
        alt = "Line charts of the messages of each round, against the full mesh, and of the MiB sent so far."
        report.show("messages", curves.messages_figure(played), alt, words.messages_caption(played))
    else:
        report.add(page.paragraph("No letter was sent: every client learned alone."))


def _clients(report: _Report, lines: Sequence[Line]) -> None:
    first = lines[0].first
    report.add(page.section(f"The clients of {first.folder.name}"), page.clients_table(first))
    if len(first.clients) > page.ROWS:
        report.add(page.paragraph(f"The first {page.ROWS} of {len(first.clients):,} clients."))
    report.add(page.section("The runs"), page.runs_table(lines))
    report.add(
        page.paragraph(
            "Each folder holds its whole recipe: mapl run <folder>/recipe.toml --name again does the run once more, to "
            "the bit on the same machine. Equal fingerprints are equal recipes, whatever their name and length."
        )
    )
