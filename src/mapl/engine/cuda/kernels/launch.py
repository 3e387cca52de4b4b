"""How a kernel is launched, or built before it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from mapl.engine.workers import cores

_builders: Builders | None = None


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Launch a kernel; while kernels are being built, only build it."""
    if _builders is not None:
        _builders.add(kernel, grid, arguments, constants)
        return
    kernel[grid](*arguments, **constants)


class Builders:
    """Threads that build kernels: most of the work happens outside of Python, so many can build at a time.

    The first kernel goes ahead of the others: Triton then reads itself, a file of hundreds of megabytes, to tell its
    versions apart, and would in every thread that begins before that is done.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(cores(), "kernels", *_on_this_gpu())
        self._known: set[Any] = set()
        self._first: Future[None] | None = None

    def add(self, kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
        """Build a kernel for such arguments, unless that has begun already."""
        plain = [parameter.do_not_specialize for parameter in kernel.params]
        kinds = [_kind(value, plain[i]) for i, value in enumerate(arguments)]
        what = id(kernel), *kinds, *constants.items()
        if what not in self._known:
            self._known.add(what)
            job = self._threads.submit(self._build, kernel, grid, arguments, constants, self._first)
            self._first = self._first or job

    @staticmethod
    def _build(
        kernel: Any,
        grid: tuple[int, ...],
        arguments: tuple[Any, ...],
        constants: dict[str, Any],
        first: Future[None] | None,
    ) -> None:
        """A kernel, and the program on the host that starts it, which Triton has a C compiler make."""
        if first is not None:
            wait([first])
        _ = kernel.warmup(*arguments, grid=grid, **constants).run

    def wait(self) -> None:
        """Wait for all; a kernel that could not be built fails when it is launched."""
        self._threads.shutdown()


def _on_this_gpu() -> tuple[Any, ...]:
    """How a new thread starts, so that it uses the same GPU as this one."""
    return (torch.cuda.set_device, (torch.cuda.current_device(),)) if torch.cuda.is_available() else ()


def _kind(value: Any, plain: bool) -> Any:
    """What a kernel is specialised for."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, int) and not plain:
        return value == 1, value % 16 == 0
    return type(value)


@contextmanager
def building() -> Iterator[None]:
    """Kernels that are launched inside are built, many at a time, and not run."""
    global _builders
    _builders = builders = Builders()
    try:
        yield
    finally:
        _builders = None
        builders.wait()


def once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """For a backward pass made of kernels, which has no backward pass itself: asking for one is an error, not a zero.

    Torch's `once_differentiable` looks at the gradient that comes in alone, not at what the forward pass was given.
    """

    @wraps(backward)
    def guarded(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("its loss is differentiated twice")
        return backward(ctx, *gradients)

    return guarded


def precision() -> str:
    """How float32 numbers are multiplied; narrower ones have no choice."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
