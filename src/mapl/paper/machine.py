"""The machine of a run, in words: for the record, and to know which measured times apply here."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from mapl.engine.choose import find_device
from mapl.recipe import Recipe


def device_name(recipe: Recipe) -> str:
    """The GPU's name, or the CPU's."""
    device = find_device(recipe.engine)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()


def precision(recipe: Recipe) -> str:
    """The precision of matrix products on this machine."""
    return recipe.engine.on(find_device(recipe.engine).type).precision


def versions() -> dict[str, str]:
    try:
        own = version("mapl")
    except PackageNotFoundError:  # used from its sources
        own = "uninstalled"
    return {"mapl": own, "commit": commit(), "torch": torch.__version__, "python": platform.python_version()}


@cache
def commit() -> str:
    """The commit of the sources that this process runs, with a + if they were changed since; empty if not known.

    $MAPL_COMMIT says it where only the files were copied.
    """
    here = Path(__file__).parent
    try:
        top = _git(here, "rev-parse", "--show-toplevel")
        if not here.is_relative_to(Path(top) / "src"):  # installed into a folder of another project
            return os.environ.get("MAPL_COMMIT", "")
        changed = _git(here, "status", "--porcelain", "--untracked-files=no", "--", str(here.parent))
        return _git(here, "rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):  # no git, or no repository
        return os.environ.get("MAPL_COMMIT", "")


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or f"CPU ({platform.machine()})"
