"""The connection of one peer to the others: zenoh in peer mode over QUIC, with mutual TLS and no router.

Letters are asked for, not sent around: a reader queries `mapl/NETWORK/SENDER/letters`, and the sender answers when the
letter is written. So an edge that nobody reads costs no traffic, and a reader that was restarted asks again.

A member is heard only under its own name (`connection.access`). Nobody else is heard at all, except for news.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from mapl.errors import MaplError
from mapl.peer.connection import config
from mapl.peer.identity import Identity
from mapl.peer.news import Herald
from mapl.peer.outbox import Outbox
from mapl.peer.settings import NetSection

Answer = Callable[[str, bytes], None]
"""Called with a sender's name and the letter that it answered with. It comes from another thread."""

CLOSING = 2.0
"""How long a connection that is given up is waited for."""
LEAVING = 20.0
"""How long a process that ends waits for its connections to be closed. Python ends badly while a thread closes one."""
OPENING = 60.0
"""How long a port may still be held by the connection before. A peer that trains is not given up lightly."""
SETTLING = 10.0
"""Seconds after which a connection may count as silent. It takes some until all members are connected again."""
RETURNING = 5.0
"""Seconds in which members that dial a peer again are connected."""
GOODBYE = 0.5
"""Seconds in which those who are done hear it of each other."""
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


class _Request(NamedTuple):
    """A member waits for a letter that is not written yet."""

    until: float
    round: int | None
    query: Any


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
        self.limit = limit
        self.prefix = f"mapl/{identity.network_id}"
        self.me = f"{self.prefix}/{identity.name}"
        self.reopened = 0
        self.letters_out = 0
        self.bytes_out = 0
        self._served = time.monotonic()
        self._done: set[str] = set()
        self._lock = threading.RLock()
        self._alive: set[str] = set()
        self._lost: dict[str, float] = {}
        """When the connection to a member that is away was lost."""
        self._open: dict[str, int] = {}
        self._pending: list[_Request] = []
        self._session: Any = None
        self._opened_at = 0.0
        self._members: frozenset[str] = frozenset()
        self._kept: list[Any] = []
        """What was declared in the session. It ends with its last reference."""
        self._closing: list[threading.Thread] = []
        """Threads that close connections that were given up."""
        self._finished = False
        """Whether this peer is done, which others are shown."""
        self.herald = Herald(identity, card, lambda: self._session, self.alive)

    def __enter__(self) -> ZenohWire:
        self._connect()
        self.herald.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.herald.stop()
        self._disconnect()
        for thread in self._closing:
            thread.join(LEAVING)

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
            waiting = [(request, self.outbox.read(request.round)) for request in self._pending]
            self._pending = [request for request, letter in waiting if letter is None and request.until >= now]
        for request, letter in waiting:
            if letter is not None:
                self._reply(request.query, letter)
            elif request.until < now:
                request.query.drop()

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
        dropped: list[_Request] = []
        with self._lock:  # `written` takes it, too: a letter that is written now is either seen here, or answers below
            letter = self.outbox.read(round)
            if letter is None:
                self._pending.append(_Request(time.monotonic() + patience, round, query))
                most = MOST_PENDING * max(1, len(self._members))
                dropped, self._pending = self._pending[:-most], self._pending[-most:]
        if letter is not None:
            self._reply(query, letter)
        for old in dropped:
            old.query.drop()

    def _reply(self, query: Any, letter: bytes) -> None:
        import zenoh

        try:
            query.reply(f"{self.me}/letters", letter, congestion_control=zenoh.CongestionControl.BLOCK)
            query.drop()
        except zenoh.ZError:  # the reader is gone
            return
        with self._lock:
            self._served = time.monotonic()
            self.letters_out += bool(letter)
            self.bytes_out += len(letter)

    # The end

    def linger(self, seconds: float, stop: Callable[[], bool]) -> None:
        """Go on answering until everybody else is done, or nobody has asked for so many seconds.

        Who was lost less than `seconds` ago may come back and ask, so it is waited for, too. Meanwhile members come and
        go as ever: a new one is answered, a revoked one is not.
        """
        with self._lock:
            self._served = time.monotonic()
        self._finished = True
        self._show_done()
        while not stop() and not self._may_leave(seconds):
            self.maintain()
            time.sleep(0.1)
        time.sleep(GOODBYE)

    def _may_leave(self, seconds: float) -> bool:
        """Whether nobody needs this peer any more, or has asked it anything for so many seconds."""
        now = time.monotonic()
        with self._lock:
            coming = {name for name, at in self._lost.items() if now - at < seconds}
            waiting = (self._alive | (coming & self._members)) - self._done
            settled = len(self._members) == 1 or now - self._opened_at > RETURNING
            return now - self._served > seconds or (settled and not waiting)

    def _show_done(self) -> None:
        """Kept as long as the session."""
        self._kept.append(self._session.liveliness().declare_token(f"{self.me}/done"))

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

        def on_token(sample: Any) -> None:
            if session is self._session:  # one that is given up may notice late who is gone
                self._on_token(sample)

        self._kept = [
            session.declare_queryable(f"{self.me}/letters", self._on_query),
            *self.herald.declare(session),
            session.liveliness().declare_subscriber(f"{self.prefix}/*/alive", on_token, history=True),
            session.liveliness().declare_subscriber(f"{self.prefix}/*/done", on_token, history=True),
            session.liveliness().declare_token(f"{self.me}/alive"),
        ]
        if self._finished:
            self._show_done()

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
            self._lost |= dict.fromkeys(self._alive, time.monotonic())
            self._alive.clear()
            self._open.clear()
        for request in pending:
            request.query.drop()
        if session is not None:
            closing = threading.Thread(target=_close, args=(session,), name="close", daemon=True)
            closing.start()
            closing.join(CLOSING)
            self._closing = [thread for thread in [*self._closing, closing] if thread.is_alive()]

    def _on_token(self, sample: Any) -> None:
        """A member shows that it is alive or done, or is lost. Who is done stays so after it has left."""
        import zenoh

        name, what = str(sample.key_expr).split("/")[-2:]
        if name == self.identity.name:
            return
        shown = sample.kind == zenoh.SampleKind.PUT
        with self._lock:
            if what == "done":
                self._done.update([name] if shown else ())
            elif shown:
                self._alive.add(name)
                self._lost.pop(name, None)
                self.herald.forget(name)
            elif name in self._alive:
                self._alive.discard(name)
                self._lost[name] = time.monotonic()


def _close(session: Any) -> None:
    import zenoh

    with suppress(zenoh.ZError):
        session.close()


def _first_line(error: Exception) -> str:
    """What zenoh says, without the place in its source."""
    return str(error).splitlines()[0].split(" at /")[0][:200] if str(error) else type(error).__name__
