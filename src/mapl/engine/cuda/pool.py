"""The images of all clients in one tensor."""

from __future__ import annotations

import torch
from torch import Tensor


class Pool:
    """All clients' images of one split, one client after another, on the GPU. Clients may share the same tensors."""

    def __init__(self, device: torch.device, images: dict[int, tuple[Tensor, Tensor]]):
        self.start: dict[int, int] = {}
        placed: dict[tuple[int, int], int] = {}
        total = 0
        for client, (pixels, labels) in images.items():
            which = id(pixels), id(labels)
            if which not in placed:
                placed[which], total = total, total + len(labels)
            self.start[client] = placed[which]
        first = next(iter(images.values()))[0]
        self.pixels = torch.empty((total, *first.shape[1:]), dtype=first.dtype, device=device)
        self.labels = torch.empty(total, dtype=torch.int64, device=device)
        self.length = {client: len(labels) for client, (_, labels) in images.items()}
        for client, (pixels, labels) in images.items():
            self.pixels[self.range(client)] = pixels.to(device)
            self.labels[self.range(client)] = labels.to(device)

    def range(self, client: int) -> slice:
        return slice(self.start[client], self.start[client] + self.length[client])

    def places(self, client: int, start: int, count: int) -> Tensor:
        """`count` of a client's images from `start` on; past its last one, the last again."""
        wanted = torch.arange(start, start + count, device=self.pixels.device)
        return wanted.clamp_(max=self.length[client] - 1) + self.start[client]
