"""The commands of docs/tutorial-peers.md run as they stand there, in two folders that share nothing but the invitation.

Addresses are those of this machine, and training is shorter.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mapl.cli.app import app
from mapl.peer.alone import gain
from mapl.peer.local import free_ports
from mapl.peer.settings import read_settings
from mapl.runs.folder import load

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tutorial-peers.md"
PEOPLE = {"alice": "192.168.1.10", "bob": "192.168.1.11"}
ROUNDS = 3


def steps() -> list[list[tuple[str, str]]]:
    """Who types what, block by block."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [re.findall(r"^(alice|bob)\$ (.+)$", block, re.MULTILINE) for block in blocks]


class Laptops:
    """A folder for each person, and a port in place of an address."""

    def __init__(self, folder: Path) -> None:
        self.folders = {name: folder / name for name in PEOPLE}
        self.ports = dict(zip(PEOPLE, free_ports(len(PEOPLE)), strict=True))
        self.running: list[subprocess.Popen[str]] = []
        for path in self.folders.values():
            path.mkdir()

    def words(self, name: str, line: str) -> tuple[str, list[str]]:
        """The program and its arguments as they are here."""
        line = line.replace("~/mapl", str(ROOT)).replace("0.0.0.0:7447", f"127.0.0.1:{self.ports[name]}")
        for person, address in PEOPLE.items():
            line = line.replace(f"{address}:7447", f"127.0.0.1:{self.ports[person]}").replace(address, "127.0.0.1")
        program, *words = shlex.split(line)
        if words[:2] == ["identity", "create-network"]:
            words += ["--rounds", str(ROUNDS)]
        if words[:2] == ["peer", "init"]:
            words += ["--listen", f"127.0.0.1:{self.ports[name]}"]
        return program, words

    def start(self, name: str, line: str) -> subprocess.Popen[str]:
        """Run a command in a process of its own, which goes on."""
        program, words = self.words(name, line)
        process = subprocess.Popen(
            [sys.executable, "-m", program, *words],
            cwd=self.folders[name],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        )
        self.running.append(process)
        return process

    def type(self, name: str, line: str) -> None:
        """Run a command to its end. It is in this process: to start one takes longer than what it does."""
        program, words = self.words(name, line)
        with chdir(self.folders[name]):
            if program == "python":
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(sys, "argv", words)
                    runpy.run_path(words[0])
                return
            result = CliRunner().invoke(app, words, catch_exceptions=False)
        assert result.exit_code == 0, f"{name}$ {line}\n{result.output}"

    def __enter__(self) -> Laptops:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_the_tutorial(tmp_path: Path) -> None:
    served = None
    with Laptops(tmp_path) as laptops:
        for block in steps():
            peers = []
            if served is not None and any(
                " peer run " in line for _, line in block
            ):  # both train: she ends her service
                served.send_signal(signal.SIGINT)
                assert served.wait(20) == 130
            for name, line in block:
                if line.startswith("mkdir"):
                    continue
                if " identity serve " in line:
                    served = laptops.start(name, line)
                elif " peer run " in line:
                    peers.append(laptops.start(name, line))
                else:
                    if " identity join " in line:
                        assert served is not None
                        assert served.stdout is not None
                        assert "waiting" in served.stdout.readline()
                        invitation = next(laptops.folders["alice"].glob("*.invitation"))
                        shutil.copy(invitation, laptops.folders[name])
                    laptops.type(name, line)
            for process in peers:
                out, _ = process.communicate(timeout=120)
                assert process.returncode == 0, out
    for name, folder in laptops.folders.items():
        settings = read_settings(folder / "PEER.toml")
        assert load(settings.run).messages == ROUNDS, f"{name} missed letters"
        found = gain(settings)
        assert found.rounds == ROUNDS
        assert found.letters is not None
        assert len(list((folder / "model").iterdir())) == 1


def test_the_tutorial_has_every_command_that_a_pair_needs() -> None:
    typed = [line.split()[1:3] for block in steps() for _, line in block if line.startswith("mapl ")]
    needed = ["create-network", "invite", "serve", "join", "init", "run", "alone", "revoke"]
    assert [word for word in needed if word not in {words[1] for words in typed}] == []
