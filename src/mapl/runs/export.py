"""Export of models: a client's weights as safetensors, or a whole program that maps pixels to logits."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from mapl.client import Client
from mapl.data.samples import Samples
from mapl.errors import MaplError, unknown, warn
from mapl.methods._base import Method
from mapl.model import Backbone, find_backbone, make_backbone
from mapl.plugins import looking
from mapl.runs.chain import Round
from mapl.runs.files import write_aside
from mapl.runs.folder import load
from mapl.runs.part import Part
from mapl.runs.record import share_of_network
from mapl.runs.run import restored_part
from mapl.shape import Shape

Kind = Literal["safetensors", "torch-export"]
Pixels = Literal["uint8", "float32"]
Card = dict[str, Any]
Scores = Callable[[dict[str, Tensor]], Tensor]

SUFFIXES: dict[str, str] = {"safetensors": ".safetensors", "torch-export": ".pt2"}
PIXELS = ("uint8", "float32")


class Classifier(nn.Module):
    """A client's model for use outside the run: samples to logits (N, K).

    Samples are images (N, C, H, W), uint8 or float in [0, 1]; or features (N, …); or token ids (N, L). It normalises
    them itself, so users need not know the mean and the standard deviation.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Linear,
        mean: Sequence[float],
        std: Sequence[float],
        own: Mapping[str, nn.Module] | None = None,
        *,
        shape: Sequence[int] = (1, 1, 1),
    ):
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.own = nn.ModuleDict(own)
        ones = [1] * (len(shape) - 1)  # one mean for each channel of an image, for each column of a table
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(-1, *ones), persistent=False)
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(-1, *ones), persistent=False)
        self.normalises = bool(len(mean))
        self.scores: Scores = self._logits

    def forward(self, samples: Tensor) -> Tensor:
        return self.scores(self.outputs(samples))

    def normalised(self, samples: Tensor) -> Tensor:
        """The samples as a backbone gets them."""
        if not self.normalises:
            return samples
        values = samples.to(torch.float32)
        if samples.dtype == torch.uint8:
            values = values / 255
        return (values - self.mean) / self.std

    def outputs(self, samples: Tensor) -> dict[str, Tensor]:
        """What each network makes of the samples."""
        normalised = self.normalised(samples)
        outputs = {"backbone": self.backbone(normalised)}
        return outputs | {name: network(normalised) for name, network in self.own.items()}

    def _logits(self, outputs: dict[str, Tensor]) -> Tensor:
        logits: Tensor = self.head(torch.relu(outputs["backbone"]))
        return logits


def export_run(
    folder: str | Path,
    to: str | Path,
    clients: Sequence[int] | None = None,
    kind: Kind = "safetensors",
    *,
    pixels: Pixels = "uint8",
    overwrite: bool = False,
    trust: bool = False,
    data: Any = None,
) -> list[Path]:
    """Write the models of a run's newest whole checkpoint into the folder `to`, and return the files.

    "safetensors": client-003.safetensors, the weights of backbone, head and the method's own networks, with a card as
    metadata; see `load_model`.
    "torch-export": client-003.pt2, a program for `torch.export.load` that needs neither mapl nor the backbone's code,
    and its card client-003.json. A program takes one dtype. For images it is uint8, or with pixels="float32" floats in
    [0, 1].
    A model is built before its weights are loaded. If the run's recipe names code from outside the package for that,
    `trust` must say that this code may run. `data` are those of the run, if they were given in Python.
    """
    folder, to = Path(folder), Path(to)
    for name, value, allowed in (("format", kind, SUFFIXES), ("pixels", pixels, PIXELS)):
        if value not in allowed:
            raise unknown(name, value, allowed)
    if not folder.is_dir():
        raise MaplError(f"there is no run {str(folder)!r}")
    with looking(trust):
        part = restored_part(folder, data=data)
    if part is None:
        raise MaplError(f"run {str(folder)!r} has no checkpoint yet, so there are no models to export")
    chosen = _chosen(part, clients)
    if not overwrite:
        _check_free([path for client in chosen for path in _paths(to, client, kind)])
    if kind == "safetensors" and type(part.method).scores is not Method.scores:
        warn(
            f"{part.recipe.method.name} may answer otherwise than by its head, as a model loaded from safetensors "
            "does; the format torch-export answers as the tests did"
        )
    rounds = load(folder).rounds
    if part.round < len(rounds):
        warn(f"the models are those after round {part.round}, the last saved one of {len(rounds)} rounds")
    # Not a later test: it was of other models.
    tested = next((line for line in reversed(rounds[: part.round]) if line.accuracy is not None), None)
    written: list[Path] = []
    for client in chosen:
        card = _card(part, client, tested)
        contents = _weights(client, card) if kind == "safetensors" else _program(part, client, card, pixels)
        written += _write(dict(zip(_paths(to, client, kind), contents, strict=True)))
    return written


