"""The machine of a run, in words: for the record, and to know which measured times apply here."""

from __future__ import annotations

import platform
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
    return {"mapl": own, "torch": torch.__version__, "python": platform.python_version()}


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or f"CPU ({platform.machine()})"
