"""The connection of one peer to the others: zenoh in peer mode over QUIC, with mutual TLS and no router.

Letters are asked for, not sent around: a reader queries `mapl/NETWORK/SENDER/letters`, and the sender answers when the
letter is written. So an edge that nobody reads costs no traffic, and a reader that was restarted asks again.

Every peer enforces who may write what (`access`): a member is heard only under its own name. Nobody else is heard at
all, except for news: certificates and revocations, which prove themselves by the authority's signature.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from mapl.errors import MaplError
from mapl.peer.identity import Identity, IdentityError
from mapl.peer.outbox import Outbox
from mapl.peer.settings import NetSection

Answer = Callable[[str, bytes], None]
"""Called with a sender's name and the letter that it answered with. It comes from another thread."""

NEWS_EVERY = 2.0
"""Seconds between news while somebody is connected who is not known yet."""
CLOSING = 2.0
"""How long a connection that is given up is waited for."""
OPENING = 60.0
"""How long a port may still be held by the connection before. A peer that trains is not given up lightly."""
SETTLING = 10.0
"""Seconds after which a connection may count as silent. It takes some until all members are connected again."""
DIALLING = 3000
"""Milliseconds after which dialling somebody is given up, until the next try. A connection that dials somebody who is
not there takes so long to close. By default zenoh takes ten seconds."""
GOODBYE = 0.5
"""Seconds in which those who are done hear it of each other."""
MOST_NEWS = 256 * 1024
MOST_REFUSED = 16
"""After so many certificates that are refused, the rest of the news is not read: to check one takes time."""
MOST_PENDING = 8
"""How many unanswered requests a sender keeps per member."""
LONGEST_QUESTION = 100
"""The longest request, in characters. None of ours is longer."""


class Wire(Protocol):
    """What the post needs of a network."""

    def ask(self, sender: str, round: int | None, patience: float) -> None:
        """Ask a member for its letter of a round, None: for its newest. The answer comes to `on_letter`, or never."""
        ...

    def asked(self, sender: str) -> bool:
        """Whether a request to that member is still open."""
        ...

    def alive(self) -> frozenset[str]:
        """The members that are connected."""
        ...

    def written(self) -> None:
        """The outbox has a new letter."""
        ...

    def maintain(self, silent: bool = False) -> None:
        """Open the connection anew if the members changed, or if it fell silent."""
        ...


