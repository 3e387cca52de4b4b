"""A loss can be computed for many clients at once, on any device, and never waits for a value.

An engine may run one step for several clients of one architecture (`torch.func.vmap`: parameters, state and images get
one more dimension), and may capture it in a CUDA graph. Both ask of every method's `start_epoch`, `loss` and `scores`
that they are made of tensor operations alone.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

import mapl.methods
from conftest import parameters, play, skip_without_umap, small
from mapl import Client
from mapl.methods._base import Method
from mapl.methods._mixing import mixed, weighted_mean
from mapl.mixing import MixingSettings
from mapl.plugins import known
from mapl.runs.part import Part, build_part

METHODS = [
    pytest.param("local", {}, id="local"),
    *(pytest.param(name, {}, id=name) for name in ("dfedavgm", "fedavg", "fedsim", "flt", "pfedsim", "mapl+")),
    *(pytest.param("mapl", {"form": form}, id=f"mapl-{form}") for form in ("released", "paper")),
    *(pytest.param("fedclassavg", {"contrast": kind}, id=f"fedclassavg-{kind}") for kind in ("port", "original")),
    *(pytest.param("fedproto", {"inference": kind}, id=f"fedproto-{kind}") for kind in ("head", "prototype")),
    *(pytest.param(name, {"answer": "both"}, id=name) for name in ("fml", "mutual", "proxyfl")),
    # 'auto' reads how many couriers were mixed, which is kept on the CPU.
    pytest.param("courier", {"share": 0.5}, id="courier"),
]
CLIENTS, BATCH = 3, 5


def world_of(name: str, over: dict[str, Any]) -> Part:
    """Clients of one architecture; without batch normalisation, whose running statistics are an engine's concern."""
    skip_without_umap(name)
    part = build_part(small(name, clients=CLIENTS, method=over, model={"backbones": ["mlp"]}, engine={"device": "cpu"}))
    for client in part.clients:
        torch.manual_seed(client.id)
        client.model.backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 12))
        client.model.projector = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8))
        own = {name: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)) for name in client.model.own}
        client.model.add_own(own, client.model.frozen)
        for tensor in client.state.values():  # as if rounds had been played: zeros would hide much
            if tensor.is_floating_point():
                tensor.add_(torch.rand(tensor.shape, dtype=tensor.dtype))
    return part


def batches(views: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    images = torch.rand(CLIENTS, views * BATCH, 1, 8, 8, generator=draw)
    return images, torch.randint(0, 10, (CLIENTS, BATCH), generator=draw).repeat(1, views)


class Step(nn.Module):
    """A training step of one client as a function of its parameters, its state and a batch."""

    def __init__(self, method: Method[Any], client: Client) -> None:
        super().__init__()
        self.method, self.client = method, client
        self.model = client.model

    def forward(self, state: dict[str, Tensor], images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.client.state = state
        self.method.start_epoch(self.client, 0, 0)
        own = [name for name in self.method.answers_with if name != "backbone"]
        with torch.no_grad():
            outputs = {name: self.model.call(name, images) for name in own}
            scores = self.method.scores(self.client, {"backbone": self.model.embed(images), **outputs})
        return {**self.method.loss(self.client, images, labels), "scores": scores}


def stacked(tensors: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([one[name].detach() for one in tensors]) for name in tensors[0]}


def total(terms: dict[str, Tensor]) -> Tensor:
    return torch.stack([value.sum() for name, value in terms.items() if name != "scores"]).sum()


@pytest.mark.parametrize(("name", "over"), METHODS)
def test_the_loss_of_many_clients_at_once_is_that_of_each(name: str, over: dict[str, Any]) -> None:
    part = world_of(name, over)
    method, clients = part.method, part.clients
    images, labels = batches(method.views)
    weights = stacked([dict(c.model.named_parameters()) for c in clients])
    weights = {f"model.{name}": tensor.requires_grad_() for name, tensor in weights.items()}
    state = stacked([c.state for c in clients])
    step = Step(method, copy.deepcopy(clients[0]))

    def one(weights: dict[str, Tensor], state: dict[str, Tensor], images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = functional_call(step, weights, (state, images, labels))
        return terms

    together = vmap(one)(weights, state, images, labels)
    total(together).backward()
    for i, client in enumerate(clients):
        alone = Step(method, client)(client.state, images[i], labels[i])
        total(alone).backward()
        for term, value in alone.items():
            torch.testing.assert_close(together[term][i], value, rtol=1e-5, atol=1e-6, msg=term)
        for key, parameter in client.model.named_parameters():
            slope = weights[f"model.{key}"].grad
            slope = torch.zeros_like(weights[f"model.{key}"]) if slope is None else slope
            expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.testing.assert_close(slope[i], expected, rtol=1e-5, atol=1e-6, msg=key)
        for key, value in client.state.items():
            torch.testing.assert_close(state[key][i], value, rtol=1e-6, atol=1e-6, msg=key)


def test_these_are_all_methods() -> None:
    assert {parameter.values[0] for parameter in METHODS} == set(known(mapl.methods))


@pytest.mark.parametrize(("name", "over"), METHODS)
def test_a_step_never_reads_a_value(name: str, over: dict[str, Any]) -> None:
    """On the meta device there are no values, so reading one, or branching on one, is an error."""
    part = world_of(name, over)
    client = part.clients[0]
    client.model.to("meta")
    client.state = {key: tensor.to("meta") for key, tensor in client.state.items()}
    images, labels = (tensor[0].to("meta") for tensor in batches(part.method.views))
    terms = Step(part.method, client)(client.state, images, labels)
    total(terms).backward()
    assert {tensor.device.type for tensor in (*terms.values(), *client.state.values())} == {"meta"}


@pytest.mark.parametrize("name", ["fedproto", "fedsim", "fedclassavg"])
def test_what_the_loss_reads_is_made_where_the_model_is(name: str) -> None:
    part = world_of(name, {})
    client = part.clients[0]
    client.model.to("meta")
    part.method.prepare(client)
    assert {tensor.device.type for tensor in client.state.values()} == {"meta"}


def test_weights_on_the_cpu_mix_tensors_on_another_device() -> None:
    weights, stack = torch.rand(3, dtype=torch.float64), torch.empty(3, 2, 5, device="meta")
    mean = MixingSettings()
    for result in (mixed(mean, weights, stack), weighted_mean(mean, torch.tensor([1, 2, 3]), stack)):
        assert (result.device.type, result.dtype, result.shape) == ("meta", torch.float32, (2, 5))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("name", "over"), METHODS)
def test_a_run_on_a_gpu_mixes_as_on_the_cpu(name: str, over: dict[str, Any]) -> None:
    skip_without_umap(name)
    parts = {}
    for device in ("cpu", "cuda"):
        engine = {"device": device, "kind": "eager", "precision": "fp32"}
        # Not Adam, which makes full steps of gradients that are all but zero: there a rounding decides the direction.
        train = {"optimizer": "sgd", "learning_rate": 0.01}
        parts[device] = play(small(name, model={"backbones": ["mlp"]}, method=over, engine=engine, train=train))
    here, there = (parameters(parts[device]) for device in ("cpu", "cuda"))
    for key, tensor in there.items():
        assert tensor.is_cuda, key
        torch.testing.assert_close(tensor.cpu(), here[key], rtol=1e-2, atol=1e-3, msg=key)
    assert parts["cuda"].ledger == parts["cpu"].ledger
