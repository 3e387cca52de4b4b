"""The losses and the head in a few kernels, against the plain functions in float64; for one client, and for many.

Without a GPU the kernels run in Triton's interpreter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import vmap

pytest.importorskip("triton")

from conftest import small
from mapl import losses as plain
from mapl.engine.cuda import GroupedEngine
from mapl.engine.cuda import losses as fused
from mapl.engine.cuda.head import classify
from mapl.engine.cuda.kernels import account, head, launch
from mapl.engine.cuda.kernels import losses as kernels
from mapl.engine.settings import EngineSettings
from mapl.errors import MaplError
from mapl.losses import FORMS, computed_by
from mapl.runs.part import build_part, given_in_python
from mapl.runs.round import play_round

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")
few = settings(deadline=None, max_examples=10)
both_forms = pytest.mark.parametrize("form", FORMS)
SIZES = [(12, 8, 4), (40, 48, 12), (33, 20, 17), (3, 5, 2)]
"""(B, D, K): less than a block, more than one, and none that a block divides."""


@pytest.fixture(autouse=True)
def _all_digits() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that are started."""
    names: list[str] = []

    class Runs:
        """In the place of what builds kernels."""

        def add(self, kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], constants: dict[str, Any]) -> None:
            names.append(kernel.__name__)
            kernel[grid](*args, **constants)

    monkeypatch.setattr(launch, "_builders", Runs())
    return names


