"""The models that a method is given while its clients are in a slot, in place of their own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mapl.engine.cuda.convert import Batched, Hidden
from mapl.engine.cuda.head import classify
from mapl.model import PROTOTYPES, ClientModel

HEADS = ("head.weight", "head.bias", PROTOTYPES)
"""Parameters that a loss may read directly: autograd computes their gradients, not a layer of a group."""


class MemberModel(ClientModel):
    """One member's model outside of a training step: in `start_epoch` and `scores`.

    Head and prototypes are there from the start. The networks are made when a method first looks at them, which most
    methods never do: copies of the client's own, whose tensors are the member's in the slot.
    """

    _networks: frozenset[str]
    _whole: Callable[[], ClientModel]
    _looked: Callable[[], None]

    @staticmethod
    def of(model: ClientModel, whole: Callable[[], ClientModel], looked: Callable[[], None]) -> MemberModel:
        """A member's model like `model`.

        `whole` makes the full one, when it is needed. `looked` is told each time a method looks at a network, and so
        may read or change its values.
        """
        member: MemberModel = _shell(model, MemberModel)
        names = {name for name, network in model._modules.items() if network is not None and name != "head"}
        if not len(model.own):
            member._modules["own"] = nn.ModuleDict()
            names.discard("own")
        vars(member).update(_networks=frozenset(names), _whole=whole, _looked=looked)
        return member

    def __getattr__(self, name: str) -> Any:
        if name in vars(self).get("_networks", ()):
            self.look()
        return super().__getattr__(name)

    def look(self) -> None:
        """Make the networks, if they are not there yet."""
        if not self._networks <= self._modules.keys():
            whole = self._whole()
            whole._modules["head"] = self._modules["head"]
            self._modules = whole._modules
            self.train(self.training)
        self._looked()

    def train(self, mode: bool = True) -> MemberModel:
        self.training = mode
        for part in self._modules.values():
            if part is not None:
                part.train(mode)
        own = self._modules.get("own")
        if isinstance(own, nn.ModuleDict):
            for name in self.frozen & own.keys():
                own[name].eval()
        return self

    # Whatever goes through all parts of a module begins with one of these.

    def named_modules(self, *args: Any, **kwargs: Any) -> Any:
        self.look()
        return super().named_modules(*args, **kwargs)

    def named_children(self) -> Any:
        self.look()
        return super().named_children()

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        self.look()
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        self.look()
        return super().load_state_dict(*args, **kwargs)


class GroupModel(Hidden, ClientModel):
    """One client's model as a loss sees it under vmap: its networks run for all members at once."""

    forward = ClientModel.forward  # type: ignore[assignment]

    @staticmethod
    def of(model: ClientModel, networks: Mapping[str, Batched]) -> GroupModel:
        """A group's model like `model`; networks by their paths in it."""
        group: GroupModel = _shell(model, GroupModel)
        for part in ("backbone", "projector"):
            group._modules[part] = networks.get(part)
        group._modules["own"] = _HiddenDict({name: networks[f"own.{name}"] for name in model.own})
        return group

    def classify(self, embedding: Tensor) -> Tensor:
        """The head and the ReLU before it, in one kernel."""
        logits = classify(embedding, self.head.weight, self.head.bias, self.precision)
        return super().classify(embedding) if logits is None else logits


class _HiddenDict(Hidden, nn.ModuleDict):
    """A group's own networks by name."""


def _shell(model: ClientModel, kind: type[Any]) -> Any:
    """A model with a head and prototypes of its own, and no networks yet."""
    shell = copy.copy(model)
    shell.__class__ = kind
    prototypes = None if model.prototypes is None else nn.Parameter(torch.zeros_like(model.prototypes))
    vars(shell).update(
        _modules={name: None for name, part in model._modules.items() if part is None},
        _parameters={PROTOTYPES: prototypes},
    )
    shell._modules["head"] = copy.deepcopy(model.head)
    return shell
