"""Ctrl-C and SIGTERM: a run saves and says how to go on, and no signal, whenever it comes, leaves a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mapl
from conftest import command, in_child, small
from mapl.recipe import to_toml
from mapl.terminal.interrupt import Interrupt


def test_sigterm_finishes_the_round_saves_says_how_to_go_on_and_exits_with_143(tmp_path):
    """Sent twice at once, as `timeout` does."""
    recipe = small(rounds=200, name="run", checkpoint={"every": 1000}, model={"backbones": ["mlp"]})
    (tmp_path / "recipe.toml").write_text(to_toml(recipe))
    out = tmp_path / "out.txt"
    child = in_child(command, ["run", str(tmp_path / "recipe.toml"), "--out", str(tmp_path)], out)
    history = tmp_path / "run" / "history.jsonl"
    while not (history.exists() and history.read_bytes().count(b"\n") >= 4) and child.is_alive():
        time.sleep(0.005)
    os.kill(child.pid, signal.SIGTERM)
    time.sleep(0.002)
    os.kill(child.pid, signal.SIGTERM)
    child.join()
    assert child.exitcode == 143
    folder = tmp_path / "run"
    assert f"mapl resume {folder}" in out.read_text()
    done = len(mapl.load(folder).rounds)
    assert 4 <= done < 200
    assert [int(path.name[:6]) for path in (folder / "checkpoints").iterdir()] == [done]


IMPORTED = """
import os, signal, sys
def hit(event, arguments):
    if event == "import" and arguments[0] == {module!r}:
        os.kill(os.getpid(), signal.{name})
sys.addaudithook(hit)
sys.argv = ["mapl", "run", "--clients", "2"]
from mapl.cli import main
main()
"""


@pytest.mark.parametrize(
    ("module", "name", "status"),
    [
        # These two make other errors of an exception in their middle, and print them.
        ("numpy._core._multiarray_umath", "SIGINT", 130),
        pytest.param("numpy.exceptions", "SIGINT", 130, marks=pytest.mark.slow),
        ("mapl.cli.app", "SIGTERM", 143),
    ],
)
def test_a_signal_during_an_import_is_quiet(module, name, status, tmp_path):
    program = IMPORTED.format(module=module, name=name)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


BEFORE = """
import sys
def hit(event, arguments):
    if event == "import" and arguments[0] in ("mapl.cli", "mapl.terminal.interrupt")[{which}:]:
        raise KeyboardInterrupt
sys.addaudithook(hit)
import runpy
runpy.run_module("mapl", run_name="__main__")
"""


@pytest.mark.parametrize("which", [0, 1])
def test_ctrl_c_before_anything_is_set_up_is_quiet(which):
    done = subprocess.run([sys.executable, "-c", BEFORE.format(which=which)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


AT_THE_END = """
import atexit, os, signal, sys
from mapl.cli import main
atexit.register(lambda: (os.kill(os.getpid(), signal.SIGINT), sum(range(10**6))))
sys.argv = ["mapl", "list", "methods"]
main()
"""


def test_ctrl_c_while_python_shuts_down_is_quiet():
    done = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.returncode in (0, -signal.SIGINT)


def second_ctrl_c(folder: Path, output: Path) -> None:
    """A run that gets Ctrl-C twice in its second round."""
    import mapl.runs.player as module

    played = module.play_round

    def play(part, t, clock=None):
        if t == 1:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return played(part, t, clock)

    module.play_round = play
    command(["run", str(folder.parent / "recipe.toml"), "--out", str(folder.parent)], output)


def test_a_second_ctrl_c_stops_at_once_and_says_how_to_go_on(tmp_path):
    (tmp_path / "recipe.toml").write_text(to_toml(small(rounds=4, name="run", model={"backbones": ["mlp"]})))
    child = in_child(second_ctrl_c, tmp_path / "run", tmp_path / "out.txt")
    child.join()
    said = (tmp_path / "out.txt").read_text()
    assert child.exitcode == 130
    assert "Traceback" not in said
    assert f"mapl resume {tmp_path / 'run'}" in said.splitlines()[-1]
    assert mapl.resume(tmp_path / "run").finished


def test_the_first_signal_decides_the_status_and_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with Interrupt() as interrupt:
        assert not interrupt()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert (interrupt(), interrupt.status) == (True, 143)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before
