"""Models of other libraries as backbones: `torchvision.models:resnet18`, `timm:resnet18`, and similar functions.

Such a function does not know (image shape, d_z). It takes `num_classes`, which becomes our d_z. These libraries are
needed only if a recipe names them.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from mapl.errors import MaplError

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


def _needs_only_classes(maker: Callable[..., nn.Module]) -> bool:
    """Whether `maker(num_classes=…)` is a complete call. Our backbones need two positional arguments or `*args`."""
    try:
        signature = inspect.signature(maker)
        signature.bind(num_classes=1)
    except (TypeError, ValueError):  # not a complete call, or a callable without a signature
        return False
    return all(parameter.kind is not parameter.VAR_POSITIONAL for parameter in signature.parameters.values())
