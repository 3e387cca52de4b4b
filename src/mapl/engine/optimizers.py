"""Adam, AdamW and SGD on torch's own kernels, with the results of `torch.optim` to the bit.

The first optimiser of `torch.optim` imports torch's compiler, which takes more than a second: longer than many a round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from mapl.engine.settings import TrainSettings
from mapl.model import ClientModel

State = dict[str, Tensor]
"""The state of one parameter, by the names that `torch.optim` gives it."""

EPSILON = 1e-8
"""Adam's and AdamW's, torch's default."""


def make_optimizer(model: ClientModel, settings: TrainSettings, rates: Mapping[str, float] | None = None) -> Optimizer:
    """A new optimiser over all parameters of a model, prototypes included, except frozen networks.

    `rates` are the learning rates of own networks, by name, where they differ from the settings'.
    """
    return OPTIMIZERS[settings.optimizer](model, settings, rates or {})


class Optimizer(ABC):
    """Updates the parameters of one model, except those that have no gradient."""

    def __init__(self, model: ClientModel, settings: TrainSettings, rates: Mapping[str, float]):
        self.settings = settings
        self.factor = 1.0
        """What all learning rates are multiplied by, by the schedule (`TrainSettings.rate_factor`)."""
        self.parameters = list(model.parameters())
        """All parameters of the model. Checkpoints name them by their position here."""
        self.state: dict[nn.Parameter, State] = {}
        frozen = {id(p) for name in model.frozen for p in model.own[name].parameters()}
        own = {id(p): rate for name, rate in rates.items() for p in model.own[name].parameters()}
        # One kernel updates parameters of one learning rate, device and dtype.
        kinds: dict[tuple[float, torch.device, torch.dtype], list[nn.Parameter]] = {}
        for p in self.parameters:
            if id(p) not in frozen:
                kinds.setdefault((own.get(id(p), settings.learning_rate), p.device, p.dtype), []).append(p)
        self.groups = [(rate, parameters) for (rate, _, _), parameters in kinds.items()]
        """Learning rates, and the parameters that are trained with each."""

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step along the gradients."""
        for rate, parameters in self.groups:
            pairs = [(p, p.grad) for p in parameters if p.grad is not None]
            if pairs:
                self._update(rate * self.factor, *zip(*pairs, strict=True))

    @abstractmethod
    def _update(self, rate: float, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor]) -> None:
        """A step of parameters of one learning rate, device and dtype."""

    def named_state(self) -> Iterable[tuple[str, Tensor]]:
        """The state of all parameters, as `position.name`."""
        for position, parameter in enumerate(self.parameters):
            for name, value in self.state.get(parameter, {}).items():
                yield f"{position}.{name}", value

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore such a state."""
        self.state = {}
        for path, value in state.items():
            position, _, name = path.partition(".")
            parameter = self.parameters[int(position)]
            dtype = torch.float32 if name == "step" else parameter.dtype
            self.state.setdefault(parameter, {})[name] = value.to(parameter.device, dtype)


class Adam(Optimizer):
    """`torch.optim.Adam(…, fused=True)`."""

    kernel: ClassVar[Callable[..., None]] = staticmethod(torch._fused_adam_)

    def _update(self, rate: float, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor]) -> None:
        states = [self.state.get(p) or self._begin(p) for p in parameters]
        steps = [state["step"] for state in states]
        torch._foreach_add_(steps, 1)
        self.kernel(
            tuple(parameters),
            tuple(gradients),
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            steps,
            lr=rate,
            beta1=self.settings.betas[0],
            beta2=self.settings.betas[1],
            weight_decay=self.settings.weight_decay,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
        )

    def _begin(self, parameter: nn.Parameter) -> State:
        self.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
        return self.state[parameter]


class AdamW(Adam):
    """`torch.optim.AdamW(…, fused=True)`."""

    kernel: ClassVar[Callable[..., None]] = staticmethod(torch._fused_adamw_)


class Sgd(Optimizer):
    """`torch.optim.SGD`, fused where there is no momentum."""

    def _update(self, rate: float, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor]) -> None:
        if self.settings.momentum:
            # The fused kernel fails where a parameter has its first gradient later than others.
            for parameter, gradient in zip(parameters, gradients, strict=True):
                self._update_one(rate, parameter, gradient)
            return
        torch._fused_sgd_(
            tuple(parameters),
            tuple(gradients),
            [],
            weight_decay=self.settings.weight_decay,
            momentum=0.0,
            lr=rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )

    def _update_one(self, rate: float, parameter: nn.Parameter, gradient: Tensor) -> None:
        if self.settings.weight_decay:
            gradient = gradient.add(parameter, alpha=self.settings.weight_decay)
        if parameter in self.state:
            buffer = self.state[parameter]["momentum_buffer"].mul_(self.settings.momentum).add_(gradient)
        else:
            buffer = gradient.clone()
            self.state[parameter] = {"momentum_buffer": buffer}
        parameter.add_(buffer, alpha=-rate)


OPTIMIZERS: dict[str, type[Optimizer]] = {"adam": Adam, "adamw": AdamW, "sgd": Sgd}
"""By the name that a recipe gives them."""