def load_model(path: str | Path, backbone: Backbone | None = None) -> Classifier:
    """The classifier of a safetensors file that `export_run` wrote, ready for use.

    A backbone that is not one of mapl's own must be given: a file is data and does not choose what is imported.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            card = {key: _value(text) for key, text in (file.metadata() or {}).items()}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
        shape = Shape(map(int, card["image"]), int(card.get("vocabulary", 0)))
        embedding, classes = int(card["embedding"]), int(card["classes"])
        name, mean, std = str(card["backbone"]), list(map(float, card["mean"])), list(map(float, card["std"]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise MaplError(f"{str(path)!r} is not a model that mapl exported: {error}") from error
    if backbone is None and ":" in name:
        raise MaplError(f"{str(path)!r} has the backbone {name!r}: import it yourself, and pass it as backbone=…")
    network = make_backbone(f"backbone {name!r}", backbone or find_backbone(name), shape, embedding)
    model = Classifier(network, nn.Linear(embedding, classes), mean, std, shape=shape)
    try:
        # The method's own networks are in the file for those who can build them.
        model.load_state_dict({name: tensor for name, tensor in tensors.items() if not name.startswith("own.")})
    except RuntimeError as error:
        raise MaplError(f"the weights in {str(path)!r} do not fit the backbone {name!r}: {_sentence(error)}") from error
    return model.eval()


def _chosen(part: Part, clients: Sequence[int] | None) -> list[Client]:
    if clients is None:
        return part.clients
    by_number = {client.id: client for client in part.clients}
    for number in clients:
        if number not in by_number:
            share = share_of_network(list(by_number), part.recipe.clients)
            has = f"clients 0 to {part.recipe.clients - 1}" if part.whole else share
            raise MaplError(f"there is no client {number}: the run has {has}")
    return [by_number[number] for number in dict.fromkeys(clients)]


def _paths(to: Path, client: Client, kind: Kind) -> list[Path]:
    name = f"client-{client.id:03d}"
    model = to / f"{name}{SUFFIXES[kind]}"
    return [model] if kind == "safetensors" else [model, to / f"{name}.json"]


def _check_free(paths: Sequence[Path]) -> None:
    """Refuse existing files before anything is written, so that a refusal changes nothing."""
    for path in paths:
        if path.exists():
            taken = f"{str(path)!r} exists already; choose another folder, or give"
            raise MaplError(f"{taken} overwrite=True", shell=f"{taken} --overwrite")


def _write(files: Mapping[Path, bytes]) -> list[Path]:
    for path, data in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_aside(path, data)
        except OSError as error:
            raise MaplError(f"{str(path)!r} could not be written ({error})") from error
    return list(files)


def _card(part: Part, client: Client, tested: Round | None) -> Card:
    """What a user needs to know about a client's model, and where it comes from."""
    mean, std = _normalisation(part)
    return {
        "client": client.id,
        "backbone": client.backbone,
        "image": list(client.test.shape),
        **({"vocabulary": client.test.shape.vocabulary} if client.test.shape.vocabulary else {}),
        "embedding": client.model.head.in_features,
        "classes": client.model.head.out_features,
        "mean": mean,
        "std": std,
        "mapl": version("mapl"),
        "run": client.run,
        "method": part.recipe.method.name,
        "rounds": part.round,
        # From the last test: its round, and whether it came before or after the client absorbed its letters.
        "accuracy": tested.accuracy[part.clients.index(client)] if tested and tested.accuracy else None,
        "accuracy_round": tested.round if tested else None,
        "accuracy_moment": part.recipe.evaluate.moment if tested else None,
    }


