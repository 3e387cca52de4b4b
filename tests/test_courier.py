"""The courier: what it minimises, whom it listens to, what it mixes and what it answers with."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import mapl
from conftest import deliver, inboxes_of, parameters, play, row_of, small
from mapl import Client, MaplError, Recipe
from mapl.kinship import CLOSE, COMMON, circle_weights, direction, kept, update_of, without_shares
from mapl.losses import distillation
from mapl.methods._courier import courier_of, head_of
from mapl.methods._mixing import copy_networks, flatten, length_of, load_all_flat, load_flat, shared_tensors
from mapl.model import find_backbone
from mapl.runs.chain import Round
from mapl.runs.exchange import look_around
from mapl.runs.part import Part, build_part
from mapl.runs.round import play_round

COURIER, TEACHER = "courier", "teacher"
LITTLE = {"courier": "cnn", "features": 6}


def recipe(**over: Any) -> Recipe:
    return small("courier", **{**over, "method": {**LITTLE, **over.get("method", {})}})


def numpy_softmax(x: Tensor) -> np.ndarray[Any, Any]:
    values = x.detach().double().numpy()
    e = np.exp(values - values.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


# Distillation

logits = st.lists(st.lists(st.floats(-20, 20), min_size=3, max_size=3), min_size=1, max_size=5)


@given(logits, logits, st.floats(0.5, 8))
def test_distillation_is_the_divergence_of_softened_answers(ours: Any, theirs: Any, temperature: float) -> None:
    n = min(len(ours), len(theirs))
    o, t = (torch.tensor(x[:n], dtype=torch.float64) for x in (ours, theirs))
    p, q = numpy_softmax(t / temperature), numpy_softmax(o / temperature)
    expected = temperature**2 * np.mean(np.sum(p * (np.log(p) - np.log(q)), axis=1))
    assert float(distillation(o, t, temperature)) == pytest.approx(expected, abs=1e-9, rel=1e-9)


@given(logits, st.floats(0.5, 8), st.floats(-5, 5))
def test_distillation_is_zero_for_equal_answers_and_never_negative(ours: Any, temperature: float, shift: float) -> None:
    o = torch.tensor(ours, dtype=torch.float64)
    assert float(distillation(o + shift, o, temperature)) == pytest.approx(0, abs=1e-9)
    assert float(distillation(o, o.flip(1), temperature)) > -1e-9


def test_no_gradient_goes_into_the_teacher() -> None:
    ours, theirs = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    distillation(ours, theirs, 2.0).backward()  # type: ignore[no-untyped-call]
    assert theirs.grad is None
    assert ours.grad is not None
    # For T² · KL the gradient of one image is T · (softmax(o/T) − softmax(t/T)).
    expected = 2 * (numpy_softmax(ours / 2) - numpy_softmax(theirs / 2)) / 2
    np.testing.assert_allclose(ours.grad.numpy(), expected, atol=1e-6)


def test_the_loss_by_hand() -> None:
    part = build_part(recipe(method={"terms": [], "distil": 0.5, "distil_temperature": 3.0}))
    client = part.clients[1]
    client.model.eval()
    load_flat(0.5 * flatten(client.model.own[TEACHER]), client.model.own[TEACHER])
    images, labels = torch.randn(6, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
    terms = part.method.loss(client, images, labels)
    model = copy.deepcopy(client.model).double()
    own, courier, teacher = (f(images.double()) for f in (model, model.own[COURIER], model.own[TEACHER]))
    rows = np.arange(6)
    expected = {
        "cross_entropy": -np.log(numpy_softmax(own)[rows, labels]).mean(),
        COURIER: -np.log(numpy_softmax(courier)[rows, labels]).mean(),
    }
    p, q = numpy_softmax(teacher / 3), numpy_softmax(own / 3)
    expected["distillation"] = 0.5 * 9 * (p * np.log(p / q)).sum(1).mean()
    assert {name: float(value.detach()) for name, value in terms.items()} == pytest.approx(expected, rel=1e-4)


# Kin


def test_an_update_by_hand() -> None:
    before, after = torch.ones(2, 2), torch.tensor([[5.0, 2.0], [1.0, 2.0]])
    # Less the mean over classes (2, 1).
    torch.testing.assert_close(update_of(before, after), torch.tensor([[2.0, 0.0], [-2.0, 0.0]]))


numbers = st.lists(st.lists(st.floats(-3, 3), min_size=4, max_size=4), min_size=3, max_size=3)


@given(numbers, numbers, st.lists(st.floats(-3, 3), min_size=4, max_size=4))
def test_an_update_ignores_what_changes_no_answer(before: Any, after: Any, common: Any) -> None:
    start, end = torch.tensor(before, dtype=torch.float64), torch.tensor(after, dtype=torch.float64)
    shifted = update_of(start, end + torch.tensor(common, dtype=torch.float64))
    torch.testing.assert_close(shifted, update_of(start, end), atol=1e-9, rtol=0)


@given(numbers, numbers, st.floats(0.1, 10))
def test_how_much_a_mix_keeps(update: Any, moved: Any, scale: float) -> None:
    u, m = torch.tensor(update, dtype=torch.float64), torch.tensor(moved, dtype=torch.float64)
    if float(u.norm()) < 1e-3:
        return
    share = np.vdot(u.numpy(), m.numpy()) / np.vdot(u.numpy(), u.numpy())
    assert float(kept(u, m)) == pytest.approx(min(1, max(0, share)) ** 2)
    assert float(kept(scale * u, scale * m)) == pytest.approx(float(kept(u, m)))
    assert float(kept(u, u)) == pytest.approx(1)  # alone, or among clients that learned the same
    assert float(kept(u, -u)) == 0
    assert float(kept(torch.zeros_like(u), m)) == 0


def test_of_updates_that_have_nothing_in_common_a_mix_keeps_little() -> None:
    updates = torch.eye(12, dtype=torch.float64).view(12, 3, 4)
    assert float(kept(updates[0], updates.mean(0))) == pytest.approx(1 / 144)


@given(numbers)
def test_a_direction_has_no_length(drift: Any) -> None:
    x = torch.tensor(drift, dtype=torch.float64)
    assert torch.equal(direction(0 * x), torch.zeros_like(x))
    if float(x.norm()) > 1e-3:
        assert float(direction(x).square().mean()) == pytest.approx(1)
        assert float((direction(x) * x).sum()) == pytest.approx(float(x.norm()) * math.sqrt(12))


@pytest.mark.parametrize("every", [1, 3])
def test_kin_stay_kin_when_they_have_converged(every: int) -> None:
    """Their data differ a little, so training goes on to pull their heads apart, and the mix undoes that each time."""
    part = build_part(recipe(clients=6, method={"every": every}, network={"topology": {"name": "full"}}))
    draw = torch.Generator().manual_seed(0)
    heads = [client.model.own[COURIER].head for client in part.clients]
    shape = head_of(part.clients[0].model.own[COURIER]).shape
    cluster, own = torch.randn(shape, generator=draw), 0.5 * torch.randn(6, *shape, generator=draw)
    for round in range(150):
        for client, head in zip(part.clients, heads, strict=True):
            assert isinstance(head, nn.Linear)
            target = (-1) ** client.id * cluster + own[client.id]
            with torch.no_grad():
                head.weight.lerp_(target[:, :-1], 0.1)
                head.bias.lerp_(target[:, -1], 0.1)
        part.method.absorb_all(round, inboxes_of(part, round))
    for client in part.clients:
        same = [other % 2 == client.id % 2 for other in range(6)]
        assert row_of(client, 6).tolist() == pytest.approx([x / 3 for x in same])


cosine = st.floats(-1, 1)
circles = st.lists(st.lists(st.tuples(cosine, cosine), max_size=6), min_size=1, max_size=5)


@given(circles)
def test_kin_have_equal_weights_and_others_none(members: list[list[tuple[float, float]]]) -> None:
    whole = [[(1.0, 1.0), *circle] for circle in members]
    cosines, common = (torch.tensor([m[i] for c in whole for m in c], dtype=torch.float64) for i in range(2))
    sizes = torch.tensor([len(circle) for circle in whole])
    weights = torch.split(circle_weights(cosines, common, sizes), sizes.tolist())
    for row, circle in zip(weights, whole, strict=True):
        others = [x for x, _ in circle[1:]]
        close = not others or max(others) >= CLOSE
        kin = [x > 0 or (not close and shared > COMMON) for x, shared in circle]
        np.testing.assert_allclose(row.numpy(), np.array(kin) / sum(kin))


@given(numbers, st.lists(st.floats(-3, 3), min_size=3, max_size=3))
def test_how_often_classes_occur_is_taken_out_of_a_drift(drift: Any, mean: Any) -> None:
    """Training moves the weights of a class along the mean embedding by as much as its bias."""
    x = torch.tensor(drift, dtype=torch.float64)
    weights, bias = x[:, :-1].numpy(), x[:, -1:].numpy()
    if float(np.linalg.norm(bias)) < 1e-3:
        return
    along, *_ = np.linalg.lstsq(bias, weights, rcond=None)
    np.testing.assert_allclose(without_shares(x).numpy(), weights - bias @ along, atol=1e-9)
    more = torch.cat([x[:, :-1] + x[:, -1:] * torch.tensor(mean, dtype=torch.float64), x[:, -1:]], dim=1)
    torch.testing.assert_close(without_shares(more), without_shares(x), atol=1e-9, rtol=0)


def test_without_a_bias_all_of_a_drift_is_left() -> None:
    x = torch.cat([torch.randn(2, 3, 4), torch.zeros(2, 3, 1)], dim=2)
    assert torch.equal(without_shares(x), x[..., :-1])


def trained_apart(clients: int = 4) -> Part:
    """Clients 0 and 1 moved their couriers' heads one way, the others another way; the couriers differ."""
    part = build_part(recipe(clients=clients, network={"topology": {"name": "full"}}))
    for client in part.clients:
        own = client.model.own
        with torch.no_grad():
            for parameter in own[COURIER].parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(client.id)))
        load_flat(flatten(own[COURIER]), own[TEACHER])
        client.state["start"].copy_(head_of(own[COURIER]))
        head = own[COURIER].head
        assert isinstance(head, nn.Linear)
        with torch.no_grad():
            head.weight[5 if client.id < 2 else 3] += 1
            head.bias[client.id] += 0.1
    return part


