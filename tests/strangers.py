"""Strangers and bad members: zenoh sessions that try what a peer's own never does, and a live network to try it on."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zenoh
from safetensors.torch import load

from mapl import Letter, Recipe
from mapl.peer.connection import config
from mapl.peer.identity import Identity
from mapl.peer.local import HOST, LocalNetwork, free_ports, make_network
from mapl.peer.settings import NetSection, read_settings
from mapl.peer.wire import ZenohWire
from mapl.runs.files import write_aside
from mapl.trees import Tree

SECONDS = 40.0
"""How long a test waits for something that should happen. It is far longer than that takes."""
OPEN: list[Any] = []
"""The sessions that are open."""


def session(identity: Identity, dial: Sequence[str] = (), listen: str = "", **over: Any) -> Any:
    """A session that lets everything through on its own side. `over`: its scheme, and other settings for TLS."""
    scheme, tls = over.get("scheme", "quic"), over.get("tls", {})
    made = config(identity, NetSection(), frozenset(), 2**31)

    def put(key: str, value: Any) -> None:
        made.insert_json5(key, json.dumps(value))

    put("listen/endpoints", [f"quic/{listen}"] if listen else [])
    put("connect/endpoints", [f"{scheme}/{address}" for address in dial])
    put("scouting/gossip/enabled", False)
    put("access_control/enabled", False)
    for key, value in tls.items():
        put(f"transport/link/tls/{key}", value)
    zenoh.init_log_from_env_or("off")
    OPEN.append(zenoh.open(made))
    return OPEN[-1]


def close_all() -> None:
    """Close every session, all at once. One that is left open can keep a process from ending."""
    closing = [threading.Thread(target=one.close, daemon=True) for one in OPEN]
    OPEN.clear()
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(SECONDS)


def ask(asking: Any, network: str, name: str, what: str = "newest", **more: Any) -> list[bytes]:
    """What comes back for a request to a member."""
    replies = asking.get(f"mapl/{network}/{name}/letters?{what}", timeout=more.pop("timeout", 1.0), **more)
    return [reply.ok.payload.to_bytes() for reply in replies if reply.ok is not None]


def read(data: bytes) -> Letter:
    """A letter from its bytes, without any check."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    fields = dict(pair.split("=") for pair in header["__metadata__"]["letter"].split(" "))
    numbers = [int(fields[name]) for name in ("sender", "round", "samples")]
    return Letter(fields["run"], *numbers, fields["architecture"], load(data))


class Puppet:
    """A member that a test plays, with a good certificate. It answers with what `answer` makes of the round."""

    def __init__(self, identity: Identity, dial: Sequence[str], card: Mapping[str, Any] | bytes = b"") -> None:
        self.identity = identity
        self.prefix = f"mapl/{identity.network_id}"
        self.me = f"{self.prefix}/{identity.name}"
        self.session = session(identity, dial)
        self.answer: Callable[[int], bytes | None] = lambda round: None
        self.asked: Counter[tuple[str, str]] = Counter()
        """How many questions came, by the key that was declared and the one that was asked for."""
        self._kept: list[Any] = [self.session.liveliness().declare_token(f"{self.me}/alive")]
        self.declare(f"{self.me}/letters")
        if card:
            data = card if isinstance(card, bytes) else json.dumps(card).encode()
            self._kept.append(self.session.declare_queryable(f"{self.me}/card", functools.partial(_reply, data)))

    def declare(self, key: str) -> None:
        """Offer to answer questions for a key, whoever it belongs to."""

        def on_query(query: Any) -> None:
            self.asked[key, str(query.key_expr)] += 1
            parameters = dict(query.parameters)
            data = self.answer(int(parameters.get("round", 0)))
            if data is not None:
                query.reply(str(query.key_expr), data)
            query.drop()

        self._kept.append(self.session.declare_queryable(key, on_query))

    def be_alive_as(self, name: str) -> None:
        self._kept.append(self.session.liveliness().declare_token(f"{self.prefix}/{name}/alive"))

    def ask(self, name: str, what: str = "newest", **more: Any) -> list[bytes]:
        return ask(self.session, self.identity.network_id, name, what, **more)

    def bring(self, news: bytes, name: str = "") -> None:
        """Tell news, under whatever name."""
        key = f"{self.prefix}/{name or self.identity.name}/news"
        self.session.put(key, news, congestion_control=zenoh.CongestionControl.BLOCK)


def _reply(data: bytes, query: Any) -> None:
    query.reply(str(query.key_expr), data)
    query.drop()


# The live network