def _normalisation(part: Part) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel, as the decimals that were given, without float32's extra digits."""
    augmentation = part.engine.augmentation
    mean, std = (
        [float(str(x)) for x in np.array(values, np.float32)] for values in (augmentation.mean, augmentation.std)
    )
    return mean, std


def _weights(client: Client, card: Card) -> tuple[bytes]:
    state = client.model.state_dict()
    # Cloned, because safetensors refuses weights that share memory.
    tensors = {k: v.clone().contiguous() for k, v in state.items() if k.startswith(("backbone.", "head.", "own."))}
    metadata = {key: value if isinstance(value, str) else json.dumps(value) for key, value in card.items()}
    return (safetensors.torch.save(tensors, metadata),)


def _program(part: Part, client: Client, card: Card, pixels: Pixels) -> tuple[bytes, bytes]:
    own = {name: client.model.own[name] for name in part.method.answers_with if name != "backbone"}
    shape = client.test.shape
    model = Classifier(client.model.backbone, client.model.head, *_normalisation(part), own, shape=shape).eval()
    # The method's scores, which need not be the head's logits: the program then answers as the client did in tests.
    model.scores = _tuned(part.method, client, model)
    samples = _first_five(client.test, pixels)
    program = _exported(client, model, samples)
    file = io.BytesIO()
    torch.export.save(program, file)
    card = card | {"input": {"pixels": str(samples.dtype).removeprefix("torch."), "shape": ["batch", *shape]}}
    return file.getvalue(), (json.dumps(card, indent=1) + "\n").encode()


@torch.no_grad()
def _tuned(method: Method[Any], client: Client, model: Classifier) -> Scores:
    """The method's scores for a client, with what its held-out images tell them."""
    if not client.held:
        return partial(method.scores, client)
    inputs, labels = client.test.inputs[-client.held :], client.test.labels[-client.held :]
    known = method.tune(client, model.outputs(inputs), labels)
    return lambda outputs: method.scores(client, {**outputs, **known})


@torch.no_grad()
def _exported(client: Client, model: Classifier, samples: Tensor) -> torch.export.ExportedProgram:
    """The program of a classifier, checked on a batch size that it was not exported with."""
    who = f"client {client.id} (backbone {client.backbone!r})"
    try:
        with redirect_stderr(io.StringIO()):  # torch prints pages there about what it cannot do
            # Two samples: torch would treat a batch of one as a constant.
            program = torch.export.export(model, (samples[:2],), dynamic_shapes=({0: torch.export.Dim("batch")},))
        ours, theirs = model(samples), program.module()(samples)
    except Exception as error:  # torch.export's errors have no common class
        raise MaplError(f"{who} cannot be exported: {_sentence(error)}") from error
    if not torch.allclose(ours, theirs, atol=1e-5):
        raise MaplError(f"{who} cannot be exported: its program gives different logits")
    return program


def _first_five(samples: Samples, pixels: Pixels) -> Tensor:
    """Five of a client's samples, of the dtype that a program will take; blank ones where it has fewer."""
    five = torch.zeros(5, *samples.shape, dtype=samples.inputs.dtype)
    five[: len(samples)] = samples.inputs[:5]
    if samples.kind != "images":
        return five
    if five.dtype == torch.uint8:
        return five if pixels == "uint8" else five / 255
    return five if pixels == "float32" else (five * 255).byte()


def _sentence(error: Exception) -> str:
    """The first two lines of torch's message; the rest is for debugging torch."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) if lines else type(error).__name__


def _value(text: str) -> Any:
    """A value of the card, which safetensors stores as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
