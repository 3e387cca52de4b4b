"""The losses against their equations, computed sample by sample in float64, and what has to hold of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mapl.errors import MaplError
from mapl.losses import FORMS, Form, prototype_contrastive, prototype_uniformity, supervised_contrastive

few = settings(deadline=None, max_examples=30)
both_forms = pytest.mark.parametrize("form", FORMS)


# --- The equations, one sample at a time. -----------------------------------------------------------------------------


def cosine(a: Any, b: Any) -> float:
    lengths = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
    return inner(a, b) / lengths if lengths > 0 else 0.0


def inner(a: Any, b: Any) -> float:
    return sum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def reference_contrastive(p: Any, y: Any, tau: float, form: Form) -> float:
    total = 0.0
    for q in range(len(p)):
        others = [m for m in range(len(p)) if m != q]
        positives = [r for r in others if y[r] == y[q]]
        if not positives:
            continue
        everyone = sum(math.exp(cosine(p[q], p[m]) / tau) for m in others)
        shares = [math.exp(cosine(p[q], p[r]) / tau) / everyone for r in positives]
        if form == "paper":
            total -= sum(math.log(share) for share in shares) / len(positives)
        else:
            total -= math.log(sum(shares))
    return total / len(p)


def reference_prototype(p: Any, y: Any, xi: Any, tau: float, form: Form) -> float:
    total = 0.0
    for q in range(len(p)):
        if form == "paper":
            scores = [math.exp(cosine(p[q], prototype) / tau) for prototype in xi]
        else:
            length = math.sqrt(inner(p[q], p[q]))
            scores = [math.exp(inner(p[q], prototype) / length) for prototype in xi]
        total -= math.log(scores[y[q]] / sum(scores))
    return total / len(p)


def reference_uniformity(xi: Any, tau: float, form: Form) -> float:
    total = 0.0
    for k in range(len(xi)):
        for r in range(len(xi)):
            if r != k:
                total += cosine(xi[k], xi[r]) if form == "paper" else math.exp(inner(xi[k], xi[r]) / tau)
    return total / len(xi)


# --- Inputs. ----------------------------------------------------------------------------------------------------------

seeds = st.integers(0, 2**32 - 1)
temperatures = st.sampled_from([0.07, 0.5, 1.0, 100.0])


def batch(seed: int, samples: int, classes: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Projections, labels and prototypes, in float64."""
    rng = np.random.default_rng(seed)
    projections = torch.from_numpy(rng.normal(size=(samples, width)))
    labels = torch.from_numpy(rng.integers(0, classes, size=samples))
    # Short enough that exp(⟨ξ, ξ'⟩/τ) is a number in float32 at every temperature below.
    prototypes = torch.from_numpy(rng.uniform(-1, 1, size=(classes, width)))
    return projections, labels, prototypes


batches = st.builds(batch, seeds, st.integers(1, 12), st.integers(1, 6), st.integers(1, 5))


def rotation(width: int, seed: int) -> Tensor:
    return torch.from_numpy(np.linalg.qr(np.random.default_rng(seed).normal(size=(width, width)))[0])


# --- They are the equations. ------------------------------------------------------------------------------------------


@both_forms
@few
@given(data=batches, tau=temperatures)
def test_each_loss_is_its_equation(form: Form, data: tuple[Tensor, Tensor, Tensor], tau: float) -> None:
    p, y, xi = data
    expected = [
        reference_contrastive(p.tolist(), y.tolist(), tau, form),
        reference_prototype(p.tolist(), y.tolist(), xi.tolist(), tau, form),
        reference_uniformity(xi.tolist(), tau, form),
    ]
    in_double = [
        supervised_contrastive(p, y, tau, form),
        prototype_contrastive(p, y, xi, tau, form),
        prototype_uniformity(xi, tau, form),
    ]
    in_single = [
        supervised_contrastive(p.float(), y, tau, form),
        prototype_contrastive(p.float(), y, xi.float(), tau, form),
        prototype_uniformity(xi.float(), tau, form),
    ]
    assert [loss.shape for loss in in_double] == [()] * 3
    assert [loss.item() for loss in in_double] == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert all(loss.dtype == torch.float32 for loss in in_single)
    assert [loss.item() for loss in in_single] == pytest.approx(expected, rel=1e-4, abs=2e-5)


