"""What a real network adds to a simulated round: eight processes over QUIC with mutual TLS, on this machine.

The letters are MAPL's at the paper's sizes: about 40 KB. Every client has few images and a small network, so that a
round is little else than its letters.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import tempfile
from pathlib import Path

from common import Options, Report, Row, middle

from mapl import Recipe
from mapl.network.letter import size
from mapl.peer.local import LocalNetwork, make_network
from mapl.runs.folder import load
from mapl.runs.part import build_part
from mapl.runs.run import run

PEERS = 8
ROUNDS = 40
FIRST = 5
"""Rounds that are not counted: the network assembles, and networks are built."""
CLONE_NEWNET = 0x40000000


def measure(options: Options) -> Report:
    """The same recipe as a simulation, with one and with two workers, and as processes."""
    rounds = 8 if options.quick else ROUNDS
    private = own_loopback()
    recipe = the_recipe(rounds)
    letter = size(_schema(recipe))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        simulated = [_simulated(recipe, folder, workers) for workers in (1, 2)]
        real = _real(recipe, folder)
    best = min(row["milliseconds per round"] for row in simulated)
    added = real["milliseconds per round"] - best
    words = (
        f"{PEERS} clients, full mesh, letters of {letter:,} bytes, {rounds} rounds, of which the first {FIRST} are not "
        "counted. A real round is timed from the end of one to the end of the next in the slowest process. It has two "
        "things that the simulated ones have not: every letter and every state is on disk before the round is over. "
        f"A real round adds {added:.0f} ms to the faster simulated one."
    )
    if not private:
        words += " Other programs used the same loopback, so the bytes sent are too many rather than too few."
    return Report("Real peers", words, {"Round": [*simulated, real]}, {"added milliseconds": added})


def the_recipe(rounds: int) -> Recipe:
    return Recipe.of(
        method={"name": "mapl", "warmup": 1, "graph": {"step_size": 1e-7}},
        data="digits",
        clients=PEERS,
        rounds=rounds,
        model={"backbones": ["mlp"], "embedding": 512, "projection": 512, "hidden": 64},
        engine={"device": "cpu", "workers": 1},
        train={"threads": 1},
        partition={"shots": 2, "shots_range": [2, 2], "test_shots": 5},
        evaluate={"every": rounds},
        checkpoint={"every": 1},
    )


def _schema(recipe: Recipe) -> dict:  # type: ignore[type-arg]
    part = build_part(recipe, holds=[0])
    return dict(part.method.schema(part.clients[0], recipe.rounds - 1))


def _simulated(recipe: Recipe, folder: Path, workers: int) -> Row:
    engine = recipe.engine.model_copy(update={"workers": workers})
    record = run(recipe.model_copy(update={"engine": engine}), folder / f"simulated-{workers}")
    return _row(f"simulated, {workers} worker{'s' * (workers > 1)}", _seconds(record.folder), record.bytes)


def _real(recipe: Recipe, folder: Path) -> Row:
    files = make_network(folder / "net", recipe, {"wait": {"patience": 60.0}})
    before = _sent()
    with LocalNetwork(files) as network:
        network.start_all()
        if not network.wait(300):
            raise SystemExit("a peer has not ended")
    runs = [file.parent / "state" / "run" for file in files]
    wire = None if before is None else _sent() - before  # type: ignore[operator]
    slowest = [max(rounds) for rounds in zip(*map(_seconds, runs), strict=True)]
    return _row(f"{PEERS} processes", slowest, sum(load(one).bytes for one in runs), wire)


def _seconds(folder: Path) -> list[float]:
    lines = (folder / "times.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["seconds"] for line in lines][FIRST:]


def _row(what: str, seconds: list[float], ledger: int, wire: int | None = None) -> Row:
    return {
        "": what,
        "milliseconds per round": round(1000 * middle(seconds), 1),
        "letters, MiB (ledger)": round(ledger / 2**20, 2),
        "sent over the loopback, MiB": "" if wire is None else round(wire / 2**20, 2),
        "more than the ledger": "" if wire is None else f"{100 * (wire / ledger - 1):.1f} %",
    }


def own_loopback() -> bool:
    """Move this process to a network of its own, whose counters count nothing else. Whether that is permitted."""
    if ctypes.CDLL(None).unshare(CLONE_NEWNET) != 0:
        return False
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    return True


def _sent() -> int | None:
    """Bytes that the loopback has carried, with everything that belongs to QUIC; None where it cannot be read."""
    lines = Path("/proc/self/net/dev").read_text().splitlines() if Path("/proc/self/net/dev").exists() else []
    found = [line.split() for line in lines if line.strip().startswith("lo:")]
    return int(found[0][1]) if found else None
