"""What a peer says about itself: a status file that is written after every round, and metrics for Prometheus."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from mapl.errors import MaplError
from mapl.names import printable
from mapl.network.refused import added
from mapl.peer.files import write
from mapl.peer.identity import Identity
from mapl.peer.post import PeerPost
from mapl.peer.seen import STATUS
from mapl.peer.settings import PeerSettings
from mapl.peer.wire import ZenohWire
from mapl.recipe import Recipe
from mapl.runs.chain import Round
from mapl.runs.part import Part


class Status:
    """The state of a running peer, as others see it."""

    def __init__(
        self,
        settings: PeerSettings,
        identity: Identity,
        part: Part,
        post: PeerPost,
        wire: ZenohWire,
        say: Callable[[str], None],
    ) -> None:
        self.path = settings.folder / STATUS
        self.identity = identity
        self.part = part
        self.post = post
        self.wire = wire
        self.say = say
        self.refused: dict[int, dict[str, int]] = {}
        self.tree: dict[str, Any] = {}
        self._compared: set[tuple[str, str]] = set()
        """The members and runs of the cards that were compared with ours."""
        self._before, self.accuracy = _seen_before(self.path)
        """The rounds that an earlier process had finished, which the part does not know before it is restored, and the
        accuracy at its last test, which is not tested again."""
        self._write("waiting")

    def observe(self, recipe: Recipe, line: Round, seconds: dict[str, float]) -> None:
        """A round is over and saved."""
        if line.accuracy is not None:
            self.accuracy = line.accuracy[0]
        self.refused = added(self.refused, line.refused)
        self._write("training", seconds)
        self._compare_cards()

    def end(self, finished: bool) -> None:
        self._write("finished" if finished else "stopped")

    def _write(self, state: str, seconds: Mapping[str, float] | None = None) -> None:
        part, last, client = self.part, self.post.last, self.part.clients[0]
        names = self.identity.by_number()
        row = part.method.weights(client)
        weights = {} if row is None else dict(zip(row.ids.tolist(), row.weights.tolist(), strict=True))
        self.tree = {
            "version": 1,
            "state": state,
            "pid": os.getpid(),
            "updated": time.time(),
            "network": self.identity.network,
            "name": self.identity.name,
            "number": self.identity.number,
            "method": part.recipe.method.name,
            "backbone": client.backbone,
            "images": client.samples,
            "round": max(part.round, self._before),
            "rounds": part.recipe.rounds,
            "accuracy": self.accuracy,
            "seconds": dict(seconds or {}),
            "members": len(names),
            "numbers": {name: number for number, name in names.items()},
            "alive": sorted(self.wire.alive()),
            "neighbours": {names.get(i, str(i)): w for i, w in sorted(weights.items())},
            "last_exchange": {
                "asked": last.asked,
                "read": last.read,
                "stale": last.stale,
                "missing": last.missing,
                "waited": last.waited,
            },
            "letters_in": part.ledger.messages,
            "bytes_in": part.ledger.bytes,
            "letters_out": self.wire.letters_out,
            "bytes_out": self.wire.bytes_out,
            "refused": {names.get(i, str(i)): dict(reasons) for i, reasons in self.refused.items()},
            "reopened": self.wire.reopened,
        }
        # The outbox has made the folder.
        write(self.path, json.dumps(self.tree).encode(), flush=False)

    def _compare_cards(self) -> None:
        """Say once per member and recipe which settings are not those of ours."""
        for name, theirs in list(self.wire.herald.cards.items()):
            which = name, repr(theirs.get("run"))[:100]
            if which not in self._compared:
                self._compared.add(which)
                for sentence in differences(self.wire.herald.card, theirs):
                    self.say(f"{name} does not fit this network: {sentence}")


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], most: int = 3) -> list[str]:
    """Which fields of two cards differ, in words. The other card comes from the network."""
    found = [
        f"its {what} {_shown(theirs.get(what))}, ours {_shown(ours[what])}"
        for what in ("classes", "image")
        if theirs.get(what) != ours[what]
    ]
    if theirs.get("run") != ours["run"]:
        others = theirs.get("settings")
        others = others if isinstance(others, dict) else {}
        mine = ours["settings"]
        keys = [key for key in sorted(mine.keys() | others.keys(), key=str) if mine.get(key) != others.get(key)]
        found += [f"{_shown(key)} is {_shown(others.get(key))} there and {_shown(mine.get(key))} here" for key in keys]
        found = found or [f"its run is {_shown(theirs.get('run'))}, ours {ours['run']}"]
    more = [f"and {len(found) - most} more"] if len(found) > most else []
    return [*found[:most], *more]


def _shown(value: Any) -> str:
    try:
        text = printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    except RecursionError:  # it could be read, in a thread whose stack was shorter
        text = "too deeply nested"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _seen_before(path: Path) -> tuple[int, float | None]:
    """The rounds and the accuracy in the status that an earlier process wrote; 0 and None if there was none."""
    try:
        tree = json.loads(path.read_bytes())
        rounds, accuracy = tree["round"], tree["accuracy"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0, None
    return rounds if isinstance(rounds, int) else 0, accuracy if isinstance(accuracy, float) else None


# Metrics


def metrics(tree: Mapping[str, Any]) -> str:
    """The status as Prometheus reads it."""
    numbers = {
        "round": ("gauge", "Rounds that this peer has finished.", tree["round"]),
        "rounds": ("gauge", "Rounds of the recipe.", tree["rounds"]),
        "accuracy": ("gauge", "Accuracy on the peer's own test images.", tree["accuracy"]),
        "members_alive": ("gauge", "Members that are connected.", len(tree["alive"])),
        "letters_in_total": ("counter", "Letters read.", tree["letters_in"]),
        "bytes_in_total": ("counter", "Bytes of the letters read.", tree["bytes_in"]),
        "letters_out_total": ("counter", "Letters sent.", tree["letters_out"]),
        "bytes_out_total": ("counter", "Bytes of the letters sent.", tree["bytes_out"]),
        "missing": ("gauge", "Letters missing in the last round.", len(tree["last_exchange"]["missing"])),
        "waited_seconds": ("gauge", "Seconds that the last round waited.", tree["last_exchange"]["waited"]),
        "updated_seconds": ("gauge", "Time of the last round.", tree["updated"]),
    }
    lines = []
    for name, (kind, words, value) in numbers.items():
        if value is not None:
            lines += [f"# HELP mapl_{name} {words}", f"# TYPE mapl_{name} {kind}", f"mapl_{name} {value}"]
    lines += ["# HELP mapl_weight Weight of a neighbour.", "# TYPE mapl_weight gauge"]
    lines += [f'mapl_weight{{peer="{name}"}} {weight}' for name, weight in tree["neighbours"].items()]
    lines += ["# HELP mapl_refused_total Letters left out.", "# TYPE mapl_refused_total counter"]
    lines += [
        f'mapl_refused_total{{peer="{name}",reason="{reason}"}} {number}'
        for name, reasons in tree["refused"].items()
        for reason, number in reasons.items()
    ]
    return "\n".join(lines) + "\n"


@contextmanager
def serving_metrics(port: int, status: Status) -> Iterator[None]:
    """Inside, metrics are served on this port of the loopback interface, and on no other."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            body = metrics(status.tree).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *_: Any) -> None:
            pass

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise MaplError(f"metrics: port {port} cannot be used: {error.strerror}") from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
