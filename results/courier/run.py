"""Couriers and their rivals in the modern protocol: accuracy, gain, share of the way to pooled data, messages, bytes.

    mapl data get cifar10
    python results/courier/run.py --seeds 0 1 2 --minutes 25      # runs what is missing, and stops in time
    python results/courier/run.py --page                          # writes the tables from the store

Every finished run is one line of the store, so a run is never repeated, and stores of several machines can be
concatenated. `--arms` takes some of the arms below; `--set` overrides any setting for a trial, which is compared with
controls of the same settings alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

import mapl
from mapl.analysis.compare import Estimate
from mapl.data.loading import keeping_data
from mapl.data.partition import cluster_classes
from mapl.paper.machine import device_name, versions
from mapl.recipe import Recipe, assignment, compose, read
from mapl.runs.record import Record
from mapl.trees import Tree

HERE = Path(__file__).parent
RECIPE = HERE.parents[1] / "recipes" / "modern" / "heterogeneous.toml"
STORE = HERE / "runs.jsonl"
ALONE: Tree = {"network": {"topology": {"name": "none"}}}
POOLED: Tree = {"partition": {"pooled": True}, **ALONE}

ARMS: dict[str, Tree] = {
    "courier": {"method": "courier"},
    "courier alone": {"method": "courier", **ALONE},
    "mutual at home": {"method": "mutual"},
    "mapl": {"method": {"name": "mapl", "warmup": 20}},
    "mapl alone": {"method": {"name": "mapl"}, **ALONE},
    "local": {"method": "local"},
    "fedproto": {"method": "fedproto"},
    "mapl+": {"method": {"name": "mapl+", "warmup": 20}},
    "proxyfl": {"method": "proxyfl"},
    "proxyfl alone": {"method": "proxyfl", **ALONE},
    "fml": {"method": "fml"},
    "courier, pooled data, equal steps": {"method": "courier", **POOLED},  # and the steps of a client alone
    "courier, pooled data": {"method": "courier", **POOLED},
    "courier, bfloat16": {"method": "courier", "network": {"compress": {"kind": "bfloat16"}}},
    "courier, int8": {"method": "courier", "network": {"compress": {"kind": "int8"}}},
    "courier, top-k": {"method": "courier", "network": {"compress": {"kind": "top-k"}}},
    "courier, every 2": {"method": {"name": "courier", "every": 2}},
    "courier, every 5": {"method": {"name": "courier", "every": 5}},
    "courier, int8, every 2": {
        "method": {"name": "courier", "every": 2},
        "network": {"compress": {"kind": "int8"}},
    },
}
CONTROLS = {
    "courier": "courier alone",
    "mapl": "mapl alone",
    "mapl+": "mapl alone",
    "fedproto": "local",
    "proxyfl": "proxyfl alone",
    "fml": "proxyfl alone",
}
"""The same training without letters. Arms of the courier with other letters have the courier's."""
CEILING = "courier, pooled data"
SETTING_UP = 25
"""Seconds beside a run's rounds, on a machine that has built its kernels; the first run takes as long again."""

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="*", choices=list(ARMS), default=list(ARMS)[:11], metavar="ARM")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--scenario", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir", help="folder with the data set's files")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", dest="settings")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no run that would not end in this time")
    parser.add_argument("--store", type=Path, default=STORE)
    parser.add_argument("--out", type=Path, default=Path("runs/courier"), help="folder for the runs")
    parser.add_argument("--page", action="store_true", help="run nothing, print the tables")
    options = parser.parse_args()
    if options.page:
        print("\n".join(page(stored(options.store))))
        return
    run_missing(options)


def run_missing(options: argparse.Namespace) -> None:
    """Run what the store does not have, seed by seed, while there is time."""
    end = time.monotonic() + 60 * options.minutes
    with keeping_data():
        for seed in options.seeds:
            for arm in options.arms:
                recipe = recipe_of(arm, seed, options)
                rows = stored(options.store)
                if any(row["arm"] == arm and row["fingerprint"] == fingerprint(recipe) for row in rows):
                    print(f"{arm}, seed {seed}: in {options.store} already", flush=True)
                    continue
                if time.monotonic() + expected_seconds(rows, arm, recipe) > end:
                    print(f"{arm}, seed {seed}: no time left", flush=True)
                    continue
                record = finished(recipe, options.out / fingerprint(recipe))
                row = {"arm": arm, "settings": sorted(options.settings), **summary(record)}
                options.store.parent.mkdir(parents=True, exist_ok=True)
                with options.store.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(f"{arm}, seed {seed}: {100 * row['answers']:.1f} % in {row['seconds']:.0f} s", flush=True)


