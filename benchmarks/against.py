"""Two versions of mapl on the same work: rounds, memory and checkpoints, in processes that take turns.

    git worktree add DIR COMMIT
    python benchmarks/against.py --before DIR/src [--device cuda] [--repeats 2]

Each case runs in a fresh process per version and repeat, before, after, before, after, …, so that a disturbance meets
both. Images are synthetic. The table goes to results/against-DEVICE.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
SMALL = ["mlp", "cnn", "residual", "separable"]
LARGE = ["resnet18", "shufflenet", "googlenet", "alexnet"]


def case(
    method: str, backbones: list[str], data: str, clients: int, rounds: int, shots: int, **over: Any
) -> dict[str, Any]:
    tree = {
        "clients": clients,
        "rounds": rounds,
        "method": {"name": method, **over},
        "data": {"name": data},
        "model": {"backbones": backbones},
        "partition": {"shots": shots, "stride": 0},
        "evaluate": {"every": max(1, rounds // 2)},
        "checkpoint": {"every": rounds, "keep": 1},
    }
    return {"image": [3, 32, 32] if data == "cifar10" else [1, 28, 28], "shots": shots, "tree": tree}


GRAPH = {"warmup": 0, "graph": {"step_size": 1e-7}}
CASES = {
    "cpu": {
        "MAPL, 10 clients, four small backbones": case("mapl", SMALL, "fashionmnist", 10, 8, 60, **GRAPH),
        "FedAvg, 10 clients, cnn": case("fedavg", ["cnn"], "fashionmnist", 10, 8, 60),
        "Local, 10 clients, cnn": case("local", ["cnn"], "fashionmnist", 10, 8, 60),
    },
    "cuda": {
        "MAPL, 20 clients, the paper's four backbones": case("mapl", LARGE, "cifar10", 20, 40, 300, **GRAPH),
        "FedAvg, 20 clients, resnet18": case("fedavg", ["resnet18"], "cifar10", 20, 40, 300),
        "Local, 20 clients, the paper's four backbones": case("local", LARGE, "cifar10", 20, 40, 300),
    },
}


def child(work: dict[str, Any], device: str) -> None:
    """One run of one version, measured; prints one line of JSON."""
    import torch

    import mapl

    draw, shots = torch.Generator().manual_seed(0), work["shots"]

    def images(each: int) -> Any:
        labels = torch.arange(10).repeat_interleave(each)
        pixels = torch.randint(256, (len(labels), *work["image"]), generator=draw, dtype=torch.uint8)
        return mapl.Images(pixels, labels)

    channels = work["image"][0]
    half = (0.5,) * channels
    clients = work["tree"]["clients"]
    data = mapl.Dataset("synthetic", images(shots), images(15 * clients), 10, half, half)
    laps: list[dict[str, float]] = []
    recipe = mapl.Recipe.of(**work["tree"], engine={"device": device})
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        mapl.run(recipe, Path(place) / "run", data=data, observers=[lambda r, line, seconds: laps.append(seconds)])
        total = time.perf_counter() - start
        saved = max((Path(place) / "run" / "checkpoints").iterdir()).stat().st_size
    rounds = [sum(v for k, v in lap.items() if k != "checkpoint") for lap in laps]
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(json.dumps({
        "round": median(rounds[2:]), "train": median(lap["train"] for lap in laps[2:]),
        "exchange": median(lap["exchange"] for lap in laps[2:]), "first": rounds[0], "total": total,
        "checkpoint_mb": saved / 1e6, "host_mb": host,
        "gpu_mb": torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None,
    }))  # fmt: skip


def run_child(source: Path, work: dict[str, Any], device: str) -> dict[str, float]:
    path = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(HERE / "against.py"), "--child", json.dumps(work), "--device", device]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def compare(before: Path, device: str, repeats: int, only: str) -> list[dict[str, Any]]:
    rows = []
    for title, work in CASES[device].items():
        if only not in title:
            continue
        found: dict[str, list[dict[str, float]]] = {"before": [], "after": []}
        for _ in range(repeats):
            for version, source in (("before", before), ("after", HERE.parent / "src")):
                found[version].append(run_child(source, work, device))
                print(title, version, json.dumps(found[version][-1]), file=sys.stderr, flush=True)
        for version, runs in found.items():
            rows.append({"case": title, "version": version, **{k: _middle(runs, k) for k in runs[0]}})
    return rows


def _middle(runs: list[dict[str, float]], key: str) -> float | None:
    values = [run[key] for run in runs if run[key] is not None]
    return median(values) if values else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="The src folder of the version to compare with.")
    parser.add_argument("--device", choices=CASES, default="cpu")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--only", default="", help="Cases with this in their name.")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(json.loads(given.child), given.device)
        return
    rows = compare(given.before.resolve(), given.device, given.repeats, given.only)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / f"against-{given.device}.json").write_text(json.dumps(rows, indent=1) + "\n")
    (given.out / f"against-{given.device}.md").write_text(_table(rows, given))


COLUMNS = {
    "s per round": "round", "training, s": "train", "exchange, s": "exchange", "first round, s": "first",
    "whole run, s": "total", "checkpoint, MB": "checkpoint_mb", "host memory, MB": "host_mb",
    "GPU memory, MB": "gpu_mb",
}  # fmt: skip


def _table(rows: list[dict[str, Any]], given: argparse.Namespace) -> str:
    """Both versions of each case, and the ratio."""
    columns = {title: key for title, key in COLUMNS.items() if rows[0][key] is not None}
    lines = [
        "# This version against the one before",
        "",
        f"    python benchmarks/against.py --before DIR/src --device {given.device} --repeats {given.repeats}",
        "",
        f"Medians of {given.repeats} processes each, which took turns; of a run's rounds the median after the second.",
        "",
        "| case | version | " + " | ".join(columns) + " |",
        "|---|---|" + "---|" * len(columns),
    ]
    for before, after in zip(rows[::2], rows[1::2], strict=True):
        for row in (before, after):
            cells = " | ".join(f"{row[key]:.4g}" for key in columns.values())
            lines.append(f"| {row['case']} | {row['version']} | {cells} |")
        ratios = " | ".join(f"{after[key] / before[key]:.3f}" if before[key] else "" for key in columns.values())
        lines.append(f"| | after / before | {ratios} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
