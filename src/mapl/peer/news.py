"""News between peers: certificates and revocations, and what each says about its recipe.

News prove themselves by the authority's signature, so anybody with a certificate of the network may bring them.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from mapl.peer.identity import Identity, IdentityError

NEWS_EVERY = 2.0
"""Seconds between news while somebody is connected who is not known yet."""
AGAIN = 60.0
"""Seconds after which news are told again, in case somebody missed them."""
TOGETHER = 100
"""The most certificates in one message: it stays far below `MOST_NEWS`, however large the network is."""
MOST_NEWS = 256 * 1024
MOST_CARD = 64 * 1024
MOST_REFUSED = 16
"""After so many certificates that are refused, the rest of the news is not read: to check one takes time."""


class Herald:
    """Spreads news until all who are connected know each other, and collects what members say about their recipe."""

    def __init__(
        self,
        identity: Identity,
        card: Mapping[str, Any],
        session: Callable[[], Any],
        alive: Callable[[], frozenset[str]],
    ) -> None:
        self.identity = identity
        self.card = dict(card)
        self.cards: dict[str, dict[str, Any]] = {}
        """What members say about their recipe."""
        self._session = session
        self._alive = alive
        self._prefix = f"mapl/{identity.network_id}"
        self._me = f"{self._prefix}/{identity.name}"
        self._told: tuple[Any, ...] = ()
        self._told_at = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="news", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def declare(self, session: Any) -> list[Any]:
        """Listen to news, and answer who asks for the card, in a new session. Both last as long as what is returned."""
        return [
            session.declare_queryable(f"{self._me}/card", self._on_card_query),
            session.declare_subscriber(f"{self._prefix}/*/news", self._on_news),
        ]

    def _work(self) -> None:
        import zenoh

        while not self._stopping.wait(0.25 if not self._told else NEWS_EVERY):
            session = self._session()
            if session is None:
                continue
            try:
                self._tell(session)
                for name in self._alive() - self.cards.keys():
                    self._ask_card(session, name)
            except (zenoh.ZError, IdentityError):  # the session was closed meanwhile, or a file cannot be read now
                continue

    def _tell(self, session: Any) -> None:
        """Tell the news, if somebody may not know them."""
        import zenoh

        connected = frozenset(str(zid) for zid in session.info.peers_zid())
        alive, revocations = self._alive(), self.identity.revocations()
        members = self.identity.members()
        now = str(session.zid()), connected, alive, frozenset(members), revocations
        again = time.monotonic() > self._told_at + AGAIN
        if connected and (now != self._told or len(connected) > len(alive) or again):
            certificates = [member.certificate.decode() for member in members.values()]
            for start in range(0, len(certificates), TOGETHER):
                news = {
                    "certificates": certificates[start : start + TOGETHER],
                    "revocations": revocations.decode(),
                }
                block = zenoh.CongestionControl.BLOCK  # by default a full queue loses them
                session.put(f"{self._me}/news", json.dumps(news).encode(), congestion_control=block)
            self._told, self._told_at = now, time.monotonic()

    def _on_news(self, sample: Any) -> None:
        """They are believed if the authority signed them."""
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

    def forget(self, name: str) -> None:
        """A member came back, perhaps with another recipe: ask it again."""
        self.cards.pop(name, None)

    def _on_card_query(self, query: Any) -> None:
        query.reply(f"{self._me}/card", json.dumps(self.card))
        query.drop()

    def _ask_card(self, session: Any, name: str) -> None:
        def on_reply(reply: Any) -> None:
            if reply.ok is None:
                return
            data = reply.ok.payload.to_bytes()
            try:
                card = json.loads(data) if len(data) <= MOST_CARD else None
            except (ValueError, RecursionError):
                return
            if isinstance(card, dict):
                self.cards[name] = card

        session.get(f"{self._prefix}/{name}/card", on_reply, timeout=2.0)
