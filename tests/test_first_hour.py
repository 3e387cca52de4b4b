"""The commands of docs/first-hour.md run as they stand there, one after another, and print what the page shows.

Numbers are not compared: they differ from one kind of CPU to another, and so does the width of tables.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import runpy
import shlex
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import mapl
from conftest import command, in_child, until

PAGE = Path(__file__).parents[1] / "docs" / "first-hour.md"
LEFT_OUT, CTRL_C = "…", "^C"


@dataclass
class Typed:
    """A command of the page, and what it prints there."""

    line: str
    shown: list[str]


def page() -> tuple[dict[str, str], list[Typed]]:
    """The files that the page tells to save, by name, and its commands."""
    text = PAGE.read_text(encoding="utf-8")
    files = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL))
    commands: list[Typed] = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                commands.append(Typed(line.removeprefix("$ "), []))
            else:
                commands[-1].shown.append(line)
    return files, commands


def words_of(text: str) -> list[str]:
    """Its words, with # for every number, and without addresses, paths of folders, lines of tables and what follows …"""
    text = re.sub(r"…[^\n]*|http\S+|[─━┏┓┗┛┳┻┡┩╇└┘┴┬├┤┼│┃╈]", " ", text)
    text = re.sub(r"(/\w[\w.-]*)+/photos", "/photos", text)
    text = re.sub(r"-[0-9a-f]{6}\b", "-#", text)
    return re.sub(r"[-+−]?[\d,]*\.?\d+", "#", text).split()


def missing(shown: str, printed: str) -> list[str]:
    """The first word of the page that was not printed, in that order, with those after it; empty if all were."""
    expected, rest = words_of(shown), iter(words_of(printed))
    for place, word in enumerate(expected):
        if word not in rest:  # goes on where the last one was found
            return expected[max(0, place - 3) : place + 5]
    return []


def as_typed(line: str, folder: Path, output: Path) -> None:
    """What a shell does with this command; for use in a child."""
    os.chdir(folder)
    multiprocessing.current_process().daemon = False  # those may have no children
    program, *words = shlex.split(line)
    if program == "mapl":
        command(words, output)
    else:
        with output.open("w") as sys.stdout:
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")


def run(typed: Typed, folder: Path) -> str:
    """Run a command, press Ctrl-C where the page has it, and return what was printed."""
    output = folder.with_suffix(".txt")
    output.unlink(missing_ok=True)
    line, _, into = typed.line.partition(" > ")
    before = "\n".join(typed.shown).partition(CTRL_C)[0]
    child = in_child(as_typed, line, folder, output)
    if CTRL_C in typed.shown:
        until(lambda: not child.is_alive() or (output.exists() and not missing(before, output.read_text())))
        assert child.pid is not None
        os.kill(child.pid, signal.SIGINT)
    child.join()
    printed = output.read_text()
    status = 130 if CTRL_C in typed.shown else 2 if typed.shown and typed.shown[0].startswith("error:") else 0
    assert child.exitcode == status, f"{typed.line}\n{printed}"
    if into:
        (folder / into).write_text(printed)
    return printed


def test_every_step_of_the_page_is_a_command() -> None:
    files, commands = page()
    assert list(files) == ["pictures.py", "ask.py"]
    assert {line.line.split()[0] for line in commands} == {"python", "rm", "mapl"}
    needed = ["data check", "run", "compare", "report", "watch", "show", "resume", "export"]
    assert [word for word in needed if not any(typed.line.startswith(f"mapl {word}") for typed in commands)] == []


def test_what_is_not_printed_is_noticed() -> None:
    assert missing("accuracy 88.4 % ± 3.4\n…\nsaved", "accuracy 7 % ± 1,000.5\nother\nsaved") == []
    assert missing("│ one │ 5 │", "┃ one   ┃ 17 ┃") == []
    assert missing("saved in runs/mine", "saved in runs/other")
    assert missing("one two", "two one")


@pytest.mark.slow
def test_the_first_hour(tmp_path: Path) -> None:
    files, commands = page()
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    for typed in commands:
        if typed.line.startswith("rm "):
            (folder / typed.line.split()[1]).unlink()
            continue
        printed = run(typed, folder)
        shown = "\n".join(line for line in typed.shown if line != CTRL_C)
        assert not (lost := missing(shown, printed)), f"{typed.line} did not print … {' '.join(lost)} …, but\n{printed}"
    assert (folder / "table.md").read_text().startswith("| arm |")
    assert (folder / "runs/people/report/report.html").exists()
    assert mapl.load(folder / "runs" / "mine").finished
