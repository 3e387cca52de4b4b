"""A plain loop: the same work as a round of mapl, written as programs of this kind usually are.

One client after another; every image goes through per-sample transforms on a PIL image in a torch DataLoader; eager
steps; an optimiser made each round; `.item()` of every term of the loss at every step; similarities and averages over
all pairs of clients in Python; every client tested every round in batches of 64 through a DataLoader. Models, losses,
batch size, number of steps and the operations of the augmentation are mapl's own, so that the two differ in how the
work is done and not in what it is.

The transforms are written as torchvision defines them for PIL images, random parameters drawn from torch one by one;
the blur is Pillow's own, which is quicker than torchvision's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from mapl import Dataset, Images
from mapl.client import Client
from mapl.collaboration import graph_loss, project_to_simplex
from mapl.data.augment import AugmentSettings
from mapl.data.samples import Samples as AnySamples
from mapl.losses import prototype_contrastive, prototype_uniformity, supervised_contrastive
from mapl.methods.mapl import MaplSettings
from mapl.runs.part import Part
from mapl.shape import Shape

Picture = Image.Image
Transform = Callable[[Any], Any]

TEST_BATCH = 64


def uniform(low: float, high: float) -> float:
    return torch.empty(1).uniform_(low, high).item()


class Compose:
    def __init__(self, steps: Sequence[Transform]) -> None:
        self.steps = steps

    def __call__(self, image: Any) -> Any:
        for step in self.steps:
            image = step(image)
        return image


class RandomResizedCrop:
    def __init__(self, size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float]) -> None:
        self.size, self.scale, self.ratio = size, scale, ratio

    def box(self, width: int, height: int) -> tuple[int, int, int, int]:
        area = height * width
        log_ratio = torch.log(torch.tensor(self.ratio))
        for _ in range(10):
            target = area * uniform(*self.scale)
            ratio = torch.exp(torch.empty(1).uniform_(log_ratio[0].item(), log_ratio[1].item())).item()
            w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
            if 0 < w <= width and 0 < h <= height:
                top = int(torch.randint(0, height - h + 1, size=(1,)).item())
                left = int(torch.randint(0, width - w + 1, size=(1,)).item())
                return left, top, w, h
        return 0, 0, width, height

    def __call__(self, image: Picture) -> Picture:
        left, top, w, h = self.box(*image.size)
        return image.crop((left, top, left + w, top + h)).resize(self.size[::-1], Image.Resampling.BILINEAR)


class RandomCrop:
    def __init__(self, padding: int) -> None:
        self.padding = padding

    def __call__(self, image: Picture) -> Picture:
        width, height = image.size
        padded = ImageOps.expand(image, self.padding)
        top = int(torch.randint(0, 2 * self.padding + 1, size=(1,)).item())
        left = int(torch.randint(0, 2 * self.padding + 1, size=(1,)).item())
        return padded.crop((left, top, left + width, top + height))


class ColorJitter:
    def __init__(self, settings: AugmentSettings) -> None:
        self.settings = settings

    def __call__(self, image: Picture) -> Picture:
        use = self.settings
        order = torch.randperm(4)
        factors = [uniform(max(0, 1 - a), 1 + a) for a in (use.brightness, use.contrast, use.saturation)]
        hue = uniform(-use.hue, use.hue)
        for operation in order:
            if operation == 0:
                image = ImageEnhance.Brightness(image).enhance(factors[0])
            elif operation == 1:
                image = ImageEnhance.Contrast(image).enhance(factors[1])
            elif operation == 2:
                image = ImageEnhance.Color(image).enhance(factors[2])
            else:
                image = adjust_hue(image, hue)
        return image


def adjust_hue(image: Picture, shift: float) -> Picture:
    if image.mode == "L":
        return image
    h, s, v = image.convert("HSV").split()
    turned = np.array(h, dtype=np.uint8)
    turned += np.int32(shift * 255).astype(np.uint8)
    return Image.merge("HSV", (Image.fromarray(turned), s, v)).convert(image.mode)


class RandomApply:
    def __init__(self, step: Transform, probability: float) -> None:
        self.step, self.probability = step, probability

    def __call__(self, image: Picture) -> Picture:
        return self.step(image) if torch.rand(1).item() < self.probability else image


class GaussianBlur:
    def __init__(self, sigma: tuple[float, float]) -> None:
        self.sigma = sigma

    def __call__(self, image: Picture) -> Picture:
        return image.filter(ImageFilter.GaussianBlur(uniform(*self.sigma)))


def grey(image: Picture) -> Picture:
    return image if image.mode == "L" else image.convert("L").convert(image.mode)


class ToNormalisedTensor:
    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = torch.tensor(mean).view(-1, 1, 1), torch.tensor(std).view(-1, 1, 1)

    def __call__(self, image: Picture) -> Tensor:
        pixels = torch.from_numpy(np.array(image, np.uint8, copy=True))
        pixels = pixels.view(image.size[1], image.size[0], len(image.getbands())).permute(2, 0, 1).contiguous()
        return pixels.to(torch.float32).div(255).sub_(self.mean).div_(self.std)


def transforms(use: AugmentSettings, image: Shape, last: Transform) -> Transform:
    """The augmentation that the settings describe, a sample at a time."""
    steps: list[Transform] = []
    if use.crop_scale is not None:
        steps.append(RandomResizedCrop((image[1], image[2]), use.crop_scale, use.crop_ratio))
    elif use.crop_padding:
        steps.append(RandomCrop(use.crop_padding))
    if max(use.brightness, use.contrast, use.saturation, use.hue) > 0:
        steps.append(RandomApply(ColorJitter(use), use.jitter_probability))
    if use.greyscale:
        steps.append(RandomApply(grey, use.greyscale))
    if use.blur:
        steps.append(RandomApply(GaussianBlur(use.blur_sigma), use.blur))
    if use.flip:
        steps.append(RandomApply(ImageOps.mirror, use.flip))
    return Compose([*steps, last])


class Samples(TorchDataset[tuple[list[Tensor], int]]):
    """Images one by one, each in as many random views as are asked for."""

    def __init__(self, images: AnySamples, transform: Transform, views: int) -> None:
        assert isinstance(images, Images)
        pixels: NDArray[np.uint8] = images.pixels.permute(0, 2, 3, 1).contiguous().numpy()
        self.pixels = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
        self.labels = images.labels.tolist()
        self.transform, self.views = transform, views

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[list[Tensor], int]:
        image = Image.fromarray(self.pixels[index])
        return [self.transform(image) for _ in range(self.views)], self.labels[index]


class PlainLoop:
    """A round of training, exchange and test of a part's clients; the part lends its models, shards and settings."""

    def __init__(self, part: Part, data: Dataset, device: torch.device, workers: int) -> None:
        settings = part.recipe.method
        assert isinstance(settings, MaplSettings), "the plain loop is MAPL's"
        self.clients, self.recipe, self.settings, self.device = part.clients, part.recipe, settings, device
        self.weights = torch.full((len(self.clients),) * 2, 1 / len(self.clients), dtype=torch.float64)
        self.confidence = torch.tensor([c.samples for c in self.clients], dtype=torch.float64)
        self.confidence /= self.confidence.sum()
        last = ToNormalisedTensor(data.mean, data.std)
        augment = transforms(self.recipe.augment.contrastive, data.shape, last)
        self.train_loaders, self.test_loaders = {}, {}
        for client in self.clients:
            client.model.to(device)
            batch = min(self.recipe.train.batch, client.samples)
            train, test = Samples(client.train, augment, views=2), Samples(client.test, last, views=1)
            pin = device.type == "cuda"
            self.train_loaders[client.id] = DataLoader(
                train, batch, shuffle=True, drop_last=True, num_workers=workers, pin_memory=pin
            )
            self.test_loaders[client.id] = DataLoader(test, TEST_BATCH, num_workers=workers, pin_memory=pin)

    def play(self, round: int) -> tuple[list[dict[str, float]], list[float]]:
        losses = [self.train(client) for client in self.clients]
        self.exchange(round)
        return losses, [self.test(client) for client in self.clients]

    def train(self, client: Client) -> dict[str, float]:
        use, model = self.recipe.train, client.model
        model.train()
        optimizer = torch.optim.Adam(model.parameters(), use.learning_rate, use.betas, weight_decay=use.weight_decay)
        sums: dict[str, float] = {}
        for _ in range(use.epochs):
            for views, targets in self.train_loaders[client.id]:
                images = torch.cat(views).to(self.device)
                labels = targets.to(self.device).repeat(len(views))
                terms = self.loss(client, images, labels)
                total = sum(terms.values(), torch.zeros((), device=self.device))
                optimizer.zero_grad()
                total.backward()
                optimizer.step()
                for name, value in terms.items():
                    sums[name] = sums.get(name, 0.0) + value.item()
        return {name: value / len(self.train_loaders[client.id]) / use.epochs for name, value in sums.items()}

    def loss(self, client: Client, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        model, use = client.model, self.settings
        embedding = model.embed(images)
        projections = model.project(embedding)
        return {
            "cross_entropy": F.cross_entropy(model.classify(embedding), labels),
            "contrastive": supervised_contrastive(projections, labels, use.temperature, use.form),
            "prototype": prototype_contrastive(projections, labels, model.prototypes, use.temperature, use.form),
            "uniformity": prototype_uniformity(model.prototypes, use.temperature, use.form),
        }

    def exchange(self, round: int) -> None:
        """Graph learning after the warm-up, then ξ_i ← Σ_j w_ij ξ_j, over all pairs."""
        if self.settings.learn_graph and round >= self.settings.warmup:
            for i in range(len(self.clients)):
                self.weights[i] = self.learn_row(i)
        prototypes = [client.model.prototypes.detach().clone() for client in self.clients]
        for i, client in enumerate(self.clients):
            mixed = torch.zeros_like(prototypes[i])
            for j in range(len(self.clients)):
                mixed += self.weights[i, j].item() * prototypes[j]
            client.model.prototypes.data.copy_(mixed)

    def learn_row(self, i: int) -> Tensor:
        mine = self.clients[i].model.head.weight.detach()
        similarity = torch.ones(len(self.clients), dtype=torch.float64)
        for j, other in enumerate(self.clients):
            if j != i:
                similarity[j] = F.cosine_similarity(mine, other.model.head.weight.detach(), dim=1).mean().item()
        row = self.weights[i].clone().requires_grad_()
        optimizer = torch.optim.Adam([row], self.settings.graph.step_size, betas=(0.5, 0.999))
        for _ in range(self.settings.graph.steps):
            optimizer.zero_grad()
            graph_loss(row, similarity, self.confidence, i, self.settings.graph).backward()
            optimizer.step()
            row.data.copy_(project_to_simplex(row.data))
        return row.detach()

    @torch.no_grad()
    def test(self, client: Client) -> float:
        client.model.eval()
        right = 0
        for (images,), labels in self.test_loaders[client.id]:
            guesses = client.model(images.to(self.device)).argmax(1)
            right += int((guesses == labels.to(self.device)).sum().item())
        return right / len(client.test)
