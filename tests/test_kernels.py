"""How kernels are built before they are run."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from mapl.engine.cuda.kernels import launch as kernels


@dataclass
class Kernel:
    """What `launch` needs of a kernel of two arguments, of which the second is not looked at more closely."""

    built: list[tuple] = field(default_factory=list)
    ran: list[tuple] = field(default_factory=list)
    params = (SimpleNamespace(do_not_specialize=False), SimpleNamespace(do_not_specialize=True))

    def warmup(self, *arguments, grid, **constants):
        self.built.append((threading.current_thread().name, grid, arguments, constants))
        return SimpleNamespace(run=None)

    def __getitem__(self, grid):
        return lambda *arguments, **constants: self.ran.append((grid, arguments, constants))


def test_inside_kernels_are_built_once_for_each_kind_and_not_run():
    kernel, x = Kernel(), torch.zeros(64)
    with kernels.building():
        for n in (3, 5, 7, 16, 1):  # the second argument makes no kind
            kernels.launch(kernel, (1,), x, n, BLOCK=8)
        kernels.launch(kernel, (1,), x.half(), 3, BLOCK=8)
        kernels.launch(kernel, (1,), x[1:], 3, BLOCK=8)  # not aligned
        kernels.launch(kernel, (1,), x, 3, BLOCK=16)
        for n in (1, 16, 48, 5, 7):  # one, two multiples of sixteen, and two others
            kernels.launch(kernel, (1,), n, 3, BLOCK=8)
    assert not kernel.ran
    assert len(kernel.built) == 7
    assert all(name.startswith("kernels") for name, *_ in kernel.built)


def test_the_first_kernel_goes_ahead_of_the_others(monkeypatch):
    """Triton finds out its own version with it; and all have the program that starts them made as well."""
    monkeypatch.setattr(kernels, "cores", lambda: 4)
    order = []

    class Slow(Kernel):
        def warmup(self, value, *_, grid, **constants):
            time.sleep(0.05 if value == 1 else 0)
            order.append(value)
            return Built()

    class Built:
        @property
        def run(self):
            order.append("run")

    with kernels.building():
        for value in (1, 16, 5):
            kernels.launch(Slow(), (1,), value, 3)
    assert order[:2] == [1, "run"]
    assert sorted(map(str, order)) == ["1", "16", "5", "run", "run", "run"]


def test_afterwards_they_run_even_where_building_failed():
    class Broken(Kernel):
        def warmup(self, *arguments, grid, **constants):
            raise RuntimeError("no such instruction")

    kernel = Broken()
    with kernels.building():
        kernels.launch(kernel, (2,), 4, 4, BLOCK=8)
    kernels.launch(kernel, (2,), 4, 4, BLOCK=8)
    assert kernel.ran == [((2,), (4, 4), {"BLOCK": 8})]


def test_an_error_inside_ends_it():
    kernel = Kernel()
    with pytest.raises(ZeroDivisionError), kernels.building():
        raise ZeroDivisionError
    kernels.launch(kernel, (1,), 4, 4)
    assert len(kernel.ran) == 1
