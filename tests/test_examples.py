"""The examples run as their readers would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import line_with

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = ["--rounds", "2", "--clients", "4", "--set", "partition.shots=4"]


def call(*command: str, cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_own_model_and_data(tmp_path: Path) -> None:
    out = call(sys.executable, str(EXAMPLES / "own_model_and_data.py"), "run", cwd=tmp_path)
    assert "client 3 (wide   ) classes [2, 3]" in out
    assert (tmp_path / "run" / "history.jsonl").exists()


@pytest.mark.slow
def test_a_new_method_and_its_results(tmp_path: Path) -> None:
    (tmp_path / "new_method.py").write_text((EXAMPLES / "new_method.py").read_text())
    mapl = [sys.executable, "-m", "mapl"]
    call(*mapl, "run", "--method", "new_method:MedianHead", "--name", "median", *SMALL, cwd=tmp_path)
    out = call(sys.executable, str(EXAMPLES / "read_results.py"), "runs/median", cwd=tmp_path)
    assert "24 messages" in out
    assert "client 0 again" in out


def test_a_network_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "own_network.py").write_text((EXAMPLES / "own_network.py").read_text())
    run = [sys.executable, "-m", "mapl", "run", "--method", "own_network:SharedGuide", *SMALL]
    call(*run, "--name", "bytes", "--set", "network.transport=bytes", cwd=tmp_path)
    call(*run, "--name", "memory", cwd=tmp_path)
    histories = [(tmp_path / "runs" / name / "history.jsonl").read_bytes() for name in ("bytes", "memory")]
    assert histories[0] == histories[1]
    assert b'"guide":[' in histories[0]


@pytest.mark.slow
def test_five_hospitals_know_more_together(tmp_path: Path) -> None:
    lines = call(sys.executable, str(EXAMPLES / "five_hospitals.py"), "runs", cwd=tmp_path).splitlines()
    alone, control, together = ([float(word) for word in line.split()[-6:]] for line in lines[2:])
    assert "training patients" in lines[1]
    assert together[-1] > control[-1] + 2 > alone[-1]
    assert together[4] > control[4] + 10  # it has seen one class only


@pytest.mark.slow
def test_digits_as_numbers(tmp_path: Path) -> None:
    lines = call(sys.executable, str(EXAMPLES / "digits_as_numbers.py"), "runs", cwd=tmp_path).splitlines()
    assert re.search(line_with("1,438 training", "359 test", "64 numbers", "10 classes"), lines[0])
    local, control, courier = (float(line.split("accuracy ")[1].split()[0]) for line in lines[1:])
    assert courier > max(local, control) + 1


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_examples_are_short(example: Path) -> None:
    assert len(example.read_text().splitlines()) < 80
