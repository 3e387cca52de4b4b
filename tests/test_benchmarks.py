"""The benchmarks run, and leave their tables; how fast anything is, is not for a test to say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / "benchmarks" / "run.py"


@pytest.mark.parametrize(
    ("what", "columns"),
    [
        ("round", {"program", "seconds a round", "images/s", "times as fast", "set-up, s"}),
        ("clients", {"clients", "seconds a round", "ratio to linear", "set-up, s", "peak host memory, GiB"}),
    ],
)
def test_a_quick_measurement_leaves_a_table_and_its_numbers(tmp_path, what, columns):
    command = [sys.executable, RUN, what, "--quick", "--device", "cpu", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / f"{what}-cpu.md").read_text()
    assert page.strip() == done.stdout.strip()
    assert f"    python benchmarks/run.py {what} --device cpu --quick" in page
    assert str(tmp_path) not in page
    numbers = json.loads((tmp_path / f"{what}-cpu.json").read_text())
    assert {"CPU", "cores", "torch"} <= numbers["machine"].keys()
    rows = next(iter(numbers["tables"].values()))
    assert len(rows) == 2
    for row in rows:
        assert columns <= row.keys()
        assert row["seconds a round"] > 0
