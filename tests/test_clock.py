"""Every second of a run is billed once, to the innermost part it was spent in; and unprofiled runs wait for nothing."""

from __future__ import annotations

import json

import pytest
import torch

import mapl
from conftest import small, stop_after, written
from mapl import clock
from mapl.clock import PARTS, Clock, part

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def spend(monkeypatch):
    """Lets time pass; none passes otherwise."""
    now = [100.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])

    def spend(seconds: float) -> None:
        now[0] += seconds

    return spend


def test_nested_parts_are_billed_once_and_laps_have_all_that_is_inside(spend):
    measured = Clock(profiling=True)
    spend(7)
    with measured.running(CPU):
        laps = measured.new_round()
        with measured.part("train"):
            spend(1)
            for _ in range(2):
                with part("augmentation"):
                    spend(2)
                    with part("blur"):
                        spend(4)
            spend(8)
        spend(16)
        with measured.part("exchange"), part("graph"):
            spend(32)
    spend(1000)
    assert measured.setup == 7
    assert laps == {"train": 21, "exchange": 32}
    assert measured.seconds == {"train": 9, "augmentation": 4, "blur": 8, "other": 16, "exchange": 0, "graph": 32}
    profile = measured.profile(rounds=2)
    assert (profile["rounds"], profile["setup_seconds"], profile["seconds"]) == (2, 7, 69)
    assert tuple(profile["parts"]) == (*PARTS, "blur")
    assert profile["parts"]["training"] == {"seconds": 9, "seconds_a_round": 4.5, "share": 9 / 69}
    assert profile["parts"]["evaluation"] == {"seconds": 0, "seconds_a_round": 0, "share": 0}


def test_a_part_that_is_left_by_an_error_is_billed_all_the_same(spend):
    measured = Clock(profiling=True)

    def broken() -> None:
        with measured.running(CPU), measured.part("train"), part("graph"):
            spend(1)
            raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        broken()
    assert measured.seconds == {"other": 0, "train": 0, "graph": 1}
    assert part("graph") is part("augmentation"), "the run is over, and nobody measures"


def test_without_profiling_only_laps_are_taken(spend):
    measured = Clock()
    with measured.running(CPU), measured.part("train"):
        assert part("augmentation") is part("graph"), "one object that does nothing"
        with part("augmentation"):
            spend(1)
    assert measured.laps == {"train": 1}


def test_a_gpu_is_waited_for_at_the_borders_of_parts_only_when_profiling_and_not_while_it_records(monkeypatch):
    waits, recording = [], [False]
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recording[0])
    with Clock().running(GPU), part("graph"):
        pass
    assert waits == []
    measured = Clock(profiling=True)
    with measured.running(GPU):
        waits.clear()
        with measured.part("train"):
            assert len(waits) == 1
            recording[0] = True
            with part("augmentation"):
                pass
            recording[0] = False
            assert len(waits) == 1
        assert waits == [GPU] * 2


def test_a_profiled_run_says_where_its_time_went_and_leaves_the_same_bytes(tmp_path):
    plain = mapl.run(small(rounds=4), tmp_path / "plain")
    record = mapl.run(small(rounds=4), tmp_path / "run", profile=True)
    assert plain.profile is None
    assert not (tmp_path / "plain" / "profile.json").exists()
    profile = record.profile
    assert profile == json.loads((tmp_path / "run" / "profile.json").read_text())
    assert tuple(profile["parts"]) == PARTS
    assert sum(p["share"] for p in profile["parts"].values()) == pytest.approx(1)
    assert sum(p["seconds"] for p in profile["parts"].values()) == pytest.approx(profile["seconds"])
    assert all(p["seconds"] > 0 for p in profile["parts"].values())
    assert all(p["seconds_a_round"] == p["seconds"] / 4 for p in profile["parts"].values())
    assert profile["setup_seconds"] > 0
    assert (profile["rounds"], profile["device"][:3]) == (4, "CPU")
    laps = sum(time["train"] for time in record.times)
    inside = profile["parts"]["training"]["seconds"] + profile["parts"]["augmentation"]["seconds"]
    assert laps == pytest.approx(inside)
    assert [set(time) for time in record.times] == [set(time) for time in plain.times]
    assert written(tmp_path / "run") == written(tmp_path / "plain")


def test_the_profile_of_a_resumed_run_is_of_the_rounds_that_it_played(tmp_path):
    assert mapl.run(small(), tmp_path / "run", stop=stop_after(1), profile=True).profile["rounds"] == 1
    assert mapl.resume(tmp_path / "run", profile=True).profile["rounds"] == 2
    assert mapl.resume(tmp_path / "run", profile=True).profile["rounds"] == 2, "there was nothing to play"