def recipe_of(arm: str, seed: int, options: argparse.Namespace) -> Recipe:
    method = ARMS[arm]["method"]
    own = {**ARMS[arm], "method": {"name": method} if isinstance(method, str) else method}
    layers: list[Tree] = [
        read(RECIPE),
        {"data": {"name": options.data, **({"folder": options.data_dir} if options.data_dir else {})}},
        {"seed": seed, "rounds": options.rounds, "partition": {"scenario": options.scenario}},
        {"checkpoint": {"every": 10**6, "keep": 1}},
        own,
        *(assignment(text) for text in options.settings),
    ]
    recipe = compose(*(("recipe", layer) for layer in layers))[0]
    if arm.endswith("equal steps"):
        steps = {"train": {"steps": steps_alone(recipe)}}
        recipe = compose(*(("recipe", layer) for layer in [*layers, steps]))[0]
    return recipe


def steps_alone(recipe: Recipe) -> int:
    """Steps per epoch of a client with its own images, where all clients have as many."""
    use = recipe.partition
    if use.scheme != "scenario" or use.scenario not in (1, 2):
        raise SystemExit("equal steps: only where all clients have as many images (scenarios 1 and 2)")
    return len(cluster_classes(use, 10)[0]) * use.shots // recipe.train.batch


def fingerprint(recipe: Recipe) -> str:
    """Equal for equal runs of equal length."""
    return f"{recipe.fingerprint()}-{recipe.rounds}"


def finished(recipe: Recipe, folder: Path) -> Record:
    record = mapl.run(recipe, folder, overwrite=True)
    shutil.rmtree(folder / "checkpoints")
    # A run's models refer to each other, and Python would free them and their memory on the GPU much later.
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return record


def expected_seconds(rows: Sequence[Row], arm: str, recipe: Recipe) -> float:
    """From a run of this arm, or else of its method, on any machine; nothing known: a guess. With what is not counted
    as a round: setting up and the last checkpoint."""
    method = arm.partition(",")[0]
    of_arm = [row for row in rows if row["arm"] == arm]
    of_method = [row for row in rows if row["arm"].partition(",")[0] == method and "pooled" not in row["arm"]]
    times = [row["seconds"] / row["rounds"] for row in of_arm or of_method]
    more = 1 if of_arm else images_times(recipe)
    return SETTING_UP + recipe.rounds * more * (max(times) if times else 0.4)


def images_times(recipe: Recipe) -> float:
    """How many times as many images a client trains on in a round as it has itself, at most."""
    if not recipe.partition.pooled or recipe.train.steps is not None:
        return 1
    return recipe.clients / recipe.partition.clusters


def summary(record: Record) -> Row:
    """What the tables need of one run."""
    recipe, last = record.recipe, record.tested[-1]
    images = "all_images" if recipe.evaluate.all_images else "accuracy"
    return {
        "fingerprint": fingerprint(recipe),
        "data": recipe.data.name,
        "scenario": recipe.partition.scenario,
        "seed": recipe.seed,
        "rounds": len(record.rounds),
        "answers": fmean(getattr(last, images)),
        "ways": record.ways,
        "few_images": record.mean,
        "clients": [round(x, 4) for x in getattr(last, images)],
        "curve": [[r.round, round(fmean(getattr(r, images)), 4)] for r in record.tested],
        "exact_from": exact_from(record),
        "edges": edges(record),
        "messages": record.messages,
        "bytes": record.bytes,
        "seconds": round(record.seconds, 1),
        "device": device_name(recipe),
        **versions(),
    }


def edges(record: Record) -> list[list[int]]:
    """[round, how many listen to a client of their cluster, to a client of another], for some of the rounds."""
    same = same_cluster(record)
    return [
        [line.round, int(((weights > 0) & same).sum()), int(((weights > 0) & ~same).sum())]
        for line, weights in (record.graphs() if record.graph.exists else ())
        if line.round < 20 or (line.round + 1) % 10 == 0
    ]


def same_cluster(record: Record) -> Tensor:
    """(M, M) booleans."""
    clusters = torch.tensor([client.cluster for client in record.clients])
    return clusters[:, None] == clusters


