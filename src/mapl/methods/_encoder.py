"""The encoder that FLT's server trains on its own images and sends to all clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, mse_loss

import mapl.data.sources
from mapl.client import Server
from mapl.data.dataset import DataSettings, Images
from mapl.errors import MaplError
from mapl.keys import ALWAYS, generator, key, seeded
from mapl.plugins import find
from mapl.shape import told

SYNTHETIC = "synthetic"
"""The source of randomly drawn images, for a server that has none."""
MOST_IMAGES = 2000
BATCH = 100


def check_source(source: str) -> None:
    """Refuse an unknown source of images."""
    if source != SYNTHETIC:
        find("data set", source, mapl.data.sources)


def encoder(image: Sequence[int], latent: int) -> nn.Sequential:
    """Images (B, C, H, W) in [0, 1] → (B, latent)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(image), 256), nn.ReLU(), nn.Linear(256, latent))


def trained_encoder(server: Server, latent: int, source: str, epochs: int) -> nn.Sequential:
    """The first half of an autoencoder that reproduces the source's images (mean squared error)."""
    image = server.shape
    draw = generator(server.seed, server.id, ALWAYS, "encoder's images")
    images = synthetic(image, draw) if source == SYNTHETIC else published(source, image, server.data_folder)
    with seeded(key(server.seed, server.id, ALWAYS, "encoder's weights")):
        network = encoder(image, latent)
        decoder = nn.Sequential(nn.Linear(latent, 256), nn.ReLU(), nn.Linear(256, math.prod(image)), nn.Sigmoid())
    optimizer = torch.optim.Adam([*network.parameters(), *decoder.parameters()], 1e-3)
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(images), generator=draw), BATCH):
            optimizer.zero_grad()
            loss = mse_loss(decoder(network(images[batch])), images[batch].flatten(1))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return network


def synthetic(image: Sequence[int], draw: torch.Generator) -> Tensor:
    """Smooth random patterns (n, C, H, W): a few blurred strokes on a dark background, without classes."""
    channels, height, width = image
    coarse = torch.rand(MOST_IMAGES, channels, 4, 4, generator=draw)
    return interpolate(coarse, (height, width), mode="bilinear").sub(0.5).mul(3).clamp(0, 1)


def published(source: str, image: Sequence[int], folder: Path | None) -> Tensor:
    """The first images of another data set, resized to `image` (C, H, W) and scaled to [0, 1]."""
    channels, height, width = image
    dataset = find("data set", source, mapl.data.sources)().load(DataSettings(name=source, folder=folder))
    if not isinstance(dataset.train, Images):
        raise MaplError(f"method.encoder_data: {source!r} has no images, but {told(dataset.shape)}")
    pixels = dataset.train.unit()[:MOST_IMAGES]
    grey_or_colour = pixels.mean(1, keepdim=True).expand(-1, channels, -1, -1) if len(pixels[0]) != channels else pixels
    return interpolate(grey_or_colour, (height, width), mode="bilinear")
