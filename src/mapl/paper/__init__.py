"""The paper: its tables as data, `mapl reproduce`, and the page that shows what came of it.

- What the paper has: `tables` (cells, published numbers, recipes), `figures` (which runs each needs), `complexity`.
- Running it: `protocol` (the paper's or a smaller one), `plan`, `carry_out`, `cost`, `machine`, `commands`.
- What is kept of a run: `store`, `summary`, `extras`.
- What it means: `statistics` (ours beside the published), `contests` (which cells compete), `cell_table` (for a
  terminal).
- The page: `page`, `page_tables`, `pictures`, `findings` and `differences` (sentences), `captions`, `labels`.

Nothing outside this package and the command line imports it.
"""

from mapl.paper.tables import cells, find_cell, listing, resolve

__all__ = ["cells", "find_cell", "listing", "resolve"]
