"""One short round of everything on the paper's data sets, where MAPL_DATA names a folder that has them.

mapl data get mnist --folder data      (likewise fashionmnist, svhn, cifar10)
MAPL_DATA=data pytest -m real
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

import mapl.data.sources
import mapl.methods
from conftest import REAL_PLANE
from mapl import Dataset, Recipe
from mapl.data.dataset import DataSettings
from mapl.plugins import find, known
from mapl.runs.part import Part, build_part
from mapl.runs.round import play_round

SMALL: dict[str, Any] = {
    "clients": 4,
    "rounds": 1,
    "partition": {"shots": 40, "shots_range": [20, 40], "stride": 40},
    "model": {"embedding": 64, "projection": 32, "hidden": 128},
    "evaluate": {"moment": "mixed"},
}
BACKBONES = ["resnet18", "shufflenet", "googlenet", "alexnet"]
MESSAGES = {"local": 0, "mutual": 0, "proxyfl": 4, "mapl": 12, "mapl+": 12, "dfedavgm": 12, "courier": 12, "flt": 16}
"""Of one round; other methods send one message to the server and one back."""

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("MAPL_DATA"), reason="MAPL_DATA names no folder with the data sets"),
]


@pytest.fixture(autouse=True)
def _real_umap(monkeypatch) -> None:
    monkeypatch.setattr("mapl.methods.flt._plane", REAL_PLANE)


@pytest.fixture(scope="module", params=["mnist", "fashionmnist", "svhn", "cifar10"])
def data(request) -> Dataset:
    source = find("data set", request.param, mapl.data.sources)()
    settings = DataSettings(name=request.param)
    if missing := source.published.missing(settings.root()):
        pytest.skip(f"{settings.root()} has no {', '.join(missing)}")
    dataset: Dataset = source.load(settings)
    return dataset


def one_round(data: Dataset, **over: Any) -> Part:
    part = build_part(Recipe.of(data=data.name, **{**SMALL, **over}), data)
    line, _ = play_round(part, 0)
    for client in part.clients:
        for key, tensor in client.model.state_dict().items():
            assert tensor.isfinite().all(), key
    assert line.accuracy is not None
    assert all(0 <= share <= 1 for share in line.accuracy)
    return part


@pytest.mark.parametrize("scenario", [1, 2, 3, 4])
@pytest.mark.parametrize("method", known(mapl.methods))
def test_every_method_in_every_scenario_on_every_data_set(data, scenario, method):
    over = {
        "partition": {**SMALL["partition"], "scenario": scenario},
        "model": {**SMALL["model"], "backbones": ["cnn"]},
    }
    part = one_round(data, method=method, **over)
    assert part.ledger.messages == MESSAGES.get(method, 8)
    classes = [sorted(set(c.train.labels.tolist())) for c in part.clients]
    first, second = ([*range(5)], [*range(5, 10)]) if scenario in (1, 3) else ([*range(7)], [*range(3, 10)])
    assert classes == [first, first, second, second]
    counts = [n for c in part.clients for n in torch.bincount(c.train.labels, minlength=10).tolist() if n]
    assert set(counts) == {40} if scenario in (1, 2) else 20 <= min(counts) < max(counts) <= 40


def test_the_backbones_of_the_paper(data):
    over = {"partition": {"shots": 10, "stride": 10}, "model": {**SMALL["model"], "backbones": BACKBONES}}
    part = one_round(data, method="mapl", **over)
    assert [c.backbone for c in part.clients] == BACKBONES
    assert part.ledger.messages == 12
