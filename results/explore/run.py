"""Looking around against the full mesh: accuracy, the graphs that clients learn, and messages, on digits.

    python results/explore/run.py                         what is missing, then the page
    python results/explore/run.py --settings 20 --methods courier
    python results/explore/run.py --tune                  the runs that the defaults were chosen by
    python results/explore/run.py --page                  run nothing, write the page

A finished run is a line of runs.jsonl and is not repeated. One that was stopped resumes. One run at a time, one thread.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import networkx as nx
from torch import Tensor

import mapl
from mapl.analysis.clusters import share_inside
from mapl.analysis.compare import Estimate
from mapl.network import ExploreSettings
from mapl.recipe import Recipe
from mapl.runs.folder import RECIPE
from mapl.runs.record import Record
from mapl.trees import Tree, merge

HERE = Path(__file__).parent
STORE, PAGE = HERE / "runs.jsonl", HERE / "README.md"
Row = dict[str, Any]

COMMON: Tree = {
    "data": "digits",
    "rounds": 45,
    "evaluate": {"moment": "mixed", "every": 15},
    "engine": {"device": "cpu", "workers": 1},
    "checkpoint": {"every": 15, "keep": 1},
}


def network(name: str, **settings: Any) -> Tree:
    return {"network": {"topology": {"name": name, **settings}}}


COURIER: Tree = {"method": {"name": "courier"}}
MAPL: Tree = {"method": {"name": "mapl"}}
STEPS: Tree = {"method": {"name": "mapl", "graph": {"steps": 10}}}
ARMS: dict[str, Tree] = {
    "courier, no letters": merge(COURIER, network("none")),
    "courier, full mesh": COURIER,
    "courier, 8 at random": merge(COURIER, network("regular", degree=8)),
    "courier, explore": merge(COURIER, network("explore")),
    "mapl, full mesh": MAPL,
    "mapl, explore": merge(MAPL, network("explore")),
    "mapl with 10 steps, full mesh": STEPS,
    "mapl with 10 steps, explore": merge(STEPS, network("explore")),
}


@dataclass(frozen=True)
class Setting:
    title: str
    tree: Tree
    seeds: Sequence[int]
    arms: Sequence[str]


OF_COURIER = [arm for arm in ARMS if arm.startswith("courier")]
HUNDRED: Tree = {"clients": 100, "partition": {"shots": 2}}
SETTINGS: dict[str, Setting] = {
    "20": Setting("20 clients, two clusters of 10", {"clients": 20}, range(5), list(ARMS)),
    "20-three": Setting(
        "20 clients, three clusters of 7, 7 and 6",
        {"clients": 20, "partition": {"clusters": 3}},
        range(3),
        [*OF_COURIER, "mapl with 10 steps, full mesh", "mapl with 10 steps, explore"],
    ),
    "20-long": Setting(
        "20 clients, two clusters of 10, 150 rounds",
        {"clients": 20, "rounds": 150},
        range(3),
        ["mapl, full mesh", "mapl, explore"],
    ),
    "100": Setting("100 clients, two clusters of 50", HUNDRED, range(3), list(ARMS)),
    "100-five": Setting(
        "100 clients, five clusters of 20", merge(HUNDRED, {"partition": {"clusters": 5}}), range(3), OF_COURIER[1:]
    ),
}


def looking(**settings: float) -> str:
    """The name of an arm with these settings of the rule; it is added to the arms."""
    name = ", ".join(["courier", *(f"{key} {value:g}" for key, value in settings.items())])
    ARMS[name] = merge(COURIER, network("explore", explore=settings))
    return name


KEEP = [looking(keep=keep) for keep in (2, 4, 6, 8, 12)]
RATES = [
    *(looking(keep=8, looks=looks) for looks in (1, 4)),
    *(looking(keep=8, again=again) for again in (0, 1)),
]
TUNING: dict[str, Setting] = {
    "tune-20": Setting(
        "20 clients, two clusters of 10", {"clients": 20}, range(100, 102), ["courier, full mesh", *KEEP[:4], *RATES]
    ),
    "tune-100": Setting("100 clients, two clusters of 50", HUNDRED, range(100, 101), ["courier, full mesh", *KEEP[1:]]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="*", choices=[*SETTINGS, *TUNING], metavar="NAME", help=", ".join(SETTINGS))
    parser.add_argument("--methods", nargs="*", choices=["courier", "mapl"], default=["courier", "mapl"])
    parser.add_argument("--seeds", nargs="*", type=int, help="only these")
    parser.add_argument("--tune", action="store_true", help="the runs that the defaults were chosen by")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page")
    parser.add_argument("--out", type=Path, default=Path("runs/explore"), help="folder for the runs")
    options = parser.parse_args()
    chosen = options.settings or list(TUNING if options.tune else SETTINGS)
    if not options.page:
        for name in chosen:
            run_missing(name, options)
    PAGE.write_text("\n".join(page(stored())) + "\n", encoding="utf-8")


def run_missing(name: str, options: argparse.Namespace) -> None:
    setting = (SETTINGS | TUNING)[name]
    arms = [arm for arm in setting.arms if arm.split()[0].strip(",") in options.methods]
    runs = [(seed, arm) for seed in setting.seeds for arm in arms if options.seeds is None or seed in options.seeds]
    done = {(row["setting"], row["arm"], row["seed"], row["fingerprint"]) for row in stored()}
    for number, (seed, arm) in enumerate(runs, start=1):
        recipe = Recipe.of(**merge(merge(COMMON, setting.tree), {**ARMS[arm], "seed": seed}))
        if (name, arm, seed, recipe.fingerprint()) in done:
            continue
        record = finished(recipe, options.out / f"{name}-{arm}-{seed}".replace(", ", "-").replace(" ", "-"))
        row = {"setting": name, "arm": arm, **summary(record)}
        with STORE.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        text = f"{name} {number}/{len(runs)}: {arm}, seed {seed}: {100 * row['accuracy']:.1f} %, {row['seconds']:.0f} s"
        print(text, file=sys.stderr, flush=True)


def finished(recipe: Recipe, folder: Path) -> Record:
    """The whole run; what an earlier, stopped start has left is not repeated."""
    if (folder / RECIPE).exists():
        record = mapl.resume(folder)
        if record.recipe.fingerprint() == recipe.fingerprint():
            return record
    record = mapl.run(recipe, folder, overwrite=True)
    shutil.rmtree(folder / "checkpoints")
    return record


def stored() -> list[Row]:
    return [json.loads(line) for line in STORE.read_text(encoding="utf-8").splitlines()] if STORE.exists() else []


def summary(record: Record) -> Row:
    """What the page needs of one run."""
    clusters = [client.cluster for client in record.clients]
    weights = record.weights()
    return {
        "seed": record.recipe.seed,
        "fingerprint": record.recipe.fingerprint(),
        "rounds": len(record.rounds),
        "clients": len(clusters),
        "accuracy": record.mean,
        "curve": [[line.round + 1, fmean(line.accuracy or [])] for line in record.tested],
        "messages": record.messages,
        "inside": share_inside(weights, clusters),
        "weak": connected(weights, clusters, nx.is_weakly_connected),
        "strong": connected(weights, clusters, nx.is_strongly_connected),
        "listens": float((weights.fill_diagonal_(0) > 0).sum(1).double().mean()),
        "found": found_in(record, clusters),
        "seconds": round(record.seconds, 1),
    }


def connected(weights: Tensor, clusters: Sequence[int], way: Any) -> bool:
    """Whether the clients of each true cluster are connected by who listens to whom among them."""
    graph = nx.from_numpy_array(weights.numpy() > 0, create_using=nx.DiGraph)
    members = [[i for i, one in enumerate(clusters) if one == cluster] for cluster in set(clusters)]
    return all(way(graph.subgraph(some)) for some in members)


def found_in(record: Record, clusters: Sequence[int]) -> int | None:
    """The first round (from 1) after which every cluster is strongly connected and 99 % of the weight is inside."""
    for line, weights in record.graphs() if record.graph.exists else ():
        if (share_inside(weights, clusters) or 0) >= 0.99 and connected(weights, clusters, nx.is_strongly_connected):
            return line.round + 1
    return None


# The page


def page(rows: Sequence[Row]) -> Iterator[str]:
    use = ExploreSettings()
    yield "# Looking around"
    yield ""
    yield (
        "Written by [`run.py`](run.py) from [`runs.jsonl`](runs.jsonl). "
        "[`docs/explore.md`](../../docs/explore.md) explains the rule."
    )
    yield ""
    yield (
        "Handwritten digits, scenario 1, four backbones, tested after mixing; 45 rounds if nothing is said. With "
        "20 clients 5 training images per class and client, with 100 clients 2. *Explore*: every client starts with "
        f"{use.contacts} contacts drawn at random (`contacts = {use.contacts}`, `looks = {use.looks}`, "
        f"`keep = {use.keep}`, `again = {use.again:g}`). *8 at random*: a fixed network in which every client reaches "
        "8 others, who may be of any cluster. *With 10 steps*: `method.graph.steps = 10`, not 1. ± is the 95 % "
        "interval over seeds."
    )
    yield ""
    yield "- Against the full mesh: the difference in accuracy, seed by seed."
    yield "- Inside: the share of the weight given to others that stays inside the true clusters, at the end."
    yield "- Listens to: peers with weight at the end, mean over clients."
    yield (
        "- Weakly, strongly: in how many seeds every true cluster is connected at the end by who listens to whom of "
        "its own."
    )
    yield (
        "- Found: the first round after which every true cluster is strongly connected and 99 % of the weight is "
        "inside, median over seeds."
    )
    yield "- Messages of the whole run. Of the full mesh's: relative to the same method and seed on the full mesh."
    yield "- Of M(M − 1): relative to every client reading every other in every round."
    for name, setting in SETTINGS.items():
        yield from table(name, setting, rows)
    yield ""
    yield "## How the defaults were chosen"
    yield ""
    yield "The courier, on other seeds than above. A setting that is not named has the default above."
    for name, setting in TUNING.items():
        yield from table(name, setting, rows, "###")


TITLES = (
    "accuracy, %",
    "against the full mesh",
    "inside",
    "listens to",
    "weakly",
    "strongly",
    "found",
    "messages",
    "of the full mesh's",
    "of M(M − 1)",
)


def table(name: str, setting: Setting, rows: Iterable[Row], level: str = "##") -> Iterator[str]:
    by_arm = {arm: [row for row in rows if (row["setting"], row["arm"]) == (name, arm)] for arm in setting.arms}
    by_arm = {arm: sorted(found, key=lambda row: row["seed"]) for arm, found in by_arm.items() if found}
    if not by_arm:  # not run yet
        return
    seeds = sorted({row["seed"] for found in by_arm.values() for row in found})
    yield ""
    yield f"{level} {setting.title}, {len(seeds)} seed{'s' if len(seeds) != 1 else ''}"
    yield ""
    yield f"| method, network | {' | '.join(TITLES)} |"
    yield "|---" * (1 + len(TITLES)) + "|"
    for arm, found in by_arm.items():
        full = by_arm.get(full_mesh_of(arm), [])
        yield f"| {arm} | {' | '.join(cells(found, full))} |"


def full_mesh_of(arm: str) -> str:
    return f"{arm.split(',')[0]}, full mesh"


def cells(found: Sequence[Row], full: Sequence[Row]) -> Iterator[str]:
    """The cells of a line, from its runs and those on the full mesh."""
    pairs = [(row, other) for row in found for other in full if row["seed"] == other["seed"]]
    letters = any(row["messages"] for row in found)
    yield Estimate.of([row["accuracy"] for row in found]).text()
    yield (
        Estimate.of([a["accuracy"] - b["accuracy"] for a, b in pairs]).text(sign="+") if pairs and found != full else ""
    )
    if not letters:
        yield from [""] * 5 + ["0", "", ""]
        return
    # Rounded down, so that 1.00 is all of it.
    yield f"{math.floor(1000 * fmean(row['inside'] for row in found) + 1e-9) / 1000:.3f}"
    yield f"{fmean(row['listens'] for row in found):.1f}"
    yield from (f"{sum(row[way] for row in found)} of {len(found)}" for way in ("weak", "strong"))
    rounds = sorted(row["found"] or row["rounds"] + 1 for row in found)
    middle = rounds[len(rounds) // 2]
    yield f"{middle}" if middle <= found[0]["rounds"] else "not"
    yield f"{fmean(row['messages'] for row in found):,.0f}"
    yield f"{fmean(a['messages'] / b['messages'] for a, b in pairs):.0%}" if pairs and found != full else ""
    most = [row["clients"] * (row["clients"] - 1) * row["rounds"] for row in found]
    yield f"{fmean(row['messages'] / some for row, some in zip(found, most, strict=True)):.0%}"


if __name__ == "__main__":
    main()
