"""Numbers and lists in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mapl.analysis.compare import Estimate
from mapl.names import DASH


def listing(things: Iterable[object]) -> str:
    """a, b and c."""
    texts = list(dict.fromkeys(str(thing) for thing in things))
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def count(number: float, thing: str, things: str = "") -> str:
    """1 client, 2 clients."""
    return f"{number:,.0f} {thing if number == 1 else things or f'{thing}s'}"


def percent(share: float | None) -> str:
    """87 %."""
    return DASH if share is None else f"{100 * share:.0f} %"


def points(estimate: Estimate | None, sign: str = "") -> str:
    """74.9 ± 2.2."""
    return DASH if estimate is None else estimate.text(sign=sign)


def ranges(numbers: Sequence[int]) -> str:
    """0–4, 7, 9."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}–{r[-1]}" for r in runs) or "none"
