"""Augmented training images on a GPU: equal to `Augmentation.apply`, in one kernel per batch, or two with a blur.

Taken one operation after another, a batch travels to memory and back some forty times. Here a program makes one image:
it reads the bytes, keeps the pixels of the three channels in registers through crop, flip and colours, and writes the
normalised image once. A blur needs the neighbours of a pixel, so the images that are blurred go through memory once
more, to a second kernel. All settings are constants of the compiled kernel: what is switched off is not in it.

`Augmentation` stays the reference; the tests hold the two together. The names here are those of its steps.
"""

from __future__ import annotations

import math
from typing import TypeGuard

import torch
from torch import Tensor

from mapl.data.augment import CROP_TRIES, Augmentation, blur_kernel_size
from mapl.data.kinds import Augmenting
from mapl.engine.cuda.kernels.blur import blur_kernel
from mapl.engine.cuda.kernels.views import view_kernel

LARGEST_IMAGE = 4096
"""Pixels of the largest image that a program holds in its registers."""


class Views:
    """Augmented training images, made by one or two kernels per batch; equal to `Augmentation.apply`.

    Within 2e-5 in float32 (for deviations of 0.2 and more: the difference grows as they shrink).

    Args:
        augmentation: the reference, whose settings, shape, mean and deviation are taken over; one that `fits`.
        device: where `make` will be given its tensors: the current CUDA device.

    The first `make` of a process compiles the kernels, so it should run once before it is captured.
    The memory between the two kernels of a blur is kept for every number of images that was ever asked for, so that
    what was captured stays valid; two streams at a time need a Views each.
    """

    def __init__(self, augmentation: Augmentation, device: torch.device | str) -> None:
        if not self.fits(augmentation):
            raise ValueError(f"images of the shape {augmentation.shape} are left to Augmentation.apply")
        channels, height, width = augmentation.shape
        block = 1 << (height * width - 1).bit_length()
        self._augmentation = augmentation
        self._device = torch.device(device)
        self._between = torch.empty((0, *augmentation.shape), device=device)
        self._blurs = "blur" in augmentation._slots
        self._common = {
            "P": augmentation.uniforms_per_image,
            "CHANNELS": channels,
            "HEIGHT": height,
            "WIDTH": width,
            "BLOCK": block,
            **_columns(augmentation, "blur"),
            **_normal(augmentation),
            "BLUR": augmentation.settings.blur,
        }
        # Eight pixels a thread: enough loads under way to hide their latency, few enough to stay in registers. A blur
        # keeps the places of its taps besides, so four of them.
        self._view = _view_constants(augmentation) | {"num_warps": max(1, min(16, block // 256))}
        low, high = augmentation.settings.blur_sigma
        self._blur = _columns(augmentation, "blur_sigma") | {
            "SIGMA_LOW": low,
            "SIGMA_HIGH": high,
            "RADIUS": blur_kernel_size(height, width) // 2,
            "num_warps": max(1, min(16, block // 128)),
        }

    @staticmethod
    def fits(augmentation: Augmenting, dtype: torch.dtype = torch.uint8) -> TypeGuard[Augmentation]:
        """Whether the kernels can do it: bytes, 1 or 3 channels, at most 4096 pixels. All settings are supported."""
        if not isinstance(augmentation, Augmentation) or dtype != torch.uint8:
            return False
        channels, height, width = augmentation.shape
        return channels in (1, 3) and height * width <= LARGEST_IMAGE

    def make(self, pool: Tensor, index: Tensor, uniforms: Tensor, out: Tensor) -> None:
        """Writes `augmentation.apply(pool[index], uniforms)` into `out`, channels last.

        `pool` uint8 (N, C, H, W) holds the images; `index` int64 (n,) says which one of them each view is of;
        `uniforms` float32 (n, P) comes from `Augmentation.draw`; `out` (n, H, W, C) is float32 or bfloat16. All are
        contiguous and on the device. An index is not checked: that would wait for the device.
        """
        self._check(pool, index, uniforms, out)
        n = len(index)
        if n == 0:
            return
        between = self._memory(n) if self._blurs else uniforms  # without a blur it is never read, nor written
        view_kernel[(n,)](pool, index, uniforms, between, out, **self._view, **self._common)
        if self._blurs:
            blur_kernel[(n,)](between, uniforms, out, **self._blur, **self._common)

    def _memory(self, n: int) -> Tensor:
        """Where n images wait for their blur, float32 (n, C, H, W)."""
        if n > len(self._between):
            self._between = torch.empty((n, *self._augmentation.shape), dtype=torch.float32, device=self._device)
        return self._between[:n]

    def _check(self, pool: Tensor, index: Tensor, uniforms: Tensor, out: Tensor) -> None:
        """A kernel checks nothing, so its arguments must be right."""
        channels, height, width = self._augmentation.shape
        n, draws = len(index), self._augmentation.uniforms_per_image
        expected = {
            "pool": (pool, (len(pool), channels, height, width), (torch.uint8,)),
            "index": (index, (n,), (torch.int64,)),
            "uniforms": (uniforms, (n, draws), (torch.float32,)),
            "out": (out, (n, height, width, channels), (torch.float32, torch.bfloat16)),
        }
        for name, (tensor, shape, dtypes) in expected.items():
            if tensor.shape != shape or tensor.dtype not in dtypes or not tensor.is_contiguous():
                kinds = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
                given = f"{tensor.dtype} {tuple(tensor.shape)}".removeprefix("torch.")
                raise ValueError(f"{name} should be {kinds} {shape} and contiguous, not {given}")


def _columns(augmentation: Augmentation, *names: str) -> dict[str, int]:
    """Where in a row of uniforms each purpose begins, as the constants NAME_AT; −1 for what is switched off."""
    slots = augmentation._slots
    return {f"{name.upper()}_AT": slots[name].start if name in slots else -1 for name in names}


def _normal(augmentation: Augmentation) -> dict[str, float]:
    """Each channel's mean, and the factor for the rest; a single channel counts as red."""
    mean, std = augmentation._mean.flatten().tolist(), augmentation._std.flatten().tolist()
    names = ("RED", "GREEN", "BLUE")
    means = {f"{name}_MEAN": mean[i % len(mean)] for i, name in enumerate(names)}
    return means | {f"{name}_SCALE": 1 / std[i % len(std)] for i, name in enumerate(names)}


def _view_constants(augmentation: Augmentation) -> dict[str, float]:
    """The settings as `view_kernel` takes them."""
    settings, (_, height, width) = augmentation.settings, augmentation.shape
    smallest, largest = settings.crop_ratio
    scale_low, scale_high = settings.crop_scale or (1.0, 1.0)
    places = ("crop_area", "crop_ratio", "crop_top", "crop_left", "flip")
    colours = ("jitter", "brightness", "contrast", "saturation", "hue", "greyscale")
    return {
        **_columns(augmentation, *places, *colours),
        "TRIES": CROP_TRIES,
        "SCALE_LOW": scale_low,
        "SCALE_HIGH": scale_high,
        "RATIO_LOW": math.log(smallest),
        "RATIO_HIGH": math.log(largest),
        "LAST_HEIGHT": max(1, min(height, round(width / smallest))),
        "LAST_WIDTH": max(1, min(width, round(height * largest))),
        "PADDING": settings.crop_padding,
        "FLIP": settings.flip,
        "JITTER": settings.jitter_probability,
        "BRIGHTNESS": settings.brightness,
        "CONTRAST": settings.contrast,
        "SATURATION": settings.saturation,
        "HUE": settings.hue,
        "GREYSCALE": settings.greyscale,
    }