def test_the_two_forms_differ() -> None:
    p, y, xi = batch(0, samples=12, classes=3, width=4)
    for loss in (
        lambda form: supervised_contrastive(p, y, 0.5, form),
        lambda form: prototype_contrastive(p, y, xi, 0.5, form),
        lambda form: prototype_uniformity(xi, 100.0, form),
    ):
        assert abs(loss("paper") - loss("released")) > 1e-3


@pytest.mark.parametrize("classes", [1, 2, 37])
@both_forms
def test_any_number_of_classes(form: Form, classes: int) -> None:
    p, y, xi = batch(1, samples=20, classes=classes, width=8)
    proto = prototype_contrastive(p, y, xi, 0.5, form).item()
    uniform = prototype_uniformity(xi, 100.0, form).item()
    assert proto == pytest.approx(reference_prototype(p.tolist(), y.tolist(), xi.tolist(), 0.5, form))
    assert uniform == pytest.approx(reference_uniformity(xi.tolist(), 100.0, form))
    if classes == 1:
        assert proto == 0
        assert uniform == 0


# --- Gradients. -------------------------------------------------------------------------------------------------------


@both_forms
@settings(deadline=None, max_examples=10)
@given(data=st.builds(batch, seeds, st.integers(1, 6), st.integers(1, 4), st.integers(2, 4)))
def test_gradients_are_those_of_finite_differences(form: Form, data: tuple[Tensor, Tensor, Tensor]) -> None:
    p, y, xi = data
    p.requires_grad_()
    xi.requires_grad_()
    assert torch.autograd.gradcheck(lambda p: supervised_contrastive(p, y, 0.5, form), (p,))
    assert torch.autograd.gradcheck(lambda p, xi: prototype_contrastive(p, y, xi, 0.5, form), (p, xi))
    assert torch.autograd.gradcheck(lambda xi: prototype_uniformity(xi, 100.0, form), (xi,))


@both_forms
def test_zero_vectors_give_bounded_losses_and_gradients(form: Form) -> None:
    p, y, xi = (x.float() if x.is_floating_point() else x for x in batch(2, samples=8, classes=3, width=4))
    p[0], xi[0] = 0, 0
    p.requires_grad_()
    xi.requires_grad_()
    loss = supervised_contrastive(p, y, 1.0, form) + prototype_contrastive(p, y, xi, 1.0, form)
    (loss + prototype_uniformity(xi, 1.0, form)).backward()
    assert loss.isfinite()
    assert p.grad is not None
    assert xi.grad is not None
    assert p.grad.abs().max() < 100
    assert xi.grad.abs().max() < 100


# --- Samples without a positive. --------------------------------------------------------------------------------------


@both_forms
@pytest.mark.parametrize("samples", [1, 2, 5])
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_without_any_positive_the_contrastive_loss_and_its_gradient_are_zero(form: Form, samples: int) -> None:
    p = torch.randn(samples, 4, generator=torch.Generator().manual_seed(samples), requires_grad=True)
    with torch.autograd.detect_anomaly():  # No NaN on the way either.
        loss = supervised_contrastive(p, torch.arange(samples), 0.1, form)
        loss.backward()
    assert loss == 0
    assert p.grad is not None
    assert torch.equal(p.grad, torch.zeros_like(p))


@both_forms
def test_a_lonely_sample_contributes_nothing_itself_but_is_a_negative_of_the_others(form: Form) -> None:
    p = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    lonely_last = torch.tensor([0, 0, 1])
    tau = 0.5
    # The two others have each other as the positive and the lonely one as the only negative, in both forms.
    of_the_others = [math.log1p(math.exp((0.0 - 0.6) / tau)), math.log1p(math.exp((0.8 - 0.6) / tau))]
    assert supervised_contrastive(p, lonely_last, tau, form).item() == pytest.approx(sum(of_the_others) / 3)


