"""Damaged copies of a small run, and what the commands make of them: the fuzzer behind test_damage.py.

    python tests/damaged_runs.py 1000 [FIRST SEED]

prints how many of 1,000 damaged folders were named, repaired or harmless, and fails if one changed a number silently.
"""

from __future__ import annotations

import json
import random
import re
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

import mapl
from conftest import in_silence, small, stop_after, told, written
from mapl import MaplError, Recipe, Record
from mapl.analysis.compare import compare
from mapl.data.loading import keeping_data
from mapl.errors import warn
from mapl.report import run_report
from mapl.runs.export import export_run

ROUNDS = 4
PLAYED = 3
FILES = ("recipe.toml", "clients.json", "history.jsonl", "times.jsonl", "graph.rows", "graph.index")
SLOWEST = 20.0
"""Seconds that a command may take on a damaged folder. An intact one takes a tenth of a second on a quiet machine."""
LARGEST = 500.0
"""MiB by which memory may grow, whatever was damaged and however many folders."""
ODD = ("9.0", "-1", "NaN", "Infinity", "1e308", "9" * 400, "null", '"text"', "[]", "{}", "true", "0")


def make_npz(path: Path, seed: int) -> Path:
    draw = np.random.default_rng(seed)
    images = {f"{split}_images": draw.integers(0, 256, (40, 4, 4), dtype=np.uint8) for split in ("train", "test")}
    labels = {f"{split}_labels": np.arange(40) % 4 for split in ("train", "test")}
    np.savez(path, **images, **labels)
    return path


def tiny(data: Path, **over: Any) -> Recipe:
    return small(
        "mapl",
        **{"clients": 2, "rounds": ROUNDS, "seed": 0} | over,
        data={"name": "npz", "folder": data},
        method={"graph": {"step_size": 0.02}},
        partition={"clusters": 2, "sharding": "random"},
        model={"backbones": ["mlp"], "embedding": 4, "projection": 4, "hidden": 4},
        checkpoint={"every": 1, "keep": 3},
        engine={"device": "cpu", "workers": 1},
        augment={"contrastive": {"saturation": 0, "hue": 0, "greyscale": 0}},
    )


@dataclass
class Bench:
    """A run that was stopped before its last round, its relatives, and what the commands make of it undamaged."""

    root: Path
    expected: dict[str, Any] = field(default_factory=dict)

    @property
    def run(self) -> Path:
        return self.root / "runs" / "run"

    @staticmethod
    def build(root: Path) -> Bench:
        bench = Bench(root)
        data, other = make_npz(root / "data.npz", 0), make_npz(root / "other.npz", 1)
        mapl.run(tiny(data), bench.run, stop=stop_after(PLAYED))
        mapl.run(tiny(data), root / "whole")
        mapl.run(tiny(data, network={"topology": {"name": "none"}}), root / "control")
        # Relatives whose files look right: another seed, other data, and a shorter life.
        mapl.run(tiny(data, seed=1), root / "seed", stop=stop_after(PLAYED))
        mapl.run(tiny(other), root / "elsewhere", stop=stop_after(PLAYED))
        mapl.run(tiny(data), root / "shorter", stop=stop_after(PLAYED - 1))
        with in_silence():
            bench.expected = {name: command(bench, bench.run) for name, command in LOOKING.items()}
        bench.expected["resume"] = written(root / "whole")
        return bench


# What the commands find


def comparison(bench: Bench, folder: Path) -> Any:
    """All numbers of `mapl compare`. Where something is said about the seconds, they may differ, but nothing else."""
    record = mapl.load(folder)
    for remark in record.remarks:
        warn(remark)
    arms = json.loads(json.dumps([arm.as_dict() for arm in compare([record, mapl.load(bench.root / "control")])]))
    if record.remarks:
        arms[0]["seconds"] = bench.expected["compare"][0]["seconds"]
    return arms


def reported(bench: Bench, folder: Path) -> bytes:
    """The page of `mapl report`, without its pictures, which take a second each."""
    record: Record = mapl.load(folder)
    for remark in record.remarks:
        warn(remark)
    with no_pictures(), tempfile.TemporaryDirectory() as out:
        return run_report.write_report([record], Path(out)).read_bytes()


