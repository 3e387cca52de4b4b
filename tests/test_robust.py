"""Robust mixing: each rule against its definition in float64, what it withstands, and the same bits everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

import mapl.methods
from conftest import assert_same, play, small
from mapl import Inbox, MaplError, Method, Recipe
from mapl.analysis.compare import group
from mapl.analysis.control import control_of
from mapl.losses import cross_entropy
from mapl.methods._mixing import mixed, weighted_mean
from mapl.methods.mapl import Mapl, MaplSettings
from mapl.mixing import MixingSettings, robust_mean, total
from mapl.network import THIS_ROUND, Mail, MemoryPost
from mapl.plugins import known
from mapl.recipe import assignment, compose, to_toml
from mapl.runs.part import build_part
from test_absorb_all import SIZES, crowd, delivered, tensors
from test_compare import record
from test_transports import all_of, in_parts, recipe

KINDS = ["clip", "trimmed", "median", "geometric"]
AVERAGING = [name for name, method in known(mapl.methods).items() if method.averages]
Floats = NDArray[np.float64]


def rule(kind: str, **over: Any) -> MixingSettings:
    return MixingSettings.model_validate({"kind": kind, **over})


def mix(use: MixingSettings, x: Floats, weights: Floats, own: int | None = None) -> Floats:
    """One reader's mix of the rows of x (n, F)."""
    rows, index = torch.from_numpy(x), torch.arange(len(x))[None]
    mine = None if own is None else torch.tensor([own])
    return robust_mean(use, rows, index, torch.from_numpy(weights)[None], mine)[0].numpy()


# Against the definitions


def plain_median(x: Floats, w: Floats, own: float | None) -> float:
    """Of all points with the least Σ w |x − m|, the one nearest to the reader's own, or the middle one."""
    x = x[w > 0]
    w = w[w > 0]
    cost = np.array([(w * np.abs(x - m)).sum() for m in x])
    best = x[cost <= cost.min() + 1e-9 * (1 + np.abs(cost).max())]
    return float(best.min() + best.max()) / 2 if own is None else float(np.clip(own, best.min(), best.max()))


def plain_trimmed(x: Floats, w: Floats, own: int | None, trim: float) -> float:
    share, kept = w / w.sum(), []
    for j in np.flatnonzero(w):
        below, above = share[x < x[j]].sum(), share[x > x[j]].sum()
        if (below >= trim - 1e-9 and above >= trim - 1e-9) or j == own:
            kept.append(j)
    if not kept:
        return plain_median(x, w, None if own is None else x[own])
    return float((w[kept] * x[kept]).sum() / w[kept].sum())


def plain_clip(x: Floats, w: Floats, own: int | None) -> Floats:
    median = [plain_median(column, w, None) for column in x.T]
    centre = np.array(median) if own is None else x[own]
    lengths = np.sqrt(((x - centre) ** 2).sum(1))
    others = [j for j in np.flatnonzero(w) if j != own]
    others.sort(key=lambda j: lengths[j])
    half, reached = w[others].sum() / 2, 0.0
    radius = 0.0
    for j in others:
        reached += w[j]
        radius = lengths[j]
        if reached >= half - 1e-9:
            break
    result = centre.copy()
    for j in others:
        result += w[j] / w.sum() * min(1.0, radius / max(lengths[j], 1e-300)) * (x[j] - centre)
    return np.asarray(result)


def sample(seed: int, n: int, width: int = 7) -> tuple[Floats, Floats]:
    """Vectors around one point, one of them far away, and weights of which one is 0."""
    rng = np.random.default_rng(seed)
    x, w = 3 + rng.normal(size=(n, width)), rng.integers(1, 5, size=n).astype(float)
    x[rng.integers(n)] *= 50
    w[rng.integers(n)] = 0
    return x, w


