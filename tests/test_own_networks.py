"""Networks that a method brings along: in a group they learn what they learn client by client."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("triton")

from mapl.client import Client
from mapl.engine.cuda.families import operations_of
from mapl.engine.cuda.slot import Slot
from mapl.losses import cross_entropy
from mapl.methods.local import Local
from mapl.runs.round import play_round
from test_cuda import (
    CUDA,
    DIGITS,
    WAYS,
    build_part,
    distance,
    eager_world,
    flat,
    grouped_world,
    interpreted,
    on_gpu,
    plays_like_eager,
    recipe,
)

HERE = "test_own_networks:"
PEER_RATE = 3e-2
FEW = {"shots": 1, "test_shots": 1}


@pytest.fixture(autouse=True)
def _few_tests_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of tests is filled up to its full size, which the interpreter takes long for."""
    if not CUDA:
        monkeypatch.setattr("mapl.engine.cuda.engine.TEST_BATCH", 5)


def convolutional(image: tuple[int, int, int], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(image[0], 3, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.0),
        nn.Conv2d(3, 3, 3, padding=1),
        nn.Flatten(),
        nn.Linear(3 * (image[1] // 4) * (image[2] // 4), classes),
    )


def apart(ours: Tensor, theirs: Tensor) -> Tensor:
    """KL(theirs ‖ ours) of two networks' logits, (B, K)."""
    ours, theirs = F.log_softmax(ours, 1), F.log_softmax(theirs, 1)
    return (theirs.exp() * (theirs - ours)).sum(1).mean()


class Mutual(Local):
    """The backbone and a network beside it learn from each other, and that one from its own past, a frozen copy."""

    answers_with: ClassVar[tuple[str, ...]] = ("backbone", "peer")

    def modules(self, client: Client) -> dict[str, nn.Module]:
        image = client.train.pixels.shape[1:]
        peer = convolutional((image[0], image[1], image[2]), client.model.head.out_features)
        return {"peer": peer, "teacher": copy.deepcopy(peer)}

    def learning_rates(self) -> dict[str, float]:
        return {"peer": PEER_RATE, "teacher": 0}

    def loss(self, client: Client, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits, peer = client.model(images), client.model.call("peer", images)
        with torch.no_grad():
            teacher = client.model.call("teacher", images)
        return {
            "cross_entropy": cross_entropy(logits, labels) + cross_entropy(peer, labels),
            "mutual": apart(logits, peer.detach()) + apart(peer, logits.detach()),
            "teacher": apart(peer, teacher),
        }

    def scores(self, client: Client, outputs: Any) -> Tensor:
        return client.model.classify(outputs["backbone"]).softmax(1) + outputs["peer"].softmax(1)

    def start_epoch(self, client: Client, round: int, epoch: int) -> None:
        client.model.own["teacher"].load_state_dict(client.model.own["peer"].state_dict())


class Afterwards(Mutual):
    """The same, but the copy is made after each round."""

    def start_epoch(self, client: Client, round: int, epoch: int) -> None: ...

    def absorb(self, client: Client, round: int, inbox: Any) -> None:
        client.model.own["teacher"].load_state_dict(client.model.own["peer"].state_dict())


class Judged(Local):
    """The backbone is looked at through a frozen network with a normalisation: the gradient passes through that."""

    def modules(self, client: Client) -> dict[str, nn.Module]:
        image, width = client.train.pixels.shape[1:], client.model.head.in_features
        judge = nn.Sequential(nn.Linear(width, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
        maker = nn.Sequential(nn.Conv2d(image[0], image[0], 3, padding=1), nn.ReLU())
        eye = nn.Sequential(
            nn.Conv2d(image[0], 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1, groups=4),
            nn.ReLU(), nn.Conv2d(4, 2, (1, 3), padding=(0, 1)), nn.Conv2d(2, 2, 1), nn.Flatten(),
        )  # fmt: skip
        judge[1].running_mean.uniform_(-1, 1)
        return {"judge": judge, "maker": maker, "eye": eye, "second_head": nn.Linear(width, 10)}

    def learning_rates(self) -> dict[str, float]:
        return {"judge": 0, "eye": 0}

    def loss(self, client: Client, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        embedding = client.model.embed(images)
        seen = client.model.call("eye", client.model.call("maker", images))
        again = client.model.call("judge", embedding.flip(0))  # a frozen network may be called twice
        return {
            "cross_entropy": cross_entropy(client.model.classify(embedding), labels),
            "judge": client.model.call("judge", embedding).square().mean() + 0.1 * again.mean(),
            "eye": seen.square().mean(),
            "second_head": cross_entropy(client.model.call("second_head", embedding), labels),
        }


def mutual(name: str = "Mutual", **settings: Any) -> Any:
    return recipe(method={"name": HERE + name}, **{"rounds": 2, "partition": FEW, **settings})


@interpreted
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"name": "Afterwards"},
        {"train": {"batch": 5, "optimizer": "sgd", "learning_rate": 1e-2, "epochs": 2, "weight_decay": 0.01}},
        {"partition": {"scenario": 3, "shots_range": (1, 2), "test_shots": 1}, "clients": 3},
        {"train": {"batch": 5, "optimizer": "sgd", "learning_rate": 1e-2, "warmup_rounds": 2}},
    ],
    ids=["copied before an epoch", "copied after a round", "two epochs, decay", "unequal shards", "schedule"],
)
def test_networks_of_a_method_learn_in_a_group_what_they_learn_alone(settings: dict[str, Any]) -> None:
    part = plays_like_eager(mutual(**settings), {"flat": flat})
    for family in part.engine.families:
        assert family.group
        assert family.slots
    if "partition" not in settings:
        assert [family.size for family in part.engine.families] == [2]
    model = part.clients[0].model
    copied_last = settings.get("name") == "Afterwards"
    assert torch.equal(model.own["peer"][0].weight, model.own["teacher"][0].weight) == copied_last


@interpreted
@pytest.mark.parametrize("together", [1, 2])
def test_the_gradient_passes_through_frozen_networks(together: int) -> None:
    part = plays_like_eager(mutual("Judged", rounds=1), {"flat": flat}, together=together)
    (family,) = part.engine.families
    assert (family.group, family.size) == (True, together)


@interpreted
def test_optimisers_of_own_networks_live_on_and_are_saved() -> None:
    made = mutual("Afterwards", train={"batch": 5, "reset": False, "learning_rate": 1e-3})
    eager, grouped = eager_world(made, {"flat": flat}), grouped_world(made, {"flat": flat})
    for part in (eager, grouped):
        play_round(part, 0)
    ours, theirs = grouped.engine.state(), eager.engine.state()
    names = [name for name, _ in eager.clients[0].model.named_parameters()]
    peer, teacher = names.index("own.peer.7.weight"), names.index("own.teacher.7.weight")
    assert f"0.{peer}.exp_avg" in theirs
    assert f"0.{teacher}.exp_avg" not in ours
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value.to(ours[name].dtype), atol=1e-6, rtol=1e-3)
    again = grouped_world(made, {"flat": flat})
    again.engine.load_state(again.clients, theirs)
    for name, value in theirs.items():
        torch.testing.assert_close(again.engine.state()[name], value.to(torch.float32))


class Unlike(Mutual):
    """Each client's network has a slope of its own."""

    def modules(self, client: Client) -> dict[str, nn.Module]:
        made = super().modules(client)
        return {name: nn.Sequential(*network, nn.LeakyReLU(0.1 * (client.id + 1))) for name, network in made.items()}


@interpreted
def test_clients_whose_own_networks_differ_are_two_kinds() -> None:
    assert len(grouped_world(mutual(), {"flat": flat}).engine.families) == 1
    assert len(grouped_world(mutual("Unlike"), {"flat": flat}).engine.families) == 2


class Strange(Mutual):
    """Its network does something that a group has no version of."""

    def modules(self, client: Client) -> dict[str, nn.Module]:
        made = super().modules(client)
        return {name: nn.Sequential(*network, nn.LayerNorm(10)) for name, network in made.items()}


@interpreted
def test_a_network_that_cannot_be_grouped_leaves_its_client_alone() -> None:
    part = plays_like_eager(mutual("Strange"), {"flat": flat})
    (family,) = part.engine.families
    assert (family.group, family.size, family.eager) == (False, 1, False)


@interpreted
def test_low_precision_holds_for_own_networks_and_for_what_is_copied_into_them() -> None:
    """The interpreter multiplies no bf16, so that only what is kept can be looked at; a GPU's test is below."""
    part = grouped_world(mutual(rounds=1), {"flat": flat}, precision="bf16")
    part.engine.warm_up(part.clients)
    (slot,) = part.engine.families[0].slots
    weights = slot.stack.weights
    assert {weights[f"own.{name}.7.weight"].dtype for name in ("peer", "teacher")} == {torch.bfloat16}
    assert "own.teacher.7.weight" not in slot.stack.gradients
    peer = slot.members[1].model.own["peer"]
    with torch.no_grad():
        peer[7].weight.fill_(0.75)
    slot.start_epochs(0, {1: 0})
    assert torch.equal(weights["own.teacher.7.weight"][1], torch.full_like(weights["own.teacher.7.weight"][1], 0.75))
    assert not torch.equal(weights["own.teacher.7.weight"][0], weights["own.teacher.7.weight"][1])


@interpreted
def test_a_frozen_network_is_never_in_training_mode() -> None:
    """Not even while kernels are built, before anything is captured: its normalisations would count batches."""
    part = grouped_world(mutual(rounds=1), {"flat": flat})
    (family,) = part.engine.families
    slot = Slot(part.method, part.recipe.train, family.clients[0], family.layout, 2, 1, True, torch.device("cpu"), None)
    slot.try_all()
    assert any("peer" in name for name in slot.stack.counted)
    assert not any("teacher" in name for name in slot.stack.counted)


@interpreted
def test_the_operations_of_the_largest_network_count() -> None:
    """A network is too large for a group by itself, not together with others."""
    engine = {"device": "cpu"}
    ours, plain = (build_part(made, DIGITS).clients[0] for made in (mutual(engine=engine), recipe(engine=engine)))
    # Three filters of 9 weights at 4×4 places, three of 27 at 2×2, ten outputs of 12 inputs.
    own = 2 * (3 * 9 * 16 + 3 * 27 * 4 + 10 * 12)
    assert operations_of(ours) == max(operations_of(plain), own)
    ours.model.backbone = nn.Identity()
    assert operations_of(ours) == own


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
@pytest.mark.parametrize("method", ["Mutual", "Afterwards", "Judged"])
@pytest.mark.parametrize(("backbone", "least"), [("cnn", 1e-6), ("resnet18", 1e-4)])
def test_on_a_gpu_own_networks_learn_what_eager_steps_learn(method: str, backbone: str, least: float) -> None:
    """By the measure of test_cuda: both against float64, groups at most twice as far from it as eager steps are.

    A maximum of a pooling that is decided by rounding moves a ResNet18 by 1e-5, on either engine.
    """
    parts = [on_gpu(kind, HERE + method, [backbone], exact) for kind, exact in WAYS]
    (family,) = parts[1].engine.families
    assert family.slots
    assert (family.group, family.size) == (True, 2)
    eager, grouped = (distance(part, parts[2]) for part in parts[:2])
    print(f"{method}, {backbone}: eager {eager:.1e}, grouped {grouped:.1e} from float64")
    assert grouped < max(2 * eager, least)


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
def test_on_a_gpu_low_precision_learns_with_own_networks() -> None:
    """bf16 rounds to three digits: losses agree to a few per cent."""
    made = {kind: recipe(method={"name": HERE + "Mutual"}, engine={"device": "cuda", "kind": kind}) for kind in KINDS}
    lines = {kind: play_round(build_part(made[kind], DIGITS), 0)[0] for kind in KINDS}
    for term, values in lines["eager"].losses.items():
        assert lines["grouped"].losses[term] == pytest.approx(values, rel=0.05, abs=0.01)


KINDS = ("eager", "grouped")
