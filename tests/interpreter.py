"""Triton's interpreter, made quicker: without a GPU the tests of kernels spend most of their time in it."""

from __future__ import annotations

import sys
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

prepare, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__


def prepare_once(function: Any) -> Any:
    """At a launch, and at every call inside a kernel, all of Triton's language is searched for what to interpret.

    Within a launch nothing is left to find, and the search takes longer than the kernel.
    """
    languages = [value for value in function.__globals__.values() if value is tl or value is tl.core]
    if any(tl.core.is_builtin(language.load) for language in languages):
        return prepare(function)
    return interpreter._LangPatchScope()  # with nothing to restore


def launch_uncounted(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Coverage of kernels is not measured (pyproject.toml), but to look at each of their steps doubles the time."""
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        return launch(self, *args, **kwargs)
    finally:
        sys.settrace(tracer)
        _call()


def _call() -> None:
    """Coverage is back in place when it has seen a call. Else it would miss that `launch_uncounted` returns."""


def quicken() -> None:
    interpreter._patch_lang = prepare_once
    interpreter.GridExecutor.__call__ = launch_uncounted