def data(b: int, d: int, k: int, seed: int = 0, members: int | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Projections (B, D), labels (B,), prototypes (K, D) and logits (B, K), for each member."""
    draw, lead = torch.Generator().manual_seed(seed), () if members is None else (members,)
    projections = 3 * torch.randn(*lead, b, d, generator=draw)
    labels = torch.randint(0, k, (*lead, b), generator=draw)
    prototypes = torch.randn(*lead, k, d, generator=draw) / d**0.5
    logits = 2 * torch.randn(*lead, b, k, generator=draw)
    return projections.to(DEVICE), labels.to(DEVICE), prototypes.to(DEVICE), logits.to(DEVICE)


Case = tuple[Callable[..., Tensor], Callable[..., Tensor | None], list[Tensor], tuple[Any, ...]]


def cases(inputs: tuple[Tensor, Tensor, Tensor, Tensor], tau: float, form: str) -> dict[str, Case]:
    """Each loss: its plain and its fused function, its tensors, and the rest of its arguments."""
    projections, labels, prototypes, logits = inputs
    tensors = {
        "cross_entropy": ([logits, labels], ()),
        "supervised_contrastive": ([projections, labels], (tau, form)),
        "prototype_contrastive": ([projections, labels, prototypes], (tau, form)),
        "prototype_uniformity": ([prototypes], (tau, form)),
        "distillation": ([logits, 0.5 * logits.roll(1, -1)], (tau,)),
    }
    return {name: (getattr(plain, name), fused.FUSED[name], *given) for name, given in tensors.items()}


LOSSES = list(fused.FUSED)


def leaf(tensor: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return tensor.detach().to(dtype).requires_grad_() if tensor.is_floating_point() else tensor


def value_and_slopes(
    loss: Callable[..., Any], tensors: list[Tensor], rest: tuple[Any, ...], dtype: Any
) -> list[Tensor]:
    leaves = [leaf(tensor, dtype) for tensor in tensors]
    value = loss(*leaves, *rest)
    value.backward(torch.full_like(value, 0.7))
    return [value.detach(), *(x.grad for x in leaves if x.grad is not None)]


def assert_same(case: Case, tolerance: float = 5e-6) -> None:
    """Value and gradients, relative to the largest number of each."""
    loss, way, tensors, rest = case
    ours = value_and_slopes(way, tensors, rest, torch.float32)
    exact = value_and_slopes(loss, tensors, rest, torch.float64)
    assert len(ours) == len(exact)
    for a, b in zip(ours, exact, strict=True):
        assert a.shape == b.shape
        assert a.dtype == torch.float32
        torch.testing.assert_close(a.double(), b, rtol=0, atol=tolerance * max(1e-2, float(b.abs().max())))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("size", SIZES, ids=str)
@both_forms
def test_a_fused_loss_is_the_plain_one(name: str, size: tuple[int, int, int], form: str) -> None:
    assert_same(cases(data(*size), 0.5, form)[name])


@pytest.mark.parametrize("name", [name for name in LOSSES[1:] if name != "distillation"])
@pytest.mark.parametrize("tau", [0.07, 100.0])
@both_forms
def test_at_every_temperature(name: str, tau: float, form: str) -> None:
    """At τ = 100 the slopes are small differences of numbers of 1/B."""
    assert_same(cases(data(20, 24, 5), tau, form)[name], 1e-4 if tau > 1 else 1e-5)


@pytest.mark.parametrize("tau", [0.5, 1, 4.0, 10.0])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_distillation_at_every_temperature(tau: float, size: tuple[int, int, int]) -> None:
    """T² makes what float32 loses in a small divergence as large as the loss."""
    assert_same(cases(data(*size), tau, "paper")["distillation"], 1e-5 * max(1, tau) ** 2)


def test_no_gradient_goes_into_a_teacher() -> None:
    _, _, _, logits = data(9, 6, 4, members=2)
    ours, teacher = leaf(logits), leaf(-logits)
    vmap(lambda o, t: fused.distillation(o, t, 4.0))(ours, teacher).sum().backward()
    assert ours.grad is not None
    assert teacher.grad is None


@pytest.mark.parametrize("name", LOSSES)
@both_forms
def test_the_members_of_a_group_are_computed_at_once(name: str, form: str, launched: list[str]) -> None:
    together = cases(data(18, 20, 5, members=3), 0.3, form)[name]
    _, way, tensors, rest = together
    leaves = [leaf(tensor) for tensor in tensors]
    values = vmap(lambda *one: way(*one, *rest))(*leaves)
    number = len(launched)
    weights = torch.tensor([0.7, -1.0, 2.0], device=DEVICE)
    values.backward(weights)
    assert len(launched) == number <= 2
    for g in range(3):
        alone = [leaf(tensor[g]) for tensor in tensors]
        value = way(*alone, *rest)
        assert value is not None
        (value * weights[g]).backward()
        assert torch.equal(value, values[g])
        for one, all_ in zip(alone, leaves, strict=True):
            if one.grad is not None:
                torch.testing.assert_close(all_.grad[g], one.grad, rtol=1e-6, atol=1e-9)
        assert_same((together[0], way, [tensor[g] for tensor in tensors], rest), 1e-5)


def test_what_is_the_same_for_all_members_need_not_be_repeated() -> None:
    projections, labels, prototypes, _ = data(12, 8, 3, members=3)
    one = leaf(prototypes[0])
    values = vmap(lambda p, y: fused.prototype_contrastive(p, y, one, 0.5, "paper"))(projections, labels)
    values.sum().backward()
    exact = leaf(one, torch.float64)
    for p, y in zip(projections.double(), labels, strict=True):
        plain.prototype_contrastive(p, y, exact, 0.5, "paper").backward()
    torch.testing.assert_close(one.grad.double(), exact.grad, rtol=1e-5, atol=1e-7)


def test_parameters_are_read_where_they_lie() -> None:
    """In a flat vector a member's prototypes are followed by other parameters; batches may be parts of larger ones."""
    projections, labels, prototypes, _ = data(14, 16, 4, members=2)
    room = torch.full((2, 4 * 16 + 5), torch.nan, device=DEVICE)
    room[:, : 4 * 16] = prototypes.flatten(1)
    apart = room[:, : 4 * 16].view(2, 4, 16)
    ours = vmap(lambda p, y, xi: fused.prototype_contrastive(p[:9], y[:9], xi, 0.5, "paper"))(
        projections, labels, apart
    )
    turned = vmap(lambda p, y, xi: fused.prototype_contrastive(p[:9], y[:9], xi, 0.5, "paper"))(
        projections.mT.contiguous().mT, labels, prototypes
    )
    for g in range(2):
        exact = plain.prototype_contrastive(
            projections[g, :9].double(), labels[g, :9], prototypes[g].double(), 0.5, "paper"
        )
        assert float(ours[g]) == pytest.approx(float(exact), rel=1e-6)
        assert float(turned[g]) == pytest.approx(float(exact), rel=1e-6)


# Corners


@both_forms
def test_a_zero_row_has_no_direction_and_a_bounded_slope(form: str) -> None:
    projections, labels, prototypes, logits = data(12, 8, 3)
    projections[[2, 5]] = 0
    prototypes[1] = 0
    labels[:3] = 1
    for case in cases((projections, labels, prototypes, logits), 0.5, form).values():
        assert_same(case)


@both_forms
def test_vectors_may_be_very_short_and_very_long(form: str) -> None:
    projections, labels, prototypes, logits = data(12, 8, 3)
    projections[0] *= 1e-10
    projections[1] *= 1e15
    found = cases((projections, labels, prototypes, logits), 0.5, form)
    for name in ("supervised_contrastive", "prototype_contrastive"):
        loss, way, tensors, rest = found[name]
        ours, exact = (
            value_and_slopes(f, tensors, rest, dtype) for f, dtype in ((way, torch.float32), (loss, torch.float64))
        )
        for a, b in zip(ours, exact, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=0) if a.ndim == 0 else None
        size = exact[1].norm(dim=1, keepdim=True)  # a row's slope is inverse to its length
        torch.testing.assert_close(ours[1].double() / size, exact[1] / size, rtol=0, atol=1e-5)


@both_forms
@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [0, 0, 1, 2], [1, 1, 1, 1]], ids=["none", "some", "all"])
def test_samples_without_a_positive_add_nothing(form: str, labels: list[int]) -> None:
    projections = data(4, 6, 2)[0]
    case = cases((projections, torch.tensor(labels, device=DEVICE), *data(4, 6, 4)[2:]), 0.5, form)
    assert_same(case["supervised_contrastive"])


