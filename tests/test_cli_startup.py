"""Commands that compute nothing start at once, and Ctrl-C before a command is under way is quiet."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mapl

SLOW = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "networkx", "safetensors", "cryptography", "mapl.recipe")
"""Not pydantic, which Typer itself uses; our models of settings are in and below mapl.recipe."""
COMMANDS = (
    "demo",
    "run",
    "resume",
    "compare",
    "report",
    "reproduce",
    "list",
    "show",
    "export",
    "join",
    "data get",
    "identity",
    "identity join",
    "peer run",
    "network up",
)
LISTS = ("methods", "backbones", "data", "scenarios", "topologies", "writers", "paper")
PROGRAM = """
import sys
from mapl.cli import main
slow, sys.argv = sys.argv[1].split(), ["mapl"]
for arguments in ARGUMENTS:
    sys.argv[1:] = arguments.split()
    try:
        main()
    except SystemExit as exit:
        assert not exit.code, arguments
    loaded = [name for name in slow if name in sys.modules]
    assert not loaded, (arguments, loaded)
"""


def test_help_and_lists_import_nothing_slow():
    arguments = ["--version", "--help", "-h", *(f"{name} --help" for name in COMMANDS), *(f"list {w}" for w in LISTS)]
    program = PROGRAM.replace("ARGUMENTS", repr(arguments))
    done = subprocess.run([sys.executable, "-c", program, " ".join(SLOW)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "small-world" in done.stdout


def test_ctrl_c_while_a_command_imports_is_quiet_and_exits_with_130(tmp_path):
    """A module of the name torch that takes forever stands in for the real one, which takes long enough for a person."""
    (tmp_path / "torch.py").write_text("import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(60)\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    child = subprocess.Popen(
        [sys.executable, "-m", "mapl", "run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    end = time.monotonic() + 30
    while not (tmp_path / "begun").exists() and time.monotonic() < end:
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    said, _ = child.communicate(timeout=30)
    assert (child.returncode, said) == (130, "")


# The package


def test_the_package_offers_every_name_of_its_list_and_no_other():
    assert set(mapl.__all__) == set(mapl._HOME_OF)
    for name, home in mapl._HOME_OF.items():
        assert getattr(mapl, name) is getattr(importlib.import_module(home), name)
    assert set(mapl.__all__) <= set(dir(mapl))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = mapl.nonsense


def test_type_checkers_see_the_same_names():
    """They read the imports in the branch that never runs."""
    source = Path(mapl.__file__).read_text()
    imports = [line.split() for line in source.splitlines() if line.startswith("    from mapl.")]
    seen = {name.strip(","): words[1] for words in imports for name in words[3:]}
    assert seen == mapl._HOME_OF


# What test_layers.py does not see


def test_only_commands_know_terminals():
    root = Path(mapl.__file__).parent
    for path in root.rglob("*.py"):
        if path.relative_to(root).parts[0] not in ("cli", "paper", "terminal"):
            assert not re.search(r"^\s*(import|from) (rich|typer)\b", path.read_text(), re.MULTILINE), path
