"""Models of the library transformers as backbones; a stand-in of the same call shape where it is not installed."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mapl
from mapl import MaplError, Recipe
from mapl.model import build, find_backbone
from mapl.shape import Shape

TEXT, IMAGE = Shape((6,), 40), Shape((1, 8, 8))


class Config:
    """As configurations of transformers: sizes by keyword."""

    def __init__(self, vocab_size: int = 7, num_labels: int = 2, pad_token_id: int | None = None, hidden_size: int = 8):
        self.vocab_size, self.num_labels, self.pad_token_id = vocab_size, num_labels, pad_token_id
        self.hidden_size = hidden_size


class WordsForSequenceClassification(nn.Module):
    """As models of transformers: made of a configuration, called by keyword, answering with `logits`."""

    config_class, main_input_name = Config, "input_ids"

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.score = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        mask = attention_mask[:, :, None]
        return SimpleNamespace(logits=self.score((self.words(input_ids) * mask).sum(1) / mask.sum(1)))

    @classmethod
    def from_pretrained(cls, name: str, num_labels: int, use_safetensors: bool, **options: Any) -> nn.Module:
        if name != "tiny/words":
            raise OSError(f"{name} is not a local folder and is not a valid model identifier\nlonger story")
        assert use_safetensors
        return cls(Config(50, num_labels)).half()


class PixelConfig(Config):
    def __init__(self, num_channels: int, image_size: int, num_labels: int):
        super().__init__(num_labels=num_labels)
        self.pixels = num_channels * image_size**2


class PixelsForImageClassification(nn.Module):
    config_class, main_input_name = PixelConfig, "pixel_values"

    def __init__(self, config: PixelConfig):
        super().__init__()
        self.config = config
        self.score = nn.Linear(config.pixels, config.num_labels)

    def forward(self, pixel_values: Tensor) -> Any:
        return SimpleNamespace(logits=self.score(pixel_values.flatten(1)))


@pytest.fixture
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleType("transformers")
    library.__dict__.update(
        WordsForSequenceClassification=WordsForSequenceClassification,
        PixelsForImageClassification=PixelsForImageClassification,
        AutoModelForSequenceClassification=WordsForSequenceClassification,
        WordsModel=WordsForSequenceClassification,
    )
    monkeypatch.setitem(sys.modules, "transformers", library)


def of(name: str, shape: Shape = TEXT) -> nn.Module:
    settings = Recipe.of(model={"embedding": 12, "projection": 8, "hidden": 8}).model
    return build(name, find_backbone(name), settings, shape, 3, 0, 0).backbone


@pytest.mark.usefixtures("_stand_in")
@pytest.mark.parametrize("name", ["WordsForSequenceClassification", "tiny/words"])
def test_padding_is_masked_and_logits_are_the_embedding(name: str) -> None:
    network = of(f"transformers:{name}")
    ids = torch.tensor([[3, 4, 5, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
    before = network(ids)
    assert before.shape == (2, 12)
    assert before.dtype == torch.float32
    network.network.words.weight.data[0] += 100.0
    assert torch.equal(network(ids)[0], before[0])


@pytest.mark.usefixtures("_stand_in")
def test_a_classifier_of_images() -> None:
    assert of("transformers:PixelsForImageClassification", IMAGE)(torch.zeros(3, *IMAGE)).shape == (3, 12)


@pytest.mark.usefixtures("_stand_in")
def test_texts_train_with_it_and_are_resumed_to_the_byte(tmp_path) -> None:
    labels = np.arange(60) % 2
    data = np.random.default_rng(0).integers(1, 20, (60, 6)) + 20 * labels[:, None], labels
    backbones = {"backbones": ["transformers:WordsForSequenceClassification"]}
    recipes = [Recipe.of(data=data, rounds=rounds, model=backbones) for rounds in (2, 1)]
    for recipe, name in zip(recipes, ("whole", "half"), strict=True):
        mapl.run(recipe, tmp_path / name, data=data)
    mapl.resume(tmp_path / "half", rounds=2, data=data)
    assert (tmp_path / "half/history.jsonl").read_bytes() == (tmp_path / "whole/history.jsonl").read_bytes()


@pytest.mark.usefixtures("_stand_in")
def test_what_a_function_of_ones_own_makes_of_that_library() -> None:
    def small(shape: Shape, embedding: int) -> nn.Module:
        return WordsForSequenceClassification(Config(shape.vocabulary, embedding, hidden_size=4))

    settings = Recipe.of(model={"embedding": 12, "projection": 8, "hidden": 8}).model
    assert build("small", small, settings, TEXT, 3, 0, 0).backbone(torch.ones(2, 6, dtype=torch.int64)).shape == (2, 12)


@pytest.mark.usefixtures("_stand_in")
@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("WordsModel", TEXT, "'transformers:WordsModel' is no classifier; take one such as"),
        ("nobody/knows", TEXT, "its weights cannot be had: nobody/knows is not a local folder .* identifier$"),
        ("tiny/words", Shape((6,), 60), "'transformers:tiny/words' knows 50 token ids, and your data have 60"),
        ("tiny/words", IMAGE, "trained weights by name are for texts"),
        ("PixelsForImageClassification", Shape((5,)), "takes token ids or images, not rows of 5 numbers"),
    ],
)
def test_what_cannot_be_a_backbone(name: str, shape: Shape, said: str) -> None:
    with pytest.raises(MaplError, match=said):
        of(f"transformers:{name}", shape)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MaplError, match="'transformers:BertForSequenceClassification' needs transformers"):
        of("transformers:BertForSequenceClassification")


def test_the_library_itself() -> None:
    transformers = pytest.importorskip("transformers")

    def small(shape: Shape, embedding: int) -> nn.Module:
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        config = transformers.BertConfig(vocab_size=shape.vocabulary, num_labels=embedding, pad_token_id=0, **sizes)
        return transformers.BertForSequenceClassification(config)

    settings = Recipe.of(model={"embedding": 12, "projection": 8, "hidden": 8}).model
    network = build("small", small, settings, TEXT, 3, 0, 0).backbone.eval()
    ids = torch.tensor([[3, 4, 5, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
    before = network(ids)
    assert before.isfinite().all()
    network.network.bert.embeddings.word_embeddings.weight.data[0] += 5.0
    torch.testing.assert_close(network(ids)[0], before[0])
    assert of("transformers:BertForSequenceClassification")(ids).shape == (2, 12)
