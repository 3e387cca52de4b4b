"""Rewrites a client's network into one that computes for a whole group of clients.

Why: a small network leaves most of a GPU idle, and launching its kernels takes longer than running them. Clients of one
architecture do the same work on other numbers, so their steps can share every launch.

How: the group's batches lie one after another in one tensor, (G · B, …). The network is traced (torch.fx). What treats
each sample by itself (ReLU, concatenation of channels, most pooling) needs no change and stays. A layer with weights or
with statistics of a batch is replaced by its version for a group (`layers`), which finds each member's weights in the
group's `Stack` by the layer's path in the client's model: `backbone.0.weight`, `own.teacher.conv1.bias`. A ReLU or a
pooling that alone reads such a layer becomes part of it. Every network of a client goes this way: backbone, projector,
and the networks that a method brings along. In a loss, which `torch.vmap` runs for all members, `Batched` stands for
the network: it leaves vmap, runs the rewritten network once for all, and comes back.

A frozen network stays in evaluation mode: normalisation with running statistics, no dropout, no gradient of weights.
The gradient of its input passes through, since a loss may look at a trained network through a frozen one.

What can go wrong, and what happens then:

- An operation might mix samples (`x.mean(0)`), or a layer is unknown. Only what is listed here is taken over; anything
  else raises `CannotGroup`, and the clients of that kind train one by one, their networks as written.
- A layer runs twice in a step, or two layers share a weight. Its gradient is written straight to its place, not added
  up, so the second would overwrite the first: `CannotGroup` again.
- The network does something else in training than in tests, or draws random numbers. The trace holds one way, and one
  draw: `CannotGroup`.
- The loss reads parameters of a network. They are those of many clients, so `Hidden` refuses to show them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from mapl.engine.cuda.branches import aside
from mapl.engine.cuda.guards import no_draws
from mapl.engine.cuda.layers import (
    AveragePool,
    CannotGroup,
    GroupConv,
    GroupLinear,
    GroupNorm,
    KeyedDropout,
    MaxPool,
    Stack,
    dropout_number,
)
from mapl.engine.cuda.layout import frozen_paths, networks
from mapl.model import ClientModel

SAMPLE_WISE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Hardswish, nn.Softplus,
    nn.Identity, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
)  # fmt: skip
FUNCTIONS = {torch.relu, F.relu, F.gelu, F.silu, F.leaky_relu, torch.sigmoid, torch.tanh, operator.add, operator.iadd,
             operator.mul, operator.sub, torch.add, torch.mul, F.adaptive_avg_pool2d, F.max_pool2d}  # fmt: skip
ALONG = {torch.cat, torch.stack, torch.chunk, torch.flatten, "chunk", "flatten"}
"""What works along a dimension that must not be the first: that one counts the samples."""
RELUS = (torch.relu, F.relu, "relu")


def all_grouped(model: ClientModel, stack: Stack) -> dict[str, fx.GraphModule]:
    """All networks of a client, by their paths in its model, for the members of a stack."""
    frozen = frozen_paths(model)
    return {path: grouped(network, path, stack, path in frozen) for path, network in networks(model).items()}


def grouped(module: nn.Module, name: str, stack: Stack, frozen: bool = False) -> fx.GraphModule:
    """The network `module`, called `name` in the client's model, for the members of a stack.

    A frozen one is never trained: it must be kept in evaluation mode.
    """
    single = not any(module.children())
    # torch.fx looks into the module that it is given, and a layer alone should stay a layer.
    whole = nn.Sequential(module).train(module.training) if single else module
    traced = _traced(whole, (False,) if frozen else (False, True))
    layers: dict[str, nn.Module] = {}
    for node in list(traced.graph.nodes):
        if node.op == "call_module":
            path = name if single else f"{name}.{node.target}"
            layer = _layer(node, traced.get_submodule(node.target), path, stack, frozen)
            if node.target in layers and type(layer).__module__ != nn.ReLU.__module__:
                raise CannotGroup(f"layer {node.target} is used twice")
            layers[node.target] = layer
        elif node.op not in ("placeholder", "output"):
            _check_call(node)
    _interleave(traced.graph)
    root = nn.ModuleDict({_key(target): layer for target, layer in layers.items()})
    for node in traced.graph.nodes:
        if node.op == "call_module":
            node.target = _key(node.target)
    return fx.GraphModule(root, traced.graph)


def _traced(module: nn.Module, modes: tuple[bool, ...]) -> fx.GraphModule:
    """What a network does, if it does the same in all modes that it will be in: in tests, and in training."""
    training, traces = module.training, []
    with no_draws():
        try:
            for mode in modes:
                traces.append(fx.symbolic_trace(module.train(mode)))
        except Exception as error:  # whatever a user's forward raises when it is given a stand-in for a tensor
            raise CannotGroup(f"it cannot be traced ({error})") from error
        finally:
            module.train(training)
    if traces[0].code != traces[-1].code:
        raise CannotGroup("it does something else in training than in tests")
    return traces[-1]


def _key(target: str) -> str:
    return target.replace(".", "/")


def _layer(node: fx.Node, module: nn.Module, path: str, stack: Stack, frozen: bool) -> nn.Module:
    if not {name for name, _ in module.named_parameters(recurse=False)} <= {"weight", "bias"}:
        raise CannotGroup(f"layer {path} has parameters other than a weight and a bias")
    if any(parameter.requires_grad == frozen for parameter in module.parameters()):
        raise CannotGroup(f"layer {path} is {'not ' if frozen else ''}frozen, unlike its network")
    if type(module) is nn.Conv2d:
        if isinstance(module.padding, str) or module.padding_mode != "zeros":
            raise CannotGroup(f"convolution {path} has padding {module.padding!r}, {module.padding_mode}")
        relu = module.bias is not None and _absorb_relu(node)
        return GroupConv(stack, path, module, relu, _absorb_pool(node) if relu else None)
    if type(module) is nn.Linear:
        return GroupLinear(stack, path, module, module.bias is not None and _absorb_relu(node))
    if type(module) in (nn.BatchNorm1d, nn.BatchNorm2d):
        if not (module.affine and module.track_running_stats) or module.momentum is None:
            raise CannotGroup(f"normalisation {path} keeps no running mean, or has no weights")
        return GroupNorm(stack, path, module, _absorb_relu(node))
    if type(module) is nn.Dropout:
        return KeyedDropout(stack.keys, dropout_number(path), module.p)
    if isinstance(module, nn.MaxPool2d) and MaxPool.fits(module):
        return MaxPool(module)
    if isinstance(module, nn.AdaptiveAvgPool2d) and module.output_size not in (1, (1, 1)):
        return AveragePool(module)
    if isinstance(module, nn.Flatten) and module.start_dim == 1:
        return module
    if isinstance(module, SAMPLE_WISE):
        return module
    raise CannotGroup(f"layer {path} is a {type(module).__name__}")


def _absorb_relu(node: fx.Node) -> bool:
    """Whether a ReLU is all that reads this node; then it is taken out, since the layer will do it."""
    user = _only_user(node)
    if user is None:
        return False
    if not _calls(user, RELUS) and type(_module(user)) is not nn.ReLU:
        return False
    _take_out(user, node)
    return True


def _absorb_pool(node: fx.Node) -> nn.MaxPool2d | None:
    """The pooling that is all that reads this node, taken out, since the layer will do it."""
    user = _only_user(node)
    module = _module(user) if user is not None else None
    if user is None or not isinstance(module, nn.MaxPool2d) or not MaxPool.fits(module):
        return None
    _take_out(user, node)
    return module


def _calls(node: fx.Node, functions: Collection[Any]) -> bool:
    """Whether it is a call of one of these; a layer of a like name (`self.relu`) may be anything."""
    return node.op != "call_module" and node.target in functions


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _module(node: fx.Node) -> nn.Module | None:
    owner = node.graph.owning_module
    return owner.get_submodule(str(node.target)) if node.op == "call_module" and owner is not None else None


def _take_out(node: fx.Node, source: fx.Node) -> None:
    node.replace_all_uses_with(source)
    node.graph.erase_node(node)


def _check_call(node: fx.Node) -> None:
    """Refuse a call that might mix samples."""
    if node.op == "get_attr" or node.op not in ("call_function", "call_method"):
        raise CannotGroup(f"it reads {node.target}")
    if node.target in FUNCTIONS or node.target == "relu":
        return
    if node.target is operator.getitem and isinstance(node.args[1], int) and _is_split(node.args[0]):
        return
    if node.target in ALONG and _dimension(node) >= 1:
        return
    raise CannotGroup(f"it calls {getattr(node.target, '__name__', node.target)}")


def _is_split(node: Any) -> bool:
    return isinstance(node, fx.Node) and _calls(node, (torch.chunk, "chunk"))


def _dimension(node: fx.Node) -> int:
    """The dimension that a call works along, −1 where it is not written as a number."""
    flat = node.target in (torch.flatten, "flatten")
    place = 2 if node.target in (torch.chunk, "chunk") else 1
    found = node.args[place] if len(node.args) > place else node.kwargs.get("start_dim" if flat else "dim", 0)
    return found if isinstance(found, int) else -1


def _interleave(graph: fx.Graph) -> None:
    """torch.stack((a, b), 2).flatten(1, 2), a channel shuffle, in one pass that keeps channels last."""
    for node in list(graph.nodes):
        if node.target is not torch.stack or _dimension(node) != 2 or len(node.users) != 1:
            continue
        (user,) = node.users
        if _calls(user, ("flatten", torch.flatten)) and tuple(user.args[1:]) == (1, 2):
            with graph.inserting_before(user):
                made = graph.call_function(interleaved, (node.args[0],))
            user.replace_all_uses_with(made)
            graph.erase_node(user)
            graph.erase_node(node)


def interleaved(parts: list[Tensor]) -> Tensor:
    """Channels of tensors (N, C, H, W) in turn: a1, b1, a2, b2, …"""
    return torch.stack([part.permute(0, 2, 3, 1) for part in parts], dim=4).flatten(3, 4).permute(0, 3, 1, 2)


class Hidden(nn.Module):
    """A network whose parameters a method cannot have, since they are those of many clients."""

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        raise CannotGroup("the method reads the parameters of a network")

    parameters = named_buffers = buffers = state_dict = named_modules = modules = named_parameters

    def forward(self, x: Tensor) -> Tensor:
        raise CannotGroup("the method calls a network outside of its loss")


class Batched(Hidden):
    """A group's network, to be called for one member under `torch.vmap`: all members' calls become one."""

    def __init__(self, network: fx.GraphModule, clients: int, beside_backbone: bool):
        super().__init__()
        self.network, self.clients, self.beside_backbone = network, clients, beside_backbone

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.run(x) if self.clients == 1 else _Unpacked.apply(x, self.run)  # type: ignore[no-untyped-call]
        return y

    def run(self, x: Tensor) -> Tensor:
        """For the images of all members, one after another."""
        y: Tensor = aside(self.network, x) if self.beside_backbone else self.network(x)
        return y


class _Unpacked(torch.autograd.Function):
    """Outside of vmap it is never called: a group of one calls its network directly."""

    @staticmethod
    def forward(x: Tensor, network: Callable[[Tensor], Tensor]) -> Tensor:
        raise TypeError("a group's network is called under vmap alone")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to keep: under vmap autograd follows the network itself."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, network: Callable[[Tensor], Tensor]) -> tuple[Tensor, int]:
        x = x.movedim(in_dims[0], 0)
        y = network(x.flatten(0, 1))
        return y.view(info.batch_size, -1, *y.shape[1:]), 0
