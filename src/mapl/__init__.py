"""Train personalised models together, peer to peer, with no server, whatever architecture each peer has.

import mapl

record = mapl.run(mapl.Recipe.of(method="mapl", clients=10, rounds=60))
print(record.mean, record.weights())
"""

from mapl.client import Client, Server
from mapl.data.dataset import Dataset, Images
from mapl.errors import MaplError
from mapl.methods._base import Centralised, Method, MethodSettings
from mapl.model import ClientModel
from mapl.network import Inbox, Letter
from mapl.recipe import Recipe
from mapl.runs.history import Record, load
from mapl.runs.run import resume, run

__all__ = [
    "Centralised",
    "Client",
    "ClientModel",
    "Dataset",
    "Images",
    "Inbox",
    "Letter",
    "MaplError",
    "Method",
    "MethodSettings",
    "Recipe",
    "Record",
    "Server",
    "load",
    "resume",
    "run",
]
