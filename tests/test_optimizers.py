"""Our optimisers give the bits of torch's, whatever the settings and whenever a parameter gets its first gradient."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from conftest import assert_same
from mapl.engine.optimizers import make_optimizer
from mapl.engine.settings import TrainSettings
from mapl.model import ClientModel

RATES = {"slow": 1e-3, "still": 0.0}


def model_of(own: bool) -> ClientModel:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 5, dtype=torch.float64))
    model = ClientModel(backbone, nn.Linear(5, 2), nn.Linear(5, 4), nn.Parameter(torch.randn(2, 4)))
    if own:
        model.add_own({"slow": nn.Linear(3, 3), "still": nn.Linear(3, 3)}, ["still"])
    return model


def torch_s(model: ClientModel, settings: TrainSettings, own: bool) -> torch.optim.Optimizer:
    """The same optimiser as torch has it, as users would make it."""
    groups: list[dict[str, object]] = [{"params": [p for n, p in model.named_parameters() if not n.startswith("own.")]}]
    if own:
        groups.append({"params": list(model.own["slow"].parameters()), "lr": RATES["slow"]})
    if settings.optimizer in ("adam", "adamw"):
        kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
        return kind(groups, settings.learning_rate, settings.betas, weight_decay=settings.weight_decay, fused=True)
    return torch.optim.SGD(
        groups,
        settings.learning_rate,
        settings.momentum,
        weight_decay=settings.weight_decay,
        fused=settings.momentum == 0,
    )


def give_gradients(models: list[ClientModel], step: int, first: dict[int, int]) -> None:
    """The same gradients for all models; the parameter at a position has none before step `first[position]`."""
    draw = torch.Generator().manual_seed(step)
    for position, parameters in enumerate(zip(*(model.parameters() for model in models), strict=True)):
        gradient = torch.randn(parameters[0].shape, generator=draw).to(parameters[0].dtype)
        for p in parameters:
            p.grad = gradient.clone() if p.requires_grad and step >= first.get(position, 0) else None


def state_of(optimizer: torch.optim.Optimizer, model: ClientModel) -> dict[str, torch.Tensor]:
    return {
        f"{position}.{name}": value
        for position, p in enumerate(model.parameters())
        for name, value in optimizer.state.get(p, {}).items()
        if value is not None
    }


@given(
    optimizer=st.sampled_from(["adam", "adamw", "sgd"]),
    momentum=st.sampled_from([0.0, 0.9]),
    weight_decay=st.sampled_from([0.0, 0.1]),
    betas=st.sampled_from([(0.5, 0.999), (0.9, 0.99)]),
    first=st.dictionaries(st.integers(0, 8), st.integers(1, 4), max_size=3),
    own=st.booleans(),
    resume=st.sampled_from([None, 1, 3]),
    factors=st.lists(st.floats(1e-6, 1), min_size=5, max_size=5),
)
def test_every_step_has_the_bits_of_torch_s(optimizer, momentum, weight_decay, betas, first, own, resume, factors):
    settings = TrainSettings(
        optimizer=optimizer, momentum=momentum, weight_decay=weight_decay, betas=betas, learning_rate=0.05
    )
    ours, theirs = model_of(own), model_of(own)
    mine, reference = make_optimizer(ours, settings, RATES if own else {}), torch_s(theirs, settings, own)
    for step in range(5):
        if step == resume:
            saved = {path: value.clone() for path, value in mine.named_state()}
            mine = make_optimizer(ours, settings, RATES if own else {})
            mine.load(saved)
        give_gradients([ours, theirs], step, first)
        mine.factor = factors[step]
        for rate, group in zip([settings.learning_rate, RATES["slow"]], reference.param_groups, strict=False):
            group["lr"] = rate * factors[step]
        mine.step()
        reference.step()
        assert_same(dict(ours.state_dict()), dict(theirs.state_dict()))
        assert_same(dict(mine.named_state()), state_of(reference, theirs))
    mine.zero_grad()
    assert all(p.grad is None for p in ours.parameters())


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_weights_whose_channels_are_side_by_side_have_the_bits_of_torch_s(optimizer):
    settings = TrainSettings(optimizer=optimizer, learning_rate=0.05)
    ours, theirs = model_of(False), model_of(False)
    for model in (ours, theirs):
        weight = model.backbone[0].weight
        weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    mine, reference = make_optimizer(ours, settings), torch_s(theirs, settings, False)
    for step in range(3):
        give_gradients([ours, theirs], step, {})
        mine.step()
        reference.step()
    assert_same(dict(ours.state_dict()), dict(theirs.state_dict()))


def test_a_run_does_not_wait_for_torch_s_compiler():
    program = """
import sys
from mapl import Recipe
from mapl.runs.part import build_part
from mapl.runs.round import play_round
part = build_part(Recipe.of(clients=2, partition={"shots": 2}, model={"embedding": 8, "projection": 8, "hidden": 8},
                            engine={"device": "cpu"}))
play_round(part, 0)
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
