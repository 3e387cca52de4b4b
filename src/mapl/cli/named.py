"""What options can name (methods, data, topologies, …), for `mapl list` and for the Tab key."""

from __future__ import annotations

from collections.abc import Callable

from mapl import plugins


def _room(name: str) -> Callable[[], dict[str, str]]:
    return lambda: {name: entry.summary for name, entry in plugins.index(name).items()}


def _paper() -> dict[str, str]:
    from mapl.paper.tables import listing

    return listing()


NAMED: dict[str, Callable[[], dict[str, str]]] = {
    "methods": _room("mapl.methods"),
    "backbones": _room("mapl.backbones"),
    "data": _room("mapl.data.sources"),
    "scenarios": lambda: plugins.table("mapl.data.partition", "SCENARIOS"),
    "topologies": lambda: plugins.table("mapl.network.topology", "TOPOLOGIES"),
    "writers": _room("mapl.runs.writers"),
    "paper": _paper,
}
"""What each list has: names, and a sentence about each. None of them imports what it lists, which would be slow."""


def completing(what: str) -> Callable[[str], list[tuple[str, str]]]:
    """What the Tab key offers for an option that takes a name of this list, or several with commas between them."""

    def offered(incomplete: str) -> list[tuple[str, str]]:
        before, comma, begun = incomplete.rpartition(",")
        return [(before + comma + name, text) for name, text in NAMED[what]().items() if name.startswith(begun)]

    return offered
