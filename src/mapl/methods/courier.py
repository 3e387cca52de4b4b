"""The courier: clients average a small common network, and their own networks learn from it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from mapl.client import Client, Peers, Server
from mapl.clock import part
from mapl.errors import warn
from mapl.kinship import circle_weights, direction, kept, update_of, without_shares
from mapl.losses import cross_entropy, distillation
from mapl.methods._circles import Circles, Pair, groups
from mapl.methods._contrast import ContrastSettings, contrast
from mapl.methods._courier import (
    COURIER,
    CourierNetworkSettings,
    WithCourier,
    courier_of,
    courier_spec,
    head_of,
    load_couriers,
)
from mapl.methods._mixing import copy_networks
from mapl.model import architecture
from mapl.network import Inbox, Letter, Spec, specs

__all__ = ["Courier"]

TEACHER = "teacher"
DRIFT = "drift"
START = "start"
"""The courier's head as it was after the last letters."""
KEPT = "kept"
"""How much of the last update the mix kept."""
MIXED = "mixed"
"""How many couriers, its own included, the client's courier is the mean of."""
MISFITS = "misfits"
"""How many letters with another courier's shape a client got."""
SHARE = "share"


class CourierSettings(ContrastSettings, CourierNetworkSettings):
    """The courier's settings; those of the own network's losses are MAPL's."""

    name: str = "courier"
    distil: float = Field(1.0, ge=0, description="Weight λ of what the own network learns from the mixed courier.")
    distil_temperature: float = Field(4.0, gt=0, description="Temperature T of that distillation.")
    share: Annotated[float, Field(ge=0, le=1)] | Literal["auto", "held-out"] = Field(
        "auto",
        description="The courier's share in 'both'; 'auto': n / (n + 1) for a courier that is the mean of n clients'; "
        "'held-out': the best of 0, 0.1, …, 1 for images of the client that it does not train on.",
    )
    held_out: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="With share 'held-out': the share of the training images of each class that is held out.",
    )
    every: int = Field(1, ge=1, description="Rounds between letters. In between, the teacher of who has kin stays.")


