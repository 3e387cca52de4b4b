"""A peer as others on its machine see it: its status file, and what the page of `mapl watch` shows of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mapl.errors import MaplError
from mapl.live.scene import amount

STATUS = "status.json"
RUN = "run"
"""The folder of the run, beside the status."""


def read_status(folder: Path) -> dict[str, Any]:
    """The status of the peer that keeps its state in a folder."""
    path = folder / STATUS
    try:
        tree = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise MaplError(f"no peer has run in {str(folder)!r}: there is no {path.name}") from None
    except (OSError, ValueError) as error:
        raise MaplError(f"{str(path)!r} cannot be read: {error}") from error
    if not isinstance(tree, dict) or tree.get("version") != 1:
        raise MaplError(f"{str(path)!r} is no status of a peer of this version")
    return tree


def beside(run: Path) -> Mapping[str, Any] | None:
    """What the status of a peer adds to its run: the names of the others, who is connected, and what was sent.

    None if the run is no peer's. Its names are text that anybody may have chosen.
    """
    if run.name != RUN or not (run.parent / STATUS).is_file():
        return None
    try:
        tree = read_status(run.parent)
        numbers = {str(name): int(number) for name, number in tree.get("numbers", {}).items()}
        alive = [str(name) for name in tree["alive"]]
        refused = sum(int(number) for reasons in tree["refused"].values() for number in reasons.values())
        last = tree["last_exchange"]
        return {
            "title": f"{tree['name']} in {tree['network']}",
            "names": {number: name for name, number in numbers.items()},
            "alive": [tree["number"], *(numbers[name] for name in alive if name in numbers)],
            "facts": [
                ["Connected", f"{len(alive)} of {max(0, tree['members'] - 1)}", "other members"],
                ["Last letters", f"{last['read']} of {last['asked']}", f"after {last['waited']:.1f} s"],
                ["Sent", f"{tree['letters_out']:,}", amount(tree["bytes_out"])],
                *([["Left out", f"{refused:,}", "letters that failed a check"]] if refused else []),
            ],
        }
    except (MaplError, KeyError, TypeError, ValueError, AttributeError):
        return None  # a status is worth less than the run, which is shown without it
