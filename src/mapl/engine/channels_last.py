"""Channels-last convolutions on a CPU: with a pixel's channels side by side in memory they are up to twice as fast.

Nothing outside notices: a client's weights have this layout while it trains or is tested, and are then put back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from mapl.client import Client
from mapl.engine.optimizers import Optimizer
from mapl.shape import Shape, blank, is_image

POOLINGS = (nn.AvgPool2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)


def who_takes_it(kinds: Sequence[Sequence[Client]], shape: Shape) -> set[int]:
    """The clients with convolutions whose layers all work in this layout (a `view` may not); one of a kind is tried."""
    if not is_image(shape):
        return set()
    images = pixels_together(blank(shape, 2))
    return {c.id for clients in kinds if _convolves(clients[0]) and _takes(clients[0], images) for c in clients}


def _convolves(client: Client) -> bool:
    return any(isinstance(layer, nn.Conv2d) for layer in client.model.modules())


@torch.no_grad()
def _takes(client: Client, images: Tensor) -> bool:
    """Whether all networks that take images also take these, which are channels-last."""
    model, usual = client.model, images.contiguous()
    training = model.training
    model.eval()
    try:
        on_images = [network for network in model.own.values() if _runs(network, usual)]
        return all(_runs(network, images) for network in (model.backbone, *on_images))
    finally:
        model.train(training)


def _runs(network: nn.Module, images: Tensor) -> bool:
    try:
        network(images.clone())
    except Exception:  # an own network may take something else than images
        return False
    return True


def pixels_together(images: Tensor) -> Tensor:
    """The same images (N, C, H, W) in channels-last layout.

    Torch's own conversion leaves images of one channel as they are, and its convolutions then use the usual layout.
    """
    n, c, h, w = images.shape
    return images.permute(0, 2, 3, 1).reshape(-1).view(n, h, w, c).permute(0, 3, 1, 2)


@contextmanager
def channels_last(model: nn.Module, optimizer: Optimizer) -> Iterator[None]:
    """Train inside: weights of convolutions are channels-last, and so is their optimiser state."""
    weights = _of_convolutions(model)
    homes = [weight.data for weight in weights]
    for weight in weights:
        weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    _move_state(optimizer, weights, torch.channels_last)
    with ExitStack() as hooks:
        for layer in model.modules():
            if isinstance(layer, POOLINGS):
                hooks.enter_context(layer.register_forward_hook(_keep_order_on_the_way_back))
        try:
            yield
        finally:
            for weight, home in zip(weights, homes, strict=True):
                home.copy_(weight.data)
                weight.data, weight.grad = home, None
            _move_state(optimizer, weights, torch.contiguous_format)


@contextmanager
def channels_last_for_tests(model: nn.Module) -> Iterator[None]:
    """Test inside: convolutions read channels-last copies of their weights."""
    weights = _of_convolutions(model)
    homes = [weight.data for weight in weights]
    try:
        for weight in weights:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        yield
    finally:
        for weight, home in zip(weights, homes, strict=True):
            weight.data = home


def _of_convolutions(model: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in model.parameters() if weight.dim() == 4]


def _keep_order_on_the_way_back(layer: nn.Module, inputs: object, output: object) -> None:
    """Flattening returns gradients in the usual layout, with which a pooling is up to five times slower."""
    if isinstance(output, Tensor) and output.requires_grad and output.dim() == 4:
        output.register_hook(_together)  # type: ignore[no-untyped-call]


def _together(gradient: Tensor) -> Tensor:
    return gradient.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def _move_state(optimizer: Optimizer, weights: Sequence[nn.Parameter], order: torch.memory_format) -> None:
    for weight in weights:
        state = optimizer.state.get(weight, {})
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == weight.shape:
                state[name] = value.contiguous(memory_format=order)