class ZenohWire:
    """`Wire` over QUIC."""

    def __init__(
        self,
        identity: Identity,
        net: NetSection,
        outbox: Outbox,
        on_letter: Answer,
        card: Mapping[str, Any],
        limit: int,
    ) -> None:
        self.identity = identity
        self.net = net
        self.outbox = outbox
        self.on_letter = on_letter
        self.card = dict(card)
        self.limit = limit
        self.prefix = f"mapl/{identity.network_id}"
        self.me = f"{self.prefix}/{identity.name}"
        self.cards: dict[str, dict[str, Any]] = {}
        """What members say about their recipe."""
        self.reopened = 0
        self.letters_out = 0
        self.bytes_out = 0
        self._served = time.monotonic()
        self._done: set[str] = set()
        self._lock = threading.RLock()
        self._alive: set[str] = set()
        self._open: dict[str, int] = {}
        self._pending: list[tuple[float, int | None, Any]] = []
        self._session: Any = None
        self._opened_at = 0.0
        self._members: frozenset[str] = frozenset()
        self._stopping = threading.Event()
        self._herald = threading.Thread(target=self._tell_news, name="news", daemon=True)

    def __enter__(self) -> ZenohWire:
        self._connect()
        self._herald.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        if self._herald.is_alive():
            self._herald.join(5)
        self._disconnect()

    # Reading

    def ask(self, sender: str, round: int | None, patience: float) -> None:
        import zenoh

        session = self._session
        with self._lock:
            self._open[sender] = self._open.get(sender, 0) + 1

        def on_reply(reply: Any) -> None:
            if reply.ok is not None:
                self.on_letter(sender, reply.ok.payload.to_bytes())

        def on_end() -> None:
            with self._lock:
                self._open[sender] = max(0, self._open.get(sender, 0) - 1)

        which = "newest" if round is None else f"round={round}"
        try:
            session.get(
                f"{self.prefix}/{sender}/letters?{which};wait={patience:.3f}",
                # Called by zenoh's own thread: both are short, and a thread for every letter takes longer than they do.
                zenoh.handlers.Callback(on_reply, on_end, indirect=False),
                timeout=max(0.05, patience),
                consolidation=zenoh.ConsolidationMode.NONE,
            )
        except zenoh.ZError:  # the session is being opened anew
            on_end()

    def asked(self, sender: str) -> bool:
        with self._lock:
            return self._open.get(sender, 0) > 0

    def alive(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._alive)

    # Writing

    def written(self) -> None:
        """Answer the requests that waited for a letter."""
        now = time.monotonic()
        with self._lock:
            waiting, self._pending = self._pending, []
        for until, round, query in waiting:
            if until < now:
                query.drop()
            elif not self._reply(query, round):
                with self._lock:
                    self._pending.append((until, round, query))

    def _on_query(self, query: Any) -> None:
        """A member asks for a letter. Who is not a member does not get here."""
        # A request may be kept until the letter is written, with all that is in it.
        if len(str(query.parameters)) > LONGEST_QUESTION or query.payload is not None or query.attachment is not None:
            query.drop()
            return
        parameters = dict(query.parameters)
        try:
            round = int(parameters["round"]) if "round" in parameters else None
            patience = min(float(parameters.get("wait", 0)), 3600.0)
        except ValueError:
            query.drop()
            return
        if self._reply(query, round):
            return
        with self._lock:
            self._pending.append((time.monotonic() + patience, round, query))
            most = MOST_PENDING * max(1, len(self._members))
            dropped, self._pending = self._pending[:-most], self._pending[-most:]
        for _, _, old in dropped:
            old.drop()

    def _reply(self, query: Any, round: int | None) -> bool:
        import zenoh

        letter = self.outbox.read(round)
        if letter is None:
            return False
        try:
            query.reply(f"{self.me}/letters", letter, congestion_control=zenoh.CongestionControl.BLOCK)
            query.drop()
        except zenoh.ZError:  # the reader is gone
            return True
        with self._lock:
            self._served = time.monotonic()
            self.letters_out += bool(letter)
            self.bytes_out += len(letter)
        return True

    # The end

    def linger(self, seconds: float, stop: Callable[[], bool]) -> None:
        """Go on answering until everybody who is connected is done, or nobody has asked for so many seconds."""
        with self._lock:
            self._served = time.monotonic()
        token = self._session.liveliness().declare_token(f"{self.me}/done")
        while not stop():
            with self._lock:
                idle, waiting = time.monotonic() - self._served, self._alive - self._done
            if not waiting or idle > seconds:
                break
            time.sleep(0.05)
        time.sleep(GOODBYE)
        token.undeclare()

    # Members come and go

    def maintain(self, silent: bool = False) -> None:
        silent = silent and time.monotonic() > self._opened_at + SETTLING
        if silent or frozenset(self.identity.members()) != self._members:
            self.reopened += 1
            self._disconnect()
            self._connect()

    def _connect(self) -> None:
        import zenoh

        zenoh.init_log_from_env_or("off")  # RUST_LOG=info shows what it does
        self._members = frozenset(self.identity.members())
        self._session = session = self._opened()
        self._opened_at = time.monotonic()
        self._kept = [
            session.declare_queryable(f"{self.me}/letters", self._on_query),
            session.declare_queryable(f"{self.me}/card", self._on_card_query),
            session.declare_subscriber(f"{self.prefix}/*/news", self._on_news),
            session.liveliness().declare_subscriber(f"{self.prefix}/*/alive", self._on_token, history=True),
            session.liveliness().declare_subscriber(f"{self.prefix}/*/done", self._on_token, history=True),
            session.liveliness().declare_token(f"{self.me}/alive"),
        ]

    def _opened(self) -> Any:
        """A new session. Its port may be held for a while by the one before."""
        import zenoh

        until = time.monotonic() + (OPENING if self.reopened else 0.0)
        while True:
            try:
                return zenoh.open(config(self.identity, self.net, self._members, self.limit))
            except zenoh.ZError as error:
                if time.monotonic() > until:
                    where = self.net.listen
                    raise MaplError(f"net.listen: {where} cannot be used: {_first_line(error)}") from error
            time.sleep(0.2)

    def _disconnect(self) -> None:
        session, self._session = self._session, None
        with self._lock:
            pending, self._pending = self._pending, []
            self._alive.clear()
            self._open.clear()
        for _, _, query in pending:
            query.drop()
        if session is not None:
            closing = threading.Thread(target=_close, args=(session,), name="close", daemon=True)
            closing.start()
            closing.join(CLOSING)

    def _on_token(self, sample: Any) -> None:
        """A member shows that it is alive or done, or no longer does."""
        import zenoh

        name, what = str(sample.key_expr).split("/")[-2:]
        if name == self.identity.name:
            return
        with self._lock:
            those = self._alive if what == "alive" else self._done
            if sample.kind == zenoh.SampleKind.PUT:
                those.add(name)
            else:
                those.discard(name)

    def _on_card_query(self, query: Any) -> None:
        query.reply(f"{self.me}/card", json.dumps(self.card))
        query.drop()

    def _tell_news(self) -> None:
        """Spread certificates and revocations until all who are connected know each other, and ask for their cards."""
        import zenoh

        told: tuple[Any, ...] = ()
        while not self._stopping.wait(0.25 if not told else NEWS_EVERY):
            session = self._session
            if session is None:
                continue
            try:
                connected = frozenset(str(zid) for zid in session.info.peers_zid())
                alive, revocations = self.alive(), self.identity.revocations()
                now = connected, alive, self._members, revocations
                if connected and (now != told or len(connected) > len(alive)):
                    session.put(f"{self.me}/news", self._news(revocations))
                    told = now
                for name in alive - self.cards.keys():
                    self._ask_card(session, name)
            except zenoh.ZError:  # the session was closed meanwhile
                continue

    def _news(self, revocations: bytes) -> bytes:
        certificates = [member.certificate.decode() for member in self.identity.members().values()]
        return json.dumps({"certificates": certificates, "revocations": revocations.decode()}).encode()

    def _on_news(self, sample: Any) -> None:
        """Anybody with a certificate of the network may bring news. They are believed if the authority signed them."""
        data = sample.payload.to_bytes()
        if len(data) > MOST_NEWS:
            return
        try:
            news = json.loads(data)
            certificates, revocations = news["certificates"], news["revocations"]
            if revocations:
                self.identity.accept_revocations(revocations.encode())
            known = {member.certificate.decode() for member in self.identity.members().values()}
            refused = 0
            for pem in certificates:
                if pem not in known and refused < MOST_REFUSED:
                    refused += not self._admit(pem.encode())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, IdentityError):
            return  # no news of ours

    def _admit(self, pem: bytes) -> bool:
        """Whether the certificate is a member's. Those after one that was revoked, or has just ended, are read, too."""
        try:
            self.identity.admit(pem)
        except IdentityError:
            return False
        return True

    def _ask_card(self, session: Any, name: str) -> None:
        def on_reply(reply: Any) -> None:
            if reply.ok is None:
                return
            data = reply.ok.payload.to_bytes()
            try:
                card = json.loads(data) if len(data) <= 65536 else None
            except (ValueError, RecursionError):
                return
            if isinstance(card, dict):
                self.cards[name] = card

        session.get(f"{self.prefix}/{name}/card", on_reply, timeout=2.0)


