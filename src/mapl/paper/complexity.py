"""The paper's table of communication complexity: what it prints, and what the ledger counts.

The size of a letter depends on the models alone, so two rounds of letters between untrained models of the paper's size
are enough: one in the warm-up and one after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from mapl.data.dataset import Dataset, Images
from mapl.methods._mixing import flatten
from mapl.network import Inbox, Mail, MemoryPost
from mapl.paper import protocol
from mapl.paper.tables import BACKBONES, METHODS, PROTOCOL
from mapl.recipe import Recipe
from mapl.runs.exchange import look_around
from mapl.runs.files import write_aside
from mapl.runs.part import Part, build_part
from mapl.runs.round import exchange
from mapl.trees import Tree, merge

CLIENTS = 4
CLASSES = 10
FILE = "complexity.json"

HETEROGENEOUS = ("Local", "FedSim", "FedClassAvg", "FedProto", "MAPL")
"""Measured with the paper's four backbones, the others with ResNet-18 at every client."""

FORMULAS = {
    "Local": "0",
    "FedSim": "2Mφ",
    "FedClassAvg": "2Mφ",
    "FedProto": "2M d_p K",
    "FedAvg": "2M(θ + φ)",
    "FLT": "2M(θ + φ), once M W_enc + M d_p N_emb",
    "pFedSim": "2M(θ + φ)",
    "DFedAvgM": "2N_e(θ + φ)",
    "MAPL": "2N_e(d_p K + φ)",
    "MAPL+": "2N_e(θ + d_p K + φ)",
}
"""Numbers that a round sends, as the paper prints them (there with · T). Local and MAPL+ are not in its table."""

REMARKS = {
    "Local": "not in the paper's table",
    "FedSim": "a client also says how many batches it trained on",
    "FedProto": "embeddings of d_z = d_p numbers, and how many stand behind each",
    "FLT": "the opening is sent once; d_p is the encoder's 128, N_emb = K",
    "pFedSim": "after its warm-up the reply has no head: M(2θ + φ)",
    "DFedAvgM": "and how many neighbours the sender has",
    "MAPL": "no head before the warm-up's end: 2N_e d_p K; then its weight without the K biases",
    "MAPL+": "not in the paper's table; MAPL's formula and the backbone",
}
"""Where what is sent is not the formula, or more than it."""


@dataclass(frozen=True)
class Sent:
    """What one round sent."""

    messages: int
    bytes: int
    """As the ledger counted them, headers included."""
    numbers: int
    """Floating-point numbers, 4 bytes each."""
    counts: int
    """Whole numbers, 8 bytes each."""

    @property
    def headers(self) -> int:
        return self.bytes - 4 * self.numbers - 8 * self.counts


@dataclass(frozen=True)
class Cost:
    """One method: its formula for the clients at hand, and the rounds that were measured."""

    method: str
    formula: str
    predicted: int
    """Numbers a round by the formula, with the sizes of the models that were measured."""
    warmup: Sent
    """A round of the warm-up (for FLT: the first, with its opening)."""
    later: Sent
    remark: str
    sizes: dict[str, int]
    """M, the edges N_e of the full mesh, θ (of ResNet-18), φ, d_p, K."""

    @property
    def exact(self) -> bool:
        """Whether a round after the warm-up sends as many numbers as the paper's formula says."""
        return self.predicted == self.later.numbers

    def run_bytes(self) -> int:
        """The paper's formula for a whole run of the paper's size, in bytes of numbers."""
        return 4 * protocol.ROUNDS * _evaluate(self.method, {**self.sizes, **_network(protocol.CLIENTS)})


def measure(methods: Iterable[str] = tuple(FORMULAS)) -> list[Cost]:
    """Two rounds of letters of each of the methods, all ten unless some are named. No training, no data set, no GPU."""
    data = _noise()
    return [_measured(name, data) for name in methods]