def test_couriers_of_kin_are_averaged_and_no_others() -> None:
    part = trained_apart()
    before = [flatten(client.model.own[COURIER]).double() for client in part.clients]
    own = {
        k: v.clone() for k, v in parameters(part).items() if f".own.{COURIER}." not in k and f".own.{TEACHER}." not in k
    }
    part.method.absorb_all(0, inboxes_of(part, 0))
    for client in part.clients:
        kin = [0, 1] if client.id < 2 else [2, 3]
        expected = sum(before[i] for i in kin) / 2
        torch.testing.assert_close(flatten(client.model.own[COURIER]).double(), expected, atol=1e-6, rtol=1e-6)
        assert row_of(client, 4).tolist() == [0.5 if i in kin else 0 for i in range(4)]
        assert client.peers.ids.tolist() == [0, 1, 2, 3]
    after = parameters(part)
    for name, value in own.items():
        assert torch.equal(after[name], value), f"{name} is not the courier's"


def test_a_letter_carries_the_courier_and_its_drift_alone() -> None:
    part = build_part(recipe())
    look_around(part.method, part.clients, None, part.topology, 0)
    letters = [part.method.letter(client, 0) for client in part.clients]
    for letter in letters:
        assert letter is not None
        assert {name: tuple(t.shape) for name, t in letter.tensors.items()} == {
            COURIER: (len(flatten(part.clients[0].model.own[COURIER])),),
            "drift": (10, 7),
        }
        # All couriers start alike, whatever the own networks are.
        assert torch.equal(letter.tensors[COURIER], letters[0].tensors[COURIER])  # type: ignore[union-attr]


