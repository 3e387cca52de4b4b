"""A peer as a long-lived process: one client, its run folder, and its connection to the others.

Training, letters, checks, mixing, history and checkpoints are the simulation's (`mapl.runs`). A peer adds who it is,
a transport, a status that others can read, and the promise that its rounds never go back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from mapl.data.dataset import Dataset
from mapl.errors import MaplError
from mapl.methods._base import Centralised
from mapl.network.letter import MOST
from mapl.peer import files
from mapl.peer.enrolment import Enrolment
from mapl.peer.identity import Identity, IdentityError
from mapl.peer.names import split_address
from mapl.peer.outbox import Outbox
from mapl.peer.own import fitted, load_own
from mapl.peer.post import PeerPost, Stopped
from mapl.peer.settings import PeerSettings
from mapl.peer.status import Status, serving_metrics
from mapl.peer.wire import ZenohWire
from mapl.plugins import looking, take_as_named
from mapl.recipe import Recipe, method_class
from mapl.runs.chain import Round
from mapl.runs.exchange import LARGEST
from mapl.runs.folder import RECIPE, load
from mapl.runs.part import Part, build_part, with_digests
from mapl.runs.record import Record
from mapl.runs.run import Observer, resume_part, run_part
from mapl.trees import flat

SECRET = "noise.key"
"""The key of the noise on this peer's letters. It never leaves the peer."""

Say = Callable[[str], None]


def run_peer(
    settings: PeerSettings,
    *,
    stop: Callable[[], bool] = lambda: False,
    observers: Sequence[Observer] = (),
    say: Say = lambda sentence: None,
    trust: bool = False,
) -> Record:
    """Train one client of a network to the recipe's last round, beginning where an earlier process stopped."""
    with believing(settings, trust):
        return _run(settings, Identity.load(settings.identity), stop, observers, say)


@contextmanager
def believing(settings: PeerSettings, trust: bool) -> Iterator[None]:
    """Inside, code that the network's recipe names is imported only with `trust`: somebody else wrote it.

    What PEER.toml names is the peer's own choice.
    """
    take_as_named([settings.data.name, settings.data.backbone])
    with looking(trust):
        yield


def _run(
    settings: PeerSettings, identity: Identity, stop: Callable[[], bool], observers: Sequence[Observer], say: Say
) -> Record:
    shared = shared_recipe(identity)
    recipe = own_recipe(shared, settings)
    part = build_part(
        recipe,
        own_data(settings, identity),
        holds=[identity.number],
        secret=noise_secret(recipe, settings.folder),
        run=shared.fingerprint(),
    )
    folder = settings.run
    begun = (folder / RECIPE).exists()
    outbox = Outbox(settings.folder)
    if not begun:
        outbox.clear()
    post = PeerPost(
        outbox, identity.by_number, settings.wait, recipe.rounds, settings.net.silent_rounds, part.home, stop
    )
    part.transport = post

    def look_again(recipe: Recipe, line: Round, seconds: dict[str, float]) -> None:
        if identity.name in identity.revoked_names():
            raise IdentityError("revoked", f"{identity.name!r} was revoked: nobody listens to it any more")
        part.reachable = post.reachable(identity.number)

    limit = recipe.network.letter_limit or largest_letter(part)
    with ExitStack() as stack:
        wire = ZenohWire(identity, settings.net, outbox, post.on_letter, card(identity, shared, part), limit)
        post.wire = stack.enter_context(wire)
        if identity.is_authority:
            host, port = split_address(settings.net.listen)
            stack.enter_context(Enrolment(identity.folder, host, port, say))
        status = Status(settings, identity, part, post, wire, say)
        if settings.metrics is not None:
            stack.enter_context(serving_metrics(settings.metrics, status))
        part.reachable = post.reachable(identity.number)
        watching = [status.observe, look_again, *observers]
        try:
            if begun:
                record = resume_part(part, folder, observers=watching, stop=stop, durable=True)
            else:
                record = run_part(part, folder, observers=watching, stop=stop, durable=True)
        except Stopped:
            record = load(folder)
        if record.finished:
            wire.linger(settings.wait.linger, stop)
        status.end(record.finished)
    return record


def shared_recipe(identity: Identity) -> Recipe:
    """The network's recipe, as all members know it."""
    return with_digests(identity.recipe())


def check_real(recipe: Recipe) -> None:
    """Refuse a recipe that only a simulation can carry out."""
    if issubclass(method_class(recipe.method.name), Centralised):
        raise MaplError(f"method {recipe.method.name!r} needs a server, and a network of peers has none")
    network = recipe.network
    for name, simulated in {"participation": network.participation < 1, "joiners": network.joiners.clients > 0}.items():
        if simulated:
            raise MaplError(
                f"network.{name}: only a simulation has it; a real peer takes part whenever it runs, and joins when it "
                "comes"
            )


def own_recipe(shared: Recipe, settings: PeerSettings) -> Recipe:
    """The network's recipe with what is this peer's own: its architecture, its threads, a checkpoint each round."""
    check_real(shared)
    changes: dict[str, Any] = {"checkpoint": shared.checkpoint.model_copy(update={"every": 1})}
    if settings.data.backbone:
        changes["model"] = shared.model.model_copy(update={"backbones": (settings.data.backbone,)})
    if settings.threads:
        changes["train"] = shared.train.model_copy(update={"threads": settings.threads})
    return shared.model_copy(update=changes)


def own_data(settings: PeerSettings, identity: Identity) -> dict[int, Dataset] | None:
    """The peer's own images. None: its share of the data that the recipe names."""
    if not settings.data.name:
        return None
    agreed = identity.agreement()
    found = load_own(settings.data, agreed)
    return {identity.number: found if agreed is None else fitted(found, agreed)}


def noise_secret(recipe: Recipe, folder: Path) -> bytes | None:
    """The key of the noise on letters: drawn once, and kept for the whole run."""
    if recipe.network.noise.clip is None:
        return None
    path = folder / SECRET
    if not path.exists():
        files.write(files.made(folder) / SECRET, os.urandom(32), files.SECRET)
    return path.read_bytes()


def largest_letter(part: Part) -> int:
    """A bound for the letters of others, from those that this peer writes itself."""
    from mapl.network import nbytes

    own = [part.method.letter(client, round) for client in part.clients for round in (0, part.recipe.rounds - 1)]
    return min(LARGEST, MOST, 2 * max((nbytes(letter) for letter in own if letter is not None), default=0) + 2**20)


def card(identity: Identity, shared: Recipe, part: Part) -> dict[str, Any]:
    """What a peer says about itself to other members, so that a mismatch can be named."""
    client = part.clients[0]
    return {
        "name": identity.name,
        "run": client.run,
        "classes": client.shapes.classes,
        "image": list(client.train.shape),
        "settings": {key: value for key, value in flat(shared.settings()).items() if not key.startswith("data.")},
    }