def noting(folder: Path, number: int) -> None:
    """Called first in a peer's process: it writes down every session that it is ever connected with."""
    seen: set[str] = set()
    maintain = ZenohWire.maintain

    def and_note(wire: ZenohWire, silent: bool = False) -> None:
        maintain(wire, silent)
        now = {str(zid) for zid in wire._session.info.peers_zid()}
        if not now <= seen:
            seen.update(now)
            write_aside(folder / f"{number}.seen", json.dumps(sorted(seen)).encode())

    ZenohWire.maintain = and_note  # type: ignore[method-assign]


@dataclass
class Live:
    """Peers that train while a test is unkind to them."""

    folder: Path
    files: list[Path]
    network: LocalNetwork
    numbers: tuple[int, ...]
    memory: dict[int, int] = field(default_factory=dict)
    """MiB of each peer, once all of them train."""

    @property
    def addresses(self) -> list[str]:
        return [read_settings(self.files[number]).net.listen for number in self.numbers]

    @property
    def authority(self) -> Identity:
        return self.identity(0)

    def identity(self, number: int) -> Identity:
        return Identity.load(self.files[number].parent / "identity")

    def status(self, number: int) -> dict[str, Any]:
        path = read_settings(self.files[number]).folder / "status.json"
        tree: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
        return tree

    def statuses(self) -> list[dict[str, Any]]:
        return [self.status(number) for number in self.numbers]

    def rounds(self) -> list[int]:
        return [status.get("round", 0) for status in self.statuses()]

    def history(self, number: int) -> list[dict[str, Any]]:
        """The rounds of a peer, without the last one, which may be half written."""
        lines = (read_settings(self.files[number]).run / "history.jsonl").read_bytes().split(b"\n")[:-1]
        return [line for line in map(json.loads, lines) if "round" in line]

    def log(self, number: int) -> str:
        return (self.files[number].parent / "peer.log").read_text()

    def seen(self) -> list[set[str]]:
        """Every session that each peer was ever connected with, besides the other peers' at the start."""
        paths = [self.folder / f"{number}.seen" for number in self.numbers]
        return [set(json.loads(path.read_bytes())) if path.exists() else set() for path in paths]

    def resident(self, number: int) -> int:
        """The memory of a peer's process in MiB."""
        lines = Path(f"/proc/{self.status(number)['pid']}/status").read_text().splitlines()
        return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))

    def until(self, so: Callable[[], bool], seconds: float = SECONDS) -> None:
        """Wait until something is so."""
        end = time.monotonic() + seconds
        while not so():
            assert time.monotonic() < end, f"nothing came of it; {self.rounds()}, {self.statuses()}"
            time.sleep(0.05)

    def play(self, rounds: int = 3) -> list[int]:
        """Wait until all have played so many rounds. Returns the rounds in which that began."""
        before = self.rounds()
        self.until(lambda: all(now >= then + rounds for now, then in zip(self.rounds(), before, strict=True)))
        return before

    def assert_unharmed(self) -> None:
        """All train, with each other, as they did at the start, and nobody's log has a traceback."""
        self.play()
        names = {f"peer-{number}" for number in self.numbers}
        for number in self.numbers:
            assert self.network.running(number)
            assert names - {f"peer-{number}"} <= set(self.status(number)["alive"])
            assert self.resident(number) < self.memory[number] + 100
            assert "Traceback" not in self.log(number), self.log(number)
            assert "Error" not in self.log(number), self.log(number)


@contextmanager
def live_network(folder: Path, recipe: Recipe, running: int, wait: Tree, dial: Sequence[str] = ()) -> Iterator[Live]:
    """A network of which only the first peers run. The first of all also dials some other addresses."""
    files = make_network(folder, recipe, {"wait": wait})
    first = files[0].read_text()
    files[0].write_text(first.replace("connect = []", f"connect = {json.dumps(list(dial))}"))
    with LocalNetwork(files, functools.partial(noting, folder)) as network:
        live = Live(folder, files, network, tuple(range(running)))
        for number in live.numbers:
            network.start(number)
        live.until(lambda: all(len(status.get("alive", [])) >= running - 1 for status in live.statuses()))
        live.play(5)
        live.memory = {number: live.resident(number) for number in live.numbers}
        yield live


def addresses(count: int) -> list[str]:
    """Addresses on this machine that are free."""
    return [f"{HOST}:{port}" for port in free_ports(count)]


def refused(lines: Sequence[Mapping[str, Any]], sender: int) -> dict[int, dict[str, int]]:
    """By round: why letters of a sender were left out."""
    counts = {line["round"]: (line.get("refused") or {}).get(str(sender)) for line in lines}
    return {round: reasons for round, reasons in counts.items() if reasons}
