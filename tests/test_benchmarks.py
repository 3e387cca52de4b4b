"""The benchmarks run, and leave their tables; how fast anything is, is not for a test to say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

RUN = Path(__file__).parents[1] / "benchmarks" / "run.py"


def quick(what: str, out: Path) -> dict[str, list[dict[str, Any]]]:
    """The tables of a quick measurement, which has left them as a page and as numbers."""
    command = [sys.executable, RUN, what, "--quick", "--device", "cpu", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    page = (out / f"{what}-cpu.md").read_text()
    assert page.strip() == done.stdout.strip()
    assert f"    python benchmarks/run.py {what} --device cpu --quick" in page
    assert str(out) not in page
    numbers = json.loads((out / f"{what}-cpu.json").read_text())
    assert {"CPU", "cores", "torch"} <= numbers["machine"].keys()
    tables: dict[str, list[dict[str, Any]]] = numbers["tables"]
    return tables


@pytest.mark.parametrize(
    ("what", "columns"),
    [
        ("round", {"program", "seconds a round", "images/s", "times as fast", "set-up, s"}),
        ("clients", {"clients", "seconds a round", "ratio to linear", "set-up, s", "peak host memory, GiB"}),
        ("two-cores", {"program", "s per round", "CPU seconds", "first round, s"}),
        ("exchange", {"topology", "clients", "letters a round", "seconds a round", "peak memory, GiB"}),
        ("state", {"clients", "state of all clients, MB", "checkpoint, MB", "save, s", "resume, s"}),
    ],
)
def test_a_quick_measurement_leaves_a_table_and_its_numbers(tmp_path, what, columns):
    rows = next(iter(quick(what, tmp_path).values()))
    assert len(rows) == {"exchange": 4, "two-cores": 4}.get(what, 2)
    for row in rows:
        assert columns <= row.keys()
        assert all(row[column] > 0 for column in columns if column.startswith(("s ", "seconds", "save", "resume")))


def test_a_measurement_needs_no_package_that_only_another_needs():
    nothing = "; ".join(f"sys.modules['{name}'] = None" for name in ("cryptography", "zenoh", "ray", "playwright"))
    start = (
        f"import sys, runpy; {nothing}; sys.path.insert(0, {str(RUN.parent)!r}); sys.argv[1:] = ['methods', '--help']"
    )
    command = [sys.executable, "-c", f"{start}; runpy.run_path({str(RUN)!r}, run_name='__main__')"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_the_edges_of_every_form_of_graph_learning_are_counted(tmp_path):
    *runs, alone = quick("edges", tmp_path).values()
    for rows in runs:
        assert len(rows) == 5
        assert all(0 < row["messages"] <= 4 * 3 * 3 and 0 <= row["edges at the end"] <= 4 * 3 for row in rows)
    assert {row["graph"] for row in alone} == {"released", "paper", "balanced"}
