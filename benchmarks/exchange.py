"""How long a round's letters take: writing, posting and reading them, learning the graph, mixing. Nobody trains.

Real methods, post, ledger and topology, and models that consist of a head and prototypes alone, at the paper's sizes
(K = 10 classes, d_z = d_p = 512).
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

import torch
from common import Options, PeakMemory, Report, Row, Stopwatch, middle
from torch import nn

from mapl.client import Client
from mapl.collaboration import GraphSettings
from mapl.data.dataset import Images
from mapl.methods.mapl import Mapl, MaplSettings
from mapl.model import ClientModel
from mapl.network import Ledger, MemoryPost, Topology, TopologySettings
from mapl.runs.exchange import Exchange, look_around

CLASSES, WIDTH, DEGREE = 10, 512, 10
CASES = [("regular", 100), ("regular", 1_000), ("regular", 10_000)] + [("full", m) for m in (100, 500, 1_000, 2_000)]
QUICK = [("regular", 50), ("regular", 200), ("full", 50), ("full", 100)]


def measure(options: Options) -> Report:
    """One row a case."""
    torch.set_num_threads(1)  # as a recipe has it
    cases, rounds = (QUICK, 3) if options.quick else (CASES, 5)
    rows = [measure_case(name, clients, options.device, rounds) for name, clients in cases]
    words = (
        "The exchange of a round alone: letters are written, posted and read, the graph is learned, prototypes are "
        "mixed. Nobody trains."
    )
    return Report("Letters: written, carried and read", words, {"Letters": rows})


def measure_case(name: str, clients: int, device: torch.device, rounds: int) -> Row:
    """The median of a few rounds that learn the graph, after one that only mixes and one that warms up."""
    # A step so small that no edge is dropped: every round carries the letters of all edges, and does all the work.
    method = Mapl(MaplSettings(warmup=1, graph=GraphSettings(form="released", step_size=1e-7)))
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # what an earlier case has freed
    memory = PeakMemory(device)
    nodes = make_clients(clients, method, device)
    topology = Topology(TopologySettings(name=name, degree=DEGREE), clients, seed=0)
    topology.drawn(0)
    letters, seconds = 0, []
    for t in range(rounds + 2):
        watch = Stopwatch(device)
        letters = play_letters(method, nodes, topology, t)
        seconds.append(watch.stop())
    median = middle(seconds[2:])
    return {
        "topology": f"regular, {DEGREE} neighbours" if name == "regular" else "full mesh",
        "clients": clients,
        "letters a round": letters,
        "seconds a round": round(median, 4),
        "µs a letter": round(1e6 * median / letters, 2),
        "peak memory, GiB": round(memory.gpu() or memory.host(), 2),
    }


def play_letters(method: Mapl, clients: list[Client], topology: Topology, round: int) -> int:
    """A round without its training; returns how many letters were read."""
    ledger = Ledger()
    look_around(method, clients, None, topology, round)
    method.absorb_all(round, Exchange(method, clients, None, MemoryPost(), ledger, round).run())
    return ledger.messages


def make_clients(count: int, method: Mapl, device: torch.device) -> list[Client]:
    """Clients with a head and prototypes of their own; all else, which no letter holds, is as small as can be."""
    nothing = Images(torch.zeros(8, 1, 1, 1, dtype=torch.uint8), torch.zeros(8, dtype=torch.int64))
    draw = torch.Generator().manual_seed(0)
    common = 0.02 * torch.randn(
        CLASSES, WIDTH, generator=draw
    )  # so that heads resemble one another, as trained ones do
    clients = []
    for i in range(count):
        with torch.device("meta"):  # 10,000 times the usual first weights would take longer than all that is measured
            prototypes = nn.Parameter(torch.empty(CLASSES, WIDTH))
            model = ClientModel(nn.Identity(), nn.Linear(WIDTH, CLASSES), prototypes=prototypes)
        model = model.to_empty(device=device)
        with torch.no_grad():
            model.head.weight.copy_(common + 0.02 * torch.randn(CLASSES, WIDTH, generator=draw))
            model.prototypes.copy_(torch.randn(CLASSES, WIDTH, generator=draw))
        client = Client(
            id=i, run="0" * 16, seed=0, model=model, backbone="none", architecture="0" * 16, cluster=0,
            train=nothing, test=nothing, tests=len(nothing),
        )  # fmt: skip
        method.prepare(client)
        clients.append(client)
    return clients
