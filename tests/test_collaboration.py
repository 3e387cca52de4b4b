"""Graph learning against its equations, computed entry by entry in float64, and what has to hold of a learned row."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.optimize import brentq
from torch import Tensor

from mapl.collaboration import (
    GraphSettings,
    graph_gradient,
    graph_loss,
    head_similarity,
    learn_rows,
    project_to_simplex,
)
from mapl.errors import MaplError
from mapl.losses import FORMS, Form
from reference import learn_weights

few = settings(deadline=None, max_examples=40)
both_forms = pytest.mark.parametrize("form", FORMS)
seeds = st.integers(0, 2**32 - 1)

graph_settings = st.builds(
    GraphSettings,
    mu1=st.sampled_from([0.0, 0.5, 5.0]),
    mu2=st.sampled_from([0.0, 0.1]),
    beta=st.sampled_from([0.0, 0.5, 2.0]),
    norm=st.sampled_from(["l1", "l2"]),
    use_similarity=st.booleans(),
    use_confidence=st.booleans(),
    steps=st.sampled_from([1, 3]),
    step_size=st.sampled_from([0.01, 0.1]),
    form=st.sampled_from(FORMS),
)


# --- The equations, one entry at a time. ------------------------------------------------------------------------------


def reference_projection(v: list[float]) -> list[float]:
    """The optimality condition, solved by root finding: w = max(v − θ, 0) with the θ that makes the sum 1."""

    def excess(theta: float) -> float:
        return sum(max(x - theta, 0.0) for x in v) - 1

    theta = brentq(excess, max(v) - 1 - 1e-9, max(v), xtol=1e-15, rtol=1e-15)
    return [max(x - theta, 0.0) for x in v]


def reference_cosine(a: list[float], b: list[float]) -> float:
    product = sum(x * y for x, y in zip(a, b, strict=True))
    lengths = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
    return product / lengths if lengths > 0 else 0.0


def reference_similarity(a: list[list[float]], b: list[list[float]], form: Form) -> float:
    if form == "paper":
        return reference_cosine([x for row in a for x in row], [x for row in b for x in row])
    return sum(reference_cosine(x, y) for x, y in zip(a, b, strict=True)) / len(a)


def reference_loss(w: list[float], s: list[float], gamma: list[float], me: int, c: GraphSettings) -> float:
    total, degree = 0.0, 0.0
    for j in range(len(w)):
        total -= c.mu1 * (gamma[j] if c.use_confidence else 1) * w[j] * (s[j] if c.use_similarity else 1)
        if j != me:
            degree += w[j]
    norm = sum(abs(x) for x in w) if c.norm == "l1" else math.sqrt(sum(x * x for x in w))
    return total + c.mu2 * (c.beta * norm - math.log(degree + c.epsilon))


def reference_gradient(w: list[float], s: list[float], gamma: list[float], me: int, c: GraphSettings) -> list[float]:
    length = math.sqrt(sum(x * x for x in w))
    degree = sum(w[j] for j in range(len(w)) if j != me)
    gradient = []
    for j in range(len(w)):
        g = -c.mu1 * (gamma[j] if c.use_confidence else 1.0) * (s[j] if c.use_similarity else 1.0)
        g += c.mu2 * c.beta * (float(np.sign(w[j])) if c.norm == "l1" else w[j] / length if length > 0 else 0.0)
        if c.form == "paper" and j != me:
            g -= c.mu2 / (degree + c.epsilon)
        gradient.append(g)
    return gradient


def reference_row(w: Any, me: int, heads: Any, gamma: Any, heard: Any, c: GraphSettings) -> list[float]:
    """CGL over all M clients: those that were not heard are taken out of the lists, and come back as zeros."""
    members = [j for j in range(len(w)) if heard[j] or j == me]
    if members == [me]:
        return [float(j == me) for j in range(len(w))]
    here = members.index(me)
    s = [reference_similarity(heads[me], heads[j], c.form) for j in members]
    if c.form == "released":
        largest = max(s[a] for a in range(len(s)) if a != here)
        s = [x / largest for x in s] if largest > 0 else s
    s[here] = 1.0
    x = [w[j] for j in members]
    first, second = [0.0] * len(x), [0.0] * len(x)
    for t in range(1, c.steps + 1):
        g = reference_gradient(x, s, [gamma[j] for j in members], here, c)
        for a in range(len(x)):
            first[a] = 0.5 * first[a] + 0.5 * g[a]
            second[a] = 0.999 * second[a] + 0.001 * g[a] ** 2
            adam = (first[a] / (1 - 0.5**t)) / (math.sqrt(second[a] / (1 - 0.999**t)) + 1e-8)
            x[a] -= c.step_size * (g[a] if c.form == "paper" else adam)
        x = reference_projection(x)
    row = [0.0] * len(w)
    for a, j in enumerate(members):
        row[j] = x[a]
    return row


# --- Inputs. ----------------------------------------------------------------------------------------------------------


class Scene:
    """One client's view in float64: its row (on itself and its neighbours), heads, confidence, who was heard."""

    def __init__(self, seed: int, clients: int, classes: int = 3, width: int = 4, density: float = 0.6) -> None:
        rng = np.random.default_rng(seed)
        self.me = int(rng.integers(clients))
        self.neighbours = torch.from_numpy(rng.random(clients) < density)
        self.neighbours[self.me] = False
        # Heads lean on a common one, so that similarities are positive as well as negative.
        heads = rng.normal(size=(clients, classes, width)) + rng.choice([0, 1]) * rng.normal(size=(classes, width))
        self.heads = torch.from_numpy(heads)
        self.confidence = torch.from_numpy(rng.dirichlet(np.ones(clients)))
        part = self.neighbours.clone()
        part[self.me] = True
        self.weights = torch.from_numpy(rng.dirichlet(np.ones(clients))) * part
        self.weights /= self.weights.sum()

    def learn(self, c: GraphSettings) -> Tensor:
        return learn_weights(self.weights, self.me, self.heads, self.confidence, self.neighbours, c)

    def reference(self, c: GraphSettings) -> list[float]:
        lists = [x.tolist() for x in (self.weights, self.heads, self.confidence, self.neighbours)]
        return reference_row(lists[0], self.me, lists[1], lists[2], lists[3], c)


