"""Models of other libraries as backbones: `torchvision.models:resnet18`, `timm:resnet18`, and similar functions.

Such a function does not know (image shape, d_z). It takes `num_classes`, which becomes our d_z. Models of transformers
(`transformers:BertForSequenceClassification`, `transformers:NAME-ON-THE-HUB`, or what a function of your own makes of
that library) take token ids or pixels by name. These libraries are needed only if a recipe names them.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mapl.errors import MaplError
from mapl.shape import is_image, told, vocabulary

Backbone = Callable[[Any, int], nn.Module]
"""Called with the shape of a sample (`mapl.shape.Shape`; (C, H, W) of images) and d_z, it makes a module that maps
samples, such as images (B, C, H, W), to (B, d_z)."""


class Foreign(nn.Module):
    """A model of another library. Grey images are repeated to its channels; of several outputs the first is taken.

    Further outputs are those of auxiliary heads, as in GoogLeNet during training. Their weights are not trained.
    """

    def __init__(self, network: nn.Module, channels: int):
        super().__init__()
        self.network = network
        self.channels = channels

    def forward(self, images: Tensor) -> Tensor:
        output = self.network(images.expand(-1, self.channels, -1, -1))
        first: Tensor = output[0] if isinstance(output, tuple) else output
        return first


def adapted(path: str, maker: Callable[..., nn.Module]) -> Backbone:
    """A backbone from an import path: `maker` itself, unless `num_classes` is all it needs."""
    if not _needs_only_classes(maker):
        return maker

    def backbone(image: tuple[int, int, int], embedding: int) -> nn.Module:
        if image[0] not in (1, 3):
            raise MaplError(f"backbone {path!r} takes images of 3 channels (or 1, repeated), not {image[0]}")
        return Foreign(maker(num_classes=embedding), channels=3)

    return backbone


def timm_model(name: str) -> Backbone:
    """The timm model of that name, with a stem for the images' number of channels."""
    try:
        timm: Any = importlib.import_module("timm")
    except ImportError as error:
        raise MaplError(f"backbone 'timm:{name}' needs timm, which cannot be imported: {error}") from error
    if not timm.is_model(name):
        raise MaplError(f"timm has no model {name!r}, which the backbone 'timm:{name}' names; see timm.list_models()")

    def backbone(image: tuple[int, int, int], embedding: int) -> nn.Module:
        return Foreign(timm.create_model(name, num_classes=embedding, in_chans=image[0]), channels=image[0])

    return backbone


class Answering(nn.Module):
    """A model of transformers: samples to its `logits`, whose number is our d_z. Padding (id 0) is masked."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network
        self.takes_tokens = getattr(network, "main_input_name", "input_ids") == "input_ids"

    def forward(self, samples: Tensor) -> Tensor:
        if self.takes_tokens:
            # A text of nothing looks at its first place, since there must be something to look at.
            seen = (samples != 0) | (torch.arange(samples.shape[1], device=samples.device) == 0)
            answer = self.network(input_ids=samples, attention_mask=seen.long())
        else:
            answer = self.network(pixel_values=samples)
        logits: Tensor = answer.logits
        return logits


def is_of_transformers(network: nn.Module) -> bool:
    """Whether a network is called as those of transformers are."""
    return hasattr(network, "config") and hasattr(network, "main_input_name")


def transformers_model(name: str) -> Backbone:
    """A classifier of transformers: a class with its usual sizes and new weights, or trained weights by their name.

    Weights are read from safetensors only, and code that comes with them is not run.
    """
    path = f"transformers:{name}"
    try:
        library: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise MaplError(f"backbone {path!r} needs transformers, which cannot be imported: {error}") from error
    found = getattr(library, name, None)
    if found is not None and not (hasattr(found, "config_class") and name.endswith("Classification")):
        raise MaplError(
            f"backbone {path!r} is no classifier; take one such as transformers:BertForSequenceClassification"
        )

    def backbone(shape: Sequence[int], embedding: int) -> nn.Module:
        ids = vocabulary(shape)
        if found is not None:
            sizes = {"vocab_size": ids, "pad_token_id": 0} if ids else _of_image(path, shape)
            network: nn.Module = found(found.config_class(num_labels=embedding, **sizes))
            return network
        return _trained(library, path, name, ids, embedding)

    return backbone


def _of_image(path: str, shape: Sequence[int]) -> dict[str, Any]:
    if not is_image(shape):
        raise MaplError(f"backbone {path!r} takes token ids or images, not {told(shape)}")
    return {"num_channels": shape[0], "image_size": shape[1] if shape[1] == shape[2] else tuple(shape[1:])}


def _trained(library: Any, path: str, name: str, ids: int, embedding: int) -> nn.Module:
    if not ids:
        raise MaplError(f"backbone {path!r}: trained weights by name are for texts; transformers has no class {name!r}")
    try:
        auto = library.AutoModelForSequenceClassification
        # Another number of outputs than what was trained: that layer is new.
        kept = {"use_safetensors": True, "ignore_mismatched_sizes": True}
        network: nn.Module = auto.from_pretrained(name, num_labels=embedding, **kept).float()
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise MaplError(f"backbone {path!r}: its weights cannot be had: {first}") from error
    known: int = network.config.vocab_size  # type: ignore[union-attr, assignment]
    if known < ids:
        raise MaplError(f"backbone {path!r} knows {known:,} token ids, and your data have {ids:,}")
    return network


def _needs_only_classes(maker: Callable[..., nn.Module]) -> bool:
    """Whether `maker(num_classes=…)` is a complete call. Our backbones need two positional arguments or `*args`."""
    try:
        signature = inspect.signature(maker)
        signature.bind(num_classes=1)
    except (TypeError, ValueError):  # not a complete call, or a callable without a signature
        return False
    return all(parameter.kind is not parameter.VAR_POSITIONAL for parameter in signature.parameters.values())
