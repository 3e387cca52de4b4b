"""What commands share: progress in a pipe, the time left, warnings, terminals that are not UTF-8."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import mapl
from conftest import in_child, small
from mapl.cli import main
from mapl.errors import MaplWarning, warn
from mapl.pace import Pace, duration
from mapl.terminal import progress as module
from mapl.terminal.messages import show_warning
from mapl.terminal.progress import PlainLines, counting, progress


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """A clock that a test sets: `clock[0]` is now."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("total", [1, 3, 10, 25, 1000])
def test_a_line_for_each_tenth_and_one_at_the_end(total):
    out = io.StringIO()
    lines = PlainLines(out)
    for done in range(1, total + 1):
        lines(done, total, f"{done}", None)
    said = [int(line) for line in out.getvalue().splitlines()]
    assert len(said) == min(total, 10)
    assert said[-1] == total
    assert [10 * done // total for done in said] == sorted({10 * done // total for done in said})


def test_lines_by_the_clock_begin_when_the_time_left_is_known(clock):
    out = io.StringIO()
    lines = PlainLines(out, every=30)
    for now, left in [(0, None), (5, 200.0), (10, 195.0), (34, 171.0), (35, 170.0), (70, None), (71, 134.0)]:
        clock[0] = now
        lines(1, 2, f"at {now}", left)
    assert out.getvalue().splitlines() == ["at 5  3 min left", "at 35  3 min left", "at 71  2 min left"]


def test_the_time_left_counts_only_what_was_done_here(clock):
    pace = Pace()
    assert pace(50, 100) is None, "a resumed run: nothing is known of its speed"
    clock[0] = 10.0
    assert pace(60, 100) == pytest.approx(40.0)
    assert pace(60, 0) is None, "nobody knows the whole"
    assert pace(100, 100) == 0.0


def test_counting_says_percent_and_nothing_while_the_whole_is_unknown(clock, capsys):
    with counting("file.gz") as count:
        count(5, 0)
        count(5, 100)
        clock[0] = 4.0
        count(25, 100)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "file.gz: 25 %  15 s left\n")


def test_a_terminal_gets_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress() as show:
        show(1, 4, "round 1/4 [not markup]", 12.0)
        print("a result")
    captured = capsys.readouterr()
    assert captured.out == "a result\n", "as in mapl run > file"
    said = captured.err
    assert "[not markup]" in said
    assert "12 s left" in said
    assert "\x1b[" in said


def test_durations():
    assert [duration(s) for s in (40, 600, 12000)] == ["40 s", "10 min", "3 h 20 min"]


@pytest.fixture
def shown(monkeypatch):
    """What the command line makes of warnings."""
    monkeypatch.setattr(warnings, "showwarning", show_warning)


def test_a_warning_of_the_package_is_one_line_and_any_other_says_where_it_is_from(shown, capsys):
    """Also in a folder that is called mapl, with a virtual environment inside."""
    warn("clients take turns")
    place = "/home/me/mapl/.venv/lib/torch/nn/modules/module.py"
    warnings.warn_explicit("something else", UserWarning, place, 9)
    captured = capsys.readouterr()
    ours, theirs = captured.err.splitlines()[:2]
    assert captured.out == ""
    assert ours == "warning: clients take turns"
    assert theirs == f"{place}:9: UserWarning: something else"


def test_equal_warnings_about_two_events_are_both_shown_and_one_about_what_stays_only_once(shown, capsys):
    warnings.simplefilter("default")
    for _ in range(2):
        warn("a round is played again")
        warn("there is no Triton", once=True)
    again, missing = "warning: a round is played again", "warning: there is no Triton"
    assert capsys.readouterr().err.splitlines() == [again, missing, again]


def test_a_warning_names_the_line_that_called_the_package(tmp_path):
    mapl.run(small(), tmp_path / "run")
    newest = max((tmp_path / "run" / "checkpoints").iterdir())
    newest.write_bytes(b"nothing")
    with pytest.warns(MaplWarning) as said:
        mapl.resume(tmp_path / "run")
    assert ["damaged" in str(one.message) for one in said] == [True, False]
    assert {one.filename for one in said} == {__file__}


RUN = ["run", "--clients", "2", "--rounds", "2", "--set", "evaluate.every=2", "--set", "model.backbones=['mlp']"]


def limited(encoding: str, folder: Path) -> None:
    """`mapl run` in a terminal with this encoding; for use in a child."""
    os.chdir(folder)
    file = (folder / "out.txt").open("w", encoding=encoding)
    sys.stdout = file
    sys.stderr = file
    sys.argv = ["mapl", *RUN]
    main()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_is_not_utf_8_does_not_end_a_run(encoding, tmp_path):
    child = in_child(limited, encoding, tmp_path)
    child.join()
    said = (tmp_path / "out.txt").read_text(encoding=encoding)
    assert child.exitcode == 0, said
    first, second = said.splitlines()[:2]
    assert first.split()[2:] == ["accuracy", "?"], "a round that is not tested has a dash there"
    assert "%" in second


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
    ids=["PYTHONIOENCODING", "LC_ALL"],
)
def test_an_environment_that_is_not_utf_8_does_not_end_a_run(environment, tmp_path):
    everything = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-m", "mapl", *RUN], cwd=tmp_path, env=everything, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"accuracy ?" in done.stderr
