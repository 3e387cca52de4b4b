"""The report: one page that stands alone, whatever the runs are like, and that says only what they show."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import shutil
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.lines import Line2D
from PIL import Image

import mapl
from conftest import line_with
from mapl.analysis.clusters import share_inside
from mapl.data.sources.digits import Digits
from mapl.live import assets
from mapl.recipe import DataSettings
from mapl.report import sentences, write_report
from mapl.report.drawing import WIDTH, figure, legend
from mapl.report.embedding import Embedding, embed
from mapl.report.facts import facts
from mapl.report.lines import accuracy_curve, lines
from mapl.report.maps import graph_rounds
from mapl.report.tables import arms_table
from mapl.report.text import listing, ranges
from test_compare import seeds

pytestmark = pytest.mark.usefixtures("coarse")

VOID = {"meta", "link", "img", "br", "input", "source"}


def recipe(**settings: Any) -> mapl.Recipe:
    tiny: dict[str, Any] = {
        "clients": 4,
        "rounds": 3,
        "method": {"name": "mapl", "warmup": 1},
        "partition": {"shots": 3, "test_shots": 5},
        "model": {"backbones": ["mlp", "cnn"]},
        "evaluate": {"every": 1},
    }
    return mapl.Recipe.of(**{**tiny, **settings})


NO_LETTERS = {"topology": {"name": "none"}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, mapl.Record]:
    """A method and its control, two seeds each, and a local run."""
    folder = tmp_path_factory.mktemp("runs")
    made = {}
    for seed in (0, 1):
        made[f"mapl-{seed}"] = mapl.run(recipe(seed=seed), folder / f"mapl-{seed}")
        made[f"alone-{seed}"] = mapl.run(recipe(seed=seed, network=NO_LETTERS), folder / f"alone-{seed}")
    made["local"] = mapl.run(recipe(method={"name": "local"}, network=NO_LETTERS), folder / "local")
    return made


@pytest.fixture(scope="module")
def full_page(runs: dict[str, mapl.Record], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(list(runs.values()), tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def local_page(runs: dict[str, mapl.Record], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([runs["local"]], tmp_path_factory.mktemp("report") / "deep" / "out")


class Page(HTMLParser):
    """Reads a page, and complains about what is not well-formed or reaches outside it."""

    def __init__(self, path: Path):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == [], "every tag that is opened is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes the tag that was opened last"

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)
        elif "style" not in self.open:
            self.text += data

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def pixels(data: bytes) -> bytes:
    """A picture as its dots."""
    return Image.open(io.BytesIO(data)).convert("RGB").tobytes()


def check_stands_alone(path: Path) -> Page:
    """What every page has to be."""
    page = Page(path)
    text = path.read_text(encoding="utf-8")
    check_scripts(page)
    assert not re.search(r"https?://|url\(|@import", text)
    for _, attributes in page.tags:
        for name in ("src", "srcset", "href"):
            assert (attributes.get(name) or "data:").startswith("data:")
        assert not any(name.startswith("on") for name in attributes)
    pictures = page.attributes("img")
    files = sorted(path.parent.glob("*.png"))
    embedded = [base64.b64decode((picture["src"] or "").partition("base64,")[2]) for picture in pictures]
    assert sorted(map(pixels, embedded)) == sorted(pixels(file.read_bytes()) for file in files)
    for data, picture in zip(embedded, pictures, strict=True):
        assert Image.open(io.BytesIO(data)).width == 500
        assert len(picture["alt"] or "") > 20
    for source in page.attributes("source"):
        small = base64.b64decode((source["srcset"] or "").partition("base64,")[2])
        assert Image.open(io.BytesIO(small)).width == 250
    assert len(page.attributes("source")) == len(pictures)
    assert sorted(p.name for p in path.parent.iterdir()) == sorted(["report.html", *(f.name for f in files)])
    return page


def check_scripts(page: Page) -> None:
    """The only code is ours, and the page's policy names its digest. What it is told is data."""
    policy = next(meta["content"] or "" for meta in page.attributes("meta") if "http-equiv" in meta)
    assert policy.startswith("default-src 'none'")
    if not page.attributes("script"):
        assert "script-src" not in policy
        return
    told, code = page.scripts
    assert [script.get("type") for script in page.attributes("script")] == ["application/json", None]
    assert not set("<>&") & set(told)
    assert json.loads(told)["runs"]
    assert code == assets.frozen_script()
    assert f"script-src 'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'" in policy