scenes = st.builds(Scene, seeds, st.integers(1, 9), density=st.sampled_from([0.0, 0.3, 0.7, 1.0]))
vectors = st.lists(st.floats(-5, 5, allow_subnormal=False), min_size=1, max_size=12)


# --- Projection. ------------------------------------------------------------------------------------------------------


@few
@given(vectors)
def test_the_projection_is_the_nearest_point_of_the_simplex(v: list[float]) -> None:
    w = project_to_simplex(torch.tensor(v, dtype=torch.float64))
    assert (w >= 0).all()
    assert w.sum().item() == pytest.approx(1, abs=1e-14)
    assert w.tolist() == pytest.approx(reference_projection(v), abs=1e-9)
    # Optimality without any algorithm: no corner of the simplex lies in a direction that comes closer to v.
    residual = torch.tensor(v, dtype=torch.float64) - w
    assert (residual - (residual * w).sum()).max() <= 1e-12


@few
@given(vectors, st.randoms(use_true_random=False), st.floats(-100, 100))
def test_the_projection_follows_the_order_and_ignores_a_common_shift(v: list[float], random: Any, shift: float) -> None:
    x = torch.tensor(v, dtype=torch.float64)
    order = random.sample(range(len(v)), len(v))
    w = project_to_simplex(x)
    torch.testing.assert_close(project_to_simplex(x[order]), w[order], atol=1e-14, rtol=0)
    torch.testing.assert_close(project_to_simplex(x + shift), w, atol=1e-12, rtol=0)
    torch.testing.assert_close(project_to_simplex(w), w, atol=1e-15, rtol=0)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4, 1e30])
@pytest.mark.parametrize("size", [1, 2, 5000])
def test_a_projected_row_sums_to_one_in_single_precision(size: int, scale: float) -> None:
    v = scale * torch.randn(3, 2, size, generator=torch.Generator().manual_seed(size))
    before = v.clone()
    w = project_to_simplex(v)
    assert w.dtype == torch.float32
    assert w.min() >= 0
    assert (w.double().sum(-1) - 1).abs().max() < 1e-6
    assert torch.equal(v, before)
    assert torch.equal(w[1, 1], project_to_simplex(v[1, 1]))


