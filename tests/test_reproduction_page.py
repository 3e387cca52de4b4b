"""The page of a reproduction: the right numbers in the right places, nothing counted that was not run, and files that stand alone."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from conftest import line_with
from mapl.methods._encoder import encoder
from mapl.paper import complexity, find_cell
from mapl.paper.complexity import Cost, Sent
from mapl.paper.contests import LAYOUTS, pairs, winners
from mapl.paper.differences import difference_sentences
from mapl.paper.findings import findings, graph_sentences
from mapl.paper.page import write_page
from mapl.paper.page_tables import paper_table
from mapl.paper.protocol import Protocol
from mapl.paper.statistics import results
from mapl.paper.store import Store, sparse
from mapl.paper.tables import TABLES, table
from mapl.report.document import Bullets, Document, Entry, Facts, Heading, Paragraph, Picture, Table
from mapl.report.drawing import figure, png
from mapl.report.html import to_html
from mapl.report.markdown import plain, to_markdown
from reproduction_store import add_cell, made_row, made_store

VOID = {"meta", "link", "img", "br"}


@pytest.fixture(scope="module", autouse=True)
def coarse() -> Iterator[None]:
    """Pictures of fewer dots, which take less time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mapl.report.drawing.DPI", 40)
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = made_store(tmp_path_factory.mktemp("store"))
    costs = [
        Cost(
            "MAPL",
            "2N_e(d_p K + φ)",
            123,
            Sent(12, 500, 60, 0),
            Sent(12, 900, 120, 0),
            "no <bias>",
            {"M": 4, **dict.fromkeys(("N_e", "θ", "φ", "d_p", "K"), 6)},
        )
    ]
    complexity.write(made.folder, costs)
    return Store(made.folder)