def test_methods_controls_and_seeds(full_page: Path) -> None:
    page = check_stands_alone(full_page)
    names = {file.name for file in full_page.parent.glob("*.png")}
    assert names == {"accuracy.png", "data.png", "graph-1.png", "embedding-1.png", "losses.png", "messages.png"}
    assert "mapl, no letters" in page.text
    assert "is a control" in page.text
    assert re.search(r"Letters change the accuracy of mapl by [+-]", page.text)
    assert "cross-entropy from" in page.text
    for word in ("Scenario", "disjoint classes per cluster", "Seeds", "0 and 1 (5 runs in all)"):
        assert word in page.text


def test_the_way_to_pooled_is_in_the_table_if_some_arm_has_it() -> None:
    alone = {"network": NO_LETTERS}
    ours, control = seeds({0: 0.6, 1: 0.6}), seeds({0: 0.5, 1: 0.5}, **alone)
    ceiling = seeds({0: 0.7, 1: 0.7}, **alone, partition={"pooled": True})
    plain = arms_table(lines([*ours, *control]))
    shown = arms_table(lines([*ours, *control, *ceiling]))
    place = shown.titles.index("way to pooled")
    assert [title for title in shown.titles if title != "way to pooled"] == plain.titles
    assert [row[place] for row in shown.rows] == ["50.0 ± 0.0 %", "–", "–"]
    assert [row[place - 1] for row in shown.rows][2] == "– (is a ceiling)"
    assert {len(row) for row in shown.rows} == {len(shown.titles)}
    headline = sentences.headlines(lines([*ours, *control, *ceiling]))[0]
    assert "60.0" in headline  # the best arm is not the one that has the others' data


def test_the_top_of_the_page_is_three_sentences_about_the_most_interesting_arm() -> None:
    alone = {"network": NO_LETTERS}
    ours, control = seeds(dict.fromkeys(range(5), 0.6)), seeds({s: 0.5 + s / 100 for s in range(5)}, **alone)
    accuracy, gain, _ = sentences.headlines(lines([*control, *ours]))
    assert re.search(line_with("most accurate", "mapl", "60.0 ± 0.0 %"), accuracy)
    assert re.search(r"\bmapl\b.*\+8.0 ± \d.\d .*points.* above 0\.$", gain)
    assert re.search(
        line_with("above 0", "2 seeds", "worth little"), sentences.headlines(lines([*control[:2], *ours[:2]]))[1]
    )
    assert "its control" in sentences.headlines(lines(ours))[1]
    assert sentences.headlines(lines(control))[1] == "No letter was sent: every client learned alone."
    assert sentences.further(lines(ours)) == []


def test_one_local_run(local_page: Path) -> None:
    page = check_stands_alone(local_page)
    assert "No letter was sent" in page.text
    assert "no graph" in page.text
    assert not (local_page.parent / "messages.png").exists()


def test_the_same_runs_make_the_same_page(runs: dict[str, mapl.Record], local_page: Path, tmp_path: Path) -> None:
    assert write_report([runs["local"]], tmp_path).read_bytes() == local_page.read_bytes()


def test_a_hostile_name_is_text(runs: dict[str, mapl.Record], tmp_path: Path) -> None:
    hostile = '<script>alert("x")</script>&$a_b$'
    folder = tmp_path / "runs" / hostile.replace("/", "\\")
    shutil.copytree(runs["alone-0"].folder, folder)
    title, introduction = f"T{hostile}", f"One {hostile}\n\nTwo </main>"
    page = check_stands_alone(write_report([mapl.load(folder)], tmp_path / "out", title, introduction))
    assert f"T{hostile}" in page.text
    assert folder.name in page.text
    assert "Two </main>" in page.text
    assert len(page.attributes("main")) == 1