def test_one_large_and_thousands_of_small_entries_sum_to_one_in_single_precision() -> None:
    v = 2e-4 * torch.rand(5000, generator=torch.Generator().manual_seed(0))
    v[7] = 0.7
    w = project_to_simplex(v)
    assert (w > 0).sum() > 1000
    assert (w.double().sum() - 1).abs() < 1e-6


def test_ties_share_equally() -> None:
    assert project_to_simplex(torch.tensor([3.0, 3.0, 3.0, 1.0])).tolist() == pytest.approx([1 / 3] * 3 + [0])


# --- Similarity. ------------------------------------------------------------------------------------------------------


@both_forms
@few
@given(seed=seeds, clients=st.integers(1, 6), classes=st.integers(1, 5))
def test_similarity_is_its_equation(form: Form, seed: int, clients: int, classes: int) -> None:
    heads = Scene(seed, clients, classes).heads
    heads[0, 0] = 0
    got = head_similarity(heads[-1], heads, form)
    expected = [reference_similarity(heads[-1].tolist(), other.tolist(), form) for other in heads]
    assert got.tolist() == pytest.approx(expected, abs=1e-12)
    assert head_similarity(heads[-1].float(), heads.float(), form).tolist() == pytest.approx(expected, abs=1e-5)


@both_forms
def test_similarity_is_positive_for_the_similar_and_blind_to_scale(form: Form) -> None:
    head = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    heads = torch.stack([head, 3e-5 * head, -head, torch.zeros_like(head)])
    assert head_similarity(head, heads, form).tolist() == pytest.approx([1, 1, -1, 0], abs=1e-6)
    assert head_similarity(torch.zeros_like(head), heads, form).tolist() == [0, 0, 0, 0]


def test_only_the_released_similarity_gives_every_class_the_same_say() -> None:
    one_class_dominates = torch.tensor([[100.0, 0.0], [0.0, 1.0]])
    other = torch.tensor([[[100.0, 0.0], [0.0, -1.0]]])
    assert head_similarity(one_class_dominates, other, "released").item() == pytest.approx(0)
    assert head_similarity(one_class_dominates, other, "paper").item() > 0.99


def test_an_unknown_form_is_named() -> None:
    form: Any = "printed"
    with pytest.raises(MaplError, match="unknown form 'printed'"):
        head_similarity(torch.ones(1, 1), torch.ones(1, 1, 1), form)


# --- Loss and gradient. -----------------------------------------------------------------------------------------------


