"""What mapl does on the machine at hand, and how fast: python benchmarks/run.py WHAT.

Every measurement is written to the results' folder as a table for people (Markdown) and as JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import common
import torch

WHAT = {
    "round": "rounds", "methods": "methods", "clients": "clients", "exchange": "exchange", "state": "state",
    "edges": "edges", "two-cores": "two_cores", "peers": "peers", "pages": "pages", "shards": "shards",
}  # fmt: skip
"""Each measurement and its module, which is imported when its turn comes: some need packages that others do without."""

ON_A_CPU = {"two-cores", "peers", "pages", "shards"}
"""Measured on the CPU even where there is a GPU."""

HELP = (
    "A round against a plain loop; a round of every method; more clients; letters; memory of a network; the graph's "
    "edges; FedAvg on a CPU; real peers; libraries for pages; shards on Ray."
)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python benchmarks/run.py", description=__doc__.splitlines()[0])
    made.add_argument("what", choices=(*WHAT, "all"), help=HELP)
    made.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="Default: a GPU if there is one."
    )
    made.add_argument("--quick", action="store_true", help="Everything tiny: to see that it runs, not how fast.")
    made.add_argument("--data-folder", type=Path, help="Where published data sets lie; default: $MAPL_DATA, or data/.")
    made.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="Where tables are written.")
    made.add_argument(
        "--rounds", type=int, default=3, help="round, methods, two-cores, shards: rounds measured of each."
    )
    made.add_argument("--plain-workers", type=int, help="round: loader processes of the plain loop; default: the best.")
    made.add_argument("--clients", type=_numbers, default=(), help="clients: how many, such as 20,50,100.")
    made.add_argument("--series", type=_names, default=(), help="clients, methods: which, such as resnet18,mixed.")
    made.add_argument(
        "--copies", action="store_true", help="clients, on a GPU: copy one model for all: a quicker set-up."
    )
    made.add_argument("--seconds", type=float, default=120, help="After this long, begin no further round of its kind.")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    given = parser().parse_args(arguments)
    cuda = given.device == "cuda" or (given.device == "auto" and torch.cuda.is_available())
    options = common.Options(
        device=torch.device("cuda", 0) if cuda else torch.device("cpu"),
        quick=given.quick,
        data_folder=given.data_folder,
        rounds=given.rounds,
        clients=given.clients,
        series=given.series,
        plain_workers=given.plain_workers,
        seconds=given.seconds,
        copies=given.copies,
    )
    for what in WHAT if given.what == "all" else (given.what,):
        here = replace(options, device=torch.device("cpu")) if what in ON_A_CPU else options
        common.say(f"measuring {what} on {here.device.type}")
        place = common.write(
            import_module(WHAT[what]).measure(here), what, here.device, _command(what, given), given.out
        )
        print(place.read_text(encoding="utf-8"))


def _command(what: str, given: argparse.Namespace) -> str:
    """The command that measures this again; a folder is somebody's own, and stands as DIR."""
    defaults = vars(parser().parse_args([what]))
    words = ["python benchmarks/run.py", what]
    for name, value in vars(given).items():
        if name in ("what", "out") or value == defaults[name]:
            continue
        flag = "--" + name.replace("_", "-")
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        words.append(flag if value is True else f"{flag} {'DIR' if name == 'data_folder' else shown}")
    return " ".join(words)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


if __name__ == "__main__":
    main()
