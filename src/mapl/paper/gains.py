"""What the letters bought, in sentences: of MAPL, of the other methods, and how much of the lead is not the letters."""

from __future__ import annotations

from collections.abc import Sequence

from mapl.analysis.compare import Estimate
from mapl.paper.page_tables import place
from mapl.paper.statistics import CellResult, Over, less
from mapl.report.words import count, listing


def is_mapl(result: CellResult) -> bool:
    """MAPL and MAPL+ count as one: the paper's own."""
    return result.cell.method in ("MAPL", "MAPL+")


def gain_sentences(results: Sequence[CellResult]) -> list[str]:
    """What the letters bought MAPL; with all test images where there are such tests, which leaves less to chance."""
    said = []
    for result in results:
        gain, images = (result.gain_all, "all test images") if result.gain_all else (result.gain, "the paper's tests")
        if gain is None:
            continue
        text = (
            f"Collaboration gain: letters bought {place(result.cell)}, {gain.text(sign='+')} points over the "
            f"same clients without letters ({images})"
        )
        if gain.interval is None:
            said.append(f"{text}; with one seed nobody can say how much of that is chance.")
            continue
        sure = abs(gain.mean) > gain.interval
        side = "above" if gain.mean > 0 else "below"
        verdict = f"lies {side} 0" if sure else "includes 0, so this does not show that letters help or harm"
        over = _over(result.gain_over, len(result.controls))
        said.append(f"{text}; the 95 % interval over {over} {verdict}.")
    return said


def other_gain_sentences(contests: Sequence[Sequence[CellResult]]) -> list[str]:
    """What the letters bought the other methods, a sentence a contest."""
    said = []
    for group in contests:
        known = [r for r in group if not is_mapl(r) and r.gain_all is not None]
        if known:
            gains = listing(f"{r.cell.method} {_text(r.gain_all)}" for r in known)
            over = listing(dict.fromkeys(_over(r.gain_over, len(r.controls)) for r in known))
            said.append(
                f"The other methods' letters bought them, in points on {_where(known[0])}, with all test images: "
                f"{gains} (± over {over})."
            )
    return said


def loss_sentences(contests: Sequence[Sequence[CellResult]]) -> list[str]:
    """How far MAPL is ahead of local training when nobody writes: what is left then is its losses and its two views."""
    said = []
    for group in contests:
        local = [r for r in group if r.cell.method == "Local"]
        for result in (r for r in group if is_mapl(r) and local):
            ahead, over = less(result.controls, local[0].rows, "all_images")
            if ahead is not None:
                seeds = len({row.seed for row in result.controls} & set(local[0].seeds))
                side = "ahead of" if ahead.mean >= 0 else "behind"
                said.append(
                    f"Without letters {place(result.cell)}, is {Estimate(abs(ahead.mean), ahead.interval).text()} "
                    f"points {side} Local on the same shards (all test images, over {_over(over, seeds)}). Nobody "
                    "wrote to anybody in either: that part of the difference is what its losses on two views of every "
                    "image make, not collaboration."
                )
    return said


def _over(over: Over, seeds: int) -> str:
    return "clients of one seed" if over == "clients" else count(seeds, "seed")


def _where(result: CellResult) -> str:
    return place(result.cell).removeprefix(f"{result.cell.method} on ")


def _text(gain: Estimate | None) -> str:
    return gain.text(sign="+") if gain is not None else ""
