"""Your own networks and your own tensors; everything else stays the same.

python examples/own_model_and_data.py
"""

import sys

import torch
from torch import nn

import mapl


def stripes(count: int, seed: int) -> mapl.Images:
    """Four classes of noisy stripes: horizontal, vertical and the two diagonals, 12×12 pixels, one channel."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=draw)
    y, x = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    directions = torch.stack([y, x, (x + y) / 2**0.5, (x - y) / 2**0.5])
    phase = torch.rand(count, 1, 1, generator=draw) * 6.28
    waves = 0.5 + 0.3 * torch.sin(directions[labels] * 1.5 + phase)
    noise = 0.25 * torch.randn(waves.shape, generator=draw)
    return mapl.Images(((waves + noise).clamp(0, 1) * 255).to(torch.uint8).unsqueeze(1), labels)


class Shallow(nn.Sequential):
    """A backbone maps images to embeddings. It is made from the shape of an image and the size of the embedding."""

    def __init__(self, image: tuple[int, int, int], embedding: int):
        super().__init__(
            nn.Conv2d(image[0], 16, 5, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(3),
            nn.Flatten(),
            nn.Linear(144, embedding),
        )


def wide(image: tuple[int, int, int], embedding: int) -> nn.Module:
    """A plain function works too."""
    channels, height, width = image
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * height * width, 256),
        nn.BatchNorm1d(256),
        nn.ReLU(),
        nn.Linear(256, embedding),
    )


def main(folder: str = "runs/own") -> None:
    data = mapl.Dataset("stripes", train=stripes(800, 0), test=stripes(200, 1), classes=4, mean=(0.5,), std=(0.3,))
    recipe = mapl.Recipe.of(
        method={"name": "mapl", "warmup": 5},
        clients=4,
        rounds=12,
        partition={"shots": 20, "test_shots": "all", "sharding": "random"},
        model={"embedding": 32, "projection": 32, "hidden": 64},
        augment={"contrastive": {"crop_scale": [0.6, 1.0]}},
        train={"learning_rate": 3e-3, "batch": 20},
    )
    record = mapl.run(recipe, folder, data=data, backbones={"shallow": Shallow, "wide": wide}, overwrite=True)
    for card, accuracy in zip(record.clients, record.accuracy.tolist(), strict=True):
        print(f"client {card.id} ({card.backbone:7}) classes {card.classes}: {100 * accuracy:.1f} %")
    print("who listens to whom:\n", record.weights().numpy().round(2))


if __name__ == "__main__":
    main(*sys.argv[1:])
