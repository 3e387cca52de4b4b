"""A round of every method in one setting, by turns, as a ratio to MAPL's round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common import Options, Report, Row, middle
from rounds import PAPERS, SMALL, SMALL_HEADS, Ours, setting

from mapl import Dataset, methods
from mapl.plugins import known
from mapl.trees import merge

REFERENCE = "mapl"
EVERYONE_LISTENS: Mapping[str, Any] = {"warmup": 0, "graph": {"step_size": 1e-7}}
"""MAPL and MAPL+ with graph learning from the first round on, and steps so small that no edge is ever dropped."""
IN_GRAPHS = {"mapl", "mapl+"}


def measure(options: Options) -> Report:
    sides, data = _sides(options)
    for _ in range(1 if options.quick else options.rounds):
        for side in sides.values():
            side.play()
    reference = middle(sides[REFERENCE].seconds)
    rows = [_row(name, side, reference) for name, side in sides.items()]
    recipe = sides[REFERENCE].recipe
    return Report(
        title="A round of every method that takes mixed architectures",
        words=f"{recipe.clients} clients ({', '.join(recipe.model.backbones)}), data {data.name}, "
        f"{'×'.join(map(str, data.shape))}, all in one process, a round of each by turns. Seconds are medians. "
        "Every client hears every other, except where the method itself asks for fewer letters.",
        tables={"Seconds per round": rows},
    )


def _sides(options: Options) -> tuple[dict[str, Ours], Dataset]:
    on_gpu = options.device.type == "cuda"
    tree: dict[str, Any] = {"clients": 20 if on_gpu else 10, "model": {"backbones": PAPERS if on_gpu else SMALL}}
    if not on_gpu:
        tree = merge(tree, SMALL_HEADS)
    sides: dict[str, Ours] = {}
    for name in options.series or mixed_architectures():
        recipe, data = setting(*_images(options), merge(tree, {"method": _method(name)}), options)
        sides[name] = Ours(recipe, data, options.device)
    return sides, data


def mixed_architectures() -> list[str]:
    """The methods whose clients may differ in architecture."""
    return [name for name, method in known(methods).items() if not method.homogeneous]


def _images(options: Options) -> tuple[str, tuple[int, int, int]]:
    if options.device.type == "cuda":
        return "cifar10", (3, 32, 32)
    return "fashionmnist", (1, 8, 8) if options.quick else (1, 28, 28)


def _method(name: str) -> dict[str, Any]:
    return {"name": name, **(EVERYONE_LISTENS if name in IN_GRAPHS else {})}


def _row(name: str, side: Ours, reference: float) -> Row:
    median = middle(side.seconds)
    parts = {part: middle([laps[part] for laps in side.laps]) for part in side.laps[0]}
    return {
        "method": name,
        "seconds per round": median,
        f"times {REFERENCE}'s round": median / reference,
        **parts,
        "rounds measured": len(side.seconds),
        "peak GPU memory, GiB": side.memory,
    }
