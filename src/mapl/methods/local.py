"""Local: every client alone."""

from __future__ import annotations

from mapl.methods._base import MethodSettings
from mapl.methods._plain import Plain

__all__ = ["Local"]


class LocalSettings(MethodSettings):
    """Local has no settings of its own."""

    name: str = "local"


class Local(Plain[LocalSettings]):
    """No exchange at all: cross-entropy on one plainly augmented view.

    The paper's first baseline (Appendix, "Baselines"). It differs from another method's control arm (the same method on
    an empty network), which keeps that method's views and losses.
    """

    name = "local"
    Settings = LocalSettings
    without_letters = ""
    silent = True
