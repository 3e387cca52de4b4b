"""How long a round's letters take: writing, posting and reading them, learning the graph, mixing. Nobody trains.

    python benchmarks/exchange.py [--device cpu|cuda] [--quick]

Real methods, post, ledger and topology, and models that consist of a head and prototypes alone, at the paper's sizes
(K = 10 classes, d_z = d_p = 512).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import resource
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mapl.client import Client
from mapl.data.dataset import Images
from mapl.exchange import exchange
from mapl.graph import GraphSettings
from mapl.methods.mapl import Mapl, MaplSettings
from mapl.model import ClientModel
from mapl.network import Ledger, Post, Topology, TopologySettings

CLASSES, WIDTH, DEGREE = 10, 512, 10
CASES = [("regular", 100), ("regular", 1_000), ("regular", 10_000)] + [("full", m) for m in (100, 500, 1_000, 2_000)]
QUICK = [("regular", 100), ("regular", 1_000), ("full", 100), ("full", 500)]


def measure(device: str | torch.device | None = None, quick: bool = False) -> list[dict[str, Any]]:
    """One row a case; `device` is the best there is unless it is named."""
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return [
        measure_case(name, clients, where, rounds=3 if quick else 5) for name, clients in (QUICK if quick else CASES)
    ]


def measure_case(name: str, clients: int, device: torch.device, rounds: int) -> dict[str, Any]:
    """The median of a few rounds that learn the graph, after one that only mixes and one that warms up."""
    # A step so small that no edge is dropped: every round carries the letters of all edges, and does all the work.
    method = Mapl(MaplSettings(warmup=1, graph=GraphSettings(form="released", step_size=1e-7)))
    gc.collect()
    _reset_peak(device)
    nodes = make_clients(clients, method, device)
    topology = Topology(TopologySettings(name=name, degree=DEGREE), clients, seed=0)
    topology.graph(0)
    ledger, seconds = Ledger(), []
    for t in range(rounds + 2):
        _synchronize(device)
        start = time.perf_counter()
        play_letters(method, nodes, topology, ledger, t)
        _synchronize(device)
        seconds.append(time.perf_counter() - start)
    letters = ledger.by_round[-1][0]
    median = statistics.median(seconds[2:])
    return {
        "topology": f"regular, {DEGREE} neighbours" if name == "regular" else "full mesh",
        "clients": clients,
        "letters a round": letters,
        "seconds a round": round(median, 4),
        "µs a letter": round(1e6 * median / letters, 2),
        "peak memory, GiB": round(_peak(device), 2),
    }


def play_letters(method: Mapl, clients: list[Client], topology: Topology, ledger: Ledger, round: int) -> None:
    """A round without its training."""
    method.absorb_all(round, exchange(method, clients, None, topology, Post(ledger), round))


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
            model = ClientModel(nn.Identity(), CLASSES, WIDTH, WIDTH, hidden=1)
        model = model.to_empty(device=device)
        with torch.no_grad():
            model.head.weight.copy_(common + 0.02 * torch.randn(CLASSES, WIDTH, generator=draw))
            model.prototypes.copy_(torch.randn(CLASSES, WIDTH, generator=draw))
        client = Client(
            id=i, size=count, run="0" * 16, seed=0, model=model, backbone="none", architecture="0" * 16, cluster=0,
            train=nothing, test=nothing, tests=len(nothing),
        )  # fmt: skip
        method.prepare(client)
        clients.append(client)
    return clients


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _reset_peak(device: torch.device) -> None:
    """Count the peak from here on; on the CPU as far as Linux helps."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # what an earlier case has freed
        Path("/proc/self/clear_refs").write_text("5")


def _peak(device: torch.device) -> float:
    """GiB: of the GPU, or of the process since `_reset_peak` (where that is known; otherwise since its start)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 2**20
    except (OSError, IndexError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [" | ".join(rows[0]), "|".join(["---", *["---:"] * (len(rows[0]) - 1)])]
    lines += [" | ".join(x if isinstance(x, str) else f"{x:,}" for x in row.values()) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: the GPU where there is one")
    parser.add_argument("--quick", action="store_true", help="small cases only")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads, as in the recipe's train.threads")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(table(measure(arguments.device, arguments.quick)))


if __name__ == "__main__":
    main()
