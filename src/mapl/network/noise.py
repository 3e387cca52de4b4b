"""Between a method and its compressor: letters that are clipped and get Gaussian noise before anybody reads them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from mapl.network.compressor import NOWHERE
from mapl.network.inbox import Inbox, Pile
from mapl.network.letter import Letter
from mapl.network.transport import Mail

FROM_CLIENTS = ("letters", "answers")
"""The legs with letters that clients write. A server's letters are made from those, so they need no noise."""


class NoiseSettings(BaseModel):
    """Gaussian noise on the float32 tensors of every letter that a client writes (docs/privacy.md)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    clip: float | None = Field(
        None,
        gt=0,
        description="Largest norm C of a letter's float32 tensors, taken together as one vector; longer ones are "
        "scaled down to it. 'none': letters travel as they were written.",
    )
    multiplier: float = Field(
        0.0,
        ge=0,
        description="Standard deviation of the noise on every number, as a multiple σ of `clip`. 0: no noise, and no "
        "guarantee. With noise a run needs `pip install 'mapl[privacy]'`, which computes ε.",
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="The δ for which ε is computed.")

    @model_validator(mode="after")
    def _noise_needs_a_norm(self) -> NoiseSettings:
        if self.multiplier and self.clip is None:
            raise ValueError("noise needs a largest norm: set network.noise.clip, too")
        return self


@dataclass(frozen=True)
class Noise:
    """Clips letters and adds noise, once per letter, however many clients read it.

    The noise is keyed by `secret`, run, sender, round and leg, so a letter is the same in any division of the clients
    among processes, and after a resume. Whoever knows the secret can compute the noise and subtract it.
    """

    clip: float
    multiplier: float
    secret: bytes

    def outgoing(self, mail: Mail) -> Mail:
        """The mail with noise on the letters that clients write."""
        if mail.leg not in FROM_CLIENTS:
            return mail
        return replace(mail, letters={sender: self.noisy(letter, mail.leg) for sender, letter in mail.letters.items()})

    def incoming(self, inboxes: Mapping[int, Inbox]) -> dict[int, Inbox]:
        """The inboxes without addresses: a noisy tensor is nobody's own, so a client mixes its own without noise."""
        piles = {id(inbox.pile): _without_addresses(inbox.pile) for inbox in inboxes.values()}
        return {reader: Inbox(piles[id(inbox.pile)], inbox.positions) for reader, inbox in inboxes.items()}

    @torch.no_grad()
    def noisy(self, letter: Letter, leg: str) -> Letter:
        """The letter as readers get it. Arithmetic is in float64, so that rounding happens once, at the end.

        A letter that is not finite cannot be clipped. NaN takes the place of all its numbers, so nobody sees one
        without noise. Its readers refuse it, as they refuse any letter that is not finite.
        """
        wide = {name: letter.tensors[name].detach().double() for name in covered(letter)}
        norm = math.sqrt(sum(float(tensor.square().sum()) for tensor in wide.values()))
        if not math.isfinite(norm):
            nothing = {name: torch.full_like(letter.tensors[name], math.nan) for name in wide}
            return replace(letter, tensors={**letter.tensors, **nothing})
        scale = min(1.0, self.clip / norm) if norm else 1.0
        draws = self._draws(letter, leg, sum(tensor.numel() for tensor in wide.values()))
        noisy: dict[str, Tensor] = {}
        for name, tensor in wide.items():
            noise, draws = draws[: tensor.numel()].to(tensor.device), draws[tensor.numel() :]
            noisy[name] = (scale * tensor + noise.view(tensor.shape)).to(letter.tensors[name].dtype)
        return replace(letter, tensors={**letter.tensors, **noisy})

    def _draws(self, letter: Letter, leg: str, count: int) -> Tensor:
        """The noise of a letter (count,), in float64."""
        if not self.multiplier:
            return torch.zeros(count, dtype=torch.float64)
        name = f"{letter.run}/{letter.sender}/{letter.round}/{leg}"
        draws = standard_normal(hashlib.sha256(self.secret).digest() + name.encode(), count)
        return torch.from_numpy(self.multiplier * self.clip * draws)


def find_noise(settings: NoiseSettings, seed: int, secret: bytes | None = None) -> Noise | None:
    """What makes letters noisy, or None. Without a secret, it is derived from the run's seed.

    Then a run can be repeated to the bit, and everybody who knows its recipe can subtract the noise. That is right for
    a simulation. A client among strangers needs a secret that it draws itself, uses for one run, and tells nobody.
    """
    if settings.clip is None:
        return None
    return Noise(settings.clip, settings.multiplier, secret if secret is not None else f"seed {seed}".encode())


def covered(letter: Letter) -> list[str]:
    """The tensors that get noise: those of float32."""
    return [name for name, tensor in letter.tensors.items() if tensor.dtype == torch.float32]


def standard_normal(key: bytes, count: int) -> NDArray[np.float64]:
    """Independent draws (count,) from N(0, 1), by the Box–Muller transform of a keyed cryptographic stream.

    Torch's generator on the CPU has 2³² seeds. A reader could try them all: the right one makes a letter short.
    """
    pairs = -(-count // 2)
    bits = np.frombuffer(hashlib.shake_256(key).digest(16 * pairs), dtype="<u8") >> np.uint64(11)
    uniform = ((bits + 0.5) * 2.0**-53).reshape(2, pairs)  # in (0, 1]
    radius, angle = np.sqrt(-2 * np.log(uniform[0])), 2 * np.pi * uniform[1]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def _without_addresses(pile: Pile) -> Pile:
    nowhere = [NOWHERE] * len(pile.senders)
    return replace(pile, shelves={name: replace(shelf, addresses=nowhere) for name, shelf in pile.shelves.items()})