@few
@given(seeds, st.integers(1, 7), graph_settings)
def test_the_loss_is_its_equation_and_the_gradient_is_the_gradient_of_the_loss(
    seed: int, clients: int, c: GraphSettings
) -> None:
    rng = np.random.default_rng(seed)
    me = int(rng.integers(clients))
    w = torch.from_numpy(rng.dirichlet(np.ones(clients)) * rng.choice([0, 1], size=clients, p=[0.2, 0.8]))
    s, gamma = torch.from_numpy(rng.uniform(-1, 1, clients)), torch.from_numpy(rng.dirichlet(np.ones(clients)))
    w.requires_grad_()
    loss = graph_loss(w, s, gamma, me, c)
    assert loss.item() == pytest.approx(reference_loss(w.tolist(), s.tolist(), gamma.tolist(), me, c), abs=1e-12)

    (by_autograd,) = torch.autograd.grad(loss, w)
    assert by_autograd.tolist() == pytest.approx(
        reference_gradient(w.tolist(), s.tolist(), gamma.tolist(), me, c), rel=1e-12, abs=1e-12
    )
    with torch.no_grad():
        torch.testing.assert_close(graph_gradient(w, s, gamma, me, c), by_autograd, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_the_printed_gradient_is_that_of_finite_differences(norm: Any) -> None:
    c = GraphSettings(norm=norm)
    w = torch.tensor([0.3, 0.2, 0.5], dtype=torch.float64, requires_grad=True)
    s, gamma = torch.tensor([1.0, 0.4, -0.2]).double(), torch.tensor([0.5, 0.2, 0.3]).double()
    assert torch.autograd.gradcheck(lambda w: graph_loss(w, s, gamma, 0, c), (w,))


@pytest.mark.parametrize("c", [GraphSettings(), GraphSettings(form="released", norm="l1")])
def test_many_rows_at_once_are_the_rows_one_by_one(c: GraphSettings) -> None:
    w, s, gamma = torch.rand(3, 2, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loss, gradient = graph_loss(w, s, gamma, 1, c), graph_gradient(w, s, gamma, 1, c)
    assert loss.shape == (2, 4)
    for i in range(2):
        for j in range(4):
            torch.testing.assert_close(loss[i, j], graph_loss(w[i, j], s[i, j], gamma[i, j], 1, c))
            torch.testing.assert_close(gradient[i, j], graph_gradient(w[i, j], s[i, j], gamma[i, j], 1, c))


def test_a_tiny_degree_is_not_lost_beside_a_large_weight_on_oneself() -> None:
    w = torch.full((1001,), 1e-9)
    w[3] = 1
    loss = graph_loss(w, torch.zeros_like(w), torch.zeros_like(w), 3, GraphSettings(mu2=1.0, beta=0.0))
    assert loss.item() == pytest.approx(-math.log(2e-6), abs=1e-4)


@pytest.mark.parametrize("ablated", [{"use_similarity": False}, {"use_confidence": False}])
def test_an_ablated_factor_is_not_looked_at(ablated: dict[str, bool]) -> None:
    c = GraphSettings(**ablated)
    w, s, gamma = torch.rand(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    looked_at = [s, gamma]
    ignored = looked_at.pop(0 if "use_similarity" in ablated else 1)
    loss = graph_loss(w, s, gamma, 0, c)
    ignored.mul_(-7)
    assert graph_loss(w, s, gamma, 0, c) == loss
    looked_at[0].mul_(-7)
    assert graph_loss(w, s, gamma, 0, c) != loss


# --- Learning a row. --------------------------------------------------------------------------------------------------


@few
@given(scenes, graph_settings)
def test_a_learned_row_is_that_of_the_equations(scene: Scene, c: GraphSettings) -> None:
    assert scene.learn(c).tolist() == pytest.approx(scene.reference(c), abs=1e-7)


combinations = [
    GraphSettings(
        form=form, norm=norm, steps=steps, use_similarity=similarity, use_confidence=confidence, step_size=0.02
    )
    for form, norm, steps, similarity, confidence in itertools.product(
        FORMS, ("l1", "l2"), (1, 3), (True, False), (True, False)
    )
]


@pytest.mark.parametrize("c", combinations, ids=lambda c: f"{c.form}-{c.norm}-{c.steps}")
def test_every_combination_of_settings_learns_the_row_of_the_equations(c: GraphSettings) -> None:
    for seed in range(5):
        scene = Scene(seed, clients=8)
        assert scene.learn(c).tolist() == pytest.approx(scene.reference(c), abs=1e-7)


@few
@given(scenes, graph_settings)
def test_a_learned_row_is_feasible_and_silent_clients_have_no_influence(scene: Scene, c: GraphSettings) -> None:
    row = scene.learn(c)
    silent = ~scene.neighbours
    silent[scene.me] = False
    assert (row >= 0).all()
    assert row.sum().item() == pytest.approx(1, abs=1e-12)
    assert torch.equal(row[silent], torch.zeros_like(row[silent]))
    for garbage in (scene.heads, scene.confidence, scene.weights):
        garbage[silent] = torch.nan
    scene.neighbours[scene.me] = True
    assert torch.equal(scene.learn(c), row)


@few
@given(scenes, graph_settings, seeds)
def test_the_numbering_of_clients_does_not_matter(scene: Scene, c: GraphSettings, seed: int) -> None:
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(scene.weights)))
    me = int((order == scene.me).nonzero())
    renumbered = learn_weights(
        scene.weights[order], me, scene.heads[order], scene.confidence[order], scene.neighbours[order], c
    )
    torch.testing.assert_close(renumbered, scene.learn(c)[order], rtol=0, atol=1e-7)


@both_forms
def test_inputs_are_left_alone_and_need_no_autograd(form: Form) -> None:
    c = GraphSettings(form=form, steps=3)
    scene = Scene(0, clients=6, density=1.0)
    before = [x.clone() for x in (scene.weights, scene.heads, scene.confidence, scene.neighbours)]
    row = scene.learn(c)
    after = (scene.weights, scene.heads, scene.confidence, scene.neighbours)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    scene.heads.requires_grad_()
    scene.weights.requires_grad_()
    assert not scene.learn(c).requires_grad
    with torch.inference_mode():
        assert torch.equal(scene.learn(c), row)


@both_forms
def test_the_row_keeps_the_precision_of_the_weights(form: Form) -> None:
    scene = Scene(1, clients=8, density=1.0)
    c = GraphSettings(form=form, steps=3)
    expected = scene.reference(c)
    scene.weights, scene.confidence = scene.weights.float(), scene.confidence.float()
    for heads, tolerance in ((scene.heads, 1e-4), (scene.heads.float(), 1e-4), (scene.heads.bfloat16(), 2e-2)):
        scene.heads = heads
        row = scene.learn(c)
        assert row.dtype == torch.float32
        assert row.tolist() == pytest.approx(expected, abs=tolerance)


@few
@given(scenes, graph_settings)
def test_a_client_nobody_writes_to_keeps_all_weight(scene: Scene, c: GraphSettings) -> None:
    scene.neighbours[:] = False
    expected = torch.zeros_like(scene.weights)
    expected[scene.me] = 1
    assert torch.equal(scene.learn(c), expected)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_the_first_released_step_moves_every_weight_by_the_step_size(norm: Any) -> None:
    c = GraphSettings(form="released", norm=norm, step_size=0.01)
    scene = Scene(3, clients=6, density=1.0)
    scene.weights = torch.full((6,), 1 / 6, dtype=torch.float64)
    s = head_similarity(scene.heads[scene.me], scene.heads, "released")
    s[scene.me] = -1
    s = s / s.max()
    s[scene.me] = 1
    gradient = graph_gradient(scene.weights, s, scene.confidence, scene.me, c)
    assert gradient.min() < 0 < gradient.max()
    # No weight reaches 0 in a step this small, so the projection only shifts all of them by the same amount.
    moved = scene.learn(c) - scene.weights
    shift = (0.01 * gradient.sign()).mean()
    torch.testing.assert_close(moved, -0.01 * gradient.sign() + shift, rtol=0, atol=1e-7)


@pytest.mark.parametrize("steps", [1, 3])
def test_the_released_step_is_that_of_a_fresh_adam(steps: int) -> None:
    c = GraphSettings(form="released", steps=steps, use_similarity=False)
    scene = Scene(4, clients=7, density=1.0)
    w = scene.weights.clone().requires_grad_()
    adam = torch.optim.Adam([w], lr=c.step_size, betas=(0.5, 0.999))
    for _ in range(steps):
        adam.zero_grad()
        graph_loss(w, torch.ones_like(w), scene.confidence, scene.me, c).backward()
        adam.step()
        with torch.no_grad():
            w.copy_(project_to_simplex(w))
    torch.testing.assert_close(scene.learn(c), w.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(scene.learn(c), scene.learn(c), rtol=0, atol=0)


@pytest.mark.parametrize("cosine", [-0.5, 0.0, 1e-30])
def test_a_largest_similarity_that_is_not_positive_leaves_the_similarities_as_they_are(cosine: float) -> None:
    """Divided by a negative maximum the least similar neighbour would become the most similar one."""
    c = GraphSettings(form="released", mu2=0.0, steps=5, step_size=0.01)
    heads = torch.tensor([[[1.0, 0.0]], [[cosine, 1.0]], [[-1.0, 1e-3]]], dtype=torch.float64)
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    row = learn_weights(third, 0, heads, third, torch.tensor([False, True, True]), c)
    assert row[0] > row[1] >= row[2]
    assert row[2] < 1 / 3


@both_forms
def test_rows_that_are_not_feasible_yet_become_so(form: Form) -> None:
    """The one client that held all the weight went silent; or only zero heads arrived; or it starts alone."""
    c = GraphSettings(form=form)
    everyone = torch.tensor([False, True, True, True])
    heads = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))
    gamma = torch.full((4,), 0.25)
    rows = [
        learn_weights(torch.tensor([0.0, 0, 0, 1]), 0, heads, gamma, torch.tensor([False, True, True, False]), c),
        learn_weights(torch.tensor([1.0, 0, 0, 0]), 0, heads, gamma, everyone, c),
        learn_weights(gamma, 0, torch.zeros_like(heads), gamma, everyone, c),
    ]
    for row in rows:
        assert row.min() >= 0
        assert row.sum().item() == pytest.approx(1, abs=1e-6)
    assert rows[0][3] == 0