@contextmanager
def no_pictures() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_report.Document, "draw", lambda *_: None)
        patch.setattr(run_report, "embed", lambda record: str(sum(float(w.sum()) for _, w in record.graphs())))
        for module in (run_report.curves, run_report.maps):
            for name in [name for name in vars(module) if name.endswith("_figure")]:
                patch.setattr(module, name, lambda *_: None)
        yield


def exported(bench: Bench, folder: Path) -> dict[str, Any]:
    """Card and weights of each client. The bytes of a file depend on the order of its metadata, which is random."""
    contents: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as out:
        for path in export_run(folder, out):
            with safe_open(str(path), framework="np") as file:
                names = sorted(file.keys())
                contents[path.name] = file.metadata(), {name: file.get_tensor(name).tolist() for name in names}
    return contents


def resumed(bench: Bench, folder: Path) -> dict[str, bytes]:
    # A damaged recipe may ask for any number of rounds.
    mapl.resume(folder, stop=stop_after(2 * ROUNDS))
    return written(folder)


LOOKING: dict[str, Callable[[Bench, Path], Any]] = {
    "compare": comparison,
    "report": reported,
    "export": exported,
}
COMMANDS = {**LOOKING, "resume": resumed}


# Damage


def damage(bench: Bench, folder: Path, draw: random.Random) -> str:
    """Damage a copy of the run in one way, and say how."""
    files = [*FILES, *(str(path.relative_to(folder)) for path in (folder / "checkpoints").iterdir())]
    name = draw.choice([*FILES, *files, "history.jsonl", "history.jsonl"])
    kinds: list[Callable[[Path, random.Random], str]] = [flip, flip, truncate, append, clear, remove, into_folder]
    if not name.endswith("safetensors") and not name.startswith("graph"):
        kinds += [delete_line, repeat_line, swap_lines, *[edit_number] * 4]
    kinds += [lambda path, draw: swap_file(path, bench, draw)] * 2
    how = draw.choice(kinds)(folder / name, draw)
    return f"{name}: {how}"


def flip(path: Path, draw: random.Random) -> str:
    data = bytearray(path.read_bytes())
    place, bit = draw.randrange(len(data)), draw.randrange(8)
    data[place] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {place} flipped"


def truncate(path: Path, draw: random.Random) -> str:
    data = path.read_bytes()
    size = draw.randrange(len(data))
    path.write_bytes(data[:size])
    return f"cut to {size} of {len(data)} bytes"


def append(path: Path, draw: random.Random) -> str:
    extra = draw.choice([b"\0" * 64, b"\n", b"garbage", b"{}\n", path.read_bytes()[-40:]])
    path.write_bytes(path.read_bytes() + extra)
    return f"{extra[:12]!r} appended"


def clear(path: Path, draw: random.Random) -> str:
    path.write_bytes(b"")
    return "emptied"


def remove(path: Path, draw: random.Random) -> str:
    path.unlink()
    return "removed"


def into_folder(path: Path, draw: random.Random) -> str:
    path.unlink()
    path.mkdir()
    return "replaced by a folder"


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def delete_line(path: Path, draw: random.Random) -> str:
    lines = _lines(path)
    number = draw.randrange(len(lines))
    path.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))
    return f"line {number + 1} deleted"


def repeat_line(path: Path, draw: random.Random) -> str:
    lines = _lines(path)
    number = draw.randrange(len(lines))
    lines.insert(draw.randrange(len(lines) + 1), lines[number])
    path.write_bytes(b"".join(lines))
    return f"line {number + 1} repeated"


def swap_lines(path: Path, draw: random.Random) -> str:
    lines = _lines(path)
    a, b = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    path.write_bytes(b"".join(lines))
    return f"lines {a + 1} and {b + 1} swapped"