def write(folder: Path, costs: list[Cost]) -> Path:
    """Keep what was measured beside the results store."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    write_aside(path, (json.dumps([asdict(cost) for cost in costs], indent=1, ensure_ascii=False) + "\n").encode())
    return path


def read(folder: Path) -> list[Cost]:
    """What was measured; nothing where nobody did."""
    path = folder / FILE
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(path.read_bytes())
    return [Cost(**{**row, "warmup": Sent(**row["warmup"]), "later": Sent(**row["later"])}) for row in rows]


def _measured(name: str, data: Dataset) -> Cost:
    part = build_part(_recipe(name), data)
    first, second = (_letters(part, t) for t in range(2))
    sizes = _sizes(part)
    return Cost(name, FORMULAS[name], _evaluate(name, sizes), first, second, REMARKS.get(name, ""), sizes)


def _recipe(name: str) -> Recipe:
    """The paper's models and method with a warm-up of one round, few clients and fewer images."""
    models = BACKBONES["heterogeneous" if name in HETEROGENEOUS else "homogeneous"]
    method = dict(METHODS[name])
    if "warmup" in method:
        method["warmup"] = 1
    if name == "FLT":
        method |= {"encoder_data": "synthetic", "encoder_epochs": 1}
    few: Tree = {
        "clients": CLIENTS,
        "rounds": 2,
        "partition": {"shots": 2, "test_shots": 1, "sharding": "random"},
        "model": {"backbones": list(models)},
        "method": method,
        "engine": {"device": "cpu"},
    }
    return Recipe.of(**merge(PROTOCOL, few))


def _letters(part: Part, t: int) -> Sent:
    """A round without its training: letters are written, carried, counted and read."""
    before = part.ledger.messages, part.ledger.bytes
    part.transport = scales = _Scales()
    look_around(part.method, part.clients, part.server, part.topology, t)
    for client in part.clients:
        if "batches" in client.state:  # FedSim's, and a letter after no batch would be left out
            client.state["batches"].fill_(1)
    exchange(part, t)
    messages, size = part.ledger.messages - before[0], part.ledger.bytes - before[1]
    return Sent(messages, size, scales.numbers, scales.counts)


class _Scales(MemoryPost):
    """A post that also counts the numbers in what it carries."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = self.counts = 0

    def exchange(self, mail: Mail) -> dict[int, Inbox]:
        for reader, asked in mail.requests.items():
            for sender in asked.tolist():
                letter = mail.personal.get(reader) or mail.letters.get(sender)
                for tensor in letter.tensors.values() if letter else ():
                    if tensor.is_floating_point():
                        self.numbers += tensor.numel()
                    else:
                        self.counts += tensor.numel()
        return super().exchange(mail)


def _sizes(part: Part) -> dict[str, int]:
    """The letters of the formulas. θ counts parameters and batch-normalisation statistics: what is averaged."""
    first = part.clients[0]
    assert first.backbone == "resnet18"
    head = first.model.head
    return {
        **_network(len(part.clients)),
        "θ": flatten(first.model.backbone).numel(),
        "φ": head.weight.numel() + head.bias.numel(),
        "d_p": part.recipe.model.projection,
        "K": head.out_features,
    }


def _network(clients: int) -> dict[str, int]:
    return {"M": clients, "N_e": clients * (clients - 1) // 2}


def _evaluate(name: str, sizes: Mapping[str, int]) -> int:
    """The formula's value: numbers a round, FLT's opening left out."""
    m, edges, theta, phi = (sizes[key] for key in ("M", "N_e", "θ", "φ"))
    prototypes = sizes["d_p"] * sizes["K"]
    return {
        "Local": 0,
        "FedSim": 2 * m * phi,
        "FedClassAvg": 2 * m * phi,
        "FedProto": 2 * m * prototypes,
        "FedAvg": 2 * m * (theta + phi),
        "FLT": 2 * m * (theta + phi),
        "pFedSim": 2 * m * (theta + phi),
        "DFedAvgM": 2 * edges * (theta + phi),
        "MAPL": 2 * edges * (prototypes + phi),
        "MAPL+": 2 * edges * (theta + prototypes + phi),
    }[name]


def _noise() -> Dataset:
    """Images of CIFAR-10's shape that show nothing, enough of each class for every client."""
    draw = torch.Generator().manual_seed(0)

    def images(each: int) -> Images:
        labels = torch.arange(CLASSES).repeat(each)
        return Images(torch.randint(256, (len(labels), 3, 32, 32), generator=draw, dtype=torch.uint8), labels)

    return Dataset("noise", images(2 * CLIENTS), images(CLIENTS), CLASSES, mean=(0.5,) * 3, std=(0.5,) * 3)
