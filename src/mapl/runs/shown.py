"""A record as people look at it: in a line, as a picture in a notebook, and as a table of pandas."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from mapl.errors import MaplError
from mapl.names import printable

if TYPE_CHECKING:
    import pandas as pd

    from mapl.runs.chain import Round
    from mapl.runs.record import Record

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 460, 180, 44, 12, 10, 22
"""The picture and its margins, in pixels."""
BLUE = "#1f83c4"
"""Seen well on white and on black."""
MOST = 300
"""The most points of a curve. More would make a notebook large and could not be told apart."""


def in_a_line(record: Record) -> str:
    """What a run is and how far it is, as `repr` prints it."""
    recipe, clients = record.recipe, len(record.clients)
    parts = [
        recipe.method.name,
        "1 client" if clients == 1 else f"{clients} clients",
        f"{len(record.rounds)} of {recipe.rounds} rounds",
        f"accuracy {100 * record.mean:.1f} % ± {100 * record.std:.1f}" if record.tested else "not tested yet",
    ]
    return f"<Record {printable(str(record.folder))!r}: {', '.join(map(printable, parts))}>"


def as_html(record: Record) -> str:
    """The same with the accuracy by round and what was sent: one piece of HTML that needs nothing else."""
    recipe, sent = record.recipe, f"{record.messages:,} messages, {record.bytes / 2**20:,.1f} MiB"
    who = f"{len(record.clients)} × {', '.join(dict.fromkeys(card.backbone for card in record.clients))}"
    facts = [f"data {recipe.data.name}", who, sent, f"{record.seconds:,.0f} s", f"seed {recipe.seed}"]
    return (
        f'<div style="max-width:{WIDTH}px"><div><b>{_text(in_a_line(record)[1:-1])}</b></div>{_picture(record)}'
        f'<div style="opacity:.75">{_text(" · ".join(facts))}</div></div>'
    )


def as_frame(record: Record) -> pd.DataFrame:
    """One row for each client in each round."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MaplError("to_pandas needs pandas, which is not installed: pip install 'mapl[pandas]'") from error
    columns: dict[str, list[object]] = {name: [] for name in ("round", "client", "cluster", "backbone")}
    for line in record.rounds:
        for card in record.clients:
            for name, value in zip(columns, (line.round, card.id, card.cluster, card.backbone), strict=True):
                columns[name].append(value)
    frame = pd.DataFrame(columns)
    by_client = [
        {
            "accuracy": line.accuracy,
            **(line.measures or {}),
            "all_images": line.all_images,
            **{f"accuracy_{way}": values for way, values in (line.ways or {}).items()},
            **{f"loss_{term}": values for term, values in line.losses.items()},
            "released": line.released,
        }
        for line in record.rounds
    ]
    nothing = [math.nan] * len(record.clients)
    for name in dict.fromkeys(name for line in by_client for name in line):
        if name == "accuracy" or any(line.get(name) is not None for line in by_client):
            values = (value for line in by_client for value in (line.get(name) or nothing))
            frame[name] = [math.nan if value is None else value for value in values]
    return frame


def _text(text: str) -> str:
    return escape(printable(text))


def _picture(record: Record) -> str:
    """Accuracy by round as SVG: the mean over clients, and 10 to 90 % of them shaded."""
    if not record.tested:
        return ""
    lines = _thinned(record)
    rounds = np.array([line.round + 1 for line in lines])
    by_client = 100 * np.array([line.accuracy for line in lines], dtype=float)
    low, high = np.quantile(by_client, (0.1, 0.9), axis=1)
    mean = by_client.mean(axis=1)
    bottom = 10 * np.floor(min(low.min(), mean.min()) / 10)
    top = max(10 * np.ceil(max(high.max(), mean.max()) / 10), bottom + 10)
    last = max(record.recipe.rounds, int(rounds[-1]))
    xs = LEFT + (rounds - 1) / max(last - 1, 1) * (WIDTH - LEFT - RIGHT)

    def y(percent: np.ndarray) -> np.ndarray:
        place: np.ndarray = TOP + (top - percent) / (top - bottom) * (HEIGHT - TOP - BOTTOM)
        return place

    band = _points(np.concatenate([xs, xs[::-1]]), np.concatenate([y(low), y(high)[::-1]]))
    said = f"Accuracy by round: {mean[0]:.1f} % after round {rounds[0]}, {mean[-1]:.1f} % after round {rounds[-1]}"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" style="width:100%;height:auto" font-size="11" '
        f'fill="currentColor" font-family="sans-serif"><title>{said}</title>{_axes(bottom, top, last)}'
        f'<polygon points="{band}" fill="{BLUE}" opacity=".25"/>'
        f'<polyline points="{_points(xs, y(mean))}" fill="none" stroke="{BLUE}" stroke-width="2"/>'
        f'<circle cx="{xs[-1]:.1f}" cy="{y(mean)[-1]:.1f}" r="3" fill="{BLUE}"/></svg>'
    )


def _thinned(record: Record) -> list[Round]:
    """The rounds that were tested; of many, some at equal distances and the last."""
    tested = record.tested
    places = np.linspace(0, len(tested) - 1, min(len(tested), MOST)).round().astype(int)
    return [tested[place] for place in places]


def _points(xs: np.ndarray, ys: np.ndarray) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))


def _axes(bottom: float, top: float, last: int) -> str:
    """Three lines across with their percent, and the first and last round."""
    drawn = []
    for share in (0, 0.5, 1):
        y = TOP + share * (HEIGHT - TOP - BOTTOM)
        drawn.append(
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="currentColor" opacity=".2"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top - share * (top - bottom):.0f} %</text>'
        )
    foot = HEIGHT - 6
    drawn.append(f'<text x="{LEFT}" y="{foot}">round 1</text>')
    drawn.append(f'<text x="{WIDTH - RIGHT}" y="{foot}" text-anchor="end">{last}</text>')
    return "".join(drawn)
