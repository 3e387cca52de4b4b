"""A headless Chromium for the tests of pages, and axe-core, which finds what keeps people out of a page.

Neither is part of the project: `make browser` tries to get them. What is missing is skipped, with the reason.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = os.environ.get("MAPL_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("there is no Chromium: make browser, or name one in MAPL_CHROMIUM", allow_module_level=True)
driver = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (mapl[dev])")

AXE = Path(os.environ.get("MAPL_AXE") or Path(__file__).parents[1] / ".cache" / "axe.min.js")
QUIET = (
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
"""It asks nobody for anything but what the page asks for."""

DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@contextmanager
def launched() -> Iterator[Any]:
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, address: str, expected: str = "", **options: Any) -> Iterator[Any]:
    """The page at an address. Every complaint of the browser is an error, unless it has the expected word in it."""
    complaints: list[str] = []
    context = browser.new_context(**{"viewport": DESK, **options})
    page = context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: complaints.append(line.text) if line.type in ("error", "warning") else None)
    page.goto(address)
    yield page
    context.close()
    assert [text for text in complaints if not expected or expected not in text] == []


def until(page: Any, condition: str, seconds: float = 15.0) -> float:
    """Wait until something holds on the page; returns how long that took."""
    begin = time.perf_counter()
    while not page.evaluate(condition):
        assert time.perf_counter() - begin < seconds, f"{condition} did not come true"
        time.sleep(0.03)
    return time.perf_counter() - begin


def violations(page: Any) -> list[str]:
    """What axe-core finds on the page."""
    if not AXE.exists():
        pytest.skip("there is no axe-core: make browser, or name its file in MAPL_AXE")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found: list[str] = page.evaluate(
        "axe.run().then(found => found.violations.map(one => `${one.id}: ${one.nodes[0].html}`))"
    )
    return found