def edit_number(path: Path, draw: random.Random) -> str:
    text = path.read_text()
    place = draw.choice(list(re.finditer(r"(?<![\w.\"])-?\d+(\.\d+)?(e-?\d+)?", text)) or [None])  # type: ignore[list-item]
    if place is None:
        return "has no number"
    new = draw.choice([*ODD, str(int(float(place[0])) + 1)])
    path.write_text(text[: place.start()] + new + text[place.end() :])
    return f"{place[0]} became {new[:12]}"


def swap_file(path: Path, bench: Bench, draw: random.Random) -> str:
    """Replaced by the same file of another run, or by another checkpoint under its name."""
    relative = draw.choice(["seed", "elsewhere", "shorter", "whole", "control"])
    root = bench.root / relative
    if path.suffix == ".safetensors":
        theirs = draw.choice(sorted((root / "checkpoints").iterdir()))
        path.unlink()
        shutil.copy(theirs, path.parent / draw.choice([theirs.name, path.name]))
    elif (root / path.name).exists():
        shutil.copy(root / path.name, path)
    return f"replaced by that of {relative!r}"


# Verdicts


@dataclass
class Verdicts:
    """By command: how many damaged folders were named, repaired, remarked on, or harmless."""

    counts: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in COMMANDS})
    failures: list[str] = field(default_factory=list)
    slowest: float = 0.0
    grown_by: float = 0.0
    """MiB by which memory grew since the first folder."""


def judge(bench: Bench, seeds: Sequence[int], verdicts: Verdicts | None = None) -> Verdicts:
    """Damage the run once per seed, and try every command on it."""
    verdicts, before = verdicts or Verdicts(), _memory()
    with keeping_data(), no_collections(), tempfile.TemporaryDirectory(dir=bench.root) as copies:
        for seed in seeds:
            folder = Path(copies) / str(seed) / "run"
            shutil.copytree(bench.run, folder)
            how = damage(bench, folder, random.Random(seed))
            for name, command in COMMANDS.items():
                start = time.perf_counter()
                verdict = _verdict(bench, folder, name, command)
                seconds = time.perf_counter() - start
                verdicts.slowest = max(verdicts.slowest, seconds)
                verdicts.counts[name][verdict.split(":")[0]] += 1
                if verdict.startswith("FAILED") or seconds > SLOWEST:
                    verdicts.failures.append(f"seed {seed}, {how}; {name}: {verdict} ({seconds:.1f} s)")
            shutil.rmtree(folder.parent)
    verdicts.grown_by = max(verdicts.grown_by, _memory() - before)
    if verdicts.grown_by > LARGEST:
        verdicts.failures.append(f"memory grew by {verdicts.grown_by:.0f} MiB")
    return verdicts


def _memory() -> float:
    """The most MiB that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextmanager
def no_collections() -> Iterator[None]:
    """A run collects garbage before its first round, which takes longer than all rounds of these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mapl.runs.run.lasting", nullcontext)
        yield


def _verdict(bench: Bench, folder: Path, name: str, command: Callable[[Bench, Path], Any]) -> str:
    with told() as said:
        try:
            result = command(bench, folder)
        except MaplError as error:
            inside = any(file in text for file in (*FILES, "checkpoints", str(folder)) for text in (str(error), *said))
            return "named" if inside else f"FAILED: no file in {str(error)!r}"
        except Exception as error:  # the point of the exercise
            return f"FAILED: {type(error).__name__}: {error}"
    if result == bench.expected[name]:
        return "repaired" if said and name == "resume" else "said, same numbers" if said else "harmless"
    return "said, other numbers" if said else "FAILED: other numbers, silently"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tempfile.TemporaryDirectory() as root:
        verdicts = judge(Bench.build(Path(root)), range(first, first + count))
    print(f"{count:,} damaged folders, seeds {first} to {first + count - 1}, {len(verdicts.failures)} failures:")
    for name, counter in verdicts.counts.items():
        print(f"  {name:8} {', '.join(f'{n} {verdict}' for verdict, n in counter.most_common())}")
    print(f"slowest command {verdicts.slowest:.1f} s, memory grew by {verdicts.grown_by:.0f} MiB")
    for failure in verdicts.failures:
        print(failure)
    sys.exit(bool(verdicts.failures))


if __name__ == "__main__":
    main()