@pytest.mark.parametrize("samples", [2, 7])
def test_when_all_are_of_one_class(samples: int) -> None:
    p, _, _ = batch(3, samples, classes=1, width=4)
    y = torch.full((samples,), 5)
    # Everybody is a positive: the released ratio is 1, and the printed mean of logs is at least that of equal shares.
    assert supervised_contrastive(p, y, 0.1, "released").item() == pytest.approx(0, abs=1e-12)
    assert supervised_contrastive(p, y, 0.1, "paper").item() >= math.log(samples - 1) - 1e-12


# --- Temperature. -----------------------------------------------------------------------------------------------------


def test_a_high_temperature_makes_all_pairs_alike() -> None:
    y = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2])
    p, _, xi = batch(4, samples=8, classes=37, width=4)
    shares = [1 / 7, 1 / 7, *[2 / 7] * 6]
    assert supervised_contrastive(p, y, 1e9, "paper").item() == pytest.approx(math.log(7))
    assert supervised_contrastive(p, y, 1e9, "released").item() == pytest.approx(-np.log(shares).mean())
    assert prototype_contrastive(p, y, xi, 1e9, "paper").item() == pytest.approx(math.log(37))
    assert prototype_uniformity(xi, 1e9, "released").item() == pytest.approx(36)


@both_forms
def test_a_low_temperature_does_not_overflow(form: Form) -> None:
    p, y, xi = (x.float() if x.is_floating_point() else x for x in batch(5, samples=16, classes=3, width=4))
    p.requires_grad_()
    loss = supervised_contrastive(p, y, 1e-3, form) + prototype_contrastive(p, y, xi, 1e-3, form)
    loss.backward()
    assert loss.isfinite()
    assert p.grad is not None
    assert p.grad.isfinite().all()


def test_at_a_low_temperature_a_perfect_batch_has_no_loss() -> None:
    p = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    y = torch.tensor([0, 0, 1, 1])
    for form in FORMS:
        assert supervised_contrastive(p, y, 1e-3, form) == 0
    assert prototype_contrastive(p, y, torch.eye(2), 1e-3, "paper") == 0


def test_the_temperature_plays_no_part_where_the_form_has_none() -> None:
    p, y, xi = batch(6, samples=6, classes=3, width=4)
    assert prototype_contrastive(p, y, xi, 1.0, "released") == prototype_contrastive(p, y, xi, 100.0, "released")
    assert prototype_uniformity(xi, 1.0, "paper") == prototype_uniformity(xi, 100.0, "paper")


# --- Symmetries. ------------------------------------------------------------------------------------------------------


@both_forms
@few
@given(data=batches, seed=seeds)
def test_the_order_of_samples_and_the_names_of_classes_do_not_matter(
    form: Form, data: tuple[Tensor, Tensor, Tensor], seed: int
) -> None:
    p, y, xi = data
    rng = np.random.default_rng(seed)
    order = torch.from_numpy(rng.permutation(len(p)))
    new_name = torch.from_numpy(rng.permutation(len(xi)))
    renamed = torch.empty_like(xi)
    renamed[new_name] = xi
    close = pytest.approx

    contrastive = supervised_contrastive(p, y, 0.5, form).item()
    assert supervised_contrastive(p[order], new_name[y[order]], 0.5, form).item() == close(contrastive, abs=1e-12)
    prototype = prototype_contrastive(p, y, xi, 0.5, form).item()
    assert prototype_contrastive(p[order], new_name[y[order]], renamed, 0.5, form).item() == close(prototype, abs=1e-12)
    uniformity = prototype_uniformity(xi, 100.0, form).item()
    assert prototype_uniformity(renamed, 100.0, form).item() == close(uniformity, abs=1e-12)