def config(identity: Identity, net: NetSection, members: frozenset[str], limit: int) -> Any:
    """Zenoh's configuration: QUIC with mutual TLS, found as `net` says, and who may write what."""
    import zenoh

    result = zenoh.Config()

    def put(key: str, value: Any) -> None:
        result.insert_json5(key, json.dumps(value))

    put("mode", "peer")
    put("listen/endpoints", [f"quic/{net.listen}"])
    put("connect/endpoints", [f"quic/{address}" for address in net.connect])
    put("connect/retry", {"period_init_ms": 250, "period_max_ms": 2000, "period_increase_factor": 2})
    put("scouting/multicast/enabled", net.discover == "lan")
    put("scouting/gossip/enabled", net.discover != "addresses")
    put("transport/shared_memory/enabled", False)  # on by default: 193 MB per process
    put("transport/unicast/open_timeout", DIALLING)
    put("transport/link/tx/lease", int(1000 * net.lease))
    put("transport/link/rx/max_message_size", limit + 65536)
    # By default a full queue closes the connection after 5 s; here it waits half a second.
    put("transport/link/tx/queue/congestion_control/block/wait_before_close", 500_000)
    put("transport/link/tls", _tls(identity))
    put("access_control", access(identity, members))
    return result


def _tls(identity: Identity) -> dict[str, Any]:
    """Both ends show a certificate. Without mutual TLS or the check of names, strangers would be let in."""

    def text(path: Path) -> str:
        return str(path.resolve())

    return {
        "root_ca_certificate": text(identity.ca_path),
        "enable_mtls": True,
        "verify_name_on_connect": True,
        "close_link_on_expiration": True,
        "listen_certificate": text(identity.certificate_path),
        "listen_private_key": text(identity.key_path),
        "connect_certificate": text(identity.certificate_path),
        "connect_private_key": text(identity.key_path),
    }