@pytest.mark.parametrize("server", [False, True], ids=["client", "server"])
@pytest.mark.parametrize("seed", range(12))
def test_rules_by_their_definitions(seed: int, server: bool) -> None:
    n = 3 + seed % 7
    x, w = sample(seed, n)
    own = None if server else seed % n
    mine = [None] * x.shape[1] if own is None else list(x[own])
    medians = [plain_median(column, w, value) for column, value in zip(x.T, mine, strict=True)]
    np.testing.assert_allclose(mix(rule("median"), x, w, own), medians, rtol=1e-12)
    for trim in (0.0, 0.2, 0.4):
        expected = [plain_trimmed(column, w, own, trim) for column in x.T]
        np.testing.assert_allclose(mix(rule("trimmed", trim=trim), x, w, own), expected, rtol=1e-12)
    np.testing.assert_allclose(mix(rule("clip"), x, w, own), plain_clip(x, w, own), rtol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_the_geometric_median_is_nearly_the_best_point(seed: int) -> None:
    x, w = sample(seed, 4 + seed, width=20)

    def cost(z: Floats) -> float:
        return float((w * np.sqrt(((x - z) ** 2).sum(1))).sum())

    best = minimize(cost, np.median(x, axis=0), tol=1e-10)
    ours = mix(rule("geometric"), x, w)
    assert cost(ours) <= best.fun * 1.002
    assert np.linalg.norm(ours - best.x) <= 0.1 * np.sqrt(x.shape[1])  # a tenth of the spread of the honest ones


def test_rules_by_hand() -> None:
    """Five clients, the fifth of them scaled by 100; client 0 reads."""
    x = np.array([[1.0], [2], [3], [4], [-100]])
    w = np.ones(5)
    assert mix(rule("median"), x, w, 0) == [2]
    assert mix(rule("trimmed"), x, w, 0) == [2]  # of 1, 2, 3
    assert mix(rule("trimmed"), x, w, 3) == [2.5]  # its own 4 counts, too
    # Differences 1, 2, 3 and −101: the median is at most 2 (lower one), so they count 1, 2, 2 and −2.
    assert mix(rule("clip"), x, w, 0) == pytest.approx([1 + 3 / 5])


@pytest.mark.parametrize("kind", KINDS)
def test_among_two_a_client_trusts_itself_or_keeps_the_mean(kind: str) -> None:
    x = np.array([[1.0, 2], [100, -200]])
    result = mix(rule(kind), x, np.ones(2), 0)
    expected = x.mean(0) if kind == "clip" else x[0]
    np.testing.assert_allclose(result, expected, rtol=1e-6)


# Properties

vectors = st.integers(0, 2**32 - 1).map(np.random.default_rng)


@given(vectors, st.sampled_from(KINDS), st.integers(2, 9), st.booleans())
def test_the_order_of_senders_does_not_matter(rng: np.random.Generator, kind: str, n: int, server: bool) -> None:
    x, w, order = rng.normal(size=(n, 5)), rng.random(n) + 0.1, rng.permutation(n)
    own = None if server else 0
    there = None if server else int(np.flatnonzero(order == 0)[0])
    np.testing.assert_allclose(mix(rule(kind), x[order], w[order], there), mix(rule(kind), x, w, own), rtol=1e-9)


@given(vectors, st.integers(3, 9), st.data())
def test_a_minority_cannot_move_a_coordinate_out_of_the_honest_range(
    rng: np.random.Generator, n: int, data: st.DataObject
) -> None:
    bad = data.draw(st.integers(0, (n - 1) // 2))
    x = rng.normal(size=(n, 5))
    x[n - bad :] = rng.normal(size=(bad, 5)) * 10.0 ** rng.integers(-3, 30)
    honest = x[: n - bad]
    for own in (None, 0):
        for use in (rule("median"), rule("trimmed", trim=min(bad / n, 0.499))):
            result = mix(use, x, np.ones(n), own)
            assert (result >= honest.min(0) - 1e-9).all()
            assert (result <= honest.max(0) + 1e-9).all()


@given(vectors, st.integers(3, 9), st.data())
def test_a_minority_cannot_move_the_mix_far(rng: np.random.Generator, n: int, data: st.DataObject) -> None:
    """Nor has it to: the mean goes as far as it likes."""
    bad = data.draw(st.integers(1, (n - 1) // 2))
    x = rng.normal(size=(n, 5))
    x[n - bad :] *= 1e9
    spread = np.sqrt(((x[: n - bad] - x[0]) ** 2).sum(1)).max()
    share = bad / n
    for kind, own in (("clip", 0), ("geometric", 0), ("geometric", None)):
        moved = np.linalg.norm(mix(rule(kind), x, np.ones(n), own) - x[0])
        # Of clipping: no difference is longer than an honest one. Of the geometric median: Lopuhaä and Rousseeuw.
        assert moved <= (spread if kind == "clip" else 2 * (1 - share) / (1 - 2 * share) * spread) + 1e-9
    assert np.linalg.norm(x.mean(0) - x[0]) > 1e6


@given(vectors, st.integers(1, 9))
def test_without_trimming_it_is_the_mean(rng: np.random.Generator, n: int) -> None:
    x, w = rng.normal(size=(n, 5)), rng.random(n) + 0.01
    expected = (w[:, None] * x).sum(0) / w.sum()
    np.testing.assert_allclose(mix(rule("trimmed", trim=0), x, w), expected, rtol=1e-9, atol=1e-12)


@given(vectors, st.sampled_from(KINDS), st.integers(1, 6))
def test_who_agrees_stays_and_who_has_no_weight_does_not_count(rng: np.random.Generator, kind: str, n: int) -> None:
    x = np.repeat(rng.normal(size=(1, 5)), n, axis=0)
    others = np.concatenate([x, np.full((2, 5), np.inf)])
    w = np.concatenate([rng.random(n) + 0.1, np.zeros(2)])
    np.testing.assert_allclose(mix(rule(kind), others, w, 0), x[0], rtol=1e-12)


@given(st.lists(st.integers(-100, 100), min_size=1, max_size=40))
def test_a_total_adds_everything(values: list[int]) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    assert total(x, 0) == sum(values)
    assert total(x.expand(3, -1), 1).tolist() == [sum(values)] * 3


# The same bits, however the work is divided


@pytest.mark.parametrize("kind", KINDS)
def test_the_bits_do_not_depend_on_how_many_read_at_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = Mapl(MaplSettings(warmup=1))
    method.mixing = rule(kind)
    results = []
    for size, members in zip((*SIZES, 50), (512, 32, 512, 512, 1), strict=True):
        monkeypatch.setattr("mapl.mixing.MEMBERS", members)
        clients = crowd(method, 30)
        for t in range(2):
            inboxes = delivered(method, clients, t, 1.0)
            pairs = [(c, inboxes[c.id]) for c in clients]
            for first in range(0, len(pairs), size):
                method.absorb_all(t, pairs[first : first + size])
        results.append(tensors(clients))
    for other in results[1:]:
        assert_same(other, results[0])


def test_nor_on_the_blocks_of_coordinates(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = sample(3, 6, width=40)
    whole = [mix(rule(kind), x, w, 0) for kind in KINDS]
    monkeypatch.setattr("mapl.mixing.BLOCK", 16)
    for before, kind in zip(whole, KINDS, strict=True):
        np.testing.assert_allclose(mix(rule(kind), x, w, 0), before, rtol=1e-12)


@pytest.mark.parametrize(("name", "kind"), [(name, KINDS[i % 4]) for i, name in enumerate(AVERAGING)])
def test_every_method_over_bytes_and_in_parts(name: str, kind: str) -> None:
    over: dict[str, Any] = {"method": {"latent": 6, "encoder_epochs": 1}} if name == "flt" else {}
    made = recipe(name, rounds=3, network={"mixing": kind}, **over)
    whole = play(made)
    encoded = play(recipe(name, rounds=3, network={"mixing": kind, "transport": "bytes"}, **over))
    assert encoded.lines == whole.lines
    assert_same(all_of(encoded), all_of(whole))
    divided: dict[str, Tensor] = {}
    for part in in_parts(made, [[0, 3], [1], [2, 4, 5]]):
        divided |= all_of(part)
    assert_same(dict(sorted(divided.items())), dict(sorted(all_of(whole).items())))


# What methods do with it


class Poisoned:
    """A transport on which the letters of some clients are scaled."""

    rounds = THIS_ROUND

    def __init__(self, attackers: Sequence[int], factor: float) -> None:
        self.attackers, self.factor, self.post = attackers, factor, MemoryPost()

    def exchange(self, mail: Mail) -> dict[int, Inbox]:
        letters = dict(mail.letters)
        for i in letters.keys() & set(self.attackers):
            scaled = {k: self.factor * t if t.dtype == torch.float32 else t for k, t in letters[i].tensors.items()}
            letters[i] = replace(letters[i], tensors=scaled)
        return self.post.exchange(replace(mail, letters=letters))


def largest(name: str, attackers: Sequence[int], mixing: str) -> float:
    """The largest number that honest clients keep after a round."""
    use = recipe(name, 1, network={"mixing": mixing}, partition={"clusters": 1})
    part = play(use, part=build_part(use, transport=Poisoned(attackers, 1e4)))
    clients = [c for c in part.clients if c.id not in attackers]
    kept = [t for c in clients for t in (*c.model.state_dict().values(), *c.state.values())]
    return max(float(t.abs().max()) for t in kept if t.is_floating_point() and t.numel())


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Letters that nobody checks: a norm far above the others' would be noticed before anything is mixed."""
    monkeypatch.setattr("mapl.runs.exchange.inspect", lambda mail, inboxes, own: inboxes)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", [name for name in AVERAGING if name != "flt"])  # FLT decides once who is related
def test_one_attacker_of_six_ruins_the_mean_of_every_method_and_no_robust_rule(name: str) -> None:
    bound = 3 * max(1.0, largest(name, [], "mean"))
    assert largest(name, [2], "mean") > 10 * bound
    for kind in KINDS:
        assert largest(name, [2], kind) < bound


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_two_of_ten_that_scale_by_a_hundred_cost_less_than_two_points() -> None:
    alike = {"model": {"backbones": ["cnn"], "common_start": True}, "partition": {"clusters": 1}}
    quick = {"rounds": 10, "train": {"learning_rate": 0.003}, "evaluate": {"moment": "mixed", "every": 10}}

    def honest(mixing: str, attackers: Sequence[int]) -> float:
        use = Recipe.of(method="fedavg", network={"mixing": mixing}, **alike, **quick)
        part = play(use, part=build_part(use, transport=Poisoned(attackers, 100)))
        tested = part.lines[-1].accuracy  # type: ignore[attr-defined]
        return float(np.mean([a for i, a in enumerate(tested) if i not in (0, 5)]))

    undisturbed = honest("mean", [])
    assert undisturbed > 0.8
    assert honest("trimmed", [0, 5]) > undisturbed - 0.02
    with pytest.raises(MaplError, match="loss"):  # numbers grow until they overflow
        honest("mean", [0, 5])


def test_fedproto_mixes_each_class_among_those_who_have_it() -> None:
    part = build_part(recipe("fedproto", 1, network={"mixing": "median"}))
    assert part.server is not None
    held = torch.tensor([[1, 0], [2, 0], [1, 3], [0, 1]])
    prototypes = torch.tensor([[1.0, 9], [2, 9], [900, 5], [9, 7]])[..., None].expand(4, 2, 3)
    result = part.method.robust_prototypes(held, prototypes)  # type: ignore[attr-defined]
    assert result[:, 0].tolist() == [2, 5]
    none = part.method.robust_prototypes(torch.zeros_like(held), prototypes)  # type: ignore[attr-defined]
    assert not none.any()


def test_a_matrix_of_weights_is_a_mix_per_row() -> None:
    x, weights = torch.randn(4, 2, 3), torch.rand(4, 4, dtype=torch.float64)
    for kind in KINDS:
        together = mixed(rule(kind), weights, x, torch.arange(4))
        for i in range(4):
            assert torch.equal(together[i], weighted_mean(rule(kind), weights[i], x, i))


class Own(Method[Any]):
    """Somebody's method, which knows nothing of the setting."""

    name = "own"

    def loss(self, client: Any, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"cross_entropy": cross_entropy(client.model(images), labels)}


@pytest.mark.parametrize("name", ["local", "mutual", "proxyfl", "test_robust:Own"])
def test_a_method_that_does_not_average_says_so(name: str) -> None:
    with pytest.raises(MaplError, match=r"network\.mixing"):
        build_part(small(name, network={"mixing": "median"}))
    assert build_part(small(name)).method.mixing.kind == "mean"


def test_these_average() -> None:
    assert set(known(mapl.methods)) - set(AVERAGING) == {"local", "mutual", "proxyfl"}


# The setting


def test_the_short_form_the_long_form_and_the_file() -> None:
    short = Recipe.of(network={"mixing": "trimmed"})
    assert short.network.mixing == MixingSettings(kind="trimmed", trim=0.2)
    assert compose(("command line", assignment("network.mixing=trimmed")))[0] == short
    longer = Recipe.of(network={"mixing": {"kind": "trimmed", "trim": 0.4}, "compress": "int8"})
    assert (longer.network.mixing.trim, longer.network.compress.kind) == (0.4, "int8")
    assert "[network.mixing]" in to_toml(longer)
    for wrong in ({"kind": "krum"}, {"trim": 0.5}, {"trim": -0.1}):
        with pytest.raises(MaplError, match=r"network\.mixing"):
            Recipe.of(network={"mixing": wrong})


def test_the_mean_is_the_run_that_it_was() -> None:
    assert Recipe().fingerprint() == "555a26bacdd32ae4"
    assert Recipe.of(network={"mixing": "mean"}).fingerprint() == Recipe.of().fingerprint()
    assert len({Recipe.of(network={"mixing": kind}).fingerprint() for kind in ("mean", *KINDS)}) == 5


def test_comparisons_name_the_rule_and_controls_have_none() -> None:
    recipes = [small(network={"mixing": kind}) for kind in ("mean", "median")]
    assert control_of(recipes[0]) == control_of(recipes[1])
    labels = list(group([record(one, [0.5]) for one in recipes]))
    assert ["mean mixing" in labels[0], "median mixing" in labels[1]] == [True, True]
