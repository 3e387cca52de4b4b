"""Noise on letters: its size, its keys, what it leaves alone, and ε against an independent formula."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import log_ndtr
from typer.testing import CliRunner

import mapl
import mapl.network.accountant
from conftest import assert_same, deliver, play, small, stop_after, written
from mapl import Letter, MaplError, Recipe
from mapl.analysis.privacy import spent
from mapl.cli.app import app
from mapl.cli.runs import summary
from mapl.errors import NotFinite
from mapl.methods._mixing import flatten, load_flat
from mapl.methods.mapl import Mapl
from mapl.network import Mail, Noise, NoiseSettings, encode, epsilon, find_noise
from mapl.network.noise import standard_normal
from mapl.report.facts import facts
from mapl.report.lines import lines
from mapl.runs.part import build_part
from test_transports import all_of, in_parts, recipe

pytest.importorskip("dp_accounting")

RUN = "0" * 16
NOISY = {"clip": 2.0, "multiplier": 0.01}


def noisy(**noise: Any) -> dict[str, Any]:
    return {"network": {"noise": {**NOISY, **noise}}}


def a_letter(sender: int = 0, round: int = 0, size: int = 20_000, run: str = RUN, **more: torch.Tensor) -> Letter:
    return Letter(run, sender, round, 10, "", {"a": torch.zeros(size), **more})


# The mechanism


def test_the_stream_is_a_standard_normal_one() -> None:
    draws = standard_normal(b"key", 200_001)
    assert len(draws) == 200_001
    inside = [np.mean(np.abs(draws) < bound) for bound in (0.1, 1.0, 2.0, 3.0)]
    assert inside == pytest.approx([0.0797, 0.6827, 0.9545, 0.9973], abs=0.003)
    assert draws.mean() == pytest.approx(0, abs=0.01)
    halves = len(draws) // 2
    assert np.corrcoef(draws[:halves], draws[halves : 2 * halves])[0, 1] == pytest.approx(0, abs=0.015)


def test_a_long_letter_is_scaled_to_the_clip_as_one_vector_and_a_short_one_is_left_alone() -> None:
    long = a_letter(size=3, b=torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    clipped = Noise(2.5, 0.0, b"").noisy(long, "letters").tensors
    assert torch.allclose(clipped["b"], torch.tensor([[1.5, 0.0], [0.0, 2.0]]))
    assert math.hypot(*(float(tensor.norm()) for tensor in clipped.values())) == pytest.approx(2.5, rel=1e-6)
    short = Noise(5.0, 0.0, b"").noisy(long, "letters").tensors
    assert torch.equal(short["b"], long.tensors["b"])


def test_the_noise_has_the_standard_deviation_that_the_settings_say() -> None:
    letter = a_letter(b=torch.full((100, 100), 7.0))
    got = Noise(clip=3.0, multiplier=0.5, secret=b"x").noisy(letter, "letters").tensors
    assert float(got["a"].std()) == pytest.approx(1.5, rel=0.03)
    assert float(got["b"].std()) == pytest.approx(1.5, rel=0.03)
    assert float(got["b"].mean()) == pytest.approx(3.0 / 100, abs=0.06)  # 10,000 numbers of norm 3 together
    assert got["a"].dtype == torch.float32


def test_noise_is_independent_over_rounds_senders_legs_runs_and_secrets_and_the_same_for_the_same() -> None:
    base, noise = a_letter(), Noise(1.0, 1.0, b"secret")
    draws = [
        maker.noisy(letter, leg).tensors["a"]
        for maker, letter, leg in (
            (noise, base, "letters"),
            (noise, a_letter(round=1), "letters"),
            (noise, a_letter(sender=1), "letters"),
            (noise, base, "answers"),
            (noise, a_letter(run="1" * 16), "letters"),
            (replace(noise, secret=b"other"), base, "letters"),
        )
    ]
    correlations = np.corrcoef(torch.stack(draws).numpy()) - np.eye(len(draws))
    assert np.abs(correlations).max() < 0.03  # the standard deviation of each is 0.007
    assert torch.equal(noise.noisy(a_letter(), "letters").tensors["a"], draws[0])


def test_tensors_other_than_float32_and_the_header_travel_as_they_are() -> None:
    letter = a_letter(count=torch.tensor([3]), mass=torch.tensor([0.5], dtype=torch.float64))
    got = Noise(1.0, 1.0, b"").noisy(letter, "letters")
    assert got.tensors["count"] is letter.tensors["count"]
    assert got.tensors["mass"] is letter.tensors["mass"]
    assert (got.sender, got.samples) == (letter.sender, letter.samples)


def test_only_what_clients_write_gets_noise() -> None:
    noise = Noise(1.0, 1.0, b"")
    for leg, changes in {"letters": True, "answers": True, "replies": False, "opening": False}.items():
        mail = Mail(0, leg, {0: a_letter()}, {}, lambda reader: pytest.fail("schema"))
        assert (encode(noise.outgoing(mail).letters[0]) != encode(a_letter())) == changes


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_letter_that_is_not_finite_shows_none_of_its_numbers(number: float) -> None:
    letter = a_letter(b=torch.tensor([3.0, number]), count=torch.tensor([4]))
    got = Noise(1.0, 1.0, b"").noisy(letter, "letters")
    assert {name: tensor.shape for name, tensor in got.tensors.items()} == {
        name: tensor.shape for name, tensor in letter.tensors.items()
    }
    assert got.tensors["a"].isnan().all()
    assert got.tensors["b"].isnan().all()
    assert got.tensors["count"].tolist() == [4]


class Spoilt(Mapl):
    """Client 1 writes a number that is not finite in round 1; its own parameters stay as they are."""

    name = "spoilt"

    def contents(self, client: mapl.Client, round: int) -> dict[str, torch.Tensor]:
        tensors = super().contents(client, round)
        if (client.id, round) == (1, 1):
            tensors["prototypes"] = tensors["prototypes"].clone().fill_(math.inf)
        return tensors


@pytest.mark.filterwarnings("ignore:a letter is left out")
@pytest.mark.parametrize("compress", ["none", "int8", "top-k"])
@pytest.mark.parametrize("transport", ["memory", "bytes"])
def test_a_letter_that_is_not_finite_is_left_out_and_stops_no_round(transport: str, compress: str) -> None:
    network = {"noise": NOISY, "transport": transport, "compress": compress}
    part = play(small("test_noise:Spoilt", network=network))
    assert part.round == 3
    refused = [line.refused for line in part.lines]
    assert refused[0] is None
    assert refused[1] == {1: {"finite": 3}}  # by each of its three readers
    assert [line.released for line in part.lines] == [[1] * 4] * 3
    for client in part.clients:
        assert all(tensor.isfinite().all() for tensor in client.model.state_dict().values())


@pytest.mark.filterwarnings("ignore:a letter is left out")
def test_a_client_that_diverges_is_explained_with_noise_as_without() -> None:
    made = small(rounds=8, train={"learning_rate": 1e30}, model={"backbones": ["mlp"]}, **noisy())
    with pytest.raises(NotFinite, match="learning_rate"):
        play(made)


def test_by_default_the_secret_is_the_seed_and_a_process_can_give_another() -> None:
    settings, letter = NoiseSettings(clip=1.0, multiplier=1.0), a_letter()

    def bytes_of(seed: int, secret: bytes | None = None) -> bytes:
        found = find_noise(settings, seed, secret)
        assert found is not None
        return encode(found.noisy(letter, "letters"))

    assert bytes_of(0) == bytes_of(0)
    assert len({bytes_of(0), bytes_of(1), bytes_of(0, b"a"), bytes_of(0, b"b")}) == 4
    assert build_part(small(**noisy()), secret=b"mine").noise == Noise(2.0, 0.01, b"mine")
    assert find_noise(NoiseSettings(), 0) is None


# A client mixes its own tensors without noise


def test_a_noisy_tensor_is_never_taken_for_a_clients_own() -> None:
    letters = {sender: Noise(1.0, 1.0, b"").noisy(a_letter(sender), "letters") for sender in range(2)}
    inboxes = deliver(letters, {0: torch.tensor([1]), 1: torch.tensor([0])})
    # A tensor at the address of the noisy one: once that is freed, any new tensor may lie there.
    there = letters[0].tensors["a"]
    assert inboxes[1].own_rows("a", torch.tensor([0]), [there]).tolist() == [0]
    assert Noise(1.0, 1.0, b"").incoming(inboxes)[1].own_rows("a", torch.tensor([0]), [there]).tolist() == [-1]


def test_a_client_mixes_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    before: dict[int, torch.Tensor] = {}
    mix = Mapl.mix

    def watched(self: Mapl, circles: Any, weights: Any) -> None:
        before.update({client.id: client.model.prototypes.detach().clone() for client in circles.clients})
        mix(self, circles, weights)

    monkeypatch.setattr(Mapl, "mix", watched)
    # Letters of norm 1e-30 add nothing, so a uniform mean of four is a quarter of a client's own.
    part = play(small(method={"learn_graph": False}, network={"noise": {"clip": 1e-30}}), rounds=1)
    for client in part.clients:
        assert torch.equal(client.model.prototypes, before[client.id] / 4)


def test_noise_leaves_no_variance_below_zero() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    load_flat(-torch.ones_like(flatten(network)), network)
    state = network.state_dict()
    assert state["1.running_var"].tolist() == [0.0] * 3
    assert state["1.running_mean"].tolist() == [-1.0] * 3


# Runs


@pytest.mark.parametrize("name", ["mapl", "courier", "fedproto"])
@pytest.mark.filterwarnings("ignore:network.noise")
def test_noise_is_the_same_to_the_bit_over_bytes_and_in_two_parts(name: str) -> None:
    noise = {**NOISY, "multiplier": 1e-3}
    made = recipe(name, rounds=2, network={"noise": noise})
    whole, parts = play(made), in_parts(made, [[1, 4], [0, 2, 3, 5]])
    over_bytes = play(recipe(name, rounds=2, network={"noise": noise, "transport": "bytes"}))
    together = {key: tensor for part in parts for key, tensor in all_of(part).items()}
    assert_same(all_of(over_bytes), all_of(whole))
    assert_same(dict(sorted(together.items())), dict(sorted(all_of(whole).items())))
    assert over_bytes.lines == whole.lines


@pytest.mark.filterwarnings("ignore:network.noise")
@pytest.mark.parametrize("name", ["mapl", "proxyfl"])
def test_noise_changes_a_run_and_a_clip_that_nothing_reaches_does_not(name: str) -> None:
    plain = all_of(play(recipe(name, rounds=2)))
    clipped = all_of(play(recipe(name, rounds=2, network={"noise": {"clip": 1e6}})))
    assert_same(clipped, plain)
    other = all_of(play(recipe(name, rounds=2, **noisy())))
    assert any(not torch.equal(tensor, other[key]) for key, tensor in plain.items())


def test_noisy_letters_can_be_compressed() -> None:
    network = {"noise": NOISY, "compress": {"kind": "int8"}}
    one = play(small(network=network))
    other = play(small(network={**network, "transport": "bytes"}))
    assert one.lines == other.lines
    assert one.lines[0].bytes < play(small(**noisy())).lines[0].bytes


def test_a_stopped_run_repeats_its_noise_and_counts_every_letter_once(tmp_path: Path) -> None:
    made = small(**noisy())
    whole = mapl.run(made, tmp_path / "whole")
    mapl.run(made, tmp_path / "stopped", stop=stop_after(2))
    assert mapl.resume(tmp_path / "stopped").epsilons() == whole.epsilons()
    assert written(tmp_path / "stopped") == written(tmp_path / "whole")
    assert [line.released for line in whole.rounds] == [[1, 1, 1, 1]] * 3
    assert whole.epsilons() == [epsilon(made.network.noise, 3)] * 4
    assert whole.epsilons(0) == [epsilon(made.network.noise, 1)] * 4


def test_rounds_without_a_letter_spend_nothing(tmp_path: Path) -> None:
    record = mapl.run(small("courier", rounds=5, method={"every": 2}, **noisy()), tmp_path / "run")
    assert [line.released for line in record.rounds] == [[0] * 4, [1] * 4, [0] * 4, [1] * 4, [0] * 4]
    assert record.epsilons(0) == [0.0] * 4
    assert record.epsilons() == [epsilon(record.recipe.network.noise, 2)] * 4


def test_without_noise_nothing_is_written_about_it(tmp_path: Path) -> None:
    record = mapl.run(small(rounds=1), tmp_path / "run")
    assert record.epsilons() is None
    assert "released" not in (tmp_path / "run" / "history.jsonl").read_text()


def test_a_recipe_without_noise_is_the_run_that_it_was() -> None:
    plain = Recipe.of()
    assert Recipe.of(network={"noise": {"clip": "none", "multiplier": 0.0}}).fingerprint() == plain.fingerprint()
    others = [Recipe.of(network={"noise": {"clip": 1, "multiplier": number}}) for number in (0, 1, 2)]
    assert len({made.fingerprint() for made in (plain, *others)}) == 4


# ε


def exact(mu: float, delta: float) -> float:
    """ε of a Gaussian mechanism whose sensitivity is μ standard deviations (Balle and Wang, 2018, theorem 8)."""

    def log_delta(candidate: float) -> float:
        first, second = log_ndtr(mu / 2 - candidate / mu), candidate + log_ndtr(-mu / 2 - candidate / mu)
        return float(first + math.log(-math.expm1(second - first)))

    found: float = brentq(lambda candidate: log_delta(candidate) - math.log(delta), 0, mu**2 + 40 * mu + 50)
    return found


@pytest.mark.parametrize("delta", [1e-5, 1e-3])
@pytest.mark.parametrize("letters", [1, 45, 400])
@pytest.mark.parametrize("multiplier", [100, 7, 1, 0.1, 1e-3])
def test_epsilon_bounds_the_exact_one_from_above_and_closely(multiplier: float, letters: int, delta: float) -> None:
    """Letters are at most 2 C apart, and k of them together are one Gaussian mechanism with √k times the distance."""
    settings = NoiseSettings(clip=5.0, multiplier=multiplier, delta=delta)
    least = exact(2 * math.sqrt(letters) / multiplier, delta)
    assert least <= epsilon(settings, letters) <= 1.35 * least


def test_epsilon_without_letters_and_without_noise() -> None:
    assert epsilon(NoiseSettings(clip=1.0, multiplier=1.0), 0) == 0
    assert epsilon(NoiseSettings(clip=1.0), 1) == math.inf


# What people see


def printed(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_what_a_person_and_a_program_see(tmp_path: Path) -> None:
    noise = ["--set", "network.noise.clip=2", "--set", "network.noise.multiplier=1"]
    tiny = ["--rounds", 2, "--clients", 4, "--set", "partition.shots=2"]
    expected = epsilon(NoiseSettings(clip=2.0, multiplier=1.0), 2)
    assert f"# privacy: ε ≤ {expected:.4g} at δ = 1e-05" in printed("show", *tiny, *noise)
    said = printed("run", *tiny, *noise, "--out", tmp_path, "--name", "a")
    assert f"ε ≤ {expected:.4g} at δ = 1e-05" in said
    record = mapl.load(tmp_path / "a")
    assert f"ε ≤ {expected:.4g}" in facts(lines([record]))["Privacy"][0]
    end = summary(record)
    assert (end["epsilon"], end["delta"]) == (expected, 1e-5)


def test_clipping_alone_has_no_epsilon(tmp_path: Path) -> None:
    record = mapl.run(small(rounds=1, network={"noise": {"clip": 1.0}}), tmp_path / "run")
    assert record.epsilons() == [math.inf] * 4
    assert json.loads(json.dumps(summary(record)))["epsilon"] is None  # JSON has no infinity
    assert "no ε" in (spent(record) or "")


def test_noise_without_the_accountant_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapl.network.accountant, "find_spec", lambda name: None)
    with pytest.raises(MaplError, match=r"mapl\[privacy\]"):
        build_part(small(**noisy()))
    build_part(small(network={"noise": {"clip": 1.0}}))  # nothing to account for


def test_noise_without_a_clip_is_refused() -> None:
    with pytest.raises(MaplError, match=r"network\.noise\.clip"):
        small(network={"noise": {"multiplier": 1.0}})


def test_what_noise_does_not_cover_is_named() -> None:
    with pytest.warns(UserWarning, match="'held'"):
        build_part(small("fedproto", **noisy()))


class Counting(Mapl):
    """A method whose letters hold only a count."""

    name = "counting"

    def letter(self, client: mapl.Client, round: int) -> Letter:
        return client.letter(round, {"count": torch.tensor([1])})


def test_letters_without_anything_to_cover_are_refused() -> None:
    with pytest.raises(MaplError, match="float32"):
        build_part(small("test_noise:Counting", **noisy()))
