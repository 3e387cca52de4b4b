"""Setting up: the slots of all families, their kernels and their captured steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mapl.data.kinds import Augmenting
from mapl.engine.cuda import branches
from mapl.engine.cuda.families import Family
from mapl.engine.cuda.homes import Homes
from mapl.engine.cuda.kernels.launch import building
from mapl.engine.cuda.layers import CannotGroup
from mapl.engine.cuda.layout import Layout
from mapl.engine.cuda.slot import Slot
from mapl.engine.cuda.views import Views
from mapl.engine.settings import TrainSettings
from mapl.errors import warn
from mapl.methods._base import Method

ALONE_LANES = 5
"""How many clients of a kind that is not grouped work at a time."""
ALONE = 20e9
"""A client whose forward pass takes more operations keeps the GPU busy by itself, and is not grouped with others."""


@dataclass(frozen=True)
class Builder:
    """Builds slots. Networks and methods that cannot be captured are found here, before the first round."""

    method: Method[Any]
    train: TrainSettings
    augmentation: Augmenting
    homes: Homes
    precision: torch.dtype | None
    together: int
    """How many clients a slot has at most."""
    lanes: int
    """How many slots of a kind work at a time."""

    def build(self, families: Sequence[Family], pixels: Tensor) -> list[tuple[Family, str]]:
        """Slots for all families. Returns those that no step can be captured of, and why.

        pixels: some images of the run, (n, C, H, W).
        """
        branches.forget()
        for family in families:
            self._try(family, lambda family: family.slots.append(self._slot(family, family.group)))
        slots: Counter[int] = Counter()
        for family in families:
            slots.update({slot.priority: self._lanes(family, family.group) for slot in family.slots})
        branches.plan(slots)
        if self.homes.device.type == "cuda":
            # Nothing is computed, so values are arbitrary: a loss must not use them as indices.
            self._build_kernels([family for family in families if family.group and self.method.dry_run], pixels)
        return [(family, reason) for family in families if (reason := self._build(family))]

    def _build_kernels(self, families: Sequence[Family], pixels: Tensor) -> None:
        """Build all kernels, which is most of the setup time: go through all steps without running them."""

        def all_launches(family: Family) -> None:
            for slot in family.slots:
                with slot.lane():
                    slot.try_all()

        with building(), ThreadPoolExecutor(1) as beside:
            views = beside.submit(self._rehearse_views, pixels)
            for family in families:
                self._try(family, all_launches)
            views.result()

    def _try(self, family: Family, work: Callable[[Family], None]) -> None:
        """Try something that may fail for a user's network or method; `_build` meets a failure again and reports it."""
        try:
            work(family)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception:
            self._drop_slots(family)

    def _drop_slots(self, family: Family) -> None:
        """A failed step may still be running, and its memory goes to others."""
        if self.homes.device.type == "cuda":
            torch.cuda.synchronize(self.homes.device)
        branches.forget()
        family.slots = []

    def _rehearse_views(self, pixels: Tensor) -> None:
        if Views.fits(self.augmentation, pixels.dtype):
            image, device = pixels[:1], self.homes.device
            nothing = torch.zeros(1, self.augmentation.uniforms_per_image, device=device)
            for dtype in {torch.float32, self.precision or torch.float32}:
                out = image.permute(0, 2, 3, 1).to(dtype, memory_format=torch.contiguous_format)
                index = torch.zeros(1, dtype=torch.int64, device=device)
                Views(self.augmentation, device).make(pixels, index, nothing, out)

    def _build(self, family: Family) -> str:
        """Slots of the widest kind that works: a group, or one client as written. Returns why, where none works."""
        reason = ""
        for group in [True, False] if family.group else [False]:
            if family.group and not group:
                self._relayout(family)
            try:
                self._make_slots(family, group)
                return ""
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as error:  # whatever a user's network or method meets
                reason = (str(error) or type(error).__name__).splitlines()[0]
                if group and not isinstance(error, CannotGroup):
                    one = f"clients with backbone {family.kind.backbone!r} train one at a time, not as a group"
                    warn(f"{one} ({type(error).__name__}: {reason}), which is slower", once=True)
                self._drop_slots(family)
        return reason

    def _relayout(self, family: Family) -> None:
        family.group = False
        family.layout = Layout(family.clients[0].model, group=False)
        for client in family.clients:
            self.homes.bind(client, family.layout, self.precision)

    def _make_slots(self, family: Family, group: bool) -> None:
        while len(family.slots) < self._lanes(family, group):
            family.slots.append(self._slot(family, group))
        for slot in family.slots:
            slot.capture()

    def _slot(self, family: Family, group: bool) -> Slot:
        """An empty slot, with a client in its first place to try things on."""
        first, most, device = family.clients[0], self._together(family, group), self.homes.device
        family.size = -(-len(family.clients) // -(-len(family.clients) // most))
        slot = Slot(
            self.method, self.train, first, family.layout, family.size, family.steps, group, device, self.precision
        )
        if Views.fits(self.augmentation, first.train.inputs.dtype):
            slot.views = Views(self.augmentation, device)
        slot.load([first], [self.homes.rows[first.id]], [self.homes.counters[first.id]])
        return slot

    def _lanes(self, family: Family, group: bool) -> int:
        """How many slots of this family work at a time."""
        turns = -(-len(family.clients) // self._together(family, group))
        return min(turns, self.lanes if turns < len(family.clients) else max(self.lanes, ALONE_LANES))

    def _together(self, family: Family, group: bool) -> int:
        """How many clients a slot of this family has at most."""
        operations = family.operations * family.kind.batch * self.method.views
        return self.together if group and operations <= ALONE else 1
