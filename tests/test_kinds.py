"""Kinds of data besides images: features (tables, signals) and token ids (text), from letters to resumed runs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import mapl
from conftest import line_with, skip_without_umap
from mapl import Dataset, Features, Images, MaplError, Recipe, Tokens
from mapl.data.kinds import FeatureAugmentation, FeatureSettings, normal
from mapl.runs.export import export_run, load_model
from mapl.runs.part import build_part, given_in_python
from mapl.runs.run import restored_part
from mapl.shape import Shape

SMALL = {
    "clients": 3,
    "rounds": 3,
    "partition": {"shots": 4, "test_shots": 4, "clusters": 1, "sharding": "random"},
    "model": {"embedding": 12, "projection": 8, "hidden": 16},
    "train": {"batch": 4, "learning_rate": 1e-3},
    "checkpoint": {"every": 1},
}
LETTERS = 30


def classes(n: int) -> Tensor:
    return torch.arange(n) % 3


def table(n: int, seed: int) -> Features:
    """Rows of 5 numbers, of which the class moves the first."""
    values = torch.randn(n, 5, generator=torch.Generator().manual_seed(seed))
    values[:, 0] += 10 * classes(n)
    return Features(values * torch.tensor([1.0, 100, 1e-3, 1, 1]) + 7, classes(n), ("a", "b", "c", "d", "e"))


def signal(n: int, seed: int) -> Features:
    values = torch.randn(n, 2, 6, generator=torch.Generator().manual_seed(seed))
    return Features(values + classes(n).view(-1, 1, 1), classes(n))


def text(n: int, seed: int) -> Tokens:
    """Texts of up to 7 tokens. Which third of the alphabet they come from is their class."""
    draw = torch.Generator().manual_seed(seed)
    ids = 1 + torch.randint(LETTERS // 3, (n, 7), generator=draw) + classes(n).view(-1, 1) * (LETTERS // 3)
    ids[torch.rand(n, 7, generator=draw).cumsum(1) > 4] = 0
    return Tokens(ids, classes(n), LETTERS + 1)


def floats(n: int, seed: int) -> Images:
    pixels = torch.rand(n, 1, 6, 6, generator=torch.Generator().manual_seed(seed))
    return Images(pixels * (1 + classes(n).view(-1, 1, 1, 1)) / 3, classes(n))


KINDS = {"table": table, "signal": signal, "text": text, "floats": floats}


def dataset(kind: str) -> Dataset:
    return Dataset(kind, KINDS[kind](120, 0), KINDS[kind](60, 1), 3)


def recipe(method: str = "mapl", **settings: object) -> Recipe:
    return Recipe.of(method={"name": method}, **{**SMALL, **settings})


@pytest.mark.parametrize("method", ["mapl", "courier"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_resumed_is_the_run_to_the_byte(kind: str, method: str, tmp_path) -> None:
    data = dataset(kind)
    whole = mapl.run(recipe(method), tmp_path / "whole", data=data)
    mapl.run(recipe(method, rounds=2), tmp_path / "parts", data=data)
    mapl.resume(tmp_path / "parts", rounds=3, data=data)
    assert (tmp_path / "parts" / "history.jsonl").read_bytes() == (tmp_path / "whole" / "history.jsonl").read_bytes()
    assert whole.rounds[-1].messages > 0
    others = dataset(kind)
    others.train.inputs[0] = others.train.inputs[1]
    with pytest.raises(MaplError, match="the data are not those of run"):
        mapl.resume(tmp_path / "parts", rounds=4, data=others)


@pytest.mark.parametrize("kind", ["table", "text"])
def test_clients_learn_and_letters_are_read_as_bytes_too(kind: str, tmp_path) -> None:
    settings = {"rounds": 8, "partition": {**SMALL["partition"], "shots": 12}}
    records = [
        mapl.run(recipe(**settings, network={"transport": transport}), tmp_path / transport, data=dataset(kind))
        for transport in ("memory", "bytes")
    ]
    assert records[0].mean > 0.6  # by chance it would be a third
    assert records[0].mean == records[1].mean
    assert (tmp_path / "memory" / "history.jsonl").read_bytes() == (tmp_path / "bytes" / "history.jsonl").read_bytes()


@pytest.mark.parametrize(("kind", "backbone"), [("table", "mlp"), ("text", "transformer")])
def test_a_kind_has_a_backbone_of_its_own_unless_one_is_named(kind: str, backbone: str) -> None:
    assert given_in_python(recipe(), dataset(kind), None).model.backbones == (backbone,)
    assert given_in_python(recipe(), dataset("floats"), None).model.backbones == recipe().model.backbones
    named = recipe(model={"backbones": ["courier"]})
    assert given_in_python(named, dataset(kind), None).model.backbones == ("courier",)


@pytest.mark.parametrize(
    ("kind", "backbone", "said"),
    [
        ("table", "cnn", "backbone 'cnn' cannot take rows of 5 numbers: .*; set model.backbones to mlp"),
        ("table", "transformer", "takes token ids, not rows of 5 numbers"),
        (
            "text",
            "mlp",
            "backbone 'mlp' cannot take texts of 7 tokens out of 31: .*; set model.backbones to transformer",
        ),
        ("signal", "cnn", "backbone 'cnn' cannot take samples of 2×6 numbers"),
    ],
)
def test_a_backbone_for_another_kind_is_refused(kind: str, backbone: str, said: str) -> None:
    with pytest.raises(MaplError, match=said):
        build_part(recipe(model={"backbones": [backbone]}), dataset(kind))


def test_a_method_that_compares_images_says_so() -> None:
    skip_without_umap("flt")
    with pytest.raises(MaplError, match=line_with("'flt'", "images", "rows of 5 numbers")):
        build_part(recipe("flt", model={"backbones": ["mlp"]}), dataset("table"))


def test_features_are_standardised_by_the_training_samples() -> None:
    data = dataset("table")
    part = build_part(given_in_python(recipe(), data, None), data)
    values = part.engine.augmentation.normalise(data.train.inputs)
    torch.testing.assert_close(values.mean(0), torch.zeros(5), atol=1e-4, rtol=0)
    torch.testing.assert_close(values.std(0, correction=0), torch.ones(5), atol=1e-4, rtol=0)
    still = Features(torch.full((4, 1), 3.0), torch.arange(4) % 2)
    assert Dataset("still", still, still, 2).std == (1.0,)


def test_views_of_features_are_noisy_and_some_are_the_mean() -> None:
    n = 20_000
    views = FeatureAugmentation(FeatureSettings(noise=0.5, dropout=0.2), Shape((2,)), (1.0, 2.0), (2.0, 4.0))
    draws = views.draw(torch.Generator().manual_seed(0), n)
    made = views.apply(torch.tensor([[1.0, 2.0]]).repeat(n, 1), draws)
    assert (made == 0).float().mean() == pytest.approx(0.2, abs=0.01)
    assert made[made != 0].std() == pytest.approx(0.5, abs=0.01)
    assert torch.equal(made[5:9], views.apply(torch.tensor([[1.0, 2.0]]).repeat(4, 1), draws[5:9]))


def test_normal_numbers_are_finite_and_symmetric() -> None:
    ends = normal(torch.tensor([0.0, 1 - 2.0**-24]))
    assert ends.isfinite().all()
    assert ends[0] == -ends[1]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Dataset("t", _with(table(6, 0), (3, 1), float("nan")), table(6, 0), 3), "training samples the value nan in sample 3, column 'b', counted from 0"),
        (lambda: Dataset("t", table(6, 0), _with(table(6, 0), (0, 4), float("inf")), 3), "test samples the value inf in sample 0, column 'e'"),
        (lambda: Dataset("t", _with(signal(6, 0), (2, 1, 3), -float("inf")), signal(6, 0), 3), "the value -inf in sample 2, place 1, 3"),
        (lambda: Dataset("t", _with(text(6, 0), (1, 0), 31), text(6, 0), 3), "the token id 31 in sample 1, place 0, counted from 0; with a vocabulary of 31 ids run from 0 to 30"),
        (lambda: Dataset("t", _with(floats(6, 0), (1, 0, 2, 2), 1.5), floats(6, 0), 3), "pixel of 1.5"),
        (lambda: Dataset("t", table(6, 0), text(6, 0), 3), "is made of Features and Tokens"),
        (lambda: Dataset("t", text(6, 0), Tokens(text(6, 0).inputs, classes(6), 40), 3), "training samples of shape .* with a vocabulary of 31 but test"),
        (lambda: Features(torch.zeros(3, 2, dtype=torch.float64), classes(3)), "features must be a float32 tensor"),
        (lambda: Features(torch.zeros(3, 2), classes(3), ("a",)), "1 names of columns"),
        (lambda: Tokens(torch.zeros(3, 2), classes(3), 4), "token ids must be an int64 tensor"),
        (lambda: Images(torch.zeros(3, 2), classes(3)), "images must be a uint8 tensor"),
    ],
)  # fmt: skip
def test_bad_values_are_named_with_their_place(made, said: str) -> None:
    with pytest.raises(MaplError, match=said):
        made()


def _with(samples, place: tuple[int, ...], value: float):
    samples.inputs[place] = value
    return samples


def test_padding_does_not_change_what_a_text_means() -> None:
    from mapl.backbones.transformer import Transformer

    torch.manual_seed(0)
    network = Transformer(Shape((7,), 31), 12).eval()
    short, blank = torch.tensor([[3, 4, 5, 0, 0, 0, 0]]), torch.zeros(1, 7, dtype=torch.int64)
    network.tokens.weight.data[0] = 100.0  # of padding, whatever it is
    before = network(short)
    network.tokens.weight.data[0] = -5.0
    torch.testing.assert_close(network(short), before)
    assert network(blank).isfinite().all()


def shifted(samples: Tensor, uniforms: Tensor) -> Tensor:
    """A user's augmentation."""
    return samples + (uniforms < 0.5)


