"""What each table of the paper is: its cells, the numbers it prints, and the recipe behind each of them."""

from mapl.paper.tables import (
    BACKBONES,
    METHODS,
    PROTOCOL,
    TABLES,
    Cell,
    Table,
    cells,
    find_cell,
    listing,
    resolve,
    table,
)

__all__ = [
    "BACKBONES",
    "METHODS",
    "PROTOCOL",
    "TABLES",
    "Cell",
    "Table",
    "cells",
    "find_cell",
    "listing",
    "resolve",
    "table",
]
