"""Whether a checkpoint fits the run that it should restore. Its digest says only that the file is whole."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from mapl.client import Client
from mapl.engine.settings import TrainSettings
from mapl.errors import MaplError
from mapl.runs.checkpoint import Checkpoint
from mapl.runs.part import Part

PEERS = ("counts", "ids", "weights", "samples")


def check(part: Part, saved: Checkpoint) -> None:
    """Refuse a checkpoint that is not one of this part. The part is not changed."""
    problem = next(_problems(part, saved), None)
    if problem:
        raise MaplError(f"the checkpoint after round {saved.rounds} is refused: {problem}")


def _problems(part: Part, saved: Checkpoint) -> Iterator[str]:
    """What is wrong, the first thing first: a later check relies on the ones before it."""
    tensors = saved.tensors
    if tensors["rounds"].shape != (1,) or int(tensors["rounds"]) != saved.rounds:
        yield f"its contents are of round {tensors['rounds'].tolist()}"
    if saved.rounds > part.recipe.rounds:
        yield f"the run has {part.recipe.rounds} rounds"
    ledger = tensors.get("ledger")
    if ledger is None or ledger.shape != (2,) or ledger.dtype != torch.int64 or int(ledger.min()) < 0:
        yield "its ledger is not two counts, of messages and bytes"
    yield from _strangers(part, saved)
    for client in part.clients:
        yield from _model(client, saved)
        expected, section = client.state, saved.section(f"client.{client.id}.state")
        yield from _differences(f"state of client {client.id}", expected, section)
    if part.server is not None:
        yield from _differences("state of the server", part.server.state, saved.section("server"))
    yield from _peers(part, saved.section("peers"))
    yield from _optimizer(part, saved.section("optimizer"))
    yield from _compression(saved.section("compress"))
    yield from _not_finite(tensors)


def _strangers(part: Part, saved: Checkpoint) -> Iterator[str]:
    """Tensors that belong to nothing of this part."""
    ids = {str(client.id) for client in part.clients}
    sections = {
        "server": part.server is not None,
        "optimizer": not part.recipe.train.reset,
        "compress": part.compressor is not None,
        "peers": True,
    }
    for name in saved.tensors:
        section, *below = name.split(".", 3)
        belongs = (
            len(below) == 3 and below[0] in ids and below[1] in ("model", "state")
            if section == "client"
            else sections.get(section, False)
            if below
            else section in ("rounds", "ledger", "recipe", "chain")
        )
        if not belongs:
            yield f"the run has nothing named {name!r}"


def _model(client: Client, saved: Checkpoint) -> Iterator[str]:
    expected, section = client.model.state_dict(), saved.section(f"client.{client.id}.model")
    what = f"model of client {client.id} (backbone {client.backbone!r})"
    yield from _differences(what, expected, section)
    if unexpected := section.keys() - expected.keys():
        yield f"the {what} has no {min(unexpected)!r}"


def _differences(what: str, expected: Mapping[str, Tensor], section: Mapping[str, Tensor]) -> Iterator[str]:
    for name, tensor in expected.items():
        value = section.get(name)
        if value is None:
            yield f"{name!r} of the {what} is missing"
        elif (value.shape, value.dtype) != (tensor.shape, tensor.dtype):
            yield (
                f"{name!r} of the {what} is {value.dtype} {tuple(value.shape)}, not {tensor.dtype} "
                f"{tuple(tensor.shape)}"
            )


def _peers(part: Part, section: Mapping[str, Tensor]) -> Iterator[str]:
    """Every client's row of W: ascending ids of clients, weights that are not negative, numbers of images."""
    if section.keys() != set(PEERS):
        yield f"its peers should have {', '.join(PEERS)}"
    dtypes = [section[name].dtype for name in PEERS]
    if dtypes != [torch.int64, torch.int64, torch.float64, torch.int64]:
        yield "its peers have other dtypes"
    counts, ids, weights, samples = (section[name].numpy() for name in PEERS)
    if counts.shape != (len(part.clients),) or counts.min() < 0:
        yield "its peers are those of another number of clients"
    if not ids.shape == weights.shape == samples.shape == (counts.sum(),):
        yield "its peers have other numbers of ids, weights and samples than they count"
    # One rising sequence, if ids rise inside every row.
    rows = np.repeat(np.arange(len(counts)), counts)
    rising = np.diff(rows * (part.recipe.clients + 1) + ids) > 0
    if ids.size and (ids.min() < 0 or ids.max() > part.recipe.clients or not rising.all()):
        yield "its peers are not clients of this run, in order"
    if not (np.isfinite(weights).all() and (weights >= 0).all() and (samples >= 0).all()):
        yield "its peers have a weight or a number of images below 0, or a weight that is not finite"


def _optimizer(part: Part, section: Mapping[str, Tensor]) -> Iterator[str]:
    """Its state of a parameter: all of it or nothing, each tensor in the parameter's shape."""
    parameters = {str(client.id): list(client.model.parameters()) for client in part.clients}
    names = _moments(part.recipe.train)
    found: dict[tuple[str, str], set[str]] = {}
    for path, value in section.items():
        match = re.fullmatch(r"(\d{1,9})\.(\d{1,9})\.(\w+)", path)
        if match is None or match[3] not in names or int(match[2]) >= len(parameters.get(match[1], ())):
            yield f"the run's optimiser has nothing named {path!r}"
            return
        shape = torch.Size() if match[3] == "step" else parameters[match[1]][int(match[2])].shape
        if value.shape != shape or not value.is_floating_point():
            yield f"{path!r} of its optimiser is {value.dtype} {tuple(value.shape)}, not floats {tuple(shape)}"
        found.setdefault((match[1], match[2]), set()).add(match[3])
    for (client, position), given in found.items():
        if given != names:
            yield f"its optimiser has only {', '.join(sorted(given))} of parameter {position} of client {client}"


def _moments(settings: TrainSettings) -> set[str]:
    return {"step", "exp_avg", "exp_avg_sq"} if settings.adaptive else {"momentum_buffer"}


def _compression(section: Mapping[str, Tensor]) -> Iterator[str]:
    """What top-k letters keep (`TopK.state`). A replica of another shape is harmless: the next letter is a full one."""
    stream = r"(letters|replies)\.\d{1,9}\.-?\d{1,9}"
    for path, value in section.items():
        if re.fullmatch(rf"rounds\.{stream}", path):
            fits = value.shape == (2,) and value.dtype == torch.int64
        elif re.fullmatch(r"held\.(letters|replies)\.(pairs|rounds)", path):
            leg = path.rpartition(".")[0]
            columns = [section.get(f"{leg}.{column}") for column in ("pairs", "rounds")]
            fits = all(c is not None and c.dtype == torch.int64 and c.shape == (len(value),) for c in columns)
        else:
            fits = re.fullmatch(rf"replica\.{stream}\..+", path) is not None and value.dtype == torch.float32
        if not fits:
            yield f"the run's compression keeps nothing like {path!r}"


def _not_finite(tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """Training stops before it saves a number that is not finite. What a method keeps may be infinite, but not NaN."""
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.numel()}
    if not floats:
        return
    largest = torch.stack([norm.double() for norm in torch._foreach_norm(list(floats.values()), math.inf)])
    for number in (~largest.isfinite()).nonzero().flatten().tolist():
        name = list(floats)[number]
        if largest[number].isnan() or not (name.startswith("server.") or ".state." in name):
            yield f"{name!r} has a value that is not finite"