def squeezed(samples: Tensor, uniforms: Tensor) -> Tensor:
    return samples[:, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_an_augmentation_of_the_users_own(kind: str) -> None:
    data = dataset(kind)
    if kind == "text":
        data = Dataset("text", *(Tokens(s.inputs, s.labels, 40) for s in (data.train, data.test)), 3)
    part = build_part(given_in_python(recipe(augment={"function": f"{__name__}:shifted"}), data, None), data)
    views = part.engine.augmentation
    samples = data.train.inputs[:8]
    made = views.apply(samples, torch.zeros(8, views.uniforms_per_image))
    torch.testing.assert_close(made, views.normalise(samples) + (2 if kind == "floats" else 1))  # std is one half
    assert torch.equal(views.apply(samples, torch.ones(8, views.uniforms_per_image)), views.normalise(samples))


@pytest.mark.parametrize(
    ("function", "said"),
    [("squeezed", "returned torch.float32 .*, but it was given"), ("SMALL", "is a dict, not a function")],
)
def test_an_augmentation_that_is_none(function: str, said: str, tmp_path) -> None:
    made = recipe(augment={"function": f"{__name__}:{function}"})
    with pytest.raises(MaplError, match=said):
        mapl.run(made, tmp_path / "run", data=dataset("table"))


@pytest.mark.parametrize("kind", KINDS)
def test_models_are_exported_and_answer_as_in_the_run(kind: str, tmp_path) -> None:
    data = dataset(kind)
    made = recipe(rounds=1, model={**SMALL["model"], "backbones": ["courier"]})
    mapl.run(made, tmp_path / "run", data=data)
    part = restored_part(tmp_path / "run", data=data)
    client = part.clients[0]
    client.model.eval()
    with torch.no_grad():
        expected = client.model(part.engine.augmentation.normalise(client.test.inputs))
    (path,) = export_run(tmp_path / "run", tmp_path / "weights", [0], data=data)
    torch.testing.assert_close(load_model(path)(client.test.inputs).detach(), expected)
    program, card = export_run(tmp_path / "run", tmp_path / "program", [0], "torch-export", pixels="float32", data=data)
    torch.testing.assert_close(torch.export.load(program).module()(client.test.inputs).detach(), expected)
    assert ('"vocabulary"' in card.read_text()) == (kind == "text")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_trains_on_a_gpu_as_on_the_cpu(kind: str, tmp_path) -> None:
    records = [
        mapl.run(recipe("courier", engine={"device": device}), tmp_path / device, data=dataset(kind))
        for device in ("cpu", "cuda")
    ]
    for here, there in zip(*(record.rounds for record in records), strict=True):
        for term, values in here.losses.items():
            assert there.losses[term] == pytest.approx(values, rel=0.05, abs=0.02)
