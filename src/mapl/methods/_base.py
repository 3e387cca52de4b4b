"""What a method is. A new one is a subclass of `Method` in one file, here or anywhere (`package.module:Name`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from mapl.client import Client, Peers, Server
from mapl.network import Inbox, Letter, Spec, specs


class MethodSettings(BaseModel):
    """The method, and what it can be set to."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field("mapl", description="A known method, or the import path of one (package.module:Name).")


S = TypeVar("S", bound=MethodSettings)


class Method(ABC, Generic[S]):
    """Every round a client trains on `loss`, writes a `letter`, reads the letters it `wants`, and `absorb`s them.

    A method is node-local: it is given one client and that client's inbox. Whatever it keeps between rounds lives in
    `client.state` or in the model, in tensors that are updated in place; then checkpoints, engines and real networks
    need to know nothing about it.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[Any]] = MethodSettings
    views: ClassVar[int] = 1
    """How many augmented views of each image a training step sees."""
    augmentation: ClassVar[Literal["contrastive", "plain"]] = "plain"
    """Which of the recipe's two augmentations makes those views."""

    homogeneous: ClassVar[bool] = False
    """Whether it needs every client to have the same architecture."""
    without_letters: ClassVar[str] = ""
    """A simpler method that this one equals, to the bit, on the empty network; so one control arm serves both."""
    unread_without_letters: ClassVar[frozenset[str]] = frozenset()
    """Settings that change nothing, to the bit, on the empty network; so one control arm serves all their values."""

    draws: ClassVar[bool] = False
    """Whether its loss draws random numbers from torch's global generator. Then clients on a CPU train one by one."""
    dry_run: ClassVar[bool] = True
    """Whether its loss can be run on meaningless numbers, as a GPU does to build kernels early. Set it to False where
    computed values are used as indices."""
    answers_with: ClassVar[tuple[str, ...]] = ("backbone",)
    """The networks whose outputs for the test images `scores` is given: the backbone, and own ones by name."""

    def __init__(self, settings: S):
        self.settings = settings

    def uses(self) -> Collection[str]:
        """The optional parts of a client's model that it needs: "projector", "prototypes", both or none."""
        return ()

    def modules(self, client: Client) -> dict[str, nn.Module]:
        """Networks of its own beside the backbone, by name: each maps a batch of tensors to a batch of tensors.

        Called once, when the client is built. They are trained, checkpointed and exported with the rest of the model;
        `client.model.call(name, x)` runs one. Their first weights are keyed by (seed, client); for the same ones
        everywhere, draw them inside `mapl.keys.seeded(key(client.seed, NOBODY, ALWAYS, …))`.
        """
        return {}

    def learning_rates(self) -> dict[str, float]:
        """Learning rates of own networks, by name, where they differ from the recipe's. 0 freezes a network: it takes
        no gradient and stays in evaluation mode, and `absorb` or `start_epoch` may copy values into it."""
        return {}

    def prepare(self, client: Client) -> None:
        """Put into `client.state` what the method will keep there. Called once, before the first round."""

    def start_epoch(self, client: Client, round: int, epoch: int) -> None:
        """Called before every local epoch; a round has `train.epochs` of them, counted from 0."""

    @abstractmethod
    def loss(self, client: Client, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The terms of the loss, by name; their sum is minimised.

        images: (views · B, C, H, W), view after view; labels: (views · B,), repeated likewise.
        """

    def scores(self, client: Client, outputs: Mapping[str, Tensor]) -> Tensor:
        """What test images are classified by, (n, K): the head's logits, unless a method knows better.

        outputs: of every network in `answers_with`, what it made of the test images; "backbone" has z (n, d_z).
        """
        return client.model.classify(outputs["backbone"])

    def wants(self, client: Client, round: int) -> Tensor:
        """Of `client.neighbours`, those whose letters it asks for this round (sorted ids). By default nobody's.

        It changes nothing: it may be called more than once per round.
        """
        return client.neighbours[:0]

    def letter(self, client: Client, round: int) -> Letter | None:
        """What the client is willing to share with whoever asks; None: nothing, which is the default.

        It changes nothing. Called once per round for a client that has neighbours, whether or not anybody asks.
        """
        return None

    def schema(self, node: Client | Server, round: int) -> Mapping[str, Spec]:
        """What the letters look like that this node reads: each tensor's shape and dtype, by name.

        By default they look like the letter that the node itself writes. A transport that takes letters from outside
        drops whatever looks different.
        """
        letter = self.letter(node, round) if isinstance(node, Client) else None
        return specs(letter.tensors) if letter else {}

    def absorb(self, client: Client, round: int, inbox: Inbox) -> None:
        """Adjust to what was heard. Any letter may be missing; the inbox is empty when none arrived."""

    def absorb_all(self, round: int, pairs: Iterable[tuple[Client, Inbox]]) -> None:
        """`absorb` of many clients that live in one process, each with its own inbox: called once a round.

        A method may override it to compute for all of them at once, for speed alone. It stays node-local: what becomes
        of a client depends on that client and its inbox, as if `absorb` had been called for each in turn, and
        tests/test_absorb_all.py holds every method to that, to the bit.
        """
        for client, inbox in pairs:
            self.absorb(client, round, inbox)

    def weights(self, client: Client) -> Peers | None:
        """The client's row of the mixing matrix W, for the record; None where the method has none."""
        return None


class Centralised(Method[S]):
    """A method with a server in the middle: clients write to it, it aggregates, and it writes back.

    The server reaches every client, but on the empty network nobody. It sees letters alone, like any other node.
    """

    personal: ClassVar[bool] = False
    """Whether the server writes a letter of its own to each client, or the same to all."""
    opens: ClassVar[bool] = False
    """Whether the server writes to all clients once, in the first round, before they write to it."""

    def wants(self, client: Client, round: int) -> Tensor:
        """The server's letter; its neighbours are the server alone, or nobody."""
        return client.neighbours

    def schema(self, node: Client | Server, round: int) -> Mapping[str, Spec]:
        """What the letters look like that this node reads: a server the clients' letters, a client the reply."""
        raise TypeError(f"{type(self).__name__} does not say what its letters look like: give it a schema() method")

    @abstractmethod
    def aggregate(self, server: Server, round: int, inbox: Inbox) -> dict[str, Tensor]:
        """What the server makes of the clients' letters (one at least), as named tensors."""

    def reply(self, server: Server, client: int, round: int, aggregate: dict[str, Tensor]) -> Letter:
        """What the server writes back: the aggregate, unless a method has something personal to say.

        A personal reply goes to those alone whose letters arrived.
        """
        return server.letter(round, aggregate)

    def opening(self, server: Server) -> Letter:
        """What the server writes to all clients once, where the method `opens`."""
        raise TypeError(f"{type(self).__name__} opens but writes no letter: give it an opening() method")

    def answer(self, client: Client, inbox: Inbox) -> Letter:
        """What a client writes back to the server's opening letter."""
        raise TypeError(f"{type(self).__name__} opens with a letter but answers none: give it an answer() method")

    def opening_schema(self, node: Client | Server) -> Mapping[str, Spec]:
        """`schema` of the opening: a client reads the server's opening letter, the server reads the answers."""
        raise TypeError(f"{type(self).__name__} opens but does not say with what: give it an opening_schema() method")

    def settle(self, server: Server, inbox: Inbox) -> None:
        """What the server makes of the answers. Some may be missing."""
