"""The help of every command: an example that works, lines that fit, groups; and completion in shells."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from mapl.cli.app import app
from mapl.cli.named import completing

WIDTH = 78
"""What a terminal of 80 columns has for text."""


def commands(command: Any, path: tuple[str, ...] = ("mapl",)) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, by the words that call it."""
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
    for name, child in (children or {}).items():
        yield from commands(child, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))


def plain(text: str) -> str:
    return re.sub(r"\[/?bold\]", "", text).replace("\\[", "[")


def examples(path: tuple[str, ...], command: Any) -> list[list[str]]:
    """The arguments of the command's examples."""
    found = re.findall(r"\[bold\](mapl [^\[]+)\[/bold\]", command.help)
    words = [shlex.split(example.partition(" > ")[0]) for example in found]
    return [example[len(path) :] for example in words if tuple(example[: len(path)]) == path]


def test_the_tree_was_walked() -> None:
    assert len(COMMANDS) > 20
    assert {("mapl", "run"), ("mapl", "peer", "init"), ("mapl", "data", "show")} <= COMMANDS.keys()


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_an_example_that_it_understands(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    found = examples(path, command)
    assert found, f"{' '.join(path)} has no example"
    for words in found:
        command.make_context(path[-1], list(words))  # parses, and raises if an option or argument is not known


def test_an_example_that_is_not_understood_is_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        COMMANDS["mapl", "run"].make_context("run", ["--sets", "a=b"])


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_text_of_a_command_fits_and_every_option_is_explained(path: tuple[str, ...]) -> None:
    """The first paragraph is wrapped when it is printed, and the others are not."""
    command = COMMANDS[path]
    long = [line for line in plain(command.help).split("\n\n", 1)[1].splitlines() if len(line) > WIDTH]
    assert not long
    assert [parameter.name for parameter in command.params if not parameter.help] == []


def test_commands_stand_in_groups() -> None:
    shown = CliRunner().invoke(app, ["--help"], catch_exceptions=False).output
    panels = re.findall(r"─ ([\w, ]+?) ─", shown)
    assert panels == ["Options", "Train", "Use runs", "Peers on a network", "Names, settings, data"]
    assert all(len(line) <= 80 for line in shown.splitlines())


# Completion

TYPED = {
    "mapl resu": "resume",
    "mapl identity cr": "create-network",
    "mapl run --method cour": "courier",
    "mapl run --method local,cour": "local,courier",
    "mapl show --topology ri": "ring",
    "mapl list wri": "writers",
}
"""What is typed before the Tab key, and what the last word is then."""
PROMPT = "ready> "


def test_names_are_completed_also_after_a_comma() -> None:
    assert dict(completing("methods")("map")).keys() == {"mapl", "mapl+"}
    assert [name for name, _ in completing("methods")("local,mapl,cour")] == ["local,mapl,courier"]
    assert completing("methods")("nobody") == []


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody with an empty home, and `mapl` on the path."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "mapl").write_text(f"#!/bin/sh\nexec {sys.executable} -c 'from mapl.cli import main; main()' \"$@\"\n")
    (programs / "mapl").chmod(0o755)
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "LANG") if name in os.environ}
    return {**kept, "HOME": str(tmp_path), "PATH": f"{programs}:{os.environ['PATH']}", "TERM": "xterm"}


def install(shell: str, home: dict[str, str]) -> None:
    """As a person does it: in that shell. Which one it is, is found by looking at the parent process."""
    done = subprocess.run(
        [shell, "-c", "mapl --install-completion; exit $?"], env=home, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert f"{shell} completion installed" in done.stdout
    with Path(home["HOME"], f".{shell}rc").open("a") as settings:
        settings.write(f"PS1='{PROMPT}'\n")


class Terminal:
    """A shell at a terminal of its own, in which somebody types."""

    def __init__(self, shell: str, home: dict[str, str]) -> None:
        self.master, slave = pty.openpty()
        streams = {"stdin": slave, "stdout": slave, "stderr": slave}
        self.shell = subprocess.Popen([shell, "-i"], env=home, cwd=home["HOME"], start_new_session=True, **streams)
        os.close(slave)

    def type(self, keys: str, until: str, patience: float = 20) -> None:
        """Press keys and wait for an answer."""
        os.write(self.master, keys.encode())
        seen, end = "", time.monotonic() + patience
        while until not in re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]|\x07", "", seen):
            assert time.monotonic() < end, f"no {until!r} after {keys!r}, but {seen!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                seen += os.read(self.master, 4096).decode(errors="replace")

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.shell.kill()
        self.shell.wait()
        os.close(self.master)


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_tab_key(shell: str, home: dict[str, str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} on this machine")
    install(shell, home)
    with Terminal(shell, home) as terminal:
        terminal.type("", until=PROMPT)
        for line, word in TYPED.items():
            begun = line.split()[-1]
            terminal.type(line, until=begun)
            terminal.type("\t", until=word.removeprefix(begun) + " ")
            terminal.type("\x15", until="")  # Ctrl-U empties the line


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash on this machine")
def test_a_home_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / ".bashrc").mkdir()
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m mapl --install-completion; exit $?"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: completion could not be installed")
    assert len(done.stderr.splitlines()) == 1
