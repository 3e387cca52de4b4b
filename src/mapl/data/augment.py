"""Random views of images, a whole batch at a time.

All random numbers come as one tensor of uniforms, with one row per image. `draw` makes it on the CPU from a keyed
generator, and `apply` is a deterministic function of (images, uniforms). So the same draw gives the same view on a CPU
and on a GPU, eagerly or in a captured step. For that, `apply` reads no value back to the host, has no branch or shape
that depends on a value, and copies nothing from the host: its constants are on the device from the start.

Crops and flips are two small matrices per image, `out = R · x · Cᵀ`, and so is the blur. Each operation is defined as
in torchvision for tensors, in the order crop, colour jitter, greyscale, blur, with these differences:

- ColorJitter permutes its four operations at random for every image. Here the order is always brightness, contrast,
  saturation, hue, so that all images of a batch take one path.
- The flip, last in the paper's table, is part of the crop's matrix C. The image is the same, because a flip commutes
  with every colour operation (they treat all pixels alike) and with the blur (kernel and padding are symmetric).
- Values stay float32 throughout; torchvision rounds 8-bit images to 1/255 after every operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Self

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from torch import Tensor
from torch.nn.functional import one_hot, pad

from mapl.errors import MaplError
from mapl.shape import Shape

GREY_WEIGHTS = (0.2989, 0.587, 0.114)
"""The shares of red, green and blue in a grey value (ITU-R 601, as torchvision rounds them)."""

HUE_PHASES = (2.0, 5 / 3, 4 / 3)
"""Phases of red, green and blue on the colour circle, in turns; one turn is added to keep them above zero."""

CROP_TRIES = 10
"""How often RandomResizedCrop draws an area and a ratio before it falls back to a central crop."""


class AugmentSettings(BaseModel):
    """Random changes to an image; the default is none."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    crop_scale: tuple[float, float] | None = Field(
        default=None, description="Smallest and largest share of the area that a resized crop keeps; 'none': no crop."
    )
    crop_ratio: tuple[float, float] = Field(
        default=(3 / 4, 4 / 3), description="Smallest and largest ratio of width to height of a resized crop."
    )
    crop_padding: int = Field(
        default=0, ge=0, description="Zeros added around the image before a crop of the original size; 0: no such crop."
    )
    flip: float = Field(default=0.0, ge=0, le=1, description="Probability of a horizontal flip.")
    jitter_probability: float = Field(
        default=0.8, ge=0, le=1, description="Probability that brightness, contrast, saturation and hue are changed."
    )
    brightness: float = Field(default=0.0, ge=0, le=1, description="Largest relative change of the brightness.")
    contrast: float = Field(default=0.0, ge=0, le=1, description="Largest relative change of the contrast.")
    saturation: float = Field(default=0.0, ge=0, le=1, description="Largest relative change of the saturation.")
    hue: float = Field(
        default=0.0, ge=0, le=0.5, description="Largest shift of the hue, in turns of the colour circle."
    )
    greyscale: float = Field(default=0.0, ge=0, le=1, description="Probability that the image is made grey.")
    blur: float = Field(default=0.0, ge=0, le=1, description="Probability of a Gaussian blur.")
    blur_sigma: tuple[float, float] = Field(
        default=(0.1, 2.0), description="Smallest and largest standard deviation of the blur, in pixels."
    )

    @field_validator("crop_scale", "crop_ratio", "blur_sigma")
    @classmethod
    def _ordered(cls, bounds: tuple[float, float] | None) -> tuple[float, float] | None:
        if bounds is not None and not 0 < bounds[0] <= bounds[1]:
            raise ValueError(f"should be two numbers above 0, the smaller one first, not {bounds}")
        return bounds

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.crop_scale is not None and self.crop_scale[1] > 1:
            raise ValueError(f"crop_scale is a share of the image's area, at most 1, not {self.crop_scale[1]}")
        if self.crop_scale is not None and self.crop_padding > 0:
            raise ValueError("crop_scale and crop_padding are two kinds of crop: set one of them")
        return self


RELEASED = AugmentSettings(
    crop_scale=(0.2, 1.0), flip=0.5, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, greyscale=0.2
)
"""The augmentation of the paper's released program: the printed one without its blur (`blur` = 0.5)."""

PLAIN = AugmentSettings(crop_padding=4, flip=0.5)
"""The usual augmentation of supervised learning on small images, used by the baselines."""

NONE = AugmentSettings()
"""No augmentation."""

Draws = dict[str, Tensor]
"""The uniforms of a batch by purpose: float64, (N, numbers for that purpose)."""


