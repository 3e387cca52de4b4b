"""Text that anybody may have written: what can name a folder, and how it is printed. And the sign for no value."""

from __future__ import annotations

import re
import unicodedata

DASH = "–"
"""Stands in tables and on pages for a value that does not exist."""


def printable(text: str, keep: str = "") -> str:
    r"""The text with every invisible character outside `keep` written out: an escape becomes the four letters `\x1b`.

    So nothing in it moves the cursor, changes colours, or reverses the order of what follows.
    """
    return "".join(c if _is_visible(c) or c in keep else c.encode("unicode_escape").decode() for c in text)


def _is_visible(character: str) -> bool:
    # Python counts all spaces but one as not printable.
    return character.isprintable() or unicodedata.category(character) == "Zs"


def check_name(name: str) -> str:
    """The name of a run, if one folder can have it."""
    if ".." in name or name == "." or any(c in "/\\" or not _is_visible(c) for c in name):
        raise ValueError(r"it should be a name without '/', '\', '..', and control or bidirectional characters")
    return name


def folder_name(text: str) -> str:
    """A readable name of one folder for any text."""
    plain = "".join("." if c in ":/\\" else c if c.isalnum() or c in "._+-=,@" else "-" for c in text)
    return re.sub(r"\.{2,}", ".", plain).lstrip(".") or "-"
