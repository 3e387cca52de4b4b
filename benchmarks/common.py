"""What the measurements share: the machine, images that cost no download, clocks, and the tables that are left."""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from mapl import Dataset, Images, MaplError, Recipe
from mapl.engine.workers import cores
from mapl.paper.machine import cpu_name
from mapl.runs.client_data import load_data

# As mapl itself does; but here CUDA starts, and reads it, before mapl is asked for anything.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

Row = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """What the command line said."""

    device: torch.device
    quick: bool = False
    data_folder: Path | None = None
    rounds: int = 3
    clients: tuple[int, ...] = ()
    series: tuple[str, ...] = ()
    plain_workers: int | None = None
    seconds: float = 120.0
    copies: bool = False


@dataclass
class Report:
    """One measurement: what it says in words, its tables by title, and the facts that a program would want."""

    title: str
    words: str
    tables: dict[str, list[Row]] = field(default_factory=dict)
    facts: Row = field(default_factory=dict)


def say(text: str) -> None:
    """Progress, for people: on stderr."""
    print(text, file=sys.stderr, flush=True)


def machine(device: torch.device) -> Row:
    found: Row = {
        "CPU": cpu_name(),
        "cores": cores(),
        "torch": torch.__version__,
        "Python": platform.python_version(),
    }
    if device.type == "cuda":
        found["GPU"] = torch.cuda.get_device_name(device)
    return found


def synthetic(image: tuple[int, int, int], train: int, test: int, classes: int = 10) -> Dataset:
    """Random images, `train` and `test` of each class: for speed their content does not matter."""
    draw = torch.Generator().manual_seed(0)

    def split(each: int) -> Images:
        labels = torch.arange(classes).repeat_interleave(each)
        return Images(torch.randint(256, (len(labels), *image), generator=draw, dtype=torch.uint8), labels)

    half = (0.5,) * image[0]
    return Dataset("synthetic", split(train), split(test), classes, half, half)


def published(recipe: Recipe) -> Dataset | None:
    """The data set that a recipe names, if its files are here."""
    try:
        return load_data(recipe)
    except MaplError as error:
        say(f"{error}\n… so the images are synthetic, of the same shape")
        return None


def finish(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Stopwatch:
    """Seconds from here to `stop`, the device's work included."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        finish(device)
        self.start = time.perf_counter()

    def stop(self) -> float:
        finish(self.device)
        return time.perf_counter() - self.start


class PeakMemory:
    """The most memory, of the GPU and of the host, that was in use since this was made; GiB."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.init()
            torch.cuda.reset_peak_memory_stats(device)
        reset = Path("/proc/self/clear_refs")
        if reset.exists():  # Linux: the high-water mark starts anew; elsewhere it is the whole process's
            reset.write_text("5")

    def gpu(self) -> float | None:
        return torch.cuda.max_memory_allocated(self.device) / 2**30 if self.device.type == "cuda" else None

    def host(self) -> float:
        status = Path("/proc/self/status")
        lines = status.read_text().splitlines() if status.exists() else []
        marks = [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
        return (marks[0] if marks else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 2**20


def middle(seconds: Sequence[float]) -> float:
    return statistics.median(seconds)


def write(report: Report, name: str, device: torch.device, command: str, folder: Path) -> Path:
    """Leave a measurement as Markdown for people and as JSON for programs."""
    about_machine = machine(device)
    facts = {"date": datetime.now(UTC).date().isoformat(), "machine": about_machine, "command": command}
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{name}-{device.type}.md"
    about = ", ".join(f"{key} {value}" for key, value in about_machine.items())
    lines = [
        f"# {report.title}",
        "",
        f"Measured on {facts['date']}: {about}.",
        "",
        f"    {command}",
        "",
        report.words,
        "",
    ]
    for title, rows in report.tables.items():
        lines += [f"## {title}", "", *markdown(rows), ""]
    place.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    tree = {**facts, "title": report.title, "tables": report.tables, **report.facts}
    place.with_suffix(".json").write_text(json.dumps(tree, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return place


def markdown(rows: Sequence[Row]) -> list[str]:
    heads = list(dict.fromkeys(key for row in rows for key in row))
    body = ["| " + " | ".join(_cell(row.get(head)) for head in heads) + " |" for row in rows]
    return ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads), *body]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