class Augmentation:
    """Augments and normalises batches of images of one shape.

    Args:
        settings: which operations; those that are switched off cost nothing.
        shape: (C, H, W) of the images.
        mean, std: one number per channel; the result is (image − mean) / std for images in [0, 1].
        device: where the tensors for `apply` and `normalise` will be.

    Raises:
        MaplError: `mean` or `std` do not fit the shape, or the settings need colours that the images do not have.

    On images with one channel, saturation, hue and greyscale change nothing and are left out.
    """

    def __init__(
        self,
        settings: AugmentSettings,
        shape: Sequence[int],
        mean: Sequence[float],
        std: Sequence[float],
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        channels, height, width = shape
        if min(shape) < 1:
            raise MaplError(f"images should have at least one channel, row and column, not the shape {tuple(shape)}")
        if len(mean) != channels or len(std) != channels or min(std) <= 0:
            raise MaplError(f"mean and std should have one number per channel ({channels}), those of std above 0")
        self.settings = settings
        self.shape = Shape(shape)
        self.mean, self.std = tuple(mean), tuple(std)
        self.uniforms_per_image = 0
        """P: random numbers per image."""
        self._slots: dict[str, slice] = {}
        self._steps: list[Callable[[Tensor, Draws], Tensor]] = []
        self._plan()

        self._mean = torch.tensor(mean, dtype=torch.float32, device=device).view(-1, 1, 1)
        self._std = torch.tensor(std, dtype=torch.float32, device=device).view(-1, 1, 1)
        self._grey_weights = torch.tensor(GREY_WEIGHTS if channels == 3 else (1.0,), device=device)
        self._hue_phases = torch.tensor(HUE_PHASES, device=device).view(3, 1, 1)
        self._rows = torch.arange(height, dtype=torch.float64, device=device)
        self._columns = torch.arange(width, dtype=torch.float64, device=device)
        radius = blur_kernel_size(height, width) // 2
        self._taps = torch.arange(-radius, radius + 1, dtype=torch.float64, device=device)
        self._row_taps = _reflected_taps(height, radius).to(device)
        self._column_taps = _reflected_taps(width, radius).to(device)

    def draw(self, generator: torch.Generator, n: int) -> Tensor:
        """Uniforms in [0, 1) for n images, float32 (n, P) on the CPU.

        A row has, for the operations that are switched on: ten areas and ten ratios of resized crops, top and left of
        the crop, flip, jitter or not, brightness, contrast, saturation, hue, greyscale, blur or not, and how much.
        """
        return torch.rand((n, self.uniforms_per_image), generator=generator, dtype=torch.float32)

    def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """Augmented and normalised images, float32 (N, C, H, W).

        `images` (N, C, H, W) are uint8 in 0…255 or floating point in [0, 1]; `uniforms` (N, P) come from `draw`, moved
        to the device. Neither is changed. Not for use under autocast, which would crop and blur in half precision.
        """
        if tuple(images.shape[1:]) != self.shape or uniforms.shape != (len(images), self.uniforms_per_image):
            given = f"images {tuple(images.shape)} and uniforms {tuple(uniforms.shape)}"
            raise ValueError(f"{given} should be (N, *{tuple(self.shape)}) and (N, {self.uniforms_per_image})")
        # A crop is rounded to whole pixels. In float64 all devices round to the same pixel.
        uniforms = uniforms.double()
        draws = {name: uniforms[:, slot] for name, slot in self._slots.items()}
        pixels = _fresh_pixels(images)
        for step in self._steps:
            pixels = step(pixels, draws)
        return self._standardise(pixels)

    def normalise(self, images: Tensor) -> Tensor:
        """Normalised images without augmentation, for tests."""
        return self._standardise(_fresh_pixels(images))

    def _standardise(self, pixels: Tensor) -> Tensor:
        return pixels.sub_(self._mean).div_(self._std)

    def _plan(self) -> None:
        """Decide once which steps to take and which uniforms each reads."""
        settings, channels = self.settings, self.shape[0]
        if settings.crop_scale is not None:
            self._take(crop_area=CROP_TRIES, crop_ratio=CROP_TRIES, crop_top=1, crop_left=1)
        elif settings.crop_padding > 0:
            self._take(crop_top=1, crop_left=1)
        if settings.flip > 0:
            self._take(flip=1)
        if self._slots:
            self._steps.append(self._crop_and_flip)

        coloured = channels > 1
        jitter: dict[str, tuple[bool, Callable[[Tensor, Draws], Tensor]]] = {
            "brightness": (settings.brightness > 0, self._change_brightness),
            "contrast": (settings.contrast > 0, self._change_contrast),
            "saturation": (settings.saturation > 0 and coloured, self._change_saturation),
            "hue": (settings.hue > 0 and coloured, self._change_hue),
        }
        on = {name: step for name, (wanted, step) in jitter.items() if wanted and settings.jitter_probability > 0}
        if on:
            self._take(jitter=1, **dict.fromkeys(on, 1))
            self._steps += on.values()
        greyscale = settings.greyscale > 0 and coloured
        if greyscale:
            self._take(greyscale=1)
            self._steps.append(self._make_grey)
        if channels not in (1, 3) and (greyscale or on.keys() - {"brightness"}):
            raise MaplError(
                f"contrast, saturation, hue and greyscale need images with 1 or 3 channels, but these have {channels}: "
                "switch them off in the settings of the augmentation"
            )
        if settings.blur > 0:
            self._take(blur=1, blur_sigma=1)
            self._steps.append(self._blur)

    def _take(self, **widths: int) -> None:
        for name, width in widths.items():
            self._slots[name] = slice(self.uniforms_per_image, self.uniforms_per_image + width)
            self.uniforms_per_image += width

    # Steps change their pixels in place: on a CPU, new memory costs more than the arithmetic.

    def _crop_and_flip(self, pixels: Tensor, draws: Draws) -> Tensor:
        rows, columns = self._rows.expand(len(pixels), -1), self._columns.expand(len(pixels), -1)
        if self.settings.crop_scale is not None:
            top, left, height, width = self._resized_crop(draws, self.settings.crop_scale)
            rows, columns = _stretched(rows, top, height), _stretched(columns, left, width)
        elif self.settings.crop_padding > 0:
            padding = self.settings.crop_padding
            rows = rows + _integer(draws["crop_top"], 2 * padding) - padding
            columns = columns + _integer(draws["crop_left"], 2 * padding) - padding
        if self.settings.flip > 0:
            columns = torch.where(draws["flip"] < self.settings.flip, columns.flip(1), columns)
        return _both_sides(_interpolation(rows), pixels, _interpolation(columns))

    def _resized_crop(self, draws: Draws, scale: tuple[float, float]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """RandomResizedCrop's top, left, height and width in whole pixels, float64 (N, 1) each."""
        _, height, width = self.shape
        smallest, largest = self.settings.crop_ratio
        area = _between(draws["crop_area"], *scale) * (height * width)
        ratio = _between(draws["crop_ratio"], math.log(smallest), math.log(largest)).exp()
        # The fallback, the largest central crop with an allowed ratio, is one more try that is always valid.
        last_height = max(1, min(height, round(width / smallest)))
        last_width = max(1, min(width, round(height * largest)))
        heights = pad((area / ratio).sqrt().round(), (0, 1), value=last_height)
        widths = pad((area * ratio).sqrt().round(), (0, 1), value=last_width)
        valid = (heights > 0) & (heights <= height) & (widths > 0) & (widths <= width)
        first = valid.byte().argmax(dim=1, keepdim=True)
        crop_height, crop_width = heights.gather(1, first), widths.gather(1, first)
        spare_height, spare_width = height - crop_height, width - crop_width
        central = first == CROP_TRIES
        top = torch.where(central, (spare_height / 2).floor(), _integer(draws["crop_top"], spare_height))
        left = torch.where(central, (spare_width / 2).floor(), _integer(draws["crop_left"], spare_width))
        return top, left, crop_height, crop_width

    def _jitter(self, draws: Draws, name: str, amount: float) -> Tensor:
        """A change within ±amount, 0 for images without jitter, float32 (N, 1, 1, 1)."""
        chosen = draws["jitter"] < self.settings.jitter_probability
        return (_between(draws[name], -amount, amount) * chosen).float().view(-1, 1, 1, 1)

    def _change_brightness(self, pixels: Tensor, draws: Draws) -> Tensor:
        return pixels.mul_(1 + self._jitter(draws, "brightness", self.settings.brightness)).clamp_(0, 1)

    def _change_contrast(self, pixels: Tensor, draws: Draws) -> Tensor:
        change = self._jitter(draws, "contrast", self.settings.contrast)
        # The mean of the grey image is the grey of the mean colour.
        mean = (pixels.mean(dim=(2, 3)) * self._grey_weights).sum(1).view(-1, 1, 1, 1)
        return pixels.mul_(1 + change).sub_(mean * change).clamp_(0, 1)

    def _change_saturation(self, pixels: Tensor, draws: Draws) -> Tensor:
        change = self._jitter(draws, "saturation", self.settings.saturation)
        grey = _grey(pixels)
        return pixels.mul_(1 + change).sub_(grey.mul_(change)).clamp_(0, 1)

    def _change_hue(self, pixels: Tensor, draws: Draws) -> Tensor:
        return _rotate_hue(pixels, self._jitter(draws, "hue", self.settings.hue), self._hue_phases)

    def _make_grey(self, pixels: Tensor, draws: Draws) -> Tensor:
        chosen = (draws["greyscale"] < self.settings.greyscale).float().view(-1, 1, 1, 1)
        grey = _grey(pixels)
        return pixels.mul_(1 - chosen).add_(grey.mul_(chosen))

    def _blur(self, pixels: Tensor, draws: Draws) -> Tensor:
        sigma = _between(draws["blur_sigma"], *self.settings.blur_sigma)
        weights = (self._taps / sigma).square().mul(-0.5).exp()
        weights = weights / weights.sum(1, keepdim=True)
        sharp = (self._taps == 0).double()
        weights = torch.where(draws["blur"] < self.settings.blur, weights, sharp).float()
        return _both_sides(
            torch.tensordot(weights, self._row_taps, 1), pixels, torch.tensordot(weights, self._column_taps, 1)
        )


def blur_kernel_size(height: int, width: int) -> int:
    """The side of the Gaussian kernel: a tenth of the image as in SimCLR, odd, at least 3 (23 at 224 px)."""
    return max(3, 2 * (min(height, width) // 20) + 1)


def _fresh_pixels(images: Tensor) -> Tensor:
    """A copy of the images as float32 in [0, 1]."""
    pixels = images.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    return pixels.div_(255) if images.dtype == torch.uint8 else pixels


def _between(uniforms: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * uniforms


def _integer(uniforms: Tensor, largest: Tensor | int) -> Tensor:
    """Whole numbers 0…largest, all equally likely."""
    return (uniforms * (largest + 1)).floor()


def _stretched(places: Tensor, start: Tensor, length: Tensor) -> Tensor:
    """Where the pixels of a resized crop are read in the image, (N, size): half-pixel centres, clamped to the crop."""
    inside = (places + 0.5) * (length / places.shape[1]) - 0.5
    return start + torch.minimum(inside.clamp_min(0), length - 1)


def _interpolation(places: Tensor) -> Tensor:
    """The matrix (N, size, size) that interpolates a line of pixels linearly at `places` (N, size); zeros outside.

    A crop never shrinks what it keeps, so two neighbours per place are enough: there is no antialiasing.
    """
    pixels = torch.arange(places.shape[1], dtype=torch.float32, device=places.device)
    return places.float().unsqueeze(2).sub(pixels).abs_().neg_().add_(1).clamp_min_(0)


def _reflected_taps(size: int, radius: int) -> Tensor:
    """T (taps, size, size): T[t, i, j] = 1 where tap t of pixel i falls on pixel j, reflected at the line's ends."""
    period = max(1, 2 * (size - 1))
    hit = (torch.arange(size) + torch.arange(-radius, radius + 1).unsqueeze(1)) % period
    return one_hot(torch.minimum(hit, -hit % period), size).float()


def _both_sides(rows: Tensor, pixels: Tensor, columns: Tensor) -> Tensor:
    """R · x · Cᵀ for every channel of every image."""
    across = torch.bmm(pixels.flatten(1, 2), columns.transpose(1, 2)).view_as(pixels)
    return torch.matmul(rows.unsqueeze(1), across)


def _grey(pixels: Tensor) -> Tensor:
    """The grey image, (N, 1, H, W)."""
    red, green, blue = pixels.unbind(1)
    grey = red.mul(GREY_WEIGHTS[0]).add_(green, alpha=GREY_WEIGHTS[1]).add_(blue, alpha=GREY_WEIGHTS[2])
    return grey.unsqueeze(1)


def _rotate_hue(pixels: Tensor, shift: Tensor, phases: Tensor) -> Tensor:
    """Shift the hue of HSV by a fraction of a turn, in place.

    Saturation and value stay the same, and so do the largest and the smallest of the three channels. For hue h, the
    channel with phase p has the value smallest + (largest − smallest) · clamp(|6 · frac(h + p) − 3| − 1, 0, 1).
    """
    red, green, blue = pixels.unbind(1)
    largest, smallest = pixels.amax(1), pixels.amin(1)
    chroma = largest - smallest
    # A grey pixel has no hue and no chroma, so any finite hue will do.
    sixth = chroma.clamp_min(1e-12).mul_(6).reciprocal_()
    near_red = (green - blue).mul_(sixth)
    near_green = (blue - red).mul_(sixth).add_(1 / 3)
    near_blue = (red - green).mul_(sixth).add_(2 / 3)
    hue = torch.where(largest == red, near_red, torch.where(largest == green, near_green, near_blue))
    wave = torch.add(hue.unsqueeze(1).add_(shift), phases, out=pixels).frac_()
    return wave.mul_(6).sub_(3).abs_().sub_(1).clamp_(0, 1).mul_(chroma.unsqueeze(1)).add_(smallest.unsqueeze(1))
