"""The letters that a peer has written. A letter is in a file before anybody can read it.

After kill -9 a peer may play a round again. It then sends the letter that it sent before, so nobody ever gets two
different letters for one round. A power cut may lose the newest file, but leaves no half of one; the letter is then
computed again, from the same state.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path

from mapl.peer.files import made, write

FOLDER = "letters"
_NAME = re.compile(r"(\d{6,})\.letter")
NONE = b""
"""What stands for a round in which the peer wrote no letter."""


class Outbox:
    """The newest `keep` letters of one peer, by round."""

    def __init__(self, state: Path, keep: int = 8) -> None:
        self.folder = made(state / FOLDER)
        self.keep = keep
        self._lock = threading.Lock()
        self._letters: dict[int, bytes] = {}
        for path in self.folder.iterdir():
            if (found := _NAME.fullmatch(path.name)) and not path.is_symlink():
                self._letters[int(found[1])] = path.read_bytes()

    def clear(self) -> None:
        """Forget the letters of an earlier run."""
        with self._lock:
            self._letters.clear()
        for path in self.folder.glob("*.letter"):
            path.unlink(missing_ok=True)

    @property
    def newest(self) -> int:
        """The round of the newest letter, -1 if there is none."""
        with self._lock:
            return max(self._letters, default=-1)

    def put(self, round: int, letter: bytes) -> bytes:
        """Write a letter down and make it readable. Returns the letter of that round: an earlier one, if there is."""
        with self._lock:
            known = self._letters.get(round)
        if known is None:
            write(self.folder / f"{round:06}.letter", letter)
            with self._lock:
                self._letters[round] = letter
                old = sorted(self._letters)[: -self.keep]
                for number in old:
                    del self._letters[number]
            for number in old:
                (self.folder / f"{number:06}.letter").unlink(missing_ok=True)
        return letter if known is None else known

    def read(self, round: int | None) -> bytes | None:
        """The letter of a round, or of the newest one. If that is no longer kept, the oldest one after it.

        None: it is not written yet.
        """
        with self._lock:
            if not self._letters:
                return None
            if round is None:
                return self._letters[max(self._letters)]
            later = [number for number in self._letters if number >= round]
            return self._letters[min(later)] if later else None