@pytest.fixture(scope="module")
def out(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "deep"
    write_page(out, store)
    return out


@pytest.fixture(scope="module")
def markdown(out: Path) -> str:
    return (out / "README.md").read_text(encoding="utf-8")


class Page(HTMLParser):
    """Reads a page, and complains about what is not well-formed or reaches outside it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attributes:
            assert name not in ("src", "href") or (value or "").startswith("data:")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


# The whole page


def test_the_page_stands_alone_and_both_of_its_forms_say_the_same(out: Path, markdown: str) -> None:
    page = Page((out / "index.html").read_text(encoding="utf-8"))
    assert "script" not in page.tags
    assert page.tags.count("img") == markdown.count("](figures/") == 7
    for sentence in re.findall(r"^- (.*)$", markdown, re.MULTILINE):
        if not re.search(r"[\\&]", sentence):
            assert sentence in page.text


def test_every_figure_is_there_as_png_and_svg(out: Path, markdown: str) -> None:
    names = {"cells", "class_sim", "col_graph-scenario1", "col_graph-scenario2", "conv", "graph-by-round", "graphs-1"}
    assert {path.stem for path in (out / "figures").glob("*.png")} == names
    assert {path.stem for path in (out / "figures").glob("*.svg")} == names
    assert set(re.findall(r"\]\(figures/(.*)\.png\)", markdown)) == names
    for path in (out / "figures").iterdir():
        head = path.read_bytes()[:200]
        assert head.startswith(b"\x89PNG") if path.suffix == ".png" else b"<svg" in head or head.startswith(b"<?xml")


@pytest.mark.slow
def test_the_same_store_gives_the_same_bytes(out: Path, store: Store, tmp_path: Path) -> None:
    paths = write_page(tmp_path, Store(store.folder))
    assert paths == sorted(paths)
    for path in paths:
        assert path.read_bytes() == (out / path.relative_to(tmp_path)).read_bytes(), path.name


def test_text_of_a_store_is_shown_never_obeyed(out: Path, markdown: str) -> None:
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "NVIDIA &lt;H200&gt; (bf16)" in page
    assert "<H200>" not in page
    assert "NVIDIA &lt;H200&gt; (bf16)" in markdown
    assert "no &lt;bias&gt;" in page


# What it says


def bullet(markdown: str, *parts: str) -> str:
    """The one bullet of the page that starts with the first of these, and has the others after it."""
    (line,) = [line for line in markdown.splitlines() if re.match(line_with("- " + parts[0], *parts[1:]), line)]
    return line


def test_it_counts_cells_seeds_runs_and_hours(markdown: str, store: Store) -> None:
    full = [row for row in store.runs.values() if not row.scale]
    filled = sum(len(results(name, store)) for name in TABLES)
    said = next(line for line in markdown.splitlines() if "362 cells" in line)
    assert f"{filled} of the 362 cells" in said
    assert f"{len(full)} runs, {sum(row.control for row in full)} of them controls" in said
    assert f"{len(full) * 0.5:.1f} hours" in said
    assert "“balanced”" in said


def test_it_says_what_was_confirmed_with_the_numbers(markdown: str) -> None:
    # Seeds 76.5, 77.3 and 78.1: ± 4.303 · 0.8 / √3.
    cifar = bullet(markdown, "MAPL on CIFAR10, scenario 1: 77.3 % over 3 seeds")
    assert "75.3 to 79.3" in cifar
    assert "published 77.3 %" in cifar
    assert cifar.endswith(" confirmed.")
    svhn = bullet(markdown, "MAPL on SVHN, scenario 1: 80.0 % over 1 seed")
    assert "published 76.1 %" in svhn
    assert "confirmed" not in svhn
    assert "no interval" in svhn


def test_it_says_what_letters_bought(markdown: str) -> None:
    # Controls 70.0, 70.4 and 70.8 of the same seeds: gains 6.5, 6.9 and 7.3.
    cifar = bullet(markdown, "Collaboration gain of MAPL on CIFAR10, scenario 1", "+6.9 ± 1.0 points")
    assert "over 3 seeds lies above 0" in cifar
    assert "over clients of one seed" in bullet(
        markdown, "Collaboration gain of MAPL on SVHN, scenario 1", "+4.0 ± 0.0"
    )


def test_it_says_where_mapl_is_not_the_best(markdown: str) -> None:
    rank = next(line for line in markdown.splitlines() if "3 contests" in line)
    assert "highest mean in 2 of the 3 contests" in rank
    assert rank.endswith(" in 3.")
    assert "over clients of one seed" in bullet(
        markdown, "FedProto on SVHN, scenario 1", "2.0 ± 0.0 points", "ahead of MAPL"
    )


def test_it_says_what_became_of_the_graph(markdown: str) -> None:
    said = bullet(markdown, "The learned graph")
    assert "100 % of the weight" in said
    assert "47 % at first" in said
    assert "101,000, and 152,000" in bullet(markdown, "On CIFAR-10 with 20 clients")
    row = next(line for line in markdown.splitlines() if line.startswith("| CIFAR10, scenario 1 | 0 | 20 "))
    assert row == "| CIFAR10, scenario 1 | 0 | 20 | 100 % | 47 % | 1.00 | 180 of 380 | 102,120 | 67 % | 101,000 |"


def test_another_scale_stands_apart_and_is_never_counted(markdown: str, tmp_path: Path) -> None:
    before, _, after = markdown.partition("## Not the paper's protocol: “rounds=40”")
    assert "MNIST/MAPL" not in before
    assert "| res_hetero/scenario=1/MNIST/MAPL | 1 | 50.0 |" in after
    assert "97.67" not in after
    only = Store(tmp_path / "store")
    add_cell(only, "res_hetero/scenario=1/MNIST/MAPL", [0.5], scale="rounds=40")
    write_page(tmp_path / "page", only)
    text = (tmp_path / "page" / "README.md").read_text(encoding="utf-8")
    assert "None of the 362 cells" in text
    assert re.search("Not drawn.*: class_sim", text)


def test_an_empty_store_makes_a_page(tmp_path: Path) -> None:
    paths = write_page(tmp_path / "page", Store(tmp_path / "nothing"))
    assert [path.name for path in paths] == ["README.md", "index.html"]
    Page((tmp_path / "page" / "index.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("form", "words"), [("paper", "as printed: 1 cell, -17.3 points"), ("released", "graph step: 1 cell, -17.3 points")]
)
def test_other_forms_are_shown_beside_and_do_not_fill_the_tables(form: str, words: str, tmp_path: Path) -> None:
    store, cell = Store(tmp_path / "store"), find_cell("res_hetero/scenario=1/CIFAR10/MAPL")
    store.add(made_row(Protocol(form=form).of_cell(cell, 0), "res_hetero", cell.name, 0.6))
    write_page(tmp_path / "page", store)
    text = (tmp_path / "page" / "README.md").read_text(encoding="utf-8")
    assert words in text
    assert "| res_hetero/scenario=1/CIFAR10/MAPL | 1 | 77.27 ± 7.98 | 60.0 |" in text


def test_an_interval_that_includes_everything_confirms_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    add_cell(store, "res_hetero/scenario=1/CIFAR10/MAPL", [0.70, 0.80])
    found = [result for name in TABLES for result in results(name, store)]
    said = findings(found, list(store.runs.values()), [])["What was confirmed, and what was not"]
    assert "wider than ± 3 points" in said[0]
    assert "confirms nothing" in said[-1]


def test_where_the_difference_comes_from_is_said_in_numbers(tmp_path: Path) -> None:
    store, name = Store(tmp_path), "res_hetero/scenario=1/CIFAR10/MAPL"
    add_cell(store, name, [0.70])
    add_cell(store, "res_hetero/scenario=1/CIFAR10/Local", [0.69])
    found = results("res_hetero", store)
    said = findings(found, list(store.runs.values()), [])["Where MAPL's difference comes from"]
    for number in ("7.3 points below", "77.27 %", "1,500 images", "1.1 points"):
        assert number in said[0]
    assert "Local -1.6" in said[-1]
    above = Store(tmp_path / "above")
    add_cell(above, name, [0.79])
    assert difference_sentences(results("res_hetero", above)[0], [], []) == []


def test_the_published_run_is_compared_with_a_further_run_of_ours(tmp_path: Path) -> None:
    store, name = Store(tmp_path), "res_hetero/scenario=1/CIFAR10/MAPL"
    add_cell(store, name, [0.74, 0.75, 0.76])
    (found,) = results("res_hetero", store)
    said = [s for s in difference_sentences(found, [], []) if "one more run" in s]
    # t of 2 degrees of freedom is 4.303, the standard deviation 1 point: 75 ± 4.303 · √(1 + 1/3)
    assert "between 70.0 and 80.0 % (95 %)" in said[0]
    assert "our 3 seeds" in said[0]
    assert "may be chance" in said[0]
    near = Store(tmp_path / "near")
    add_cell(near, name, [0.749, 0.75, 0.751])
    assert difference_sentences(results("res_hetero", near)[0], [], [])[2].endswith(" does not.")


def test_cells_that_repeat_a_setting_are_not_counted_as_several(tmp_path: Path) -> None:
    store = Store(tmp_path)
    add_cell(store, "res_hetero/scenario=1/CIFAR10/MAPL", [0.74, 0.75])
    found = [result for name in TABLES for result in results(name, store)]
    said = findings(found, list(store.runs.values()), [])["What was confirmed, and what was not"]
    assert re.search(line_with("6 cells", "1 setting", "1 of them"), said[0])


def test_what_letters_did_not_buy_is_said(tmp_path: Path) -> None:
    store, place = Store(tmp_path), "res_hetero/scenario=1/CIFAR10"
    add_cell(store, f"{place}/MAPL", [0.75, 0.76], control=0.74)  # 74.0 and 74.4 without letters
    add_cell(store, f"{place}/Local", [0.70, 0.704])
    add_cell(store, f"{place}/FedClassAvg", [0.73], control=0.72)
    found = results("res_hetero", store)
    gain, loss, others = findings(found, list(store.runs.values()), [])["What letters add"]
    # 1.0 and 1.6 points: standard error 0.3, times 12.706 of 1 degree of freedom
    assert "MAPL on CIFAR10, scenario 1: +1.3 ± 3.8 points" in gain
    assert re.search(line_with("MAPL on CIFAR10, scenario 1", "4.0 ± 0.0", "ahead of Local"), loss)
    assert re.search(line_with("FedClassAvg +1.0 ± 0.0", "clients of one seed"), others)


def test_the_best_is_found_on_the_seeds_that_all_have(tmp_path: Path) -> None:
    store, place = Store(tmp_path), "res_hetero/scenario=1/CIFAR10"
    add_cell(store, f"{place}/MAPL", [0.74, 0.78])
    add_cell(store, f"{place}/FedClassAvg", [0.75])
    found = results("res_hetero", store)
    said = findings(found, list(store.runs.values()), [])["Whether MAPL is the best"]
    assert "in 0 of the 1 contest" in said[0]
    assert re.match(line_with("FedClassAvg on CIFAR10, scenario 1", "1.0 ± 0.0", "ahead of MAPL"), said[1])
    assert winners(found) == {f"{place}/FedClassAvg"}


def test_a_run_of_the_released_form_is_named_where_the_difference_is_explained(tmp_path: Path) -> None:
    store, cell = Store(tmp_path), find_cell("res_hetero/scenario=1/CIFAR10/MAPL")
    add_cell(store, cell.name, [0.74])
    (found,) = results("res_hetero", store)
    assert any("no run of the released form" in s for s in difference_sentences(found, [], []))
    store.add(made_row(Protocol(form="released").of_cell(cell, 0), "res_hetero", cell.name, 0.76))
    said = difference_sentences(found, [], list(store.runs.values()))
    assert any("76.0 % here (1 seed)" in s for s in said)


def test_who_is_listened_to_is_said_by_backbone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    add_cell(store, "res_hetero/scenario=1/CIFAR10/MAPL", [0.74])
    (row,) = store.runs.values()
    assert "weights stay about equal" in graph_sentences([row])[1]
    given = torch.zeros(20, 20)
    given[:, [i for i, name in enumerate(row.backbones) if name == "alexnet"]] = 0.2
    said = graph_sentences([replace(row, weights={"399": sparse(given)})])[1]
    assert "weights are far from equal" in said
    assert "alexnet 100 to 100 %" in said


# Tables


def all_images(gain: float, interval: float) -> list[str]:
    """Runs of the made-up store have the same gain with all test images."""
    return [f"gain, all images {gain:+.1f} ± {interval:.1f}"]


def test_tables_are_laid_out_as_in_the_paper_with_a_dash_where_nothing_was_run(store: Store) -> None:
    grid = paper_table("res_hetero", results("res_hetero", store))
    assert list(grid.titles) == ["scenario", "method", "CINIC10", "SVHN", "CIFAR10", "MNIST", "FashionMNIST"]
    assert len(grid.rows) == 20
    rows = {(row[0], row[1]): row for row in grid.rows}
    mapl = rows["1", "MAPL"]
    assert mapl[4] == Entry(
        ("77.3 ± 2.0", "paper 77.27", "+0.0, inside", "gain +6.9 ± 1.0", *all_images(6.9, 1)), frozenset({0, 1})
    )
    assert mapl[3] == Entry(
        ("80.0", "paper 76.07", "+3.9, one seed", "gain +4.0 ± 0.0", *all_images(4, 0)), frozenset({1})
    )
    assert mapl[2] == Entry(("–", "paper 74.40"), frozenset({1}))
    assert rows["1", "FedProto"][3].bold == {0}  # ours is best there, theirs was not


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_a_layout_with_a_place_for_each_cell(name: str, tmp_path: Path) -> None:
    grid = paper_table(name, [])
    places = [
        cell for row in grid.rows for cell in row[grid.words :] if isinstance(cell, Entry) and cell.lines[0] == "–"
    ]
    assert len(places) == len(table(name))
    assert len(grid.rows[0]) == len(grid.titles)
    assert set(LAYOUTS) == set(TABLES)


def test_pairs_are_of_the_same_seeds_and_a_run_in_two_tables_counts_once(store: Store) -> None:
    found = pairs([result for name in TABLES for result in results(name, store)])
    assert len(found) == 10
    first = next(p for p in found if p.other.cell.method == "FedProto" and p.mapl.cell.setting["dataset"] == "CIFAR10")
    assert (first.seeds, round(first.better.mean, 6), first.verdict) == (3, 0.05, "better")
    single = [p for p in found if p.seeds == 1]
    assert {p.verdict for p in single} == {"worse (over clients, one seed)", "better (over clients, one seed)"}


# The two ways in which a page is written


def test_markdown_shows_text_as_it_is() -> None:
    assert plain("a|b *c* l_proto _d_ [e] $f$ <g>") == r"a\|b \*c\* l_proto \_d\_ \[e\] \$f\$ &lt;g&gt;"


def test_a_document_is_the_same_in_html_and_markdown() -> None:
    table = Table(["name", "<x>"], [["a & b", Entry(("1", "2"), frozenset({0}))]], folded="more")
    document = Document("T", "below", [Heading("Title <b>"), Bullets(["one|two"]), Facts({"M": ["c", "d"]}), table])
    page = to_html(document).decode()
    assert "<h2>Title &lt;b&gt;</h2>" in page
    assert '<b>1</b><br><span class="soft">2</span>' in page
    assert "<dt>M</dt><dd>c<br>d</dd>" in page
    assert "<summary>more</summary>" in page
    text = to_markdown(document).decode()
    assert "| a &amp; b | **1**<br>2 |" in text
    assert "- one\\|two" in text
    assert "- **M**: c; d" in text


HOSTILE = '"><script>&</td>$x$`|*'


def test_every_block_is_escaped() -> None:
    """Whatever text a block is given, it is shown, never obeyed."""
    cells: list[str | Entry] = [HOSTILE, Entry((HOSTILE, HOSTILE), frozenset({1}), colour=HOSTILE)]
    blocks = [
        Heading(HOSTILE),
        Paragraph(HOSTILE),
        Bullets([HOSTILE]),
        Facts({HOSTILE: [HOSTILE]}),
        Table([HOSTILE, HOSTILE], [cells], folded=HOSTILE),
        Picture("p", HOSTILE, HOSTILE, png(figure(1))),
    ]
    document = Document(HOSTILE, HOSTILE, blocks)
    page = Page(to_html(document).decode())
    assert "script" not in page.tags
    assert page.text.count(HOSTILE) == 15  # all but those in attributes
    assert "<script>" not in to_markdown(document).decode()


@pytest.mark.parametrize("text", ["# a", "- a", "+ a", "1. a", "12) a", "#"])
def test_text_at_the_start_of_a_line_is_no_heading_and_no_list(text: str) -> None:
    line = to_markdown(Document("", "", [Paragraph(text)])).decode().splitlines()[-1]
    assert line.replace("\\", "", 1) == text
    assert line != text
    assert to_markdown(Document("", "", [Paragraph("-1.3 and #2")])).decode().splitlines()[-1] == "-1.3 and #2"


# Communication complexity


@cache
def cost_of(method: str) -> Cost:
    """Measured once a process, and only where a test asks for it."""
    return complexity.measure([method])[0]


@pytest.mark.parametrize("method", ["Local", "FedSim", "FedProto", "FedAvg", "DFedAvgM", "MAPL"])
def test_methods_are_measured_at_the_papers_sizes(method: str) -> None:
    sizes = cost_of(method).sizes
    assert (sizes["M"], sizes["N_e"], sizes["d_p"], sizes["K"], sizes["φ"]) == (4, 6, 512, 10, 10 * 513)
    assert sizes["θ"] > 11_000_000


@pytest.mark.parametrize("method", ["Local", "FedSim", "FedClassAvg", "FedProto", "FedAvg", "DFedAvgM"])
def test_the_papers_formula_is_what_is_sent(method: str) -> None:
    cost = cost_of(method)
    assert cost.exact
    assert cost.warmup == cost.later
    assert cost.later.numbers == cost.predicted
    assert cost.later.bytes == 4 * cost.predicted + 8 * cost.later.counts + cost.later.headers
    assert cost.later.headers <= 1000 * cost.later.messages


def test_flt_sends_its_opening_once_and_then_the_papers_formula() -> None:
    cost = cost_of("FLT")
    assert cost.exact
    w_enc = sum(p.numel() for p in encoder((3, 32, 32), 128).parameters())
    assert cost.warmup.numbers - cost.predicted == 4 * w_enc + 4 * 128 * 10
    assert cost.warmup.messages == 2 * cost.later.messages


def test_pfedsim_sends_less_than_the_papers_formula_after_its_warm_up() -> None:
    """The paper prints 2M(θ + φ); once its averages are personal, replies have no head: M(2θ + φ)."""
    cost = cost_of("pFedSim")
    assert cost.warmup.numbers == cost.predicted
    assert not cost.exact
    assert cost.later.numbers == 4 * (2 * cost.sizes["θ"] + cost.sizes["φ"])


@pytest.mark.parametrize(("method", "backbone"), [("MAPL", 0), ("MAPL+", 1)])
def test_mapl_sends_no_head_in_its_warm_up_and_no_biases_after_it(method: str, backbone: int) -> None:
    """The paper prints 2N_e(d_p K + φ) for every round; similarity needs the weight of the head alone."""
    cost = cost_of(method)
    s = cost.sizes
    theta = backbone * s["θ"]
    assert cost.warmup.numbers == 2 * s["N_e"] * (theta + s["d_p"] * s["K"])
    assert cost.later.numbers == cost.predicted - 2 * s["N_e"] * s["K"]
    assert math.isclose(cost.later.numbers, cost.predicted, rel_tol=1e-3)


def test_what_was_measured_is_kept_beside_the_store(tmp_path: Path) -> None:
    costs = [cost_of(method) for method in ("Local", "MAPL")]
    path = complexity.write(tmp_path / "store", costs)
    assert complexity.read(tmp_path / "store") == costs
    assert json.loads(path.read_text(encoding="utf-8"))[0]["method"] == "Local"
    assert not Store(tmp_path / "store").runs
    assert complexity.read(tmp_path / "nowhere") == []