@pytest.mark.parametrize("method", ["courier", "proxyfl"])
def test_a_reader_expects_letters_like_its_own(method: str) -> None:
    part = build_part(small(method, method=LITTLE))
    look_around(part.method, part.clients, None, part.topology, 0)
    for client in part.clients:
        client.model.double()
        courier = part.method.letter(client, 0).tensors[COURIER]  # type: ignore[union-attr]
        expected = part.method.schema(client, 0)[COURIER]
        assert (expected.shape, expected.dtype) == (tuple(courier.shape), courier.dtype)


def test_a_courier_is_made_one_vector_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that takes as long as anything else in an exchange."""
    made: list[int] = []
    plain = courier_of
    monkeypatch.setattr("mapl.methods.courier.courier_of", lambda client: made.append(client.id) or plain(client))
    part = trained_apart()
    for t in range(2):
        play_round(part, t)
        assert sorted(made) == sorted([0, 1, 2, 3] * (t + 1))
    look_around(part.method, part.clients, None, part.topology, 2)
    letter = {3: part.method.letter(part.clients[3], 2)}
    part.method.absorb(part.clients[0], 2, deliver(letter, {0: torch.tensor([3])}, 2)[0])  # type: ignore[arg-type]
    assert made[-2:] == [3, 0], "who wrote no letter mixes its own courier all the same"


def test_who_trained_after_its_letter_mixes_what_it_is_now() -> None:
    """A letter of an earlier round, whose answers never came."""
    parts = [trained_apart() for _ in range(2)]
    for part, writes in zip(parts, (True, False), strict=True):
        look_around(part.method, part.clients, None, part.topology, 1)
        client = part.clients[0]
        if writes:
            part.method.letter(client, 0)
        load_flat(2 * flatten(client.model.own[COURIER]), client.model.own[COURIER])
        letters = {1: part.method.letter(part.clients[1], 1)}
        part.method.absorb(client, 1, deliver(letters, {0: torch.tensor([1])}, 1)[0])  # type: ignore[arg-type]
    before, after = (parameters(part) for part in parts)
    for name, value in before.items():
        assert torch.equal(after[name], value), name


def test_kin_whose_letter_is_lost_stay_kin() -> None:
    part = trained_apart()
    part.method.absorb_all(0, inboxes_of(part, 0))
    client = part.clients[0]
    look_around(part.method, part.clients, None, part.topology, 1)
    letters = {3: part.method.letter(part.clients[3], 1)}
    part.method.absorb(client, 1, deliver(letters, {0: torch.tensor([3])}, 1)[0])  # type: ignore[arg-type]
    assert row_of(client, 4).tolist() == [0.5, 0.5, 0, 0]
    part.method.absorb(client, 2, deliver({}, {0: torch.tensor([1])}, 2)[0])
    assert row_of(client, 4).tolist() == [0.5, 0.5, 0, 0]


@pytest.mark.parametrize("every", [1, 3])
def test_others_are_asked_after_1_2_4_8_letters(every: int) -> None:
    part = trained_apart(5)
    method = part.method
    method.settings = method.settings.model_copy(update={"every": every})
    client = part.clients[0]
    client.neighbours = torch.tensor([1, 2, 3])  # 4 is out of reach
    client.peers.meet(np.array([1, 2, 4]), 0.0, np.array([10, 10, 10]))
    client.peers.weights = np.array([0.5, 0.5, 0, 0])
    asked = [method.wants(client, t).tolist() for t in range(10 * every)]
    for number in range(1, 11):
        everybody = number in (1, 2, 4, 8)
        # Client 3 is a stranger: it is asked until it answers.
        assert asked[number * every - 1] == ([1, 2, 3] if everybody else [1, 3])
    silent = [t for t in range(10 * every) if (t + 1) % every]
    assert not any(asked[t] for t in silent)
    method.settings = method.settings.model_copy(update={"every": 1})


@pytest.mark.parametrize(
    ("partition", "clients"),
    [({"scenario": 1}, 6), ({"scenario": 2}, 6), ({"scenario": 1, "clusters": 3, "sizes": [4, 2, 1]}, 7)],
    ids=["two", "overlapping", "unequal, one alone"],
)
def test_clients_find_their_cluster_and_stop_asking_the_others(partition: dict[str, Any], clients: int) -> None:
    tree = {"data": "digits", "clients": clients, "rounds": 6, "partition": partition, "evaluate": {"every": 100}}
    part = play(Recipe.of(method="courier", model={"backbones": ["mlp"]}, **tree))
    clusters = np.array([client.cluster for client in part.clients])
    same = clusters[:, None] == clusters
    expected = torch.from_numpy(same / same.sum(1, keepdims=True))
    torch.testing.assert_close(torch.stack([row_of(client, clients) for client in part.clients]), expected)
    inside, everybody = same.sum() - clients, clients * (clients - 1)
    assert [line.messages for line in part.lines] == [  # type: ignore[attr-defined]
        everybody, everybody, inside, everybody, inside, inside
    ]  # fmt: skip


# Teacher and answers


def test_the_teacher_is_the_mixed_courier_and_stays_so_through_a_round() -> None:
    part = play(recipe(), rounds=1)
    mixed = [flatten(client.model.own[COURIER]) for client in part.clients]
    part.engine.train_all(part.clients, 1)
    for client, before in zip(part.clients, mixed, strict=True):
        assert torch.equal(flatten(client.model.own[TEACHER]), before)
        assert not torch.equal(flatten(client.model.own[COURIER]), before)


def test_between_letters_a_teacher_with_kin_stays_and_one_alone_follows() -> None:
    part = build_part(recipe(clients=4, method={"every": 3}, partition={"clusters": 2, "sizes": [3, 1]}))
    teachers: list[list[Tensor]] = []
    for round in range(6):
        play_round(part, round)
        couriers = [flatten(client.model.own[COURIER]) for client in part.clients]
        teachers.append([flatten(client.model.own[TEACHER]) for client in part.clients])
        follows = [torch.equal(*pair) for pair in zip(teachers[-1], couriers, strict=True)]
        assert follows == [round < 3 or round == 5] * 3 + [True]  # the first letters come after round 2
    assert [int(client.state["mixed"]) for client in part.clients] == [3, 3, 3, 1]
    assert torch.equal(teachers[2][0], teachers[4][0])


def test_own_networks_learn_from_letters() -> None:
    """The same run without letters ends with other own networks, and without distillation it does not."""
    alone = {"network": {"topology": {"name": "none"}}}
    for distil, learns in ((0.25, True), (0.0, False)):
        with_letters, without = (play(recipe(method={"distil": distil}, **more)) for more in ({}, alone))
        ours, theirs = (flatten(part.clients[0].model.backbone) for part in (with_letters, without))
        assert torch.equal(ours, theirs) == (not learns)


@pytest.mark.parametrize(
    ("settings", "kin", "share"),
    [
        ({"answer": "own"}, 3, 0),
        ({"answer": "courier"}, 3, 1),
        ({"answer": "both", "share": 0.3}, 3, 0.3),
        ({}, 1, 1 / 2),
        ({}, 3, 3 / 4),
    ],
    ids=str,
)
def test_answers_by_hand(settings: dict[str, Any], kin: int, share: float) -> None:
    part = build_part(recipe(method=settings))
    client = part.clients[0]
    client.peers.meet(np.array([1, 2, 3]), 0.0, np.array([10, 10, 10]))
    client.peers.weights = np.array([1.0 / kin] * kin + [0.0] * (4 - kin))
    client.state["mixed"].fill_(kin)
    embedding, courier = torch.randn(5, 12), torch.randn(5, 10)
    own = numpy_softmax(client.model.classify(embedding))
    scores = part.method.scores(client, {"backbone": embedding, TEACHER: courier})
    expected = (1 - share) * own + share * numpy_softmax(courier)
    np.testing.assert_allclose(scores.detach().numpy(), expected, atol=1e-6)


def test_a_courier_has_a_learning_rate_of_its_own() -> None:
    parts = [play(recipe(method=rate), rounds=1) for rate in ({}, {"courier_rate": 1e-9}, {"courier_rate": 1e-3})]
    first = flatten(build_part(recipe()).clients[0].model.own[COURIER])
    head = slice(-77, None)  # parameters alone: normalisation statistics move at any rate
    moved = [(flatten(p.clients[0].model.own[COURIER]) - first)[head].abs().max() for p in parts]
    assert moved[1] < 1e-6 < moved[2]
    assert parts[0].method.learning_rates() == {TEACHER: 0}


def test_a_history_says_what_each_network_would_answer_by_itself() -> None:
    part = play(recipe(evaluate={"moment": "mixed"}), rounds=2)
    (line, last) = part.lines  # type: ignore[attr-defined]
    assert line.ways.keys() == {"own", COURIER}
    for answer, expected in (("own", last.ways["own"]), (COURIER, last.ways[COURIER]), ("both", last.accuracy)):
        part.method.settings = part.method.settings.model_copy(update={"answer": answer})
        assert [float(part.engine.evaluate(c).double().mean()) for c in part.clients] == pytest.approx(expected)
    assert Round.of_line(last.line()) == last
    assert play(small("mapl"), rounds=1).lines[0].ways is None  # type: ignore[attr-defined]


def test_an_extended_run_is_the_longer_run_to_the_byte(tmp_path: Path) -> None:
    """The last round of a shorter run was tested only because it was the last."""
    short, long = (recipe(rounds=rounds, evaluate={"every": 2}) for rounds in (3, 5))
    mapl.run(short, tmp_path / "extended")
    mapl.resume(tmp_path / "extended", rounds=5)
    mapl.run(long, tmp_path / "long")
    histories = [(tmp_path / name / "history.jsonl").read_bytes() for name in ("extended", "long")]
    assert histories[0] == histories[1]


# Bad input


def wide(image: tuple[int, int, int], embedding: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(image), embedding + 1))


def deep(image: tuple[int, int, int], embedding: int) -> nn.Module:
    return nn.Sequential(nn.MaxPool2d(16), nn.Flatten(), nn.LazyLinear(embedding))


@pytest.mark.parametrize(
    ("courier", "match"),
    [
        ("test_courier:deep", "cannot take images"),
        ("test_courier:wide", "method.features"),
        ("nothing", "unknown backbone"),
        ("test_courier:math.pi", "not a backbone"),
    ],
)
def test_a_courier_that_does_not_fit_is_named(courier: str, match: str) -> None:
    with pytest.raises(MaplError, match=match):
        build_part(recipe(method={"courier": courier}))


def test_a_letter_of_another_courier_is_left_out_counted_and_said_once() -> None:
    part, other = trained_apart(), build_part(recipe(method={"features": 5}))
    look_around(part.method, part.clients, None, part.topology, 0)
    stranger: Client = other.clients[1]
    letters = {c.id: part.method.letter(c, 0) for c in part.clients[1:]}
    letters[1] = other.method.letter(stranger, 0)
    inbox = deliver(letters, {0: torch.tensor([1, 2, 3])})[0]  # type: ignore[arg-type]
    client = part.clients[0]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        for round in range(3):
            part.method.absorb(client, round, inbox)
    assert [str(warning.message).partition(":")[0].endswith("clients [1]") for warning in said] == [True]
    assert client.peers.ids.tolist() == [0, 1, 2, 3]  # met, but not kin: it is not asked in every round
    assert row_of(client, 4).tolist() == [1, 0, 0, 0]
    assert client.state["misfits"].tolist() == [3]


def test_a_letter_of_another_courier_passes_the_border_and_a_broken_one_does_not() -> None:
    from mapl.network import decode, encode
    from mapl.runs.exchange import Exchange

    part, other = trained_apart(), build_part(recipe(method={"features": 5}))
    look_around(part.method, part.clients, None, part.topology, 0)
    exchange = Exchange(part.method, part.clients, None, part.transport, part.ledger, 0)
    schema = replace(exchange._schema(part.clients[0], "letters"), run=other.clients[1].run)
    foreign = other.method.letter(other.clients[1], 0)
    assert foreign is not None
    decode(encode(foreign), schema)
    mine = part.method.letter(part.clients[1], 0)
    assert mine is not None
    longer = replace(mine, run=schema.run, tensors={**mine.tensors, COURIER: torch.zeros(9)})
    with pytest.raises(MaplError, match=COURIER):
        decode(encode(longer), schema)


def test_classes_that_a_courier_never_saw_are_no_answers() -> None:
    """Clients of one cluster have never seen the other's classes, and nobody answers with them."""
    part = play(Recipe.of(data="digits", method="courier", rounds=8, clients=4, model={"backbones": ["mlp"]}))
    for client in part.clients:
        images = part.engine.augmentation.normalise(client.test.pixels)
        with torch.no_grad():
            outputs = {"backbone": client.model.embed(images), TEACHER: client.model.call(TEACHER, images)}
            answers = part.method.scores(client, outputs).argmax(1)
        seen = set(client.train.labels.tolist())
        assert len(seen) == 5
        assert np.mean([answer in seen for answer in answers.tolist()]) > 0.99