@both_forms
def test_a_single_sample_and_a_single_prototype(form: str) -> None:
    for case in cases(data(1, 6, 1), 0.5, form).values():
        assert_same(case)
    value, slope = value_and_slopes(fused.prototype_uniformity, [data(1, 6, 1)[2]], (0.5, form), torch.float32)
    assert float(value) == 0
    assert not slope.any()


@both_forms
def test_what_is_no_number_is_not_hidden(form: str) -> None:
    projections, labels, prototypes, logits = data(20, 8, 3)
    for name, (_, way, tensors, rest) in cases((projections, labels, prototypes, logits), 0.5, form).items():
        for place, tensor in enumerate(tensors):
            if tensor.is_floating_point():
                broken = [t.clone() for t in tensors]
                broken[place][1, 2] = torch.nan
                value, *slopes = value_and_slopes(way, broken, rest, torch.float32)
                assert value.isnan(), name
                assert any(slope.isnan().any() for slope in slopes), name


def test_logits_may_be_infinite_and_huge() -> None:
    logits = torch.tensor([[1e30, 0.0, -1e30], [0.0, -torch.inf, 5.0], [-300.0, 300.0, 0.0]], device=DEVICE)
    case = cases((logits, torch.tensor([0, 2, 1], device=DEVICE), logits, logits), 1.0, "paper")["cross_entropy"]
    assert_same(case)


def test_a_label_that_is_no_class_is_not_passed_over() -> None:
    projections, _, prototypes, logits = data(3, 8, 3)
    labels = torch.tensor([0, 3, 1], device=DEVICE)
    assert fused.cross_entropy(logits, labels).isnan()
    assert fused.prototype_contrastive(projections, labels, prototypes, 1.0, "paper").isnan()


