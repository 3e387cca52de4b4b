"""The script that runs couriers and their rivals: how long it expects a run to take, and what it does not repeat."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from mapl.paper.cost import kind_of
from mapl.recipe import Recipe

SCRIPT = Path(__file__).parents[1] / "results" / "courier" / "run.py"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("courier_runs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def options(**over: Any) -> argparse.Namespace:
    usual = {"rounds": 200, "scenario": 1, "data": "cifar10", "data_dir": None, "settings": []}
    return argparse.Namespace(**{**usual, **over})


def test_a_run_is_expected_to_take_what_its_arm_took_and_else_its_method(script: Any) -> None:
    use = options()
    rows = [
        {"arm": arm, "seconds": seconds, "rounds": 200}
        for arm, seconds in [("courier", 70), ("courier alone", 500), ("courier, pooled data, equal steps", 65)]
    ]

    def expected(arm: str) -> float:
        return float(script.expected_seconds(rows, arm, script.recipe_of(arm, 0, use))) - script.SETTING_UP

    assert expected("courier") == 70
    assert expected("courier, int8") == 70
    assert expected("courier, pooled data, equal steps") == 65
    # Ten clients share their images, so a client's epoch has up to ten times as many.
    assert expected("courier, pooled data") == 700
    assert expected("fedproto") == 80


def test_what_is_in_the_store_is_said_and_not_run_again(script: Any, tmp_path: Path, capsys: Any) -> None:
    use = options(minutes=0.0, store=tmp_path / "runs.jsonl", out=tmp_path, seeds=[0], arms=["courier", "local"])
    mark = script.fingerprint(script.recipe_of("courier", 0, use))
    use.store.write_text(f'{{"arm": "courier", "fingerprint": "{mark}", "seconds": 1, "rounds": 200}}\n')
    script.run_missing(use)
    said = capsys.readouterr().out
    assert "courier, seed 0: in" in said
    assert "local, seed 0: no time left" in said


def test_a_client_with_a_courier_is_another_kind_of_work() -> None:
    """A time of MAPL's says too little of it."""
    mapl, courier, mutual = (kind_of(Recipe.of(method=name)) for name in ("mapl", "courier", "mutual"))
    assert mapl != courier == mutual
