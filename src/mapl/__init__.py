"""Train personalised models together, peer to peer, with no server, whatever architecture each peer has.

import mapl

record = mapl.run(mapl.Recipe.of(method="mapl", clients=10, rounds=60))
print(record.mean, record.weights())
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for True; importing `typing` would be half of the time this module takes

__all__ = [
    "Centralised",
    "Client",
    "ClientModel",
    "Dataset",
    "Features",
    "Images",
    "Inbox",
    "Letter",
    "MaplError",
    "Method",
    "MethodSettings",
    "Recipe",
    "Record",
    "Server",
    "Tokens",
    "dataset",
    "datasets",
    "load",
    "resume",
    "run",
]

if TYPE_CHECKING:
    from mapl.client import Client, Server
    from mapl.data.dataset import Dataset, Features, Images, Tokens
    from mapl.data.objects import dataset, datasets
    from mapl.errors import MaplError
    from mapl.methods._base import Centralised, Method, MethodSettings
    from mapl.model import ClientModel
    from mapl.network import Inbox, Letter
    from mapl.recipe import Recipe
    from mapl.runs.folder import load
    from mapl.runs.record import Record
    from mapl.runs.run import resume, run
else:
    # Importing torch takes over a second, and `mapl --help` does not need it: each name is imported on first use.
    _HOMES = {
        "mapl.client": ("Client", "Server"),
        "mapl.data.dataset": ("Dataset", "Features", "Images", "Tokens"),
        "mapl.data.objects": ("dataset", "datasets"),
        "mapl.errors": ("MaplError",),
        "mapl.methods._base": ("Centralised", "Method", "MethodSettings"),
        "mapl.model": ("ClientModel",),
        "mapl.network": ("Inbox", "Letter"),
        "mapl.recipe": ("Recipe",),
        "mapl.runs.folder": ("load",),
        "mapl.runs.record": ("Record",),
        "mapl.runs.run": ("resume", "run"),
    }
    _HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
