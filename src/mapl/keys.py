"""Keyed randomness: every draw has its own generator, keyed by seed, client, round and purpose.

A result then does not depend on the engine, on where and in which order clients run, or on a crash and a resume. There
is no generator state to carry along.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch

NOBODY = -1
"""The client of a draw that belongs to the whole network (a topology, a partition)."""

SHARED = RLock()
"""Held by whoever uses the generators that all threads share (torch's global one, numpy's and Python's).

Two runs in threads of one process take turns there, and so draw what each would draw alone.
"""

ALWAYS = -1
"""The round of a draw that happens once (an initialisation)."""


def key(seed: int, client: int, round: int, purpose: str) -> int:
    """A 63-bit integer that depends only on (seed, client, round, purpose)."""
    name = f"{seed}/{client}/{round}/{purpose}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") >> 1


def generator(seed: int, client: int, round: int, purpose: str) -> torch.Generator:
    """A CPU generator keyed by (seed, client, round, purpose)."""
    return torch.Generator().manual_seed(key(seed, client, round, purpose))


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """Inside, torch's global generator, from which layers draw their first weights, is seeded with `key`.

    Afterwards its old state is restored.
    """
    with SHARED, torch.random.fork_rng(devices=[]):
        torch.manual_seed(key)
        yield
