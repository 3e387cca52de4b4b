"""The page of `mapl watch` in a headless Chromium: what it shows, and how soon."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from chromium import DESK, PHONE, until, violations
from chromium import opened as opened_at
from mapl.live.server import Server
from mapl.live.watch import Watch
from mapl.runs.folder import load
from shown_runs import ShownRun
from test_watch import ALONE, weights_of

SOON = 2.0
"""Seconds after its end within which a round is on the page."""


@contextmanager
def opened(browser: Any, root: Path, run: str = "", **options: Any) -> Iterator[Any]:
    """The page of a server of its own."""
    with Server(Watch(root, run)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with opened_at(browser, server.url, expected="404", **options) as page:
            yield page
        server.shutdown()


def graph_of(round: int) -> str:
    return f"mapl.view.rowsOf === {round}"


def test_a_round_is_on_the_page_soon_after_its_end(browser: Any, tmp_path: Path) -> None:
    run = ShownRun(tmp_path / "run", rounds=20)
    run.play()
    with opened(browser, tmp_path) as page:
        until(page, graph_of(1))
        for round in (2, 3, 4):
            run.play()
            seconds = until(page, graph_of(round))
            assert seconds < SOON
            assert f"round {round} of 20" in page.inner_text("#where")
        assert "8 s" in page.inner_text("#tiles")


def test_the_slider_goes_back_to_an_earlier_w(browser: Any, tmp_path: Path) -> None:
    run = ShownRun(tmp_path / "run")
    run.play(5)
    ShownRun(tmp_path / "alone", **ALONE).play(5)
    record = load(run.folder)
    with opened(browser, tmp_path, "run") as page:
        until(page, graph_of(5))
        page.focus("#round")
        for round in (4, 3, 2, 1):
            page.keyboard.press("ArrowLeft")
            until(page, graph_of(round))
            assert torch.equal(weights_of(page.evaluate("mapl.view.rows"), 6), record.weights(round - 1))
            accuracy = sum(record.rounds[round - 1].accuracy or ()) / 6
            assert f"{100 * accuracy:.1f} %" in page.inner_text("#tiles")
        assert "Gain by letters" in page.inner_text("#tiles")
        assert page.evaluate("mapl.view.round") == 1


def test_clients_are_chosen_with_the_keyboard_or_a_click(browser: Any, tmp_path: Path) -> None:
    ShownRun(tmp_path / "run").play(3)
    with opened(browser, tmp_path) as page:
        until(page, graph_of(3))
        page.focus("#network")
        page.keyboard.press("ArrowRight")
        assert page.inner_text("#client").startswith("client 0: class 0, mlp")
        page.keyboard.press("ArrowLeft")
        assert "client 5" in page.inner_text("#client")
        assert "Listens to 4" in page.inner_text("#client")
        page.keyboard.press("Escape")
        assert page.inner_text("#client") == ""
        until(page, "mapl.view.network.layout.still")
        left, top = page.evaluate("mapl.view.network.at[2]")
        page.click("#network", position={"x": left, "y": top})
        assert "client 2" in page.inner_text("#client")


def test_a_click_into_a_chart_shows_that_round_or_client(browser: Any, tmp_path: Path) -> None:
    ShownRun(tmp_path / "run").play(5)
    with opened(browser, tmp_path) as page:
        until(page, graph_of(5))
        width = page.evaluate("document.getElementById('curve').clientWidth")
        # The axis of five rounds begins 46 dots from the left and ends 10 from the right.
        page.click("#curve", position={"x": 46 + (width - 56) / 4, "y": 60})
        until(page, graph_of(2))
        page.click("#each", position={"x": 46 + (width - 56) * 3.5 / 6, "y": 60})
        assert page.inner_text("#client").startswith("client 3:")
        page.click("#curve", position={"x": 2, "y": 60})
        until(page, graph_of(1))


def test_a_run_that_disappears_is_said_and_what_was_seen_stays(browser: Any, tmp_path: Path) -> None:
    run = ShownRun(tmp_path / "run")
    run.play(2)
    with opened(browser, tmp_path) as page:
        until(page, graph_of(2))
        shutil.rmtree(run.folder)
        until(page, "document.getElementById('trouble').textContent.includes('not any more')")
        assert "stays here" in page.inner_text("#trouble")
        assert "round 2 of 5" in page.inner_text("#where")
        ShownRun(run.folder).play(3)
        until(page, graph_of(3))
        assert page.inner_text("#trouble") == ""


def test_two_pages_show_one_run_and_the_table_leads_to_others(browser: Any, tmp_path: Path) -> None:
    for name in ("one", "two"):
        ShownRun(tmp_path / name).play(2)
    with opened(browser, tmp_path, "one") as page:
        until(page, graph_of(2))
        other = page.context.new_page()
        other.goto(page.url)
        until(other, graph_of(2))
        other.click("#runs a:text-is('two')")
        until(other, "document.getElementById('title').textContent === 'two'")
        assert page.inner_text("#title") == "one"


HOSTILE = "<img src=x onerror=alert(1)>"


def test_names_are_text(browser: Any, tmp_path: Path) -> None:
    ShownRun(tmp_path / HOSTILE).play(1)
    with opened(browser, tmp_path) as page:
        until(page, graph_of(1))
        assert page.inner_text("#title") == HOSTILE
        assert page.locator("img").count() == 0


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_nothing_is_wider_than_the_window_and_the_gain_is_in_sight(
    browser: Any, tmp_path: Path, size: dict[str, int], dark: bool
) -> None:
    ShownRun(tmp_path / "run").play(5)
    ShownRun(tmp_path / "alone", **ALONE).play(5)
    with opened(browser, tmp_path, "run", viewport=size, color_scheme="dark" if dark else "light") as page:
        until(page, graph_of(5))
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        gain = page.locator("#tiles div", has_text="Gain").bounding_box()
        assert gain["y"] + gain["height"] < size["height"]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_axe_finds_nothing(browser: Any, tmp_path: Path, size: dict[str, int], dark: bool) -> None:
    ShownRun(tmp_path / "run").play(5)
    ShownRun(tmp_path / "alone", **ALONE).play(5)
    with opened(browser, tmp_path, "run", viewport=size, color_scheme="dark" if dark else "light") as page:
        until(page, graph_of(5))
        assert violations(page) == []
        page.click("#numbers summary")
        assert violations(page) == []


def test_less_motion_is_a_picture_at_rest(browser: Any, tmp_path: Path) -> None:
    ShownRun(tmp_path / "run").play(3)
    with opened(browser, tmp_path, reduced_motion="reduce") as page:
        until(page, graph_of(3))
        until(page, "mapl.view.network.layout.still")
        assert page.evaluate("mapl.view.network.frames") < 20


@pytest.mark.slow
def test_two_hundred_clients_move_smoothly(browser: Any, tmp_path: Path, record_property: Callable[..., None]) -> None:
    ShownRun(tmp_path / "run", clients=200, clusters=8, rounds=10).play(6)
    with opened(browser, tmp_path) as page:
        until(page, graph_of(6))
        before = page.evaluate(
            "(mapl.view.network.layout.heat = 1, mapl.view.network.wake(), mapl.view.network.frames)"
        )
        time.sleep(2)
        rate = (page.evaluate("mapl.view.network.frames") - before) / 2
        record_property("frames a second", rate)
        print(f"{rate:.0f} frames a second")
        assert rate > 10