def exact_from(record: Record) -> int | None:
    """The round from which on every client listened to its whole cluster and to nobody else; None if never."""
    same = same_cluster(record)
    first: int | None = None
    for line, weights in record.graphs() if record.graph.exists else ():
        exact = bool(((weights > 0) == same).all())
        first = (line.round if first is None else first) if exact else None
    return first


# The page


def stored(store: Path) -> list[Row]:
    return [json.loads(line) for line in store.read_text().splitlines()] if store.exists() else []


def page(rows: Sequence[Row]) -> Iterator[str]:
    """A table per setting. Arms are compared only with arms of the same data, rounds and settings."""
    for data, scenario, rounds, *settings in sorted({setting(row) for row in rows}):
        some = [row for row in rows if setting(row) == (data, scenario, rounds, *settings)]
        device = ", ".join(sorted({row["device"] for row in some}))
        title = ", ".join([data, f"scenario {scenario}", f"{rounds} rounds", *settings])
        yield from (f"### {title}", "", f"On {device}.", "")
        yield (
            "| arm | seeds | answers, % | gain, points | way to pooled | own network, % | its gain "
            "| over mutual at home | clusters exact from round | messages | MB | s |"
        )
        yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
        for arm in dict.fromkeys(row["arm"] for row in some):
            yield f"| {' | '.join(cells(arm, some))} |"
        yield ""


def setting(row: Row) -> tuple[Any, ...]:
    return (row["data"], row["scenario"], row["rounds"], *row["settings"])


def by_seed(rows: Sequence[Row], arm: str) -> dict[int, Row]:
    """The runs of an arm. Two different runs of one arm and seed would be one too many."""
    runs = {row["seed"]: row for row in rows if row["arm"] == arm}
    for row in rows:
        if row["arm"] == arm and row["fingerprint"] != runs[row["seed"]]["fingerprint"]:
            raise SystemExit(f"the store has two different runs of arm {arm!r}, seed {row['seed']}: remove one")
    return runs


def cells(arm: str, rows: Sequence[Row]) -> Iterator[str]:
    runs = by_seed(rows, arm)
    base = arm.partition(",")[0]
    control = by_seed(rows, CONTROLS[base]) if base in CONTROLS and "pooled" not in arm else {}
    yield from (arm, str(len(runs)), text(runs, "answers"), difference(runs, control, "answers"))
    yield way_to_pooled(runs, control, by_seed(rows, CEILING)) if base == "courier" else ""
    yield from (text(runs, "own"), difference(runs, control, "own"))
    yield difference(runs, by_seed(rows, "mutual at home"), "answers") if control else ""
    rounds = [row["exact_from"] for row in runs.values()]
    yield ", ".join("never" if r is None else str(r) for r in rounds) if any(r is not None for r in rounds) else ""
    yield f"{fmean(row['messages'] for row in runs.values()):,.0f}"
    yield f"{fmean(row['bytes'] for row in runs.values()) / 1e6:,.0f}"
    yield f"{fmean(row['seconds'] for row in runs.values()):.0f}"


def way_to_pooled(runs: dict[int, Row], control: dict[int, Row], ceiling: dict[int, Row]) -> str:
    """The gain as a share of what the same networks gain from all data of their cluster."""
    shared = sorted(runs.keys() & control.keys() & ceiling.keys())
    room = [ceiling[s]["answers"] - control[s]["answers"] for s in shared]
    if not shared or min(room) <= 0:
        return ""
    way = [(runs[s]["answers"] - control[s]["answers"]) / r for s, r in zip(shared, room, strict=True)]
    return Estimate.of(way).text() + " %"


def value(row: Row, what: str) -> float | None:
    number = row["answers"] if what == "answers" else row["ways"].get(what)
    return None if number is None else float(number)


def text(runs: dict[int, Row], what: str) -> str:
    values = [x for row in runs.values() if (x := value(row, what)) is not None]
    return Estimate.of(values).text() if values else ""


def difference(runs: dict[int, Row], control: dict[int, Row], what: str) -> str:
    pairs = [(value(runs[s], what), value(control[s], what)) for s in sorted(runs.keys() & control.keys())]
    values = [a - b for a, b in pairs if a is not None and b is not None]
    return Estimate.of(values).text(sign="+") if values else ""


if __name__ == "__main__":
    main()
