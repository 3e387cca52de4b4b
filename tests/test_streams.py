"""A step's work runs on several streams of a GPU at once: whatever needs something waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

pytest.importorskip("triton")

from mapl.engine.cuda import branches
from mapl.engine.cuda.slot import Slot
from streams import Stream, Streams
from test_cuda import Tiny, flat, grouped_world, interpreted, recipe
from test_own_networks import FEW

COURIER = {"name": "courier", "courier": "test_own_networks:convolutional", "features": 6, "terms": []}


def played(patch: pytest.MonkeyPatch, network: Callable[..., nn.Module] = flat, together: int = 2) -> Streams:
    """Two steps of a slot with couriers, on streams that are played."""
    part = grouped_world(recipe(method=COURIER, partition=FEW), {"network": network}, together=together)
    part.engine.warm_up(part.clients)
    slot: Slot = part.engine.families[0].slots[0]  # type: ignore[attr-defined]
    part.engine.ahead.begin(part.clients, 0)  # type: ignore[attr-defined]
    part.engine._enter(slot, part.clients[: slot.size], 0)  # type: ignore[attr-defined]
    slot.start_epochs(0, dict.fromkeys(range(slot.size), 0))
    with Streams(patch) as streams:
        main = Stream(priority=slot.priority)
        for _ in range(2):
            with streams.on(main):
                slot.cursor.zero_()
                slot.step()
    return streams


@interpreted
@pytest.mark.parametrize(("network", "together"), [(flat, 2), (flat, 1), (Tiny, 2)], ids=["group", "alone", "layers"])
def test_whatever_needs_something_waits_for_it(network: Any, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = played(monkeypatch, network, together)
    assert streams.faults == set()
    # The step, the teacher, the courier, and the gradients of weights of both that learn: each on its own.
    assert len(streams.work) == 5


@interpreted
def test_where_streams_are_short_the_networks_of_a_step_share_a_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two slots would be given one stream, and the memory that matrix products on it work in."""
    monkeypatch.setattr(branches, "STREAMS", 4)
    streams = played(monkeypatch)
    assert streams.faults == set()
    assert len(streams.work) == 4


def test_streams_suffice_for_the_papers_networks_and_not_for_eight_slots_of_one_priority() -> None:
    before = set(branches._crowded)
    try:
        branches.plan({-3: 2, -2: 1, 0: 5})
        assert not branches._crowded
        branches.plan({-2: 8})
        assert branches._crowded == {-2}
    finally:
        branches._crowded.clear()
        branches._crowded.update(before)


class Forgetful(dict[int, list[Any]]):
    """Keeps nothing."""

    def setdefault(self, *_: Any) -> list[Any]:
        return []


@interpreted
@pytest.mark.parametrize(
    ("what", "fault"),
    [
        ("no wait for a network beside the backbone", "does not wait for bias_forward"),
        ("no wait for the step's images", "does not wait for aten::index_select"),
        ("no wait for gradients of weights", "optimise does not wait for aten::bmm"),
        ("what gradients are made of is not kept", "aten::bmm may still use what was freed"),
    ],
)
def test_a_fault_would_be_found(what: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = Stream.wait_stream
    if "network" in what:
        outside = lambda stream, other: None if other in branches._asides.values() else wait(stream, other)  # noqa: E731
        monkeypatch.setattr(Stream, "wait_stream", outside)
    elif "images" in what:
        monkeypatch.setattr(Stream, "record_event", lambda _: {})
    elif "gradients of weights" in what:
        beside = lambda stream, other: None if other in branches._weights.values() else wait(stream, other)  # noqa: E731
        monkeypatch.setattr(Stream, "wait_stream", beside)
    else:
        monkeypatch.setattr(branches, "_needed", Forgetful())
    assert any(fault in found for found in played(monkeypatch).faults)
