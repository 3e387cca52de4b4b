"""No room imports one above it; docs/architecture.md has the picture."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "mapl"

LAYERS = [
    {"errors"},
    {"keys", "names", "contents", "plugins", "clock", "pace", "shape", "complaints"},
    {"losses", "measures", "trees"},
    {"collaboration", "kinship", "mixing"},
    {"network", "data"},
    {"backbones"},
    {"model"},
    {"client"},
    {"methods"},
    {"engine"},
    {"recipe"},
    {"runs"},
    {"analysis"},
    {"live"},
    {"report"},
    {"terminal"},
    {"peer", "cluster"},
    {"paper"},
    {"cli"},
]
"""From the bottom up. Rooms of one layer know nothing of each other."""
RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}
FRONT = {"__init__", "__main__"}
"""The package's own doors, which show what is inside."""


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and room of everything of this package that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module] if node.module != "mapl" else [f"mapl.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("mapl."):
                yield node.lineno, name.split(".")[1]


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(SOURCE.rglob("*.py")) if room_of(path) not in FRONT],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_no_room_imports_one_above_it(path: Path) -> None:
    room = room_of(path)
    for line, other in imported(path):
        assert other in RANK, f"line {line}: {other} is no room"
        allowed = other == room or RANK[other] < RANK[room]
        assert allowed, f"line {line}: {room} imports {other}, which is not below it"


def test_every_room_has_a_layer_and_every_layer_a_room() -> None:
    rooms = {room_of(path) for path in SOURCE.rglob("*.py")} - FRONT
    assert rooms == RANK.keys()


def test_a_forbidden_import_would_be_found(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text("def f():\n    from mapl.cli import app\n    import mapl.runs.part\n    from mapl import paper\n")
    assert sorted(room for _, room in imported(path)) == ["cli", "paper", "runs"]
