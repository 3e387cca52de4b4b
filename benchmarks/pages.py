"""The moving picture of a network in a browser: Bokeh, Plotly, and a canvas with some code of our own.

Each draws the same 200 clients and 1,200 edges from one self-contained file, and is given new places as fast as the
browser takes them. Needs bokeh, plotly, playwright and a Chromium ($MAPL_CHROMIUM, or the one on the path); with the
file of axe-core in $MAPL_AXE it also counts what a screen reader would stumble over.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import common
from common import Options, Report, Row

CLIENTS, EDGES = 200, 1200

MOVE = """
const random = (seed => () => (seed = (seed * 16807) % 2147483647) / 2147483647)(7);
const angle = Array.from({length: N}, () => 6.283 * random());
let time = 0;
function move() {
  time += 0.05;
  const x = angle.map((a, i) => Math.cos(a + time * 0.1) * (1 + 0.2 * Math.sin(time + i)));
  const y = angle.map((a, i) => Math.sin(a + time * 0.1) * (1 + 0.2 * Math.cos(time + i)));
  return {x, y};
}
window.measure = async seconds => {
  const begin = performance.now();
  let frames = 0;
  while (performance.now() - begin < 1000 * seconds) {
    await draw(move());
    await new Promise(requestAnimationFrame);
    frames += 1;
  }
  return frames / ((performance.now() - begin) / 1000);
};
"""


def edges(count: int = EDGES) -> list[tuple[int, int]]:
    draw = random.Random(1)
    return [(draw.randrange(CLIENTS), draw.randrange(CLIENTS)) for _ in range(count)]


def script(draw: str) -> str:
    return f"<script>const N = {CLIENTS}, E = {json.dumps(edges())};\n{MOVE}\n{draw}</script>"


def with_bokeh() -> str:
    from bokeh.embed import file_html
    from bokeh.models import ColumnDataSource
    from bokeh.plotting import figure
    from bokeh.resources import INLINE

    nothing = [0.0] * CLIENTS
    lines = ColumnDataSource({name: [0.0] * EDGES for name in ("x0", "y0", "x1", "y1")}, name="lines")
    dots = ColumnDataSource({"x": nothing, "y": nothing}, name="dots")
    plot = figure(width=800, height=600, x_range=(-1.5, 1.5), y_range=(-1.5, 1.5), title="Network")
    plot.segment("x0", "y0", "x1", "y1", source=lines, line_alpha=0.3)
    plot.scatter("x", "y", source=dots, size=9)
    draw = """
    const model = name => Bokeh.documents[0].get_model_by_name(name);
    async function draw({x, y}) {
      model('lines').data = {x0: E.map(e => x[e[0]]), y0: E.map(e => y[e[0]]),
        x1: E.map(e => x[e[1]]), y1: E.map(e => y[e[1]])};
      model('dots').data = {x, y};
    }"""
    return file_html(plot, INLINE, "Network").replace("</body>", script(draw) + "</body>")


def with_plotly() -> str:
    import plotly.graph_objects as go

    figure = go.Figure(
        [go.Scatter(mode="lines", opacity=0.3), go.Scatter(mode="markers", marker={"size": 9})],
        {"width": 800, "height": 600, "title": "Network", "xaxis_range": [-1.5, 1.5], "yaxis_range": [-1.5, 1.5]},
    )
    draw = """
    const graph = document.querySelector('.plotly-graph-div');
    async function draw({x, y}) {
      const along = v => E.flatMap(e => [v[e[0]], v[e[1]], null]);
      await Plotly.restyle(graph, {x: [along(x), x], y: [along(y), y]});
    }"""
    page = figure.to_html(include_plotlyjs=True, full_html=True)
    return str(page).replace("</body>", script(draw) + "</body>")


def with_canvas() -> str:
    draw = """
    const pen = document.querySelector('canvas').getContext('2d');
    async function draw({x, y}) {
      const at = i => [400 + 260 * x[i], 300 - 190 * y[i]];
      pen.clearRect(0, 0, 800, 600);
      pen.strokeStyle = 'rgba(0, 114, 178, 0.3)';
      for (const [a, b] of E) { pen.beginPath(); pen.moveTo(...at(a)); pen.lineTo(...at(b)); pen.stroke(); }
      pen.fillStyle = '#0072b2';
      for (let i = 0; i < N; i++) { pen.beginPath(); pen.arc(...at(i), 4.5, 0, 6.3); pen.fill(); }
    }"""
    canvas = '<canvas width="800" height="600" tabindex="0" role="img" aria-label="Network"></canvas>'
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Network</title></head>'
        f"<body><main><h1>Network</h1>{canvas}</main>{script(draw)}</body></html>"
    )


PAGES: dict[str, tuple[Callable[[], str], str]] = {
    "Bokeh": (with_bokeh, "its own server (Tornado, web sockets), or fetched by code of ours"),
    "Plotly": (with_plotly, "fetched by code of ours"),
    "canvas, no library": (with_canvas, "fetched by code of ours"),
}


def measure(options: Options) -> Report:
    from playwright.sync_api import sync_playwright

    seconds = 0.5 if options.quick else 5.0
    browser_path = os.environ.get("MAPL_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    axe = os.environ.get("MAPL_AXE")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        version = browser.version
        for name, (make, streaming) in PAGES.items():
            common.say(name)
            path = Path(folder) / "page.html"
            path.write_text(make(), encoding="utf-8")
            page = browser.new_page()
            clock = common.Stopwatch(options.device)
            page.goto(path.as_uri())
            page.wait_for_function("window.measure !== undefined && document.querySelector('body *') !== null")
            page.evaluate("measure(0.3)")
            opened = clock.stop() - 0.3
            costs = page.context.new_cdp_session(page)
            costs.send("Performance.enable")
            before, rate, after = _busy(costs), page.evaluate(f"measure({seconds})"), _busy(costs)
            row: Row = {
                "page": name,
                "file, KB": path.stat().st_size / 1000,
                "until it moves, s": opened,
                "frames a second": rate,
                "main thread, ms a frame": 1000 * (after - before) / (rate * seconds),
                "stops of the Tab key": _stops(page),
            }
            if axe:
                page.add_script_tag(path=axe)
                found = page.evaluate("axe.run().then(r => r.violations.map(v => v.id))")
                row["axe, violations"] = ", ".join(found) or "none"
            rows.append({**row, "new rounds": streaming})
            page.close()
        browser.close()
    words = (
        f"{CLIENTS} dots and {EDGES:,} lines in one file, with new places for all in every frame. Headless Chromium "
        f"{version} without a GPU, {seconds:g} s each, at most 60 frames a second. The canvas has no axes, tools or "
        "tooltips, which the page draws itself."
    )
    return Report("The moving picture of a network in a browser", words, {"Pages": rows})


def _busy(costs: object) -> float:
    """Seconds that the page's main thread has worked so far."""
    metrics = costs.send("Performance.getMetrics")["metrics"]  # type: ignore[attr-defined]
    return float(next(entry["value"] for entry in metrics if entry["name"] == "TaskDuration"))


def _stops(page: object) -> int:
    """How many elements of the page the Tab key reaches, also inside shadow trees."""
    where = """(() => { let e = document.activeElement; while (e && e.shadowRoot && e.shadowRoot.activeElement)
      e = e.shadowRoot.activeElement; if (!e || e === document.body) return -1;
      window.seen = window.seen || []; if (!window.seen.includes(e)) window.seen.push(e); return seen.length; })()"""
    most = 0
    for _ in range(25):
        page.keyboard.press("Tab")  # type: ignore[attr-defined]
        most = max(most, page.evaluate(where))  # type: ignore[attr-defined]
    return most