def test_a_run_without_any_test(tmp_path: Path) -> None:
    record = mapl.run(recipe(evaluate={"every": 3}), tmp_path / "run", stop=lambda: True)
    assert not record.tested
    page = check_stands_alone(write_report([record], tmp_path / "out"))
    assert "not tested yet" in page.text
    assert "not finished: run (1 so far)" in page.text
    assert not (tmp_path / "out" / "accuracy.png").exists()


def test_a_run_without_any_round(runs: dict[str, mapl.Record], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs["mapl-0"].folder, folder)
    shutil.rmtree(folder / "checkpoints")
    for name in ("history.jsonl", "times.jsonl", "graph.rows", "graph.index"):
        (folder / name).unlink(missing_ok=True)
    page = check_stands_alone(write_report([mapl.load(folder), runs["local"]], tmp_path / "out"))
    assert "not tested yet" in page.text


def test_without_checkpoints_a_sentence_takes_the_place_of_the_embeddings(
    runs: dict[str, mapl.Record], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs["mapl-0"].folder, folder)
    for path in (folder / "checkpoints").iterdir():
        path.write_bytes(b"not a checkpoint")
    record = mapl.load(folder)
    reason = embed(record)
    assert isinstance(reason, str)
    assert "could not be restored" in reason
    shutil.rmtree(folder / "checkpoints")
    page = check_stands_alone(write_report([record], tmp_path / "out"))
    assert "it has no checkpoint" in page.text
    assert (tmp_path / "out" / "graph-1.png").exists()


def test_data_given_in_python(tmp_path: Path) -> None:
    record = mapl.run(recipe(rounds=2), tmp_path / "run", data=Digits().load(DataSettings()))
    page = check_stands_alone(write_report([record], tmp_path / "out"))
    assert "given in Python" in page.text
    assert not (tmp_path / "out" / "embedding-1.png").exists()


def test_the_table_says_how_far_a_stopped_arm_came_and_a_run_left_out_is_not_counted(
    runs: dict[str, mapl.Record], tmp_path: Path
) -> None:
    stopped = mapl.run(recipe(), tmp_path / "stopped", stop=lambda: True)
    page = Page(write_report([stopped, runs["alone-0"]], tmp_path / "out"))
    table = page.text[page.text.index("collaboration gain") :]
    assert "mapl (1 of 3 rounds)" in table[: table.index("The collaboration gain is")]
    assert re.search(line_with("its control", "round", "last test"), table)
    both = Page(write_report([stopped, runs["mapl-0"], runs["alone-0"]], tmp_path / "both"))
    assert "Made by mapl from 2 runs." in both.text
    assert "1 of 3 rounds" not in both.text


@pytest.mark.parametrize("blocked", ["report", "report.html", "accuracy.png"])
def test_a_page_that_cannot_be_written_is_one_sentence(
    runs: dict[str, mapl.Record], tmp_path: Path, blocked: str
) -> None:
    out = tmp_path / "report"
    if blocked == "report":
        out.touch()
    else:
        (out / blocked).mkdir(parents=True)
    with pytest.raises(mapl.MaplError, match=r"^report '.*report' could not be written"):
        write_report([runs["local"]], out)


WHOLE = "mapl, 4 backbones, method.warmup=100, model.backbones=['mlp', 'cnn', 'residual', 'separable'], "
LABELS = [WHOLE[:length] for length in (4, 16, 24, 34, 56, 95)] + [3 * WHOLE]


@pytest.mark.parametrize("number", [1, 3, 4, 9])
@pytest.mark.parametrize("longest", LABELS)
def test_a_legend_is_not_wider_than_its_picture_and_leaves_room_for_the_panels(number: int, longest: str) -> None:
    made = figure(4.4)
    panel = made.subplots()
    legend(made, [Line2D([], [], label=longest) for _ in range(number)])
    made.draw_without_rendering()
    box = made.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= WIDTH * made.dpi
    assert panel.get_window_extent().height >= 3 * made.dpi


def test_short_labels_stand_beside_each_other() -> None:
    made = figure(4.4)
    legend(made, [Line2D([], [], label="mapl, no letters") for _ in range(4)])
    made.draw_without_rendering()
    assert made.legends[0].get_window_extent().height < 0.4 * made.dpi
    assert made.get_figheight() == 4.4