def access(identity: Identity, members: frozenset[str]) -> dict[str, Any]:
    """Who may do what here: members write under their own names, anybody of the network brings news."""
    prefix = f"mapl/{identity.network_id}"
    others = sorted(members - {identity.name})
    questions = ["declare_subscriber", "query", "liveliness_query", "declare_liveliness_subscriber"]
    own = ["put", "reply", "declare_queryable", "liveliness_token"]

    def rule(name: str, flow: str, keys: str, messages: list[str]) -> dict[str, Any]:
        return {"id": name, "permission": "allow", "flows": [flow], "key_exprs": [keys], "messages": messages}

    rules = [rule(f"of-{name}", "ingress", f"{prefix}/{name}/**", own) for name in others]
    rules.append(rule("questions", "ingress", f"{prefix}/**", questions))
    rules.append(rule("out", "egress", f"{prefix}/**", ["delete", *own, *questions]))
    rules.append(rule("news-in", "ingress", f"{prefix}/*/news", ["put", "declare_subscriber"]))
    rules.append(rule("news-out", "egress", f"{prefix}/*/news", ["put", "declare_subscriber"]))
    subjects: list[dict[str, Any]] = [{"id": f"is-{name}", "cert_common_names": [name]} for name in others]
    policies: list[dict[str, Any]] = [{"rules": [f"of-{name}"], "subjects": [f"is-{name}"]} for name in others]
    if others:
        subjects.append({"id": "members", "cert_common_names": others})
        policies.append({"rules": ["questions", "out"], "subjects": ["members"]})
    else:
        rules = [one for one in rules if one["id"].startswith("news")]
    subjects.append({"id": "anybody"})
    policies.append({"rules": ["news-in", "news-out"], "subjects": ["anybody"]})
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": policies,
    }


def _close(session: Any) -> None:
    import zenoh

    with suppress(zenoh.ZError):
        session.close()


def _first_line(error: Exception) -> str:
    """What zenoh says, without the place in its source."""
    return str(error).splitlines()[0].split(" at /")[0][:200] if str(error) else type(error).__name__