@both_forms
@few
@given(data=batches, seed=seeds)
def test_a_common_rotation_does_not_matter(form: Form, data: tuple[Tensor, Tensor, Tensor], seed: int) -> None:
    p, y, xi = data
    q = rotation(p.shape[1], seed)
    for before, after in (
        (supervised_contrastive(p, y, 0.5, form), supervised_contrastive(p @ q, y, 0.5, form)),
        (prototype_contrastive(p, y, xi, 0.5, form), prototype_contrastive(p @ q, y, xi @ q, 0.5, form)),
        (prototype_uniformity(xi, 100.0, form), prototype_uniformity(xi @ q, 100.0, form)),
    ):
        assert after.item() == pytest.approx(before.item(), abs=1e-9)


@both_forms
@few
@given(data=batches, seed=seeds)
def test_the_length_of_a_projection_does_not_matter(form: Form, data: tuple[Tensor, Tensor, Tensor], seed: int) -> None:
    p, y, xi = data
    longer = p * torch.from_numpy(np.random.default_rng(seed).uniform(0.01, 100, size=(len(p), 1)))
    for before, after in (
        (supervised_contrastive(p, y, 0.5, form), supervised_contrastive(longer, y, 0.5, form)),
        (prototype_contrastive(p, y, xi, 0.5, form), prototype_contrastive(longer, y, xi, 0.5, form)),
    ):
        assert after.item() == pytest.approx(before.item(), abs=1e-9)


def test_the_length_of_a_prototype_matters_in_the_released_form_alone() -> None:
    p, y, xi = batch(7, samples=8, classes=4, width=5)
    longer = xi * torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    for loss in (
        lambda xi, form: prototype_contrastive(p, y, xi, 1.0, form).item(),
        lambda xi, form: prototype_uniformity(xi, 1.0, form).item(),
    ):
        assert loss(longer, "paper") == pytest.approx(loss(xi, "paper"))
        assert abs(loss(longer, "released") - loss(xi, "released")) > 0.1


def test_uniformity_is_lowest_where_the_prototypes_are_a_simplex() -> None:
    classes = 5
    simplex = torch.eye(classes, dtype=torch.float64) - 1 / classes
    assert prototype_uniformity(simplex, 100.0, "paper").item() == pytest.approx(-1)
    for seed in range(20):
        _, _, xi = batch(seed, samples=1, classes=classes, width=classes)
        assert prototype_uniformity(xi, 100.0, "paper").item() >= -1 - 1e-12


def test_a_long_prototype_does_not_overflow_with_itself() -> None:
    xi = (100 * torch.eye(3)).requires_grad_()
    loss = prototype_uniformity(xi, 1.0, "released")
    loss.backward()
    assert loss.item() == pytest.approx(2)
    assert xi.grad is not None
    assert xi.grad.isfinite().all()


# --- The training step around them. -----------------------------------------------------------------------------------


@both_forms
def test_nothing_is_read_back_from_the_device(form: Form) -> None:
    """On the meta device there are no values, so reading one, or a shape that depends on one, is an error."""
    p, y, xi = (x.to("meta") for x in batch(8, samples=6, classes=3, width=4))
    p.requires_grad_()
    loss = supervised_contrastive(p, y, 0.5, form) + prototype_contrastive(p, y, xi, 0.5, form)
    (loss + prototype_uniformity(xi, 100.0, form)).backward()
    assert p.grad is not None


def test_an_unknown_form_is_named() -> None:
    p, y, xi = batch(9, samples=4, classes=2, width=3)
    form: Any = "printed"
    with pytest.raises(MaplError, match="unknown form 'printed'; known: paper, released"):
        supervised_contrastive(p, y, 0.5, form)
    with pytest.raises(MaplError, match="unknown form"):
        prototype_contrastive(p, y, xi, 0.5, form)
    with pytest.raises(MaplError, match="unknown form"):
        prototype_uniformity(xi, 100.0, form)