class Courier(WithCourier[CourierSettings]):
    """A small network travels between clients whose own networks never leave home.

    Every client trains two networks: its own, of any architecture, and the courier, which has the same architecture and
    the same first weights everywhere. The courier learns from labels. Letters carry it, and a client averages it with
    those of its kin: clients whose training moves the courier's head as its own does (`mapl.kinship`), and where
    nobody is close, whoever has classes in common. The mixed
    courier is copied. Through the next round the own network learns from labels, from MAPL's losses and, by
    distillation, from that copy, the teacher, which is frozen: it has seen its kin's data, and it has not just been
    trained on the client's own images. The client answers with its own network and the teacher.

    Letter: the courier's parameters and normalisation statistics as one vector `courier`; the direction in which
    training moves its head, `drift` (K, features + 1).

    Between rounds a client keeps its own drift with what it needs to go on with it, and in `client.peers` whom it has
    met: kin have equal weights, others weight 0. Others are asked again after 1, 2, 4, 8, … letters, strangers at once.
    """

    name = "courier"
    Settings = CourierSettings
    views = 2
    augmentation = "contrastive"
    answers_with = ("backbone", TEACHER)
    averages = True
    unread_without_letters = frozenset({"every"})

    def __init__(self, settings: CourierSettings):
        super().__init__(settings)
        self._architectures: dict[int, str] = {}
        self._written: dict[int, Letter] = {}
        """The last letter of each client until it has read those of that round: its own tensors need no second copy."""

    def uses(self) -> tuple[str, ...]:
        return self.settings.uses()

    def modules(self, client: Client) -> dict[str, nn.Module]:
        modules = super().modules(client)
        return {**modules, TEACHER: copy.deepcopy(modules[COURIER])}

    def learning_rates(self) -> dict[str, float]:
        return {**super().learning_rates(), TEACHER: 0.0}

    def holds_out(self) -> float:
        return self.settings.held_out if self.settings.share == "held-out" else 0.0

    def prepare(self, client: Client) -> None:
        head = head_of(client.model.own[COURIER])
        client.state[DRIFT] = torch.zeros_like(head)
        client.state[START] = head
        client.state[KEPT] = head.new_ones(1)
        # On the CPU, where they are read.
        client.state[MISFITS] = torch.zeros(1, dtype=torch.int64)
        client.state[MIXED] = torch.ones(1, dtype=torch.int64)

    def loss(self, client: Client, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Of the own network: MAPL's terms and λ · distillation. Of the courier: cross-entropy. On both views."""
        model, use = client.model, self.settings
        embedding = model.embed(images)
        logits = model.classify(embedding)
        terms = contrast(client, embedding, logits, labels, use)
        with torch.no_grad():
            teacher = model.call(TEACHER, images)
        terms["distillation"] = use.distil * distillation(logits, teacher, use.distil_temperature)
        terms[COURIER] = cross_entropy(model.call(COURIER, images), labels)
        return terms

    def scores(self, client: Client, outputs: Mapping[str, Tensor]) -> Tensor:
        """Probabilities (n, K), with the share that `tune` found if it found one."""
        if SHARE not in outputs:
            return super().scores(client, outputs)
        own, courier = self.logits(client, outputs)
        return torch.lerp(own.softmax(1), courier.softmax(1), outputs[SHARE].to(own.dtype))

    def tune(self, client: Client, outputs: Mapping[str, Tensor], labels: Tensor) -> dict[str, Tensor]:
        """The share that is best for the held-out images."""
        if self.settings.answer != "both":
            return {}
        return {SHARE: best_share(*self.logits(client, outputs), labels)}

    def share_of_both(self, client: Client) -> float:
        """How much the courier counts if both answer. Without held-out images, 'held-out' means 'auto'."""
        if isinstance(self.settings.share, float):
            return self.settings.share
        mixed = int(client.state[MIXED])
        return mixed / (mixed + 1)

    def wants(self, client: Client, round: int) -> Tensor:
        """Kin and strangers; after 1, 2, 4, 8, … letters everybody, because more is known of them then."""
        if not self.writes(round):
            return client.neighbours[:0]
        others = client.peers.ids[client.peers.weights == 0]
        if self.reads_anew(round) or not len(others):
            return client.neighbours
        return client.neighbours[torch.from_numpy(~np.isin(client.neighbours.numpy(), others))]

    def writes(self, round: int) -> bool:
        """Whether letters are written this round."""
        return (round + 1) % self.settings.every == 0

    def reads_anew(self, round: int) -> bool:
        """Whether everybody is asked: the letter's number is a power of 2."""
        number = (round + 1) // self.settings.every
        return self.writes(round) and number & (number - 1) == 0

    def learns_graph(self) -> bool:
        return True

    def letter(self, client: Client, round: int) -> Letter | None:
        if not self.writes(round):
            return None
        tensors = {COURIER: courier_of(client), DRIFT: direction(self.drift(client))}
        self._written[client.id] = client.letter(round, tensors, self.architecture(client))
        return self._written[client.id]

    def schema(self, node: Client | Server, round: int) -> Mapping[str, Spec]:
        assert isinstance(node, Client)  # there is no server
        found = {COURIER: courier_spec(node), **specs({DRIFT: node.state[DRIFT]})}
        return {name: spec._replace(by_architecture=True) for name, spec in found.items()}

    def architecture(self, client: Client) -> str:
        """That of the courier. It never changes, and computing it takes as long as writing the letter."""
        if client.id not in self._architectures:
            self._architectures[client.id] = architecture(client.model.own[COURIER])
        return self._architectures[client.id]

    def update(self, client: Client) -> Tensor:
        """What happened to the courier's head since the last letters: (K, features + 1)."""
        return update_of(client.state[START], head_of(client.model.own[COURIER]))

    def drift(self, client: Client) -> Tensor:
        """The client's drift with the training since the last letters: (K, features + 1)."""
        return client.state[DRIFT] + client.state[KEPT] * self.update(client)

    def absorb(self, client: Client, round: int, inbox: Inbox) -> None:
        """Find out who is kin, then average the couriers of kin and its own."""
        self.absorb_all(round, [(client, inbox)])

    def absorb_all(self, round: int, pairs: Iterable[Pair]) -> None:
        """`absorb` for many clients. The arithmetic of each is the same however many there are."""
        pairs = list(pairs)
        if self.writes(round):
            self.mix_with_kin(pairs, round)
        changed = [client for client, _ in pairs if self.writes(round) or not self.has_kin(client)]
        copy_networks([(client.model.own[COURIER], client.model.own[TEACHER]) for client in changed])

    def has_kin(self, client: Client) -> bool:
        """Whether its courier was mixed with others the last time.

        Then its teacher stays as it is until the next letters: the courier has trained alone since, and is a worse one.
        """
        return int(client.state[MIXED]) > 1

    def mix_with_kin(self, pairs: Sequence[Pair], round: int) -> None:
        updates = [self.update(client) for client, _ in pairs]
        for (client, _), update in zip(pairs, updates, strict=True):
            client.state[DRIFT] += client.state[KEPT] * update
            client.state[MIXED].fill_(1)
        for group in groups((client, self.fitting(client, inbox)) for client, inbox in pairs):
            circles = Circles(group)
            with part("graph"):
                weights = self.kin_of(circles, round)
            self.mix(circles, weights, round)
            for (client, start, end), inbox in zip(circles.spans(), circles.inboxes, strict=True):
                remember(client, inbox, circles.ids[start:end], weights[start:end])
                client.state[MIXED].fill_(int((weights[start:end] > 0).sum()))
        for (client, _), update in zip(pairs, updates, strict=True):
            client.state[KEPT].copy_(kept(update, self.update(client)))
            client.state[START].copy_(head_of(client.model.own[COURIER]))
            self._written.pop(client.id, None)

    def kin_of(self, circles: Circles, round: int) -> NDArray[np.float64]:
        """(P,) how much each client listens to the members of its circle."""

        def drift(client: Client) -> Tensor:
            return self.written(client, round, DRIFT)

        cosines = circles.cosines(DRIFT, drift, "paper")
        common = circles.cosines(DRIFT, drift, "paper", without_shares)
        return circle_weights(*(torch.from_numpy(x) for x in (cosines, common, circles.sizes))).numpy()

    def written(self, client: Client, round: int, name: str) -> Tensor:
        """What a letter of the client has under this name, whether or not it wrote one this round."""
        letter = self._written.get(client.id)
        if letter is not None and letter.round == round:
            return letter.tensors[name]
        return courier_of(client) if name == COURIER else direction(client.state[DRIFT])

    def fitting(self, client: Client, inbox: Inbox) -> Inbox:
        """The letters whose couriers have the shape of the client's own. Others are counted, and said once."""
        mine = self.architecture(client)
        fits = [theirs == mine for theirs in inbox.architectures]
        if all(fits):
            return inbox
        misfits = inbox.select(~torch.tensor(fits))
        client.state[MISFITS] += len(misfits)
        meet(client, misfits)  # with weight 0: they are not asked in every round
        warn(
            f"client {client.id} leaves out the letters of clients {misfits.senders.tolist()}: their couriers "
            "differ from its own in shape. All clients need the same method.courier and method.features",
            once=True,
        )
        return inbox.select(torch.tensor(fits))

    def mix(self, circles: Circles, weights: NDArray[np.float64], round: int) -> None:
        """Every courier becomes Σ_j w_ij courier_j, or what a robust rule has in its place."""
        table = circles.table(COURIER, lambda client: self.written(client, round, COURIER))
        mixed = [torch.empty_like(table.stack[0]) for _ in circles.clients]
        circles.mix(self.mixing, table, weights, mixed)
        load_couriers(circles.clients, mixed)

    def weights(self, client: Client) -> Peers:
        return client.peers


def best_share(own: Tensor, courier: Tensor, labels: Tensor) -> Tensor:
    """The share in 0, 0.1, …, 1 with the lowest mean −log((1 − share) · p_own + share · p_courier) of the labels.

    own, courier: logits (n, K). Of equal shares, the lowest.
    """
    # In float64 no probability of a label underflows to 0, unless logits differ by 700.
    places = labels.unsqueeze(1)
    ours, theirs = (logits.double().softmax(1).gather(1, places) for logits in (own, courier))
    shares = torch.arange(11, dtype=torch.float64, device=labels.device) / 10
    losses = -torch.lerp(ours, theirs, shares).log().mean(0)
    return losses.argmin() / 10


def meet(client: Client, inbox: Inbox) -> None:
    """Add senders heard for the first time to the peers, with weight 0, and note how many samples each sender has."""
    peers, senders, samples = client.peers, inbox.senders.numpy(), inbox.samples.numpy()
    strangers = ~peers.knows(senders)
    peers.meet(senders[strangers], 0.0, samples[strangers])
    peers.samples[peers.places(senders)] = samples


def remember(client: Client, inbox: Inbox, ids: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
    """Update whom the client has met and who is kin. Peers that it did not hear this round stay what they were."""
    meet(client, inbox)
    peers = client.peers
    peers.weights[peers.places(ids)] = weights
    kin = peers.weights > 0
    peers.weights = kin / kin.sum()
