"""What to run for a table or figure: its cells and their controls, seed by seed, each run once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from mapl.analysis.control import control_of
from mapl.errors import MaplError, unknown
from mapl.paper.extras import Extra
from mapl.paper.figures import FIGURES
from mapl.paper.protocol import Protocol
from mapl.paper.store import key_of
from mapl.paper.tables import FURTHER, TABLES, Cell, about, table
from mapl.recipe import Recipe, has_letters


@dataclass(frozen=True)
class Work:
    """One run that a cell or a figure needs."""

    table: str
    """The table or figure."""
    cell: str
    """The name of the cell, or the figure's name for the run."""
    control: bool
    scale: str
    """What differs from the paper's protocol; empty if nothing does."""
    recipe: Recipe
    extra: tuple[Extra, ...] = ()
    """What a figure needs of its models after the last round."""

    @cached_property
    def key(self) -> str:
        return key_of(self.recipe)

    def title(self) -> str:
        return f"{self.cell}{', control' if self.control else ''}, seed {self.recipe.seed}"


def names() -> dict[str, str]:
    """What can be reproduced, and its title."""
    titles = {name: about(name).title for name in (*TABLES, FURTHER)}
    return titles | {name: figure.title for name, figure in FIGURES.items()}


def plan(
    name: str, protocol: Protocol, seeds: int = 1, rows: Sequence[str] = (), columns: Sequence[str] = ()
) -> list[Work]:
    """The runs of a table or figure: seed by seed, in the paper's order, each control after its cell."""
    if name not in names():
        raise unknown("table or figure of the paper", name, names())
    is_table = name in TABLES or name == FURTHER
    if not is_table and (rows or columns):
        raise MaplError(f"--rows and --columns choose cells of a table, and {name} is a figure: leave them out")
    if is_table:
        return works_of(chosen(name, protocol, rows, columns), protocol, range(seeds))
    return _once(work for seed in range(seeds) for work in _figure(name, protocol, seed))


def works_of(cells: Sequence[Cell], protocol: Protocol, seeds: Iterable[int]) -> list[Work]:
    """The runs of some cells, seed by seed, without cells that are not run at the protocol's scale."""
    covered = [cell for cell in cells if protocol.covers(cell)]
    return _once(work for seed in seeds for cell in covered for work in _of_cell(cell, protocol, seed))


def _once(works: Iterable[Work]) -> list[Work]:
    """Each run once, where it comes first."""
    once: dict[str, Work] = {}
    for work in works:
        once.setdefault(work.key, work)
    return list(once.values())


def _of_cell(cell: Cell, protocol: Protocol, seed: int) -> Iterator[Work]:
    recipe = protocol.of_cell(cell, seed)
    yield Work(cell.table, cell.name, False, protocol.label, recipe)
    if has_letters(recipe):
        yield Work(cell.table, cell.name, True, protocol.label, _control(recipe))


def _control(recipe: Recipe) -> Recipe:
    return control_of(recipe).model_copy(update={"name": f"{recipe.name}-control"})


def _figure(name: str, protocol: Protocol, seed: int) -> Iterator[Work]:
    for work in FIGURES[name].works(seed):
        recipe = protocol.of_tree(work.tree, f"figure {name}")
        yield Work(name, work.name, False, protocol.label, recipe, work.extra)


def chosen(name: str, protocol: Protocol, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> list[Cell]:
    """The cells asked for: in any of the rows and, axis by axis, in any of the columns."""
    cells = [cell for cell in table(name) if protocol.covers(cell)]
    for option, texts in (("--rows", rows), ("--columns", columns)):
        _check(option, texts, cells)
    selected = [cell for cell in cells if _in_rows(cell, rows) and _in_columns(cell, columns, cells)]
    if not selected:
        raise MaplError(f"no cell of {name} is in these rows and columns; its cells are {_listed(cells)}")
    return selected


def _check(option: str, texts: Iterable[str], cells: Sequence[Cell]) -> None:
    for text in texts:
        if not any(_matches(text, part) for cell in cells for part in cell.parts[1:]):
            raise unknown(option, text, {part for cell in cells for part in cell.parts[1:]})


def _matches(text: str, part: str) -> bool:
    """Whether a word of the command line means this part of a cell's name. A bare number is a scenario."""
    text = f"scenario={text}" if text.isdecimal() else text
    return text.lower() == part.lower()


def _in_rows(cell: Cell, rows: Sequence[str]) -> bool:
    return not rows or any(_matches(text, part) for text in rows for part in cell.parts[1:])


def _in_columns(cell: Cell, columns: Sequence[str], cells: Sequence[Cell]) -> bool:
    for axis, part in enumerate(cell.parts):
        here = [text for text in columns if any(_matches(text, other.parts[axis]) for other in cells)]
        if here and not any(_matches(text, part) for text in here):
            return False
    return True


def _listed(cells: Sequence[Cell]) -> str:
    names = [cell.name for cell in cells]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
