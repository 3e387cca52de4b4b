"""The report in a headless Chromium: the page of `mapl watch`, frozen."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from chromium import DESK, PHONE, opened, until, violations
from mapl.report import write_report
from mapl.runs.folder import load
from mapl.runs.record import Record
from shown_runs import ShownRun
from test_watch import ALONE, weights_of

pytestmark = pytest.mark.slow

HOSTILE = '"><img src=x onerror=alert(1)><!--'
AT_END = "mapl.view.rowsOf === 5"


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    folder = tmp_path_factory.mktemp("runs")
    ShownRun(folder / HOSTILE).play(5)
    ShownRun(folder / "alone", **ALONE).play(5)
    return load(folder / HOSTILE)


@pytest.fixture(scope="module")
def page_of(record: Record, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report about a run and its control, by itself in a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mapl.report.drawing.DPI", 60)
        made = write_report([load(record.folder.parent / "alone"), record], tmp_path_factory.mktemp("report"))
    alone = tmp_path_factory.mktemp("mailed") / "page.html"
    shutil.copy(made, alone)
    return alone.as_uri()


def test_the_slider_goes_back_to_an_earlier_w_and_nothing_is_fetched(
    browser: Any, page_of: str, record: Record
) -> None:
    with opened(browser, page_of) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.reload()
        until(page, AT_END)
        page.focus("#round")
        for round in (4, 3, 2, 1):
            page.keyboard.press("ArrowLeft")
            until(page, f"mapl.view.rowsOf === {round}")
            assert torch.equal(weights_of(page.evaluate("mapl.view.rows"), 6), record.weights(round - 1))
            assert f"round {round} of 5" in page.inner_text("#where")
        assert [url for url in asked if not url.startswith("data:")] == [page_of]


def test_another_run_can_be_chosen_and_names_are_text(browser: Any, page_of: str) -> None:
    with opened(browser, page_of) as page:
        until(page, AT_END)
        assert HOSTILE in page.inner_text("#about")
        assert page.locator("img[src=x]").count() == 0
        assert page.evaluate("mapl.view.run.name") == HOSTILE
        page.select_option("#pick", index=1)
        until(page, "mapl.view.run.name === 'alone'")
        assert "Gain" not in page.inner_text("#tiles")
        page.select_option("#pick", index=0)
        until(page, "document.getElementById('tiles').textContent.includes('Gain by letters')")


def test_a_script_that_is_not_ours_does_not_run(browser: Any, page_of: str, tmp_path: Path) -> None:
    changed = tmp_path / "page.html"
    text = Path(page_of.removeprefix("file://")).read_text(encoding="utf-8")
    changed.write_text(text.replace("</main>", "<script>document.title = 'taken'</script></main>"), encoding="utf-8")
    with opened(browser, changed.as_uri(), expected="Content Security Policy") as page:
        until(page, AT_END)
        assert page.title() != "taken"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_it_fits_the_window_with_the_gain_in_sight(
    browser: Any, page_of: str, size: dict[str, int], dark: bool
) -> None:
    with opened(browser, page_of, viewport=size, color_scheme="dark" if dark else "light") as page:
        until(page, AT_END)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        for place in (page.locator("li", has_text="Letters change"), page.locator("#tiles div", has_text="Gain")):
            box = place.first.bounding_box()
            assert box["y"] + box["height"] < size["height"]
        wider = "[...document.querySelectorAll('figure .wide')].filter(one => one.scrollWidth > one.clientWidth).length"
        assert page.evaluate(wider) == 0
        turned = page.evaluate("getComputedStyle(document.querySelector('figure img')).filter")
        assert turned == ("invert(1) hue-rotate(180deg)" if dark else "none")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_axe_finds_nothing(browser: Any, page_of: str, size: dict[str, int], dark: bool) -> None:
    with opened(browser, page_of, viewport=size, color_scheme="dark" if dark else "light") as page:
        until(page, AT_END)
        assert violations(page) == []


def test_without_scripts_the_rest_is_there(browser: Any, page_of: str) -> None:
    with opened(browser, page_of, java_script_enabled=False) as page:
        assert page.locator("#frozen").is_hidden()
        assert "needs JavaScript" in page.inner_text("main")
        assert page.locator("figure img").count() >= 3


def test_axe_finds_nothing_on_the_page_of_the_paper(browser: Any) -> None:
    page_of_the_paper = Path(__file__).parents[1] / "docs" / "reproduction" / "index.html"
    with opened(browser, page_of_the_paper.as_uri(), color_scheme="dark") as page:
        assert violations(page) == []
