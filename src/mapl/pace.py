"""How long what is left will take, and durations in words."""

from __future__ import annotations

import time


class Pace:
    """Estimates how many seconds are left, from what was done since it was first asked.

    What was done before that (a run that is resumed, a download that goes on) took none of our time.
    """

    def __init__(self) -> None:
        self.start: tuple[int, float] | None = None

    def __call__(self, done: int, total: int) -> float | None:
        now = time.monotonic()
        if self.start is None:
            self.start = done, now
        before, since = self.start
        if done >= total > 0:
            return 0.0
        if not total or done <= before:
            return None
        return (now - since) / (done - before) * (total - done)


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h 20 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