def test_the_printed_loss_draws_an_isolated_client_back() -> None:
    """−log(deg + ε) is steepest at degree 0; in the released form it carries no gradient and draws nobody."""
    alone = torch.tensor([1.0, 0.0, 0.0])
    heads = -torch.ones(3, 1, 2)
    heads[0] = 1
    gamma = torch.full((3,), 1 / 3)
    neighbours = torch.tensor([False, True, True])
    rows = {form: learn_weights(alone, 0, heads, gamma, neighbours, GraphSettings(form=form)) for form in FORMS}
    assert rows["paper"][1:].sum() > 0.99
    assert rows["released"][0] == 1


@pytest.mark.parametrize("c", [GraphSettings(), GraphSettings(form="released", confidence="share")])
def test_planted_clusters_are_found(c: GraphSettings) -> None:
    clients, rng = 10, torch.Generator().manual_seed(0)
    cluster = torch.arange(clients) % 2
    heads = torch.randn(2, 5, 16, generator=rng)[cluster] + 0.5 * torch.randn(clients, 5, 16, generator=rng)
    uniform = torch.full((clients,), 1 / clients)
    confidence = torch.ones(clients) if c.confidence == "relative" else uniform
    inside = []
    for me in range(clients):
        row = uniform
        neighbours = torch.arange(clients) != me
        for _ in range(30):
            row = learn_weights(row, me, heads, confidence, neighbours, c)
        inside.append(row[cluster == cluster[me]].sum().item())
    assert min(inside) >= 0.95