def test_as_many_messages_as_the_full_mesh_are_not_said_to_be_instead_of_it(runs: dict[str, mapl.Record]) -> None:
    said = sentences.messages_caption(lines([runs["mapl-0"]]))
    assert runs["mapl-0"].messages == 36
    assert "mapl 36" in said
    assert "instead of" not in said
    *before, last = runs["mapl-0"].rounds
    fewer = replace(runs["mapl-0"], rounds=[*before, replace(last, messages=0)])
    assert sentences.messages_caption(lines([fewer])).endswith("mapl 24 instead of 36 (33 % saved).")


CLUSTERS = [0, 0, 0, 1, 1, 1]
SAME = torch.tensor([[float(a == b) for b in CLUSTERS] for a in CLUSTERS]).double()
UNIFORM = torch.ones(6, 6).double() / 6
NO_KIN = 1 - SAME + torch.eye(6)


def test_a_uniform_graph_has_no_index() -> None:
    assert sentences._rand_sentence(SAME, UNIFORM, CLUSTERS) == ""
    only_last = sentences._rand_sentence(UNIFORM, SAME, CLUSTERS)
    assert re.findall(r"-?\d\.\d\d", only_last) == ["1.00"]
    assert "uniform" in only_last
    both = re.findall(r"-?\d\.\d\d", sentences._rand_sentence(NO_KIN, SAME, CLUSTERS))
    assert len(both) == 2
    assert float(both[0]) < float(both[1]) == 1


def test_all_most_and_some() -> None:
    ring = SAME.clone()
    for i, j in ((0, 2), (1, 0), (2, 1), (3, 5), (4, 3), (5, 4)):
        ring[i, j] = 0
    graphs = {"all": SAME, "most": SAME + 0.1, "some": ring}
    for word, graph in graphs.items():
        share = share_inside(graph, CLUSTERS)
        assert share is not None
        assert f" {word} of" in sentences._kin_found(graph, CLUSTERS, share)


def test_no_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(mapl.MaplError, match="at least one run"):
        write_report([], tmp_path)


def test_drawing_leaves_no_figure_open(full_page: Path) -> None:
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []


def test_curves_are_means_over_clients_and_seeds(runs: dict[str, mapl.Record]) -> None:
    pair = [runs["mapl-0"], runs["mapl-1"]]
    (line,) = lines([*pair, pair[0]])
    assert [run.recipe.seed for run in line.runs] == [0, 1]
    curve = accuracy_curve(line)
    assert curve is not None
    assert curve.rounds.tolist() == [1, 2, 3]
    assert curve.mean[-1] == pytest.approx(100 * (pair[0].mean + pair[1].mean) / 2)
    assert (curve.low <= curve.mean).all()
    assert (curve.mean <= curve.high).all()


def test_graphs_are_shown_from_the_first_that_mixes_to_the_last(runs: dict[str, mapl.Record]) -> None:
    assert graph_rounds(runs["mapl-0"], start=1) == {0: "first", 1: "first learned", 2: "last"}
    assert list(graph_rounds(runs["mapl-0"], start=None)) == [0, 1, 2]
    assert graph_rounds(runs["alone-0"], start=None) == {}


def test_embeddings_come_from_every_client_and_are_few_enough(
    runs: dict[str, mapl.Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mapl.analysis.embedding.POINTS", 40)
    made, again = embed(runs["mapl-0"]), embed(runs["mapl-0"])
    assert isinstance(made, Embedding)
    assert isinstance(again, Embedding)
    assert (made.points == again.points).all()
    assert made.points.shape == (40, 2)
    assert set(made.clients) == {0, 1, 2, 3}
    assert set(made.clusters[made.clients < 2]) == {0}
    assert made.rounds == 3
    assert 0 <= made.aligned <= 1


def test_facts_name_all_that_differs(runs: dict[str, mapl.Record]) -> None:
    said = facts(lines(list(runs.values())))
    assert said["Rounds"][0].startswith("3")
    assert [text.split()[0] for text in said["Method"]] == ["mapl", "local"]
    assert said["Clients"][0].startswith("4, each with private data (15 ")


def test_lists_and_ranges_in_words() -> None:
    assert [listing(x) for x in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
    assert ranges([4, 0, 1, 2, 9]) == "0–2, 4, 9"
    assert ranges([]) == "none"