def test_a_share_counts_the_couriers_in_the_last_mean() -> None:
    part = trained_apart()
    client = part.clients[0]
    assert part.method.share(client) == 1 / 2
    part.method.absorb_all(0, inboxes_of(part, 0))
    assert part.method.share(client) == 2 / 3
    part.method.absorb(client, 1, deliver({}, {0: torch.tensor([1])}, 1)[0])  # its kin's letter is lost
    assert part.method.share(client) == 1 / 2


@pytest.mark.parametrize("backbone", ["resnet18", "shufflenet", "courier"])
def test_a_networks_tensors_come_in_the_order_of_its_state(backbone: str) -> None:
    network = find_backbone(backbone)((3, 32, 32), 8)
    network.register_buffer("passing", torch.ones(3), persistent=False)
    network.register_parameter("nothing", None)
    expected = [tensor for tensor in network.state_dict().values() if tensor.is_floating_point()]
    tensors = shared_tensors(network)
    assert [tensor.data_ptr() for tensor in tensors] == [tensor.data_ptr() for tensor in expected]
    assert not any(tensor.requires_grad for tensor in tensors)


def test_many_networks_are_written_at_once_as_one_by_one() -> None:
    """Also where filters lie channels last, as on a GPU; and a variance below 0 becomes 0."""
    network = find_backbone("courier")((3, 32, 32), 8)
    one, many = [[copy.deepcopy(network) for _ in range(3)] for _ in range(2)]
    for some in (one, many):
        some[1].to(memory_format=torch.channels_last)
    vectors = [torch.randn(length_of(network), generator=torch.Generator().manual_seed(i)) for i in range(3)]
    for module, vector in zip(one, vectors, strict=True):
        load_flat(vector, module)
    load_all_flat((vector, (module,)) for vector, module in zip(vectors, many, strict=True))
    for a, b, vector in zip(one, many, vectors, strict=True):
        assert torch.equal(flatten(a), flatten(b))
        variances = torch.cat([part.running_var for part in b.modules() if isinstance(part, nn.BatchNorm2d)])
        assert variances.min() == 0
        assert torch.equal(b[0][0].weight.flatten(), vector[: b[0][0].weight.numel()])
    load_all_flat([])


def test_networks_are_copied_with_their_statistics() -> None:
    pairs = [(nn.BatchNorm2d(3), nn.BatchNorm2d(3)) for _ in range(2)]
    for number, (network, _) in enumerate(pairs):
        network(torch.randn(4, 3, 2, 2) + number)
    copy_networks(pairs)
    for network, copied in pairs:
        assert torch.equal(flatten(network), flatten(copied))
        assert copied.num_batches_tracked == 0  # a counter, which is not averaged
    copy_networks([])