def test_where_heads_of_a_cluster_are_unequally_similar_the_released_step_never_rests_and_the_default_does() -> None:
    """Similarities are held fixed, and everybody is heard in every round."""
    s = torch.cat([torch.ones(1), torch.linspace(0.6, 0.3, 9), torch.linspace(0.18, 0.06, 10)]).double()
    everybody = torch.ones(20, dtype=torch.bool)
    changes, rows = {}, {}
    for c in (GraphSettings(form="released", confidence="share"), GraphSettings()):
        gamma = torch.full_like(s, 1 if c.confidence == "relative" else 1 / 20)
        row, changed = torch.full_like(s, 1 / 20), []
        for _ in range(300):
            new = learn_rows(row, torch.tensor(0), s, gamma, everybody, c)
            changed.append(int(((new > 0) != (row > 0)).sum()))
            row = new
        changes[c.form], rows[c.form] = changed[-50:], row
    assert min(changes["released"]) > 0
    assert sum(changes["paper"]) == 0
    assert rows["paper"][10:].sum() == 0
    assert rows["paper"][0] > 0


# --- Settings. --------------------------------------------------------------------------------------------------------


def test_settings_are_frozen_checked_and_documented() -> None:
    c = GraphSettings()
    with pytest.raises(ValidationError):
        c.mu1 = 1.0
    for wrong in (
        {"mu1": -1},
        {"mu2": -1},
        {"beta": -1},
        {"epsilon": 0},
        {"steps": 0},
        {"step_size": 0},
        {"norm": "l3"},
    ):
        with pytest.raises(ValidationError):
            GraphSettings.model_validate(wrong)
    for wrong in ({"form": "printed"}, {"mu3": 1.0}, {"mu1": math.inf}, {"step_size": math.nan}):
        with pytest.raises(ValidationError):
            GraphSettings.model_validate(wrong)
    assert all(field.description for field in GraphSettings.model_fields.values())