def test_the_same_again_is_the_same_to_the_bit() -> None:
    for _, way, tensors, rest in cases(data(40, 24, 5), 0.1, "released").values():
        one, two = (value_and_slopes(way, tensors, rest, torch.float32) for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.skipif(not CUDA, reason="the interpreter takes long for these, and has no TF32")
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("size", [(128, 512, 10), (200, 500, 100), (512, 512, 200), (1024, 128, 256)], ids=str)
@pytest.mark.parametrize("tf32", [False, True])
@both_forms
def test_on_a_gpu_at_full_size(name: str, size: tuple[int, int, int], tf32: bool, form: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = tf32
    assert_same(cases(data(*size), 0.5, form)[name], 5e-3 if tf32 else 5e-5)


# Properties


@few
@given(seed=st.integers(0, 2**32 - 1), b=st.integers(1, 20), k=st.integers(1, 6), form=st.sampled_from(FORMS))
def test_the_order_of_samples_and_the_length_of_projections_do_not_matter(seed: int, b: int, k: int, form: str) -> None:
    projections, labels, prototypes, logits = data(b, 8, k, seed)
    draw = torch.Generator().manual_seed(seed)
    order = torch.randperm(b, generator=draw).to(DEVICE)
    factor = (0.1 + 10 * torch.rand(b, 1, generator=draw)).to(DEVICE)
    moved = ((factor * projections)[order], labels[order], prototypes, logits[order])
    before = cases((projections, labels, prototypes, logits), 0.5, form)
    for name, (_, way, tensors, rest) in cases(moved, 0.5, form).items():
        old = value_and_slopes(way, before[name][2], rest, torch.float32)
        new = value_and_slopes(way, tensors, rest, torch.float32)
        torch.testing.assert_close(new[0], old[0], rtol=1e-5, atol=1e-6)
        if name == "prototype_uniformity":
            assert torch.equal(new[1], old[1])
            continue
        scale = (
            1 if name in ("cross_entropy", "distillation") else factor[order]
        )  # the longer a vector, the less it turns
        torch.testing.assert_close(new[1] * scale, old[1][order], rtol=1e-4, atol=1e-6)


@few
@given(seed=st.integers(0, 2**32 - 1), b=st.integers(1, 40), d=st.integers(1, 40), k=st.integers(1, 12))
def test_every_size_will_do(seed: int, b: int, d: int, k: int) -> None:
    """In few dimensions most of a slope is along its vector, and what is left of it once that is gone is less exact."""
    for case in cases(data(b, d, k, seed), 1.0, "released").values():
        assert_same(case, 1e-4)


# The head


def by_autocast(z: Tensor, weight: Tensor, bias: Tensor, precision: torch.dtype | None) -> Tensor:
    """As `ClientModel.classify` has it."""
    with torch.autocast(DEVICE.type, precision, enabled=precision is not None):
        return nn.functional.linear(torch.relu(z), weight, bias).float()


def head_of(b: int, d: int, k: int, members: int | None = None) -> list[Tensor]:
    z, _, weight, _ = data(b, d, k, members=members)
    return [leaf(z), leaf(weight), leaf(weight[..., 0].contiguous())]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_head_is_a_relu_and_a_linear_layer(size: tuple[int, int, int]) -> None:
    ours = head_of(*size)
    exact = [leaf(x, torch.float64) for x in ours]
    logits, expected = classify(*ours, None), nn.functional.linear(torch.relu(exact[0]), *exact[1:])
    d = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    logits.backward(d)
    expected.backward(d.double())
    for a, b in [(logits, expected), *((x.grad, y.grad) for x, y in zip(ours, exact, strict=True))]:
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_in_bfloat16_the_head_rounds_as_autocast_does() -> None:
    """But for sums in another order, which may end on the other side of a rounding; the interpreter always rounds down."""
    ours = head_of(40, 48, 12)
    theirs = [leaf(x) for x in ours]
    logits, expected = classify(*ours, torch.bfloat16), by_autocast(*theirs, torch.bfloat16)
    d = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    for made in (logits, expected):
        made.backward(d)
    for a, b in [(logits, expected), *((x.grad, y.grad) for x, y in zip(ours, theirs, strict=True))]:
        assert torch.equal(a, a.bfloat16().float())
        assert float(((a - b).norm() / b.norm()).detach()) < (2e-3 if CUDA else 2e-2)


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_the_heads_of_a_group_are_computed_at_once(precision: torch.dtype | None, launched: list[str]) -> None:
    tensors = head_of(18, 20, 5, members=3)
    logits = vmap(lambda *one: classify(*one, precision))(*tensors)
    d = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    logits.backward(d)
    assert launched == ["head_forward", "head_inputs", "head_weights"]
    for g in range(3):
        alone = [leaf(x[g]) for x in tensors]
        made = classify(*alone, precision)
        made.backward(d[g])
        for a, b in [(logits[g], made), *((x.grad[g], y.grad) for x, y in zip(tensors, alone, strict=True))]:
            assert torch.equal(a, b)


def test_a_relu_lets_no_number_through_as_a_number() -> None:
    z, weight, bias = head_of(5, 8, 3)
    with torch.no_grad():
        z[1, 2] = torch.nan
    logits = classify(z, weight, bias, None)
    assert logits[1].isnan().all()
    assert not logits[0].isnan().any()


# Where they are used, and where not


def test_losses_are_replaced_within_and_in_this_thread_alone() -> None:
    logits, labels = data(5, 4, 3)[3], data(5, 4, 3)[1]
    seen: list[Tensor] = []
    mark = torch.tensor(-1.0)
    with computed_by({"cross_entropy": lambda *_: mark}):
        assert plain.cross_entropy(logits, labels) is mark
        other = threading.Thread(target=lambda: seen.append(plain.cross_entropy(logits, labels)))
        other.start()
        other.join()
        with computed_by({}):
            assert plain.cross_entropy(logits, labels) is not mark
        with computed_by({"cross_entropy": lambda *_: None}):
            assert plain.cross_entropy(logits, labels) is not mark
        assert plain.cross_entropy(logits, labels) is mark
    expected = nn.functional.cross_entropy(logits, labels)
    assert torch.equal(plain.cross_entropy(logits, labels), expected)
    assert torch.equal(seen[0], expected)


def test_what_does_not_fit_is_computed_plainly(launched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "MOST_ROWS", 16)
    monkeypatch.setattr(fused, "MOST_CLASSES", 16)
    fine, long, many = data(9, 6, 4), data(17, 6, 4), data(9, 6, 17)
    double = tuple(x.double() if x.is_floating_point() else x for x in fine)
    none = data(0, 6, 4)
    for inputs, names in [
        (double, LOSSES),
        (none, LOSSES[:3]),
        (long, ["supervised_contrastive", "prototype_contrastive"]),
        (many, ["cross_entropy", "prototype_contrastive", "prototype_uniformity", "distillation"]),
    ]:
        for name in names:
            loss, way, tensors, rest = cases(inputs, 0.5, "paper")[name]
            assert way(*tensors, *rest) is None, name
            with computed_by(fused.FUSED):
                assert torch.equal(loss(*tensors, *rest), loss.__wrapped__(*tensors, *rest)) or inputs is none
    tau = torch.tensor(0.5, device=DEVICE, requires_grad=True)  # whose gradient somebody may want
    for name in LOSSES[1:]:
        loss, way, tensors, rest = cases(fine, tau, "paper")[name]
        assert way(*tensors, *rest) is None, name
    assert classify(*(x.double() for x in head_of(3, 4, 2)), None) is None
    assert classify(*head_of(3, 4, 2), torch.float16) is None
    assert classify(*head_of(3, 4, 17), None) is None
    assert not launched


def test_without_a_gpu_or_the_interpreter_all_is_computed_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "COMPILED", not fused.COMPILED)
    assert all(way(*tensors, *rest) is None for _, way, tensors, rest in cases(data(9, 6, 4), 0.5, "paper").values())
    assert classify(*head_of(3, 4, 2), None) is None


def test_a_form_that_there_is_not_is_an_error_here_too() -> None:
    projections, labels, prototypes, _ = data(5, 4, 3)
    with computed_by(fused.FUSED):
        for loss, tensors in [
            (plain.supervised_contrastive, (projections, labels)),
            (plain.prototype_contrastive, (projections, labels, prototypes)),
            (plain.prototype_uniformity, (prototypes,)),
        ]:
            with pytest.raises(MaplError, match="form"):
                loss(*tensors, 0.5, "printed")


def flat(image: tuple[int, int, int], embedding: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(image[0] * image[1] * image[2], embedding))


@pytest.mark.skipif(CUDA, reason="on a GPU a step is recorded, and starts nothing")
@pytest.mark.parametrize("together", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_mapl_in_a_slot_uses_them(launched: list[str], together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """These are all kernels of ours that a loss of four terms starts, for one member as for two."""
    monkeypatch.setattr("mapl.engine.cuda.engine.TEST_BATCH", 5)
    made = small(clients=2, rounds=1, partition={"shots": 1, "test_shots": 1}, model={"backbones": ["cnn"]})
    made = given_in_python(made.model_copy(update={"engine": EngineSettings(device="cpu")}), None, {"flat": flat})
    part = build_part(made, backbones={"flat": flat})
    old, engine = part.engine, EngineSettings(precision="fp32", together=together)
    part.engine = GroupedEngine(part.method, old.settings, old.augmentation, old.seed, engine, DEVICE)
    part.engine.adopt(part.clients)
    play_round(part, 0)
    (family,) = part.engine.families
    assert family.size == together
    launched.clear()
    family.slots[0].cursor.zero_()
    family.slots[0].step()
    known = {kernel for module in (kernels, head, account) for kernel in vars(module) if not kernel.startswith("_")}
    losses = ["cross_entropy", *["scores"] * 3, *["pull"] * 2, "pull_both"]
    heads = ["head_forward", "head_inputs", "head_weights"]
    assert sorted(name for name in launched if name in known) == sorted([*losses, *heads, "account"])
