"""Base of all methods. A new one is a subclass of `Method` in one file, here or anywhere (`package.module:Name`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from mapl.client import Client, Peers, Server
from mapl.errors import MaplError
from mapl.mixing import MixingSettings
from mapl.network import Inbox, Letter, Spec, specs


class MethodSettings(BaseModel):
    """The method and its settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field("mapl", description="A known method, or the import path of one (package.module:Name).")


S = TypeVar("S", bound=MethodSettings)


class Method(ABC, Generic[S]):
    """Every round a client trains on `loss`, writes a `letter`, reads the letters it `wants`, and `absorb`s them.

    A method is node-local: it sees one client and that client's inbox. What it keeps between rounds lives in
    `client.state` or in the model, in tensors that are updated in place. Checkpoints, engines and real networks then
    need to know nothing about it.
    """

    name: ClassVar[str] = "unnamed"
    """What errors call it."""
    Settings: ClassVar[type[Any]] = MethodSettings
    views: ClassVar[int] = 1
    """How many augmented views of each image a training step sees."""
    augmentation: ClassVar[Literal["contrastive", "plain"]] = "plain"
    """Which of the recipe's two augmentations creates those views."""

    homogeneous: ClassVar[bool] = False
    """Whether all clients must have the same architecture."""
    silent: ClassVar[bool] = False
    """Whether its clients never write letters, on any network. A run of it is a control arm."""
    without_letters: ClassVar[str] = ""
    """A simpler method that this one equals, to the bit, on the empty network. One control arm then serves both."""
    unread_without_letters: ClassVar[frozenset[str]] = frozenset()
    """Settings that change no bit on the empty network. One control arm then serves all their values."""

    averages: ClassVar[bool] = False
    """Whether it mixes letters by the rule in `mixing`. If not, a recipe that asks for a robust rule is refused."""
    mixing: MixingSettings = MixingSettings()
    """The recipe's `network.mixing`, set when a run is built."""

    draws: ClassVar[bool] = False
    """Whether its loss draws from torch's global random generator. Then clients on a CPU train one by one."""
    dry_run: ClassVar[bool] = True
    """Whether its loss can run on meaningless numbers, as it does on a GPU to build kernels early. Set it to False if
    computed values are used as indices."""
    answers_with: ClassVar[tuple[str, ...]] = ("backbone",)
    """The networks whose outputs for test images are passed to `scores`: the backbone, and own ones by name."""

    scores_are: ClassVar[Literal["logits", "probabilities"]] = "logits"
    """What `scores` returns. The calibration error takes the softmax of logits, and probabilities as they are."""

    ways: ClassVar[tuple[str, ...]] = ()
    """Other ways to answer that tests record beside `scores`, by name; see `scores_by_way`."""

    def __init__(self, settings: S):
        self.settings = settings

    def uses(self) -> Collection[str]:
        """The optional parts of a client's model that the method needs: "projector", "prototypes", both or none."""
        return ()

    def modules(self, client: Client) -> dict[str, nn.Module]:
        """The method's own networks besides the backbone, by name. Each maps a batch of tensors to a batch of tensors.

        Called once, when the client is built. They are trained, checkpointed and exported with the rest of the model;
        `client.model.call(name, x)` runs one. Their first weights are keyed by (seed, client). For the same weights in
        every client, draw them inside `mapl.keys.seeded(key(client.seed, NOBODY, ALWAYS, …))`.
        """
        return {}

    def learning_rates(self) -> dict[str, float]:
        """Learning rates of own networks, by name, where they differ from the recipe's.

        Each follows the recipe's schedule, as `train.learning_rate` does. 0 freezes a network: it gets no gradient and
        stays in evaluation mode. `absorb` or `start_epoch` may copy values into it.
        """
        return {}

    def holds_out(self) -> float:
        """The share of a client's training images, class by class, that it keeps out of training; see `tune`."""
        return 0.0

    def prepare(self, client: Client) -> None:
        """Fill `client.state` with what the method keeps there. Called once, before the first round."""

    def start_epoch(self, client: Client, round: int, epoch: int) -> None:
        """Called before every local epoch; a round has `train.epochs` of them, counted from 0."""

    @abstractmethod
    def loss(self, client: Client, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The terms of the loss, by name; their sum is minimised.

        images: (views · B, C, H, W), view after view; labels: (views · B,), repeated in the same way.
        """

    def scores(self, client: Client, outputs: Mapping[str, Tensor]) -> Tensor:
        """The scores (n, K) that classify test images: by default, the head's logits.

        outputs: for every network in `answers_with`, its output for the test images; "backbone" has z (n, d_z). If the
        client has held-out images, what `tune` returned is there, too.
        """
        return client.model.classify(outputs["backbone"])

    def scores_by_way(self, client: Client, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The scores (n, K) of every way in `ways`: what each network of a client would answer by itself, say."""
        return {}

    def tune(self, client: Client, outputs: Mapping[str, Tensor], labels: Tensor) -> dict[str, Tensor]:
        """What the held-out images tell `scores`, as named tensors. Called before each test, if there are any.

        outputs: as in `scores`, but for the held-out images; labels: (n,), theirs. Reads no value back to the host.
        """
        return {}

    def wants(self, client: Client, round: int) -> Tensor:
        """Which of `client.neighbours` the client asks for a letter this round (sorted ids). Default: none.

        It must not change anything, because it may be called more than once per round.
        """
        return client.neighbours[:0]

    def letter(self, client: Client, round: int) -> Letter | None:
        """What the client shares with anyone who asks. None, the default, shares nothing.

        It must not change anything. Called once per round for a client with neighbours, whether or not anyone asks.
        With the topology "explore" it is called for every client: others may ask one that asks nobody.
        If nobody asks in a round, return None: a letter that nobody reads is one that later letters cannot build on.
        """
        return None

    def reads_anew(self, round: int) -> bool:
        """Whether clients may ask this round for letters of peers whose previous letter they did not read.

        Letters that would build on earlier ones (`network.compress = "top-k"`) are then sent in full.
        """
        return False

    def learns_graph(self) -> bool:
        """Whether clients learn whom to listen to: `client.peers` has weight for those, and 0 for peers not wanted.

        The topology "explore" needs that. It makes a client forget peers, which are then strangers again.
        """
        return False

    def schema(self, node: Client | Server, round: int) -> Mapping[str, Spec]:
        """The letters that this node reads: each tensor's shape, dtype and range of values, by name.

        By default, those of the letter that the node itself writes, with any finite values. Every letter is checked
        against it before `absorb` sees it, in memory as over bytes. One that differs is left out and counted. State a
        range (`Spec.low`, `Spec.high`) for every number that is counted, divided by or used as an index.
        """
        letter = self.letter(node, round) if isinstance(node, Client) else None
        if letter is None:
            raise MaplError(f"method {self.name!r}: node {node.id} reads letters and writes none; give it a schema()")
        return specs(letter.tensors)

    def architecture(self, client: Client) -> str:
        """The architecture that decides whether tensors marked `Spec.by_architecture` fit: the client's backbone's."""
        return client.architecture

    def absorb(self, client: Client, round: int, inbox: Inbox) -> None:
        """Adjust the client to the letters it received. Any may be missing; if none arrived, the inbox is empty."""

    def absorb_all(self, round: int, pairs: Iterable[tuple[Client, Inbox]]) -> None:
        """`absorb` for many clients in one process, each with its own inbox. Called once per round.

        A method may override it to compute for all of them at once, for speed only. It stays node-local: the result for
        a client depends only on that client and its inbox, as if `absorb` were called for each in turn.
        tests/test_absorb_all.py checks this for every method, to the bit.
        """
        for client, inbox in pairs:
            try:
                self.absorb(client, round, inbox)
            except Exception as error:  # who writes a method sees at once if it was an empty inbox
                error.add_note(f"in absorb() of client {client.id} in round {round}, with {len(inbox)} letters")
                raise

    def weights(self, client: Client) -> Peers | None:
        """The client's row of the mixing matrix W, for the record; None if the method has none."""
        return None


class Centralised(Method[S]):
    """A method with a server: clients write to it, it aggregates, and it writes back.

    The server reaches every client, except on the empty network, where it reaches none. Like any node, it sees only
    letters.
    """

    personal: ClassVar[bool] = False
    """Whether the server writes a separate letter to each client, or the same one to all."""
    opens: ClassVar[bool] = False
    """Whether the server writes to all clients once, in the first round, before they write to it."""

    def wants(self, client: Client, round: int) -> Tensor:
        """The server's letter: the server is the only neighbour, if there is one."""
        return client.neighbours

    def schema(self, node: Client | Server, round: int) -> Mapping[str, Spec]:
        """The structure of the letters that this node reads: the server reads clients' letters, a client the reply."""
        raise MaplError(f"method {self.name!r} does not say what its letters look like; give it a schema()")

    @abstractmethod
    def aggregate(self, server: Server, round: int, inbox: Inbox) -> dict[str, Tensor]:
        """The server's aggregate of the clients' letters (at least one), as named tensors."""

    def reply(self, server: Server, client: int, round: int, aggregate: dict[str, Tensor]) -> Letter:
        """What the server writes back: by default, the aggregate.

        A personal reply goes only to clients whose letters arrived.
        """
        return server.letter(round, aggregate)

    def opening(self, server: Server) -> Letter:
        """What the server writes to all clients once, if the method `opens`."""
        raise MaplError(f"method {self.name!r} opens but writes no letter; give it an opening()")

    def answer(self, client: Client, inbox: Inbox) -> Letter:
        """What a client writes back to the server's opening letter."""
        raise MaplError(f"method {self.name!r} opens with a letter but answers none; give it an answer()")

    def opening_schema(self, node: Client | Server) -> Mapping[str, Spec]:
        """`schema` of the opening: a client reads the server's opening letter, the server reads the answers."""
        raise MaplError(f"method {self.name!r} opens but does not say with what; give it an opening_schema()")

    def settle(self, server: Server, inbox: Inbox) -> None:
        """Process the answers on the server. Some may be missing."""
